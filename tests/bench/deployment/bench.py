#!/usr/bin/env python3
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cost of a deployment that has nothing to do, by this checkout and by another commit, on one node: round trips, tasks, the controller's CPU seconds.

    bench.py [--beside COMMIT] [--rounds 3]     starts a sandbox node of its own (root)

Each commit first makes the node its own; then its no-op runs are measured, and the next commit follows. The CPU is the median of the rounds.
The engine is the light one, a stand-in; it has no part in the cost.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import first_release
from first_release import Run

from plain_node import ROOT

NAME = f"bench-deployment{os.environ.get('PYTEST_XDIST_WORKER', '')}"


def measured(code: Path, node: first_release.LinkedNode, folder: Path, rounds: int) -> tuple[Run, float]:
    """Return a no-op run with its round trips counted, and the median of the CPU seconds of others."""
    inventory = folder / first_release.COMMIT / "inventories/kpro5"
    first_release.deploy(code, node, folder, inventory)
    counted = first_release.deploy(code, node, folder, inventory, count=True)
    if set(counted.counts) != {"0"}:
        sys.exit(f"{code}: the second run is no no-op: {counted.changed}")
    return counted, statistics.median(first_release.deploy(code, node, folder, inventory).cpu_s for _round in range(rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", default=first_release.COMMIT, metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        try:
            node = first_release.start(NAME, folder)
            first_release.checked_out(folder)
            other = folder / first_release.COMMIT if options.beside == first_release.COMMIT else first_release.checked_out(folder, options.beside)
            rows = {options.beside: measured(other, node, folder, options.rounds), "this checkout": measured(ROOT, node, folder, options.rounds)}
        finally:
            first_release.stop(NAME)
    base = rows[options.beside][1]
    print(f"{'':16} {'round trips':>11} {'tasks':>6} {'controller CPU, s':>18} {'ratio':>6}")
    for name, (run, cpu_s) in rows.items():
        print(f"{name:16} {run.round_trips:11} {run.tasks:6} {cpu_s:18.1f} {cpu_s / base:6.2f}")


if __name__ == "__main__":
    main()
