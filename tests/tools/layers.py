# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Provisioned disks of sandbox nodes, each made once for its content. Standard library only.

A family is what its layers' names begin with. While one works on what goes into a layer, the environment variable
``KPRO_TEST_ANY_LAYER`` takes the family's last one, whatever it was made of.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from plain_node import SANDBOX

# More than one checkout may use the sandbox: none of them loses what it has just made.
_KEPT = 3


def made(family: str, content: str, provision: Callable[[str], None]) -> str:
    """Return the name of the layer for a content, made first if it is not there; ``provision`` gets the name of the node to start and prepare."""
    key = f"{family}-{content}"
    # Test files may run side by side: one makes the layer, the others wait for it.
    with open(os.path.join(tempfile.gettempdir(), f"kpro-layer-{family}.lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if "KPRO_TEST_ANY_LAYER" in os.environ and (last := _of(family)):
            return last[-1]
        if subprocess.run([SANDBOX, "layer", "has", key], check=False, capture_output=True).returncode:
            node = f"{family}-base"
            try:
                provision(node)
                subprocess.run([SANDBOX, "layer", "save", node, key], check=True)
            finally:
                subprocess.run([SANDBOX, "down", node], check=False, capture_output=True)
            for stale in _of(family)[:-_KEPT]:
                # Refused where a node still stands on it.
                subprocess.run([SANDBOX, "layer", "remove", stale], check=False, capture_output=True)
    return key


def _of(family: str) -> list[str]:
    """Return the names of a family's layers, oldest first."""
    folder = Path(os.environ.get("KPRO_SANDBOX_DIR") or "/var/lib/kpro-sandbox") / "cache" / "layer"
    return [path.name for path in sorted(folder.glob(f"{family}-*"), key=lambda path: (path / "made.json").stat().st_mtime) if (path / "made.json").exists()]
