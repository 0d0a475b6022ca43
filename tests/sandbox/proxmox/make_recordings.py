#!/usr/bin/env python3
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Split recorded exchanges of a real Proxmox VE 9.2 by kind: ``make_recordings.py RECORDED.jsonl recordings``.

Kinds that are left out whole (see replay/scope.py) are named in ``scenarios.json`` only. HTTP headers are dropped.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

KINDS = ("fixture", "create", "config", "config-running", "lifecycle", "exec", "locks", "pvesh", "pushpull", "info", "access", "proxmoxer",
         "protocol")  # fmt: skip


def main() -> None:
    """Write one file a kind and the list of all scenarios."""
    target = Path(sys.argv[2])
    lines: dict[str, list[str]] = {kind: [] for kind in KINDS}
    scenarios: dict[str, dict[str, Any]] = {}
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        step = json.loads(line)
        entry = scenarios.setdefault(step["scenario"], {"kind": step["kind"], "steps": 0})
        entry["steps"] += 1
        if step["kind"] not in lines:
            continue
        for part in ("request", "response"):
            step[part].pop("headers", None)
        lines[step["kind"]].append(json.dumps(step, ensure_ascii=False, separators=(",", ":"), sort_keys=True))
    for kind, texts in lines.items():
        (target / f"{kind}.jsonl").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    (target / "scenarios.json").write_text(json.dumps(scenarios, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
