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
import tempfile

from .._core.errors import KproError


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file as found; ``owner`` and ``group`` are names, or numbers where the system knows no name."""

    path: str
    text: str
    mode: int
    owner: str
    group: str


def read_text_file(path: str) -> TextFile | None:
    """Return the file, or None if there is none.

    :raises KproError: if something else is in its place or it cannot be read.
    """
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            status = os.fstat(file.fileno())
            return TextFile(path, file.read(), stat.S_IMODE(status.st_mode), _user_name(status.st_uid), _group_name(status.st_gid))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KproError(path, f"it cannot be read ({error.strerror})") from error


def write_text_file(file: TextFile) -> None:
    """Write atomically, creating missing folders (0755); nobody sees the content before owner and mode are right.

    :raises KproError: if owner or group is unknown or the file system refuses.
    """
    uid, gid = user_id(file.owner), group_id(file.group)
    folder = os.path.dirname(file.path)
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(prefix=".kpro-", dir=folder)
    except OSError as error:
        raise KproError(file.path, f"it cannot be written ({error.strerror})") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape", newline="") as out:
            out.write(file.text)
            out.flush()
            os.fchown(out.fileno(), uid, gid)
            os.fchmod(out.fileno(), file.mode)
            os.fsync(out.fileno())
        os.replace(draft, file.path)
    except OSError as error:
        os.unlink(draft)
        raise KproError(file.path, f"it cannot be written ({error.strerror})") from error


def set_owner_and_mode(file: TextFile) -> None:
    """Give a file that is there the owner, group and mode of ``file``."""
    os.chown(file.path, user_id(file.owner), group_id(file.group))
    os.chmod(file.path, file.mode)


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
