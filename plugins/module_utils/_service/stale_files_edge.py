# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to stale files of ours: shared memory segments and locks of kernel builds."""

from __future__ import annotations

import contextlib
import os
import re

from .._linux.held_folder_edge import HeldFolder, Refused

# Names that NCCL, SGLang and CUDA give their segments.
_SEGMENT = re.compile(r"^(?:nccl-|sgl_shm_|sglang_|cuda\.shm\.|torch_)")


def stale_files(uid: int, shm: str, cache_roots: list[str], open_files: set[str]) -> list[str]:
    """Return segments and lock files that belong to the service user and that nobody has open.

    To be asked only while nothing of ours runs.

    :param open_files: paths that some process has open or mapped.
    """
    found = [path for path in _listed(shm) if _SEGMENT.match(os.path.basename(path))]
    for root in cache_roots:
        for folder, _folders, names in os.walk(root):
            found.extend(os.path.join(folder, name) for name in names if name == "lock" or name.endswith(".lock"))
    return sorted(path for path in found if path not in open_files and _owner(path) == uid)


def remove_file(path: str) -> None:
    """Remove a file; one that is gone already is fine. Its user owns the folders above it, and may lead them elsewhere meanwhile."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, Refused), HeldFolder.at(os.path.dirname(path)) as folder:
        folder.unlink(os.path.basename(path))


def _listed(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder)]
    except OSError:
        return []


def _owner(path: str) -> int:
    try:
        return os.lstat(path).st_uid
    except OSError:
        return -1
