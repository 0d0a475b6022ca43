# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to small files of state: only regular files, bounded in size, never waited for. PRIVATE: for use in kpro.llm only.

The reader of stored models has the same need; once both are merged, one of them goes.
"""

from __future__ import annotations

import json
import os
import stat
import typing as t

# The largest is the last good configuration: five texts of a few KiB.
LIMIT_BYTES = 4 << 20


class UnusableFile(Exception):
    """A file that is there and can't be used; the text says why."""


def read_state(path: str) -> dict[str, t.Any]:
    """Return the JSON mapping of a file; empty if the file is absent.

    :raises UnusableFile: if something else is in its place, or its content is no such mapping.
    """
    try:
        # A FIFO would block an ordinary open, a link could lead anywhere.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UnusableFile("it is a link" if os.path.islink(path) else f"it cannot be read ({error.strerror})") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnusableFile("it is no regular file")
        try:
            data = file.read(LIMIT_BYTES + 1)
        except OSError as error:
            raise UnusableFile(f"it cannot be read ({error.strerror})") from error
    if len(data) > LIMIT_BYTES:
        raise UnusableFile(f"it is larger than {LIMIT_BYTES >> 20} MiB")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnusableFile("it holds no JSON") from error
    if not isinstance(found, dict):
        raise UnusableFile("it holds no JSON object")
    return found
