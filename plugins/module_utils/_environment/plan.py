# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The present environment, the wanted one, and the steps between them."""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.changes import Change
from .._core.errors import KproError
from .files import INTERPRETER, Damage, damage_sentence
from .lock import change_sentence, lock_key, normal_name, package_changes, parse_lock
from .source_package import KeptWheel, SourcePackage

MARKER = "kpro-environment.json"
RESERVE_MIB = 512


@dataclasses.dataclass(frozen=True)
class User:
    """The user that the service runs as."""

    name: str
    uid: int
    gid: int


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The environment asked for, straight from the module's options.

    :param lock: text of the hash-locked requirements; ``uv_lock``: the same for uv itself.
    :param python: "3.11"; ``managed``: taken by uv from its own builds instead of the distribution.
    :param size_mib: space of a finished environment; ``files``: its inodes; 0: not known.
    :param rebuild: build it anew, whatever is there; ``verify_all``: read every file of the one in force.
    :param unit: the service that runs from it; where its last start was lost, every file is read.
    """

    root: str
    lock: str
    uv_lock: str
    package: str
    package_version: str
    python: str
    managed: bool = False
    index_url: str = ""
    find_links: tuple[str, ...] = ()
    ca_bundle: str = ""
    python_mirror: str = ""
    offline: bool = False
    size_mib: int = 0
    files: int = 0
    keep: int = 1
    rebuild: bool = False
    verify_all: bool = False
    unit: str = ""
    user: User | None = None
    environment: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    source: SourcePackage | None = None

    @property
    def pins(self) -> dict[str, str]:
        """Version by name of every package that the environment has to hold, and no other."""
        own = {normal_name(self.source.name): self.source.version} if self.source else {}
        return {**parse_lock(self.lock), **own}

    @property
    def uv_version(self) -> str:
        """The version that ``uv_lock`` pins."""
        return parse_lock(self.uv_lock, "lock file of uv").get("uv", "")

    @property
    def key(self) -> str:
        """Name of the environment, unique for package, version, Python, lock and what is built from source."""
        text = f"{self.lock}\n{self.source.key}" if self.source else self.lock
        return f"{self.package}-{self.package_version}-cp{self.python.replace('.', '')}-{lock_key(text)}"

    @property
    def link(self) -> str:
        """The stable path of the environment in force."""
        return f"{self.root}/venv"

    @property
    def uv_folder(self) -> str:
        """The small environment that holds uv."""
        return f"{self.root}/tools/uv-{self.uv_version}"


@dataclasses.dataclass(frozen=True)
class Environment:
    """One environment on disk.

    :param complete: its builder reached the end.
    :param key: :attr:`Wanted.key` that it was built for.
    :param python: version of the interpreter it was made for ("3.11.2"), empty if that no longer runs.
    """

    path: str
    complete: bool
    python: str
    packages: t.Mapping[str, str]
    built_at: float = 0.0
    key: str = ""


@dataclasses.dataclass(frozen=True)
class Present:
    """The observed environments.

    :param wheel: the kept wheel of the package that is built from source.
    :param damage: files of the environment in force that are not as they were built.
    :param damaged_others: paths of kept environments that are damaged and so are of no use.
    :param python_folders: the folders in which uv keeps interpreters below the root, by name.
    :param interpreter: where the interpreter of the environment in force lies, if uv keeps it.
    """

    current: Environment | None = None
    others: tuple[Environment, ...] = ()
    uv_installed: bool = False
    free_mib: int = 0
    free_files: int = 0
    usable: bool = True
    package_version: str = ""
    link_is_foreign: bool = False
    wheel: KeptWheel | None = None
    damage: tuple[Damage, ...] = ()
    damaged_others: frozenset[str] = frozenset()
    python_folders: tuple[str, ...] = ()
    interpreter: str = ""


def differences(present: Present, wanted: Wanted) -> list[str]:
    """Return why the environment in force is not the one wanted; empty if it is."""
    if present.current is None:
        return ["there is none"]
    reasons = [damage_sentence(present.damage)] if present.damage else _own_differences(present.current, wanted)
    if not reasons and wanted.rebuild:
        reasons.append("a new one was asked for")
    if not reasons and not present.usable:
        reasons.append(f"user {wanted.user.name if wanted.user else 'root'} cannot run {wanted.package} from it")
    if not reasons and present.package_version != wanted.package_version:
        reasons.append(f"{wanted.package} says it is {present.package_version or 'not there'}")
    return reasons


def reusable(present: Present, wanted: Wanted) -> Environment | None:
    """Return an environment kept from before that is the one wanted, so that a roll-back is a switch of the link."""
    if wanted.rebuild:
        return None
    return next((other for other in present.others if other.path not in present.damaged_others and not _own_differences(other, wanted)), None)


def _own_differences(current: Environment, wanted: Wanted) -> list[str]:
    reasons = []
    if not current.complete:
        reasons.append("it was never finished")
    if not current.python:
        reasons.append("its interpreter does not run")
    elif not f"{current.python}.".startswith(f"{wanted.python}."):
        reasons.append(f"it is made for Python {current.python}")
    changes = package_changes(current.packages, wanted.pins)
    if changes:
        reasons.append(change_sentence(changes))
    if not reasons and current.key != wanted.key:
        reasons.append("it was built from another lock file")
    return reasons


def plan(present: Present, wanted: Wanted) -> list[Change]:
    """Return the changes that make the environment the one wanted.

    :raises KproError: a foreign file where the link belongs, a lock that does not pin what is asked for, or no space.
    """
    check_wanted(wanted)
    if present.link_is_foreign:
        raise KproError(wanted.link, "it is not a link of ours", "Move it away, or set another root")
    changes = []
    if not present.uv_installed:
        changes.append(Change(f"Install uv {wanted.uv_version} in {wanted.uv_folder}", None, wanted.uv_version))
    reasons = differences(present, wanted)
    kept = reusable(present, wanted)
    if reasons and kept:
        changes.append(Change(f"Put {kept.path.rsplit('/', 1)[1]} in force again: {', '.join(reasons)}", present.current and present.current.path, kept.path))
    elif reasons:
        check_space(present, wanted)
        target = target_path(present, wanted)
        sentence = f"Build {target.rsplit('/', 1)[1]} from {len(wanted.pins)} locked packages: {', '.join(reasons)}"
        now = present.current.path if present.current else None
        changes.append(Change(sentence, now, target))
        changes.extend(_source_changes(present, wanted))
    if reasons:
        changes.extend(Change(f"Remove {path}", path, None) for path in prunable(present, wanted))
    return changes


def _source_changes(present: Present, wanted: Wanted) -> list[Change]:
    source = wanted.source
    if source is None:
        return []
    if present.wheel:
        return [Change(f"Install {source.name} {source.version} from the kept wheel for {source.fits}", None, present.wheel.path)]
    return [Change(f"Build {source.name} {source.version} from source for {source.fits} and keep the wheel", None, source.wheel_folder)]


def package_diff(present: Present, wanted: Wanted) -> dict[str, str]:
    """Return the packages that differ as ``before`` and ``after`` for Ansible's diff, one requirement a line."""
    packages = present.current.packages if present.current else {}
    changes = package_changes(packages, wanted.pins)
    return {
        "before": "".join(f"{name}=={old}\n" for name, old, _new in changes if old),
        "after": "".join(f"{name}=={new}\n" for name, _old, new in changes if new),
    }


