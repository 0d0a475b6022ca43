# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to folders and files that somebody else may change while root works there.

A folder is held by its descriptor, and reached step by step. As long as nobody but root (or this process' own user) can change the
folders passed so far, links are followed: they are the administrator's. From the first folder that anybody else can change, no link is
followed, and from the first folder of another owner all work is done with that owner's rights: what its owner could not do, root
doesn't do for it. So nothing has to be given away afterwards.

Files are regular ones only, opened without waiting, and read up to a limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import functools
import os
import secrets
import stat
import threading
import typing as t

MIB = 1 << 20
# Enough for what we write ourselves; callers that read something larger say so.
SMALL_BYTES = 16 * MIB
_MOST_LINKS = 40
# Each step holds a descriptor.
_DEEPEST = 200
_TRIES = 64
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A lease or a pipe must not make the opening wait, a terminal not become ours.
_FILE_FLAGS = os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASS_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OVERFLOW_ID = 65534
_NO_ID = 0xFFFFFFFF
_LINK_WORDS = "it is a link in a folder that others than root can change"


class Refused(OSError):
    """This process may not touch the thing at this path."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(errno.EPERM, reason, path)


@dataclasses.dataclass(frozen=True)
class Identity:
    """Whose rights are used; equal to the process' own where there is nothing to switch."""

    uid: int
    gid: int

    @classmethod
    def own(cls) -> Identity:
        return cls(os.geteuid(), os.getegid())


class HeldFolder:
    """A folder held by its descriptor. Names below it are relative, without ``..``.

    :ivar path: how it was reached, for messages only.
    :ivar trusted: nobody else can have chosen what lies here.
    :ivar identity: with whose rights work is done here.
    """

    def __init__(self, descriptor: int, path: str, trusted: bool, identity: Identity, depth: int = 0) -> None:
        self.descriptor = descriptor
        self.path = path
        self._depth = depth
        status = os.fstat(descriptor)
        own = os.geteuid()
        if own == 0 and identity.uid == 0 and status.st_uid != 0 and not _unmapped(status.st_uid):
            identity = Identity(status.st_uid, status.st_gid)
        self.identity = identity
        # Nobody else can put another thing under a name that is here.
        self._exclusive = status.st_uid in (0, own) and not status.st_mode & 0o022
        self.trusted = trusted and self._exclusive
        # In /tmp others can add names, but what root has put there stays where it is.
        self._leads_on = self.trusted or (trusted and status.st_uid == 0 and bool(status.st_mode & stat.S_ISVTX))
        self.owner = status.st_uid

    # -- reaching it ----------------------------------------------------------

    @classmethod
    def at(cls, path: str, *, make: bool = False) -> HeldFolder:
        """Hold the folder of an absolute path.

        :param make: make what is missing of it, 0755.
        :raises OSError: if it isn't there; :class:`Refused` if somebody else could have put it there.
        """
        if not os.path.isabs(path):
            raise Refused(path, "it is no absolute path")
        with cls(os.open("/", _FOLDER_FLAGS), "/", True, Identity.own()) as root:
            return root.folder(path, make=make)

    @classmethod
    def seen_by(cls, path: str) -> HeldFolder:
        """Hold the root folder that a process of another mount namespace sees (``/proc/PID/root``); no link in it is followed."""
        # The kernel's own link, which no walk by names can follow.
        return cls(os.open(path, _FOLDER_FLAGS & ~os.O_NOFOLLOW), path, False, Identity.own())

    def folder(self, name: str, *, make: bool = False) -> HeldFolder:
        """Hold a folder below this one; see :meth:`at`."""
        found = _walk(self, name, make)
        if found is self:
            return HeldFolder(os.dup(self.descriptor), self.path, self.trusted, self.identity, self._depth)
        return found if isinstance(found, HeldFolder) else found[0].entered(found[1], make)

    def entered(self, name: str, make: bool) -> HeldFolder:
        """Hold a folder right in this one that is no link.

        :raises OSError: as :meth:`at`.
        """
        _check_name(name)
        path = os.path.join(self.path, name)
        if self._depth >= _DEEPEST:
            raise Refused(path, "it is nested too deeply")
        with self._doing(name):
            try:
                descriptor = self._open_folder(name)
            except FileNotFoundError:
                if not make:
                    raise
                self._check_own()
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=self.descriptor)
                descriptor = self._open_folder(name)
        return HeldFolder(descriptor, path, self._leads_on, self.identity, self._depth + 1)

    def strictly(self, path: str, *, make: bool = False) -> HeldFolder:
        """Hold a folder below this one, without following any link, root's own neither."""
        found = self
        for step in _steps(path):
            found = found.entered(step, make)
        return found.folder(".") if found is self else found

    def _open_folder(self, name: str) -> int:
        try:
            return os.open(name, _FOLDER_FLAGS, dir_fd=self.descriptor)
        except PermissionError:
            # It may be passed, though not listed.
            return os.open(name, _PASS_FLAGS, dir_fd=self.descriptor)
        except NotADirectoryError:
            found = self._own_status(name)
            if found and stat.S_ISLNK(found.st_mode):
                raise Refused(os.path.join(self.path, name), _LINK_WORDS) from None
            raise

    def __enter__(self) -> HeldFolder:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it."""
        descriptor, self.descriptor = getattr(self, "descriptor", -1), -1
        if descriptor >= 0:
            os.close(descriptor)

    # -- looking --------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names in this folder."""
        with self._doing("."):
            try:
                return sorted(os.listdir(self.descriptor))
            except OSError:
                # A folder that may only be passed.
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None

    def status(self, name: str) -> os.stat_result | None:
        """Return what lies under a name below this folder, a link where links aren't followed; None if nothing does."""
        try:
            found = _walk(self, name, make=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if isinstance(found, HeldFolder):
            return os.fstat(found.descriptor)
        parent, last = found
        return parent._own_status(last)

    def _own_status(self, name: str) -> os.stat_result | None:
        _check_name(name)
        with self._doing(name):
            try:
                return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def open(self, name: str) -> int:
        """Return a descriptor for reading a regular file below this folder.

        :raises OSError: if it isn't there; :class:`Refused` if it is something else.
        """
        found = _walk(self, name, make=False)
        if isinstance(found, HeldFolder):
            raise Refused(found.path, "it is a folder and not a plain file")
        parent, last = found
        return parent.open_own(last)

    def open_own(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Return a descriptor for a regular file right in this folder; no link is followed."""
        _check_name(name)
        path = os.path.join(self.path, name)
        with self._doing(name):
            # Opening a device can set it off: first a look that touches nothing. It may be swapped before it is opened,
            # which is why that doesn't wait and is looked at again.
            _check_regular(os.stat(name, dir_fd=self.descriptor, follow_symlinks=False), path)
            descriptor = os.open(name, flags | _FILE_FLAGS, dir_fd=self.descriptor)
        try:
            _check_regular(os.fstat(descriptor), path)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def read(self, name: str, limit_bytes: int = SMALL_BYTES) -> bytes:
        """Return the content of a regular file.

        :raises OSError: as :meth:`open`; :class:`Refused` if it is longer than the limit.
        """
        descriptor = self.open(name)
        try:
            return read_descriptor(descriptor, os.path.join(self.path, name), limit_bytes)
        finally:
            os.close(descriptor)

    def disk_bytes(self, name: str) -> int:
        """Return the bytes that a file or tree below this folder takes on disk (holes do not count); links count nothing."""
        found = self._own_status(name)
        if found is None or not stat.S_ISDIR(found.st_mode):
            return found.st_blocks * 512 if found and stat.S_ISREG(found.st_mode) else 0
        try:
            with self.entered(name, False) as folder:
                return sum(folder.disk_bytes(one) for one in folder.names())
        except OSError:
            return 0

    # -- changing -------------------------------------------------------------

    def create(self, name: str, mode: int = 0o644) -> int:
        """Return a descriptor for a file that this call makes here; whatever had the name is removed."""
        _check_name(name)
        self._check_own()
        path = os.path.join(self.path, name)
        for _try in range(_TRIES):
            with contextlib.suppress(FileExistsError), self._doing(name):
                return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FILE_FLAGS, mode, dir_fd=self.descriptor)
            self.remove(name)
        raise Refused(path, "somebody else puts something there again and again")

    def keep(self, name: str, mode: int = 0o644) -> int:
        """Return a descriptor for reading and writing a file here that is ours, made if there is none; anything else is removed."""
        _check_name(name)
        self._check_own()
        for _try in range(_TRIES):
            with contextlib.suppress(FileNotFoundError, PermissionError, Refused):
                descriptor = self.open_own(name, os.O_RDWR)
                found = os.fstat(descriptor)
                if found.st_nlink == 1 and found.st_uid == self.identity.uid:
                    return descriptor
                os.close(descriptor)
            with contextlib.suppress(FileExistsError), self._doing(name):
                return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FILE_FLAGS, mode, dir_fd=self.descriptor)
            self.remove(name)
        raise Refused(os.path.join(self.path, name), "somebody else puts something there again and again")

    def write(self, name: str, data: bytes, mode: int = 0o644, owner: tuple[int, int] | None = None) -> None:
        """Replace a small file so that a power cut leaves the old or the new one, and nobody sees a part of it.

        :param owner: uid and gid of the file; None: whoever owns what is made here.
        """
        _check_name(name)
        self._check_own(owner is not None)
        draft = f".kpro-{secrets.token_hex(8)}"
        with self._doing(name, owner is None):
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE_FLAGS, 0o600, dir_fd=self.descriptor)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    if owner:
                        os.fchown(file.fileno(), *owner)
                    os.fchmod(file.fileno(), mode)
                    os.fsync(file.fileno())
                os.rename(draft, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
            except OSError:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(draft, dir_fd=self.descriptor)
                raise

    def move(self, name: str, to: HeldFolder, new_name: str) -> None:
        """Give a file or folder another place; a file or an empty folder that is there is replaced."""
        _check_name(name)
        _check_name(new_name)
        to._check_own()
        with to._doing(new_name):
            os.rename(name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=to.descriptor)

    def link(self, name: str, to: HeldFolder, new_name: str) -> None:
        """Give a regular file a second name, or a copy where that can't be; whatever had the name is removed."""
        source = self.open_own(name)
        try:
            wanted = os.fstat(source)
            to.remove(new_name)
            with contextlib.suppress(OSError), to._doing(new_name):
                os.link(name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=to.descriptor, follow_symlinks=False)
                found = to._own_status(new_name)
                if found and (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                    return
            _copy(source, to.create(new_name), wanted.st_size)
        finally:
            os.close(source)

    def remove(self, name: str) -> None:
        """Remove what lies here under a name, if anything does; a tree is walked by descriptors, links are removed and not followed."""
        found = self._own_status(name)
        if found is None:
            return
        self._check_own()
        if not stat.S_ISDIR(found.st_mode):
            self._unlink(name)
            return
        try:
            with self.entered(name, False) as folder:
                folder._check_own()
                for one in folder.names():
                    folder.remove(one)
        except (FileNotFoundError, NotADirectoryError):
            return
        self.remove_empty(name)

    def remove_empty(self, name: str) -> None:
        """Remove an empty folder that lies here, if it does."""
        _check_name(name)
        with contextlib.suppress(FileNotFoundError), self._doing(name):
            os.rmdir(name, dir_fd=self.descriptor)

    def _unlink(self, name: str) -> None:
        _check_name(name)
        with contextlib.suppress(FileNotFoundError), self._doing(name):
            os.unlink(name, dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        """Remove a file or link that lies here, if it does; never a folder."""
        self._check_own()
        self._unlink(name)

    def make_link(self, name: str, target: str) -> None:
        """Make a link here, if there is none of that name."""
        _check_name(name)
        self._check_own()
        with self._doing(name):
            try:
                os.symlink(target, name, dir_fd=self.descriptor)
            except FileExistsError:
                found = self._own_status(name)
                if not found or not stat.S_ISLNK(found.st_mode):
                    raise

    def open_to_readers(self, name: str) -> None:
        """Let everybody read a file or enter a folder that lies here, if only its owner, whose rights are used, could have put it there."""
        found = self._own_status(name)
        bits = 0 if found is None else 0o555 if stat.S_ISDIR(found.st_mode) else 0o444 if stat.S_ISREG(found.st_mode) else 0
        if found is None or not bits or found.st_mode & bits == bits or found.st_uid != self.identity.uid:
            return
        if not self.trusted and self.identity.uid == 0 == os.geteuid():
            return
        with self._doing(name):
            flags = _FOLDER_FLAGS if stat.S_ISDIR(found.st_mode) else os.O_RDONLY | _FILE_FLAGS
            descriptor = os.open(name, flags, dir_fd=self.descriptor)
            try:
                held = os.fstat(descriptor)
                if (held.st_dev, held.st_ino) == (found.st_dev, found.st_ino):
                    os.fchmod(descriptor, stat.S_IMODE(held.st_mode) | bits)
            finally:
                os.close(descriptor)

    def make_for(self, name: str, uid: int, gid: int, mode: int = 0o755) -> None:
        """Make a folder here for an owner; nothing is given away that somebody else could have put in its place.

        :raises OSError: if there is something, or this folder belongs to a third one.
        """
        _check_name(name)
        path = os.path.join(self.path, name)
        by_root = self._exclusive and self.identity.uid == os.geteuid()
        if not by_root and (self.owner, self.identity.uid) != (uid, uid):
            raise Refused(path, f"the folder above it belongs to user {self.owner}, so it can't be made for user {uid}")
        with self._doing(name):
            os.mkdir(name, 0o700, dir_fd=self.descriptor)
            descriptor = os.open(name, _FOLDER_FLAGS, dir_fd=self.descriptor)
            try:
                if by_root:
                    # Between the two calls only root could have changed this name.
                    os.fchown(descriptor, uid, gid)
                os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)

    def set_owner_and_mode(self, name: str, uid: int, gid: int, mode: int) -> None:
        """Give a plain file here, that only root can have put here, an owner and a mode."""
        self._check_own(True)
        descriptor = self.open_own(name)
        try:
            if not self.trusted and os.fstat(descriptor).st_nlink != 1:
                raise Refused(os.path.join(self.path, name), "it has a second name, so that it may be another's file")
            os.fchown(descriptor, uid, gid)
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)

    def sync(self) -> None:
        """Make the names in this folder survive a power cut."""
        os.fsync(self.descriptor)

    def space(self) -> os.statvfs_result:
        """Return what the file system says about its space."""
        return os.fstatvfs(self.descriptor)

    def _check_own(self, by_root: bool = False) -> None:
        """Refuse to change a folder that somebody else may only have moved here."""
        own = os.geteuid()
        if self.trusted or own != 0 or (self.owner == self.identity.uid and not (by_root and self.owner != own)):
            return
        if _unmapped(self.owner) and self.identity.uid == own:
            return
        raise _foreign(self.path, self.owner, self.identity.uid)

    @contextlib.contextmanager
    def _doing(self, name: str, switch: bool = True) -> t.Iterator[None]:
        """Use the rights that belong here; an error then names the whole path, and says whose the folder is if that is the reason."""
        path = os.path.join(self.path, name)
        with acting_as(self.identity) if switch else contextlib.nullcontext():
            try:
                yield
            except Refused:
                raise
            except PermissionError as error:
                foreign = self.owner != self.identity.uid and not _unmapped(self.owner)
                raise (_foreign(self.path, self.owner, self.identity.uid) if foreign else _told(error, path)) from None
            except OSError as error:
                raise _told(error, path) from None


def _walk(start: HeldFolder, name: str, make: bool, own_links: bool = False) -> HeldFolder | tuple[HeldFolder, str]:
    """Go down to the last step of a path and return the folder there with that step, or the folder if it ends in one (``.``, ``/``).

    :param own_links: follow also links of another owner, as long as they lead only through what belongs to that same owner.
    """
    todo, stack, links = _steps(name), [start], 0
    if start.path != "/" and ".." in todo:
        raise Refused(os.path.join(start.path, name), "it leads out of the folder")
    while todo:
        here, step = stack[-1], todo.pop(0)
        if step == "..":
            stack = _up(stack, own_links)
        elif (target := _link_of(here, step, own_links)) is not None:
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.path.join(here.path, step))
            if target.startswith("/"):
                stack = [_top()]
            todo = _steps(target) + todo
        elif todo:
            stack.append(here.entered(step, make))
        else:
            return here, step
    return stack[-1]


def _steps(path: str) -> list[str]:
    return [step for step in path.split("/") if step not in ("", ".")]


def _top() -> HeldFolder:
    return HeldFolder(os.open("/", _FOLDER_FLAGS), "/", True, Identity.own())


def _up(stack: list[HeldFolder], own_links: bool) -> list[HeldFolder]:
    """Return the held folders one step up; only where nobody else can have moved the lowest one, or within one owner's folders."""
    here = stack[-1]
    if here.path == "/":
        return stack
    if len(stack) == 1 and here.trusted:
        # By its real path, which only root can change.
        stack = [_top()]
        for step in _steps(os.readlink(f"/proc/self/fd/{here.descriptor}")):
            stack.append(stack[-1].entered(step, False))
    if len(stack) > 1 and (here.trusted or (own_links and stack[-2].owner == here.owner)):
        return stack[:-1]
    raise Refused(os.path.join(here.path, ".."), "it leads out of the folder")


def _link_of(folder: HeldFolder, name: str, own_links: bool) -> str | None:
    """Return where a link leads that may be followed; None if there is no such link."""
    if not (folder.trusted or own_links):
        return None
    try:
        target = os.readlink(name, dir_fd=folder.descriptor)
    except OSError:
        return None
    return target if folder.trusted or not target.startswith("/") else None


def _check_name(name: str) -> None:
    """Refuse what is no name of one thing in a folder."""
    if "/" in name or name in ("", ".", ".."):
        raise Refused(name, "it is no plain name")


def _check_regular(status: os.stat_result, path: str) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISLNK, "a link"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    kind = next((word for check, word in kinds if check(status.st_mode)), "a device")
    raise Refused(path, f"it is {kind} and not a plain file")


def _foreign(path: str, owner: int, above: int) -> Refused:
    return Refused(path, f"it belongs to user {owner} and lies in a folder of user {above}: give both to one user, or remove it")


def _told(error: OSError, path: str) -> OSError:
    """Return an error that names the whole path."""
    return Refused(path, _LINK_WORDS) if error.errno == errno.ELOOP else OSError(error.errno or errno.EIO, error.strerror or str(error), path)


def _copy(source: int, target: int, size_bytes: int) -> None:
    try:
        at = 0
        while at < size_bytes and (block := os.pread(source, min(MIB, size_bytes - at), at)):
            at += os.write(target, block)
        os.fsync(target)
    finally:
        os.close(target)


# -- single files -------------------------------------------------------------


def read_bounded(path: str, limit_bytes: int = SMALL_BYTES, *, own_links: bool = False) -> bytes:
    """Return the content of a regular file of at most so many bytes.

    :param own_links: see :func:`open_regular`.
    :raises OSError: if it isn't there; :class:`Refused` if it is something else or too long.
    """
    descriptor = open_regular(path, own_links=own_links)
    try:
        return read_descriptor(descriptor, path, limit_bytes)
    finally:
        os.close(descriptor)


def open_regular(path: str, *, own_links: bool = False) -> int:
    """Return a descriptor for reading a regular file, given by an absolute path.

    :param own_links: follow also links that others than root can have made, as long as they lead only through what belongs to
        the same owner (as in the cache of a hub's client).
    :raises OSError: as :func:`read_bounded`.
    """
    if not os.path.isabs(path):
        raise Refused(path, "it is no absolute path")
    found = _walk(_top(), path, False, own_links)
    if isinstance(found, HeldFolder):
        raise Refused(path, "it is a folder and not a plain file")
    return found[0].open_own(found[1])


def read_descriptor(descriptor: int, path: str, limit_bytes: int) -> bytes:
    """Return all bytes of an open file.

    :raises Refused: if they are more than the limit.
    """
    data = bytearray()
    while block := os.read(descriptor, min(MIB, limit_bytes + 1 - len(data))):
        data += block
        if len(data) > limit_bytes:
            raise Refused(path, f"it is longer than {limit_bytes} bytes")
    return bytes(data)


# -- rights -------------------------------------------------------------------

_acting_now = threading.local()


@contextlib.contextmanager
def acting_as(identity: Identity) -> t.Iterator[None]:
    """Reach files with another user's rights in this thread.

    :raises Refused: if the system does not let this process do so.
    """
    now: Identity = getattr(_acting_now, "identity", None) or Identity.own()
    if identity == now or os.geteuid() != 0:
        yield
        return
    _become(identity)
    _acting_now.identity = identity
    try:
        yield
    finally:
        _become(now)
        _acting_now.identity = now


def _become(identity: Identity) -> None:
    library = _library()
    # The group first: it can't be changed any more with another user's rights. And the way back is the other way round.
    library.setfsuid(0)
    library.setfsgid(identity.gid)
    library.setfsuid(identity.uid)
    # These calls report nothing; asking with an id that is none changes nothing and tells the present one.
    if (library.setfsuid(_NO_ID), library.setfsgid(_NO_ID)) != (identity.uid, identity.gid):
        library.setfsuid(os.geteuid())
        library.setfsgid(os.getegid())
        raise Refused(f"user {identity.uid}", "this process can't use that user's rights")


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    for name in ("setfsuid", "setfsgid"):
        function = getattr(library, name)
        function.argtypes, function.restype = [ctypes.c_uint], ctypes.c_uint
    return library


@functools.cache
def _in_user_namespace() -> bool:
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            return file.read().split() != ["0", "0", "4294967295"]
    except OSError:
        return False


def _unmapped(uid: int) -> bool:
    """Tell whether an owner is one of the node, as a container sees it: there is nobody here whose rights could be used."""
    return uid == _OVERFLOW_ID and _in_user_namespace()
