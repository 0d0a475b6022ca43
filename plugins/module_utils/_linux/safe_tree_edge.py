# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to folders that somebody else can write: walked by descriptors, links never followed.

On the way to a folder, a link is followed only where nobody but root can change it (an administrator's ``/srv/models``). From the first component
that others can write, and everywhere below the folder, each step is opened without following links.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import typing as t

from .._core.errors import KproError

_STEP = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MOST_LINKS = 40


class Folder:
    """An open folder.

    :param path: where it lies, without links.
    :param linked: a link of an administrator led to it.
    """

    def __init__(self, descriptor: int, path: str, linked: bool = False) -> None:
        self.descriptor = descriptor
        self.path = path
        self.linked = linked
        self.mount = _mount_number(descriptor)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self.descriptor)

    @property
    def number(self) -> tuple[int, int]:
        """Device and inode."""
        found = os.fstat(self.descriptor)
        return found.st_dev, found.st_ino

    def names(self) -> list[str]:
        """Return the names in the folder, sorted."""
        return sorted(os.listdir(self.descriptor))

    def look(self, name: str) -> os.stat_result | None:
        """Return what a name is, a link itself and not what it leads to; None if it is not there."""
        with contextlib.suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        return None

    def enter(self, name: str) -> Folder | None:
        """Open a folder in this one; None if it is something else, not there, or something is mounted on it."""
        try:
            found = Folder(os.open(name, _STEP, dir_fd=self.descriptor), os.path.join(self.path, name))
        except OSError:
            return None
        if found.mount != self.mount:
            os.close(found.descriptor)
            return None
        return found

    def read(self, name: str, most_bytes: int) -> bytes | None:
        """Return the content of a regular file; None if it is something else, not there, or longer."""
        try:
            descriptor = os.open(name, _FILE, dir_fd=self.descriptor)
        except OSError:
            return None
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size > most_bytes:
                return None
            content = file.read(most_bytes + 1)
        return content if len(content) <= most_bytes else None

    def remove_file(self, name: str) -> None:
        """Remove a name that is no folder; a link loses itself, not what it leads to."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def remove_if_empty(self, name: str) -> bool:
        """Remove a folder if nothing is in it, on it, or in its place; tell whether it is gone."""
        try:
            os.rmdir(name, dir_fd=self.descriptor)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def open_folder(path: str, root: str = "/") -> Folder | None:
    """Open a folder by its absolute path; None if there is none.

    :param root: where the file tree begins; links are read as from there.
    :raises KproError: if a link, or something else than a folder, stands where others than root could have put it.
    """
    parts = _resolved([], path)
    for links in range(_MOST_LINKS):
        found = _walk(path, parts, root)
        if found is None:
            return None
        if isinstance(found, int):
            return Folder(found, os.path.join("/", *parts), linked=links > 0)
        parts = found
    raise KproError(path, f"more than {_MOST_LINKS} links lead to it", "Name the folder itself")


def _walk(path: str, parts: t.Sequence[str], root: str) -> int | list[str] | None:
    """Open the folder step by step; return its descriptor, the parts with the first trusted link resolved, or None if it is absent."""
    current = os.open(root, _STEP)
    trusted = True
    try:
        for number, name in enumerate(parts):
            trusted = trusted and _only_root_writes(current)
            try:
                following = os.open(name, _STEP, dir_fd=current)
            except FileNotFoundError:
                return None
            except OSError as error:
                target = _link_at(current, name)
                where = f"/{'/'.join(parts[: number + 1])}"
                if not target:
                    raise KproError(path, f"{where} cannot be opened as a folder ({error.strerror})", "Correct the path") from error
                if not trusted:
                    raise KproError(path, f"{where} is a link that others than root could have made", "Remove the link, or name the folder itself") from error
                return _resolved([] if target.startswith("/") else parts[:number], target) + list(parts[number + 1 :])
            os.close(current)
            current = following
        return os.dup(current)
    finally:
        os.close(current)


def _resolved(start: t.Sequence[str], path: str) -> list[str]:
    """Return the parts of a path from a folder whose own path holds no link."""
    found = list(start)
    for part in path.split("/"):
        if part == "..":
            found = found[:-1]
        elif part not in ("", "."):
            found.append(part)
    return found


def _link_at(folder: int, name: str) -> str:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return ""


def _only_root_writes(folder: int) -> bool:
    found = os.fstat(folder)
    return found.st_uid == 0 and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _mount_number(descriptor: int) -> int:
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
        found = re.search(r"^mnt_id:\s*(\d+)$", file.read(), re.MULTILINE)
    return int(found[1]) if found else 0
