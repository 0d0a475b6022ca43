# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our own JSON notes in folders that somebody else may write in."""

from __future__ import annotations

import json
import typing as t

from .held_folder_edge import read_bounded

# The largest is the last good configuration: five texts of a few KiB.
LIMIT_BYTES = 4 << 20


class UnusableFile(Exception):
    """A file that is there and can't be used; the text says why."""


def read_state(path: str) -> dict[str, t.Any]:
    """Return the JSON mapping of a file, given by an absolute path; empty if the file is absent.

    :raises UnusableFile: if something else is in its place, or its content is no such mapping.
    """
    try:
        data = read_bounded(path, LIMIT_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UnusableFile(error.strerror or "it cannot be read") from error
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnusableFile("it holds no JSON") from error
    if not isinstance(found, dict):
        raise UnusableFile("it holds no JSON object")
    return found
