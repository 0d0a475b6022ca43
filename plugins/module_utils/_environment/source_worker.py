# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The worker's own acts between a source archive and an installed wheel: unpack, keep, take."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pathlib
import shutil
import stat
import tarfile
import typing as t
import zipfile

from .._core.errors import KproError
from .._linux.held_folder_edge import HeldFolder, read_bounded
from .lock import normal_name
from .source_package import MANIFEST

UNPACKED = ".kpro-unpacked"
_DIGEST_BYTES = 256
_MANIFEST_BYTES = 1 << 20
# A source archive has some MiB, a wheel some hundred.
_LONGEST_BYTES = 2 << 30
CGROUP = pathlib.Path("/sys/fs/cgroup")


def make_folders(step: t.Mapping[str, t.Any]) -> None:
    """Make the folders of a build; the service user may write in them."""
    user = step.get("user") or {"uid": os.geteuid(), "gid": os.getegid()}
    for path in step["paths"]:
        with HeldFolder.at(os.path.dirname(path), make=True) as folder:
            name = os.path.basename(path)
            found = folder.status(name)
            if found and (found.st_uid, stat.S_ISDIR(found.st_mode)) == (user["uid"], True):
                continue
            folder.remove(name)
            folder.make_for(name, user["uid"], user["gid"])


def unpack(step: t.Mapping[str, t.Any]) -> None:
    """Unpack the only source archive of a folder, unless that was done before: a build that was killed goes on in what it left.

    :raises KproError: there is not one archive, or it can't be read.
    """
    target = pathlib.Path(step["path"])
    with _only_one(step["archive"], ".tar.gz", "{} source archives are there, one is expected", "Remove that folder and run again") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        # The user of the service owns what was unpacked.
        with contextlib.suppress(OSError):
            if read_bounded(str(target / UNPACKED), _DIGEST_BYTES) == digest.encode():
                return
        _unpack(step, target, file, digest)


def _unpack(step: t.Mapping[str, t.Any], target: pathlib.Path, file: io.BufferedReader, digest: str) -> None:
    part = target.with_name(f"{target.name}.part")
    for path in (part, target):
        shutil.rmtree(path, ignore_errors=True)
    try:
        with tarfile.open(fileobj=file) as archive:
            # Python 3.11.2 of Debian 12 has no filters yet, later versions ask for one.
            more: dict[str, t.Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(part, members=[member for member in archive if _stays_inside(member)], **more)
    except tarfile.TarError as error:
        raise KproError(os.path.basename(file.name), str(error), "Remove the file and run again") from error
    top = next(part.iterdir())
    for name in step["omit"]:
        shutil.rmtree(top / name, ignore_errors=True)
    (top / UNPACKED).write_text(digest)
    _give(top, step.get("user"))
    top.rename(target)
    part.rmdir()


def _stays_inside(member: tarfile.TarInfo) -> bool:
    """Say whether a member is a plain file or folder below the place of unpacking; sources need nothing else."""
    path = pathlib.PurePosixPath(member.name)
    return (member.isfile() or member.isdir()) and not path.is_absolute() and ".." not in path.parts


def keep(step: t.Mapping[str, t.Any]) -> None:
    """Put the built wheel into the wheelhouse with its hash, whole or not at all, and remove the build.

    :raises KproError: the build left no wheel, or several.
    """
    folder = pathlib.Path(step["folder"])
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with _only_one(step["out"], ".whl", "the build left {} wheels, one is expected", "See the unit's journal") as wheel:
        kept = part / os.path.basename(wheel.name)
        with kept.open("wb") as file:
            shutil.copyfileobj(wheel, file)
            file.flush()
            os.fsync(file.fileno())
    (part / step["manifest_name"]).write_text(json.dumps({**step["manifest"], "file": kept.name, "sha256": sha256_of(kept)}, indent=1))
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    shutil.rmtree(step["build"], ignore_errors=True)


def take(step: t.Mapping[str, t.Any]) -> None:
    """Check a kept wheel and write the requirement by which uv installs exactly it.

    :raises KproError: its bytes are not those that were kept, or it holds files of a package that is installed already.
    """
    path, sha256 = kept_wheel(step["folder"]) or ("", "")
    if not path:
        raise KproError(step["folder"], "it holds no wheel", "Run again")
    found = sha256_of(pathlib.Path(path))
    if sha256 and found != sha256:
        raise KproError(path, f"its SHA-256 is {found}, and {sha256} was kept", "Remove its folder and run again: the wheel is built anew")
    taken = collisions(path, step["target"])
    if taken:
        remedy = "Build the wheel without them (role option sglang_runtime__flash_attn: build does), or leave the package out"
        raise KproError(path, f"it would write over {len(taken)} files of another package, {taken[0]} first", remedy)
    pathlib.Path(step["requirement"]).write_text(f"{step['name']} @ {pathlib.Path(path).as_uri()} --hash=sha256:{found}\n")


def kept_wheel(folder: str) -> tuple[str, str] | None:
    """Return path and noted SHA-256 (empty: put there by hand) of the wheel in a folder of the wheelhouse; None if there is not one."""
    place = pathlib.Path(folder)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        manifest = json.loads(read_bounded(str(place / MANIFEST), _MANIFEST_BYTES))
        path = place / os.path.basename(str(manifest["file"]))
        return (str(path), str(manifest["sha256"])) if path.is_file() else None
    wheels = sorted(place.glob("*.whl"))
    return (str(wheels[0]), "") if len(wheels) == 1 else None


def collisions(wheel: str, target: str) -> list[str]:
    """Return the files of a wheel that the environment has already."""
    site = next(iter(pathlib.Path(target).glob("lib/python3.*/site-packages")), None)
    if site is None:
        return []
    own = normal_name(pathlib.Path(wheel).name.split("-")[0])
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    return [name for name in names if (site / name).exists() and normal_name(name.split("-")[0]) != own]


def memory_mib() -> tuple[int, int]:
    """Return the memory that is free for compilers, and the limit that the container has, in MiB."""
    values = dict(line.split(":", 1) for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(values[name].split()[0]) >> 10 for name in ("MemTotal", "MemAvailable"))
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int((CGROUP / "memory.max").read_text()) >> 20)
    return min(available, total), total


