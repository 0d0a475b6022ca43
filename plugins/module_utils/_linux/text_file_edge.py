# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to small text files: read with owner and mode, write whole or not at all."""

from __future__ import annotations

import dataclasses
import grp
import os
import pwd
import stat

from .._core.errors import KproError
from .held_folder_edge import SMALL_BYTES, HeldFolder, Refused, open_regular, read_descriptor


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file as found; ``owner`` and ``group`` are names, or numbers where the system knows no name."""

    path: str
    text: str
    mode: int
    owner: str
    group: str


def read_text_file(path: str, limit_bytes: int = SMALL_BYTES) -> TextFile | None:
    """Return the file, or None if there is none.

    :raises KproError: if something else is in its place, it is longer than the limit, or it cannot be read.
    """
    try:
        descriptor = open_regular(os.path.abspath(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KproError(path, f"it cannot be read ({error.strerror})") from error
    try:
        status = os.fstat(descriptor)
        text = read_descriptor(descriptor, path, limit_bytes).decode("utf-8", "surrogateescape")
    except OSError as error:
        raise KproError(path, f"it cannot be read ({error.strerror})") from error
    finally:
        os.close(descriptor)
    return TextFile(path, text, stat.S_IMODE(status.st_mode), _user_name(status.st_uid), _group_name(status.st_gid))


def write_text_file(file: TextFile) -> None:
    """Write atomically, creating missing folders (0755); nobody sees the content before owner and mode are right.

    :raises KproError: if owner or group is unknown or the file system refuses.
    """
    owner = user_id(file.owner), group_id(file.group)
    data = file.text.encode("utf-8", "surrogateescape")
    try:
        with HeldFolder.at(os.path.dirname(os.path.abspath(file.path)), make=True) as folder:
            folder.write(os.path.basename(file.path), data, file.mode, owner)
    except OSError as error:
        raise KproError(_told_path(error, file.path), f"it cannot be written ({error.strerror})") from error


def set_owner_and_mode(file: TextFile) -> None:
    """Give a file that is there the owner, group and mode of ``file``.

    :raises KproError: if owner or group is unknown, or the file is not one that only root can have put there.
    """
    ids = user_id(file.owner), group_id(file.group)
    try:
        with HeldFolder.at(os.path.dirname(os.path.abspath(file.path))) as folder:
            folder.set_owner_and_mode(os.path.basename(file.path), *ids, file.mode)
    except OSError as error:
        raise KproError(_told_path(error, file.path), f"its owner and mode cannot be set ({error.strerror})") from error


def _told_path(error: OSError, path: str) -> str:
    return str(error.filename) if isinstance(error, Refused) else path


def user_id(name: str) -> int:
    """Return the number of a user given by name or number.

    :raises KproError: if the system does not know it.
    """
    if name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise KproError(f"user {name}", "there is no such user here", "Run the role kpro.llm.sglang_runtime first, it creates it") from error


def group_id(name: str) -> int:
    """Return the number of a group given by name or number.

    :raises KproError: if the system does not know it.
    """
    if name.isdigit():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError as error:
        raise KproError(f"group {name}", "there is no such group here", "Run the role kpro.llm.sglang_runtime first, it creates it") from error


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
