# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Entry point: ``python3 tests/sandbox/node ...`` (the script ``tests/sandbox/sandbox`` calls it)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from node.cli import main  # noqa: E402  (needs the path set above)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