def oom_kills() -> int:
    """Return how many processes the kernel has ended for memory in this container; 0 where it does not count."""
    with contextlib.suppress(OSError, ValueError):
        values = dict(line.split() for line in (CGROUP / "memory.events").read_text().splitlines())
        return int(values.get("oom_kill", 0))
    return 0


def sha256_of(path: pathlib.Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _only_one(folder: str, suffix: str, words: str, remedy: str) -> t.Iterator[io.BufferedReader]:
    """Open the only file with a suffix in a folder of the service's user.

    :raises KproError: there is not one, or it is no plain file.
    """
    try:
        with HeldFolder.at(folder) as held:
            names = [name for name in held.names() if name.endswith(suffix)]
            if len(names) != 1:
                raise KproError(folder, words.format(len(names)), remedy)
            descriptor = held.open_own(names[0])
            if os.fstat(descriptor).st_size > _LONGEST_BYTES:
                os.close(descriptor)
                raise KproError(os.path.join(folder, names[0]), f"it is longer than {_LONGEST_BYTES >> 30} GiB", remedy)
    except FileNotFoundError as error:
        raise KproError(folder, words.format(0), remedy) from error
    except OSError as error:
        raise KproError(str(error.filename or folder), f"it cannot be read ({error.strerror})", remedy) from error
    with open(os.path.join(folder, names[0]), "rb", opener=lambda _name, _flags: descriptor) as file:
        yield file


def _give(top: pathlib.Path, user: t.Mapping[str, int] | None) -> None:
    """Give a tree of our own away, the outermost folder last: what its new owner may change is not looked at again."""
    if not user:
        return
    for _folder, folders, names, descriptor in os.fwalk(top, topdown=False):
        for name in (*names, *folders):
            os.chown(name, user["uid"], user["gid"], dir_fd=descriptor, follow_symlinks=False)
    os.chown(top, user["uid"], user["gid"], follow_symlinks=False)
