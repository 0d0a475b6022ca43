# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the files that describe a node's guests."""

from __future__ import annotations

import os
import pathlib
import re
import stat

MOST_BYTES = 1 << 20  # pmxcfs takes no larger file
MOST_FILES = 64


def read_regular(path: pathlib.Path) -> str:
    """Return the beginning of a regular file; empty for anything else, and for what can't be read.

    A FIFO where a file is expected would block the reader for ever, so that it is opened without waiting.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        try:
            return file.read(MOST_BYTES).decode("utf-8", "surrogateescape")
        except OSError:
            return ""


def guest_files(root: pathlib.Path, kind: str) -> dict[int, str]:
    """Return the configuration files of this node's containers (``lxc``) or VMs (``qemu-server``) by id.

    A guest that has moved away between the listing and the reading has an empty text.
    """
    folder = root / "etc/pve" / kind
    return {int(path.stem): read_regular(path) for path in sorted(folder.glob("*.conf")) if re.fullmatch(r"[1-9]\d{1,9}", path.stem)}


def read_included(root: pathlib.Path, path: str) -> tuple[str, ...]:
    """Return what LXC reads for an included path: the file, or all ``*.conf`` of a folder."""
    place = root / path.lstrip("/")
    if not path.startswith("/"):
        return ()
    if os.path.isdir(place):
        return tuple(read_regular(each) for each in sorted(place.glob("*.conf"))[:MOST_FILES])
    text = read_regular(place)
    return (text,) if text else ()


def is_being_made(text: str) -> bool:
    """Tell whether a container's file is that of a creation which has not ended: it shows none of its devices yet."""
    return re.search(r"^lock:\s*create\s*$", text.partition("\n[")[0], re.MULTILINE) is not None