def check_wanted(wanted: Wanted) -> None:
    """Refuse options that contradict each other.

    :raises KproError: the lock does not pin the package to the version asked for, or uv's lock pins no uv.
    """
    pinned = wanted.pins.get(wanted.package)
    if pinned != wanted.package_version:
        raise KproError(
            f"lock file for {wanted.package} {wanted.package_version}",
            f"it pins {wanted.package} {pinned}" if pinned else f"it does not name {wanted.package}",
            "Give the lock file and the version of the same lane. A resolver that is not asked for an exact version falls back without a word: to an old "
            "release where a dependency of the new one (flash-attn-4 was such) has only pre-releases, or to a copy on an extra index, whose turn is first",
        )
    if not wanted.uv_version:
        raise KproError("lock file of uv", "it does not name uv", "Remake it with tests/locks/remake")


def check_space(present: Present, wanted: Wanted) -> None:
    """Refuse a build that would fill the disk.

    The environment and uv's cache share their files by hard links, so that one times the size is needed, and a reserve.

    :raises KproError: space or inodes are short.
    """
    build_mib = wanted.source.size_mib if wanted.source and not present.wheel else 0
    need = wanted.size_mib + build_mib + RESERVE_MIB if wanted.size_mib else 0
    if present.free_mib < need:
        build = f"{build_mib} for the build of {wanted.source.name}, " if wanted.source and build_mib else ""
        raise KproError(
            wanted.root,
            f"{present.free_mib} MiB are free and {need} MiB are needed ({wanted.size_mib} for the environment, {build}{RESERVE_MIB} as reserve)",
            f"Free {need - present.free_mib} MiB, grow the container's disk, or set another root",
            free_mib=present.free_mib,
            needed_mib=need,
        )
    if 0 < present.free_files < wanted.files:
        raise KproError(
            wanted.root,
            f"{present.free_files} inodes are free and {wanted.files} are needed",
            "Remove small files or use a file system with more inodes",
        )


def target_path(present: Present, wanted: Wanted) -> str:
    """Return where the environment wanted is or goes: in force, kept from before, or in a new place, never one where another complete one lies."""
    if present.current and not differences(present, wanted):
        return present.current.path
    kept = reusable(present, wanted)
    if kept:
        return kept.path
    taken = {environment.path for environment in (present.current, *present.others) if environment and environment.complete}
    base = f"{wanted.root}/envs/{wanted.key}"
    number = 1
    while (path := base if number == 1 else f"{base}.{number}") in taken:
        number += 1
    return path


def prunable(present: Present, wanted: Wanted) -> list[str]:
    """Return the environments to remove after a build: unfinished ones, and complete ones beyond those kept for roll-back."""
    if present.current is None:
        previous: list[Environment] = []
    else:
        previous = [present.current] if present.current.complete and not present.damage else []
    complete = sorted(
        (other for other in present.others if other.complete and other.path not in present.damaged_others), key=lambda other: other.built_at, reverse=True
    )
    kept = {environment.path for environment in (previous + complete)[: wanted.keep]}
    everything = [*([present.current] if present.current else []), *present.others]
    target = target_path(present, wanted)
    return sorted(environment.path for environment in everything if environment.path not in kept and environment.path != target)


def is_meant(environment: Environment, wanted: Wanted) -> bool:
    """Say whether an environment was built to be the one wanted; only then what it should hold is known."""
    return environment.complete and environment.key == wanted.key


def python_folder(present: Present) -> str:
    """Return the name of the folder in which uv is to keep interpreters: another one where the one in use is damaged.

    It is never mended in place: a service may run from it, and imports from it at any time.
    """
    now = present.interpreter.rsplit("/", 2)[-2] if present.interpreter.count("/") > 1 else "python"
    if not any(damage.package == INTERPRETER and damage.path.startswith("/") for damage in present.damage):
        return now
    number = 2
    while f"python.{number}" in present.python_folders:
        number += 1
    return f"python.{number}"
