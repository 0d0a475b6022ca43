#!/usr/bin/env python3
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Does the newest SGLang on the package index still follow the newest rules? For a scheduled job that gates nothing.

Exit status: 0 if it does, 1 if a rule has changed, 2 if it can't be told.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "collections")]

from compare import compare  # noqa: E402
from wheels import fetch  # noqa: E402

from ansible_collections.kpro.llm.plugins.module_utils._engine.versions import NEWEST, release_of  # noqa: E402

STARTS = 1000


def newest_version() -> str:
    """Return the newest release that the package index lists."""
    command = [sys.executable, "-m", "pip", "index", "versions", "--disable-pip-version-check", "sglang"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the package index can't be asked: {done.stderr.strip()[-300:]}")
    return done.stdout.split("(", 1)[1].split(")", 1)[0]


def main() -> int:
    """Compare, and say what was found."""
    try:
        version = sys.argv[1] if len(sys.argv) > 1 else newest_version()
        known = "known" if release_of(version) <= release_of(NEWEST) else f"newer than {NEWEST}, which the rules were read in"
        print(f"newest on the index: {version}, {known}")
        result = compare(fetch(version), STARTS)
    except (RuntimeError, KeyError, AttributeError, NameError, StopIteration) as error:
        print(f"can't be told: {error!r}. The engine's sources have moved; read its sizing again before the rules are extended")
        return 2
    print(result.sentence(version))
    return 1 if result.differences else 0


if __name__ == "__main__":
    sys.exit(main())
