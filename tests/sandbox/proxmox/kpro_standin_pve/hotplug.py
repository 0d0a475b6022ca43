# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bind a file or folder of the node into a running container's mount namespace."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from .driver import HotplugError

# Numbers of <asm-generic/unistd.h>, the same on all architectures for calls this new.
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_MOUNT_SETATTR = 428, 429, 442
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH, AT_FDCWD, AT_EMPTY_PATH, MOUNT_ATTR_RDONLY = 4, -100, 0x1000, 1


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def bind(pid: int, source: Path, target: str, read_only: bool) -> None:
    """Bind ``source`` onto ``target`` in the container whose init is ``pid``; the target is made when absent."""
    libc = ctypes.CDLL(None, use_errno=True)
    tree = libc.syscall(SYS_OPEN_TREE, AT_FDCWD, os.fsencode(source), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)
    if tree < 0:
        raise HotplugError(f"open_tree failed: {os.strerror(ctypes.get_errno())}")
    if read_only:
        attributes = _MountAttr(attr_set=MOUNT_ATTR_RDONLY)
        libc.syscall(SYS_MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, ctypes.byref(attributes), ctypes.sizeof(attributes))
    _make_point(pid, source.is_dir(), target.lstrip("/"))
    # A child enters the container's mount namespace: the caller has to stay in the node's.
    child = os.fork()
    if child == 0:
        os._exit(_move(libc, pid, tree, target))
    os.close(tree)
    _pid, status = os.waitpid(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise HotplugError(f"move_mount failed: {os.strerror(code)}")


def _make_point(pid: int, is_folder: bool, target: str) -> None:
    """Make the file or folder to mount on, as the container's root: nobody else may write into its /dev."""
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY)
    owner = os.fstat(root)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setegid(owner.st_gid)
            os.seteuid(owner.st_uid)
            _make_below(root, is_folder, target)
            code = 0
        finally:
            os._exit(code)
    os.close(root)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise HotplugError(f"can't create '/{target}' in the container")


def _make_below(root: int, is_folder: bool, target: str) -> None:
    parts = target.split("/")
    for depth in range(1, len(parts) + (1 if is_folder else 0)):
        try:
            os.mkdir("/".join(parts[:depth]), dir_fd=root)
        except FileExistsError:
            continue
    if not is_folder:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644, dir_fd=root))


def _move(libc: ctypes.CDLL, pid: int, tree: int, target: str) -> int:
    """Enter the container's mount namespace and attach the tree there; returns errno, 0 when it worked."""
    CLONE_NEWNS = 0x00020000
    with open(f"/proc/{pid}/ns/mnt", "rb") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNS):
            return ctypes.get_errno()
    done = libc.syscall(SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)
    return ctypes.get_errno() if done else 0
