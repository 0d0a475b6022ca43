# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the distribution: authorities, apt, users."""

from __future__ import annotations

import os
import pathlib
import platform
import pwd
import shutil
import typing as t

from .._apt.edge import install, source_files
from .._apt.explain import explain
from .._apt.key_edge import fetch_key
from .._apt.repository import Repository
from .._core.changes import Change
from .._core.errors import KproError
from .._linux.command_edge import Command
from .._linux.held_folder_edge import HeldFolder
from .._linux.text_file_edge import TextFile, write_text_file
from .base import AUTHORITIES, AUTHORITY_PREFIX, BUNDLE, Account, BasePresent, BaseWanted, installed_packages

_APT_TIMEOUT_S = 3600.0
# Not "-qq": which package does not fit is told only with "-q".
_APT = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]
_APT_ENV = {"DEBIAN_FRONTEND": "noninteractive", "APT_LISTCHANGES_FRONTEND": "none", "NEEDRESTART_SUSPEND": "1"}


class Distribution:
    """A Debian-like system, seen from inside.

    :param root: prefix of all files that are read and written; for tests.
    """

    def __init__(self, command: Command, root: str = "/") -> None:
        self._command = command
        self._root = pathlib.Path(root)

    def observe(self, wanted: BaseWanted) -> BasePresent:
        """Return what is there of what is wanted."""
        folder = self._path(AUTHORITIES)
        ours = sorted(folder.glob(f"{AUTHORITY_PREFIX}*.crt")) if folder.is_dir() else []
        paths = [path for repository in wanted.repositories for path in (repository.sources_path, repository.key_path)]
        return BasePresent(
            authorities={path.name.removeprefix(AUTHORITY_PREFIX): path.read_text() for path in ours},
            bundle=self._text(BUNDLE) or "",
            installed=installed_packages(self._text("/var/lib/dpkg/status") or ""),
            files={path: text for path in paths if (text := self._text(path)) is not None},
            account=self._account(wanted.account.name) if wanted.account else None,
        )

    def facts(self) -> dict[str, t.Any]:
        """Return what the engine lanes ask about a system."""
        release = dict(line.replace('"', "").split("=", 1) for line in (self._text("/etc/os-release") or "").splitlines() if "=" in line)
        return {
            "distribution": release.get("ID", ""),
            "distribution_version": release.get("VERSION_ID", ""),
            "glibc": platform.libc_ver()[1],
            "architecture": platform.machine(),
            "python": ".".join(platform.python_version_tuple()[:2]),
            "toolkits": sorted(path.parts[-3].removeprefix("cuda-") for path in self._path("/usr/local").glob("cuda-*/bin/nvcc")),
        }

    def apply(self, change: Change) -> None:
        """Make one change.

        :raises KproError: a program or the file system refuses.
        """
        kind, *arguments = change.action
        steps: dict[str, t.Callable[..., None]] = {
            "authority": self._authority,
            "bundle": self._bundle,
            "key": self._key,
            "sources": self._sources,
            "packages": self._packages,
            "account": self._set_account,
        }
        steps[kind](*arguments)

    def _authority(self, name: str, text: str | None) -> None:
        path = self._path(f"{AUTHORITIES}/{AUTHORITY_PREFIX}{name}")
        if text is None:
            path.unlink(missing_ok=True)
        else:
            write_text_file(TextFile(str(path), text, 0o644, "root", "root"))

    def _bundle(self) -> None:
        self._ensure_authorities()
        self._command.check(["update-ca-certificates"], timeout_s=120)

    def _ensure_authorities(self) -> None:
        """Install the distribution's own authorities where a bare system has none; apt itself needs none for that."""
        if not shutil.which("update-ca-certificates"):
            self._packages(("ca-certificates",))

    def _key(self, repository: Repository) -> None:
        self._ensure_authorities()
        fetch_key(repository, str(self._path(repository.key_path)))

    def _sources(self, repository: Repository) -> None:
        write_text_file(TextFile(str(self._path(repository.sources_path)), repository.sources_text, 0o644, "root", "root"))

    def _packages(self, names: tuple[str, ...]) -> None:
        """Install packages; a source that fails matters only if it is needed for them.

        :raises KproError: why they can't be had, in apt's own words, and what to do.
        """
        argv = [*_APT, "install", "--yes", "--no-install-recommends", *names]
        code, said, update = install(self._apt, argv, [*_APT, "update"], update_first=True)
        if code:
            problem = explain(said, update, source_files(self._path("/etc/apt")), names)
            raise KproError("apt-get install", problem.reason, problem.remedy or "Check the container's network, name server and apt sources", rc=code)

    def _apt(self, argv: t.Sequence[str]) -> tuple[int, str]:
        result = self._command.run(argv, timeout_s=_APT_TIMEOUT_S, env=_APT_ENV)
        return result.rc, f"{result.stdout}\n{result.stderr}"

    def _set_account(self, account: Account, known: bool) -> None:
        home = pathlib.Path(account.home)
        above = HeldFolder.at(str(home.parent), make=True)
        if known:
            self._command.check(["usermod", "--home", account.home, "--shell", account.shell, account.name])
        else:
            create = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", account.home, "--shell", account.shell]
            self._command.check([*create, account.name])
        if not home.is_dir():
            entry = pwd.getpwnam(account.name)
            try:
                above.make_for(home.name, entry.pw_uid, entry.pw_gid, 0o750)
            except OSError as error:
                raise KproError(account.home, f"it cannot be made ({error.strerror})", f"Make it by hand for the user {account.name}") from error

    @staticmethod
    def _account(name: str) -> Account | None:
        """Return the user as found; a home that is not there counts as none."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            return None
        return Account(entry.pw_name, entry.pw_dir if os.path.isdir(entry.pw_dir) else "", entry.pw_shell)

    def _path(self, path: str) -> pathlib.Path:
        return self._root / path.lstrip(os.sep)

    def _text(self, path: str) -> str | None:
        try:
            return self._path(path).read_text(errors="surrogateescape")
        except OSError:
            return None
