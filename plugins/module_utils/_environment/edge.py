# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the environments on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import pwd
import subprocess

from .._core.errors import KproError
from .files import Damage
from .files_edge import EnvironmentFiles, interpreter_folder
from .lock import installed_from_names
from .plan import MARKER, Environment, Present, User, Wanted, differences, is_meant
from .service_edge import start_was_lost
from .source_package import KeptWheel
from .source_worker import kept_wheel

_IMPORT_TIMEOUT_S = 60.0


def find_user(name: str) -> User | None:
    """Return a user by name, None if there is none."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return User(entry.pw_name, entry.pw_uid, entry.pw_gid)


class EnvironmentStore:
    """The folder of environments: ``venv`` (a link), ``envs/``, ``tools/``, ``cache/``."""

    def __init__(self, root: str) -> None:
        self._root = pathlib.Path(root)

    def observe(self, wanted: Wanted, *, keep: bool = False) -> Present:
        """Return what is there now, read from the disk and, for the environment in force, by running it once.

        :param keep: whether it may be noted that files were read and found whole.
        """
        link = pathlib.Path(wanted.link)
        target = link.resolve() if link.is_symlink() else None
        found = [self._environment(path) for path in self._folders()]
        current = next((one for one in found if target and one.path == str(target)), None)
        free_mib, free_files = self._space()
        version = self._package_version(current, wanted) if current and current.complete and current.python else ""
        damage = self._damage(current, wanted, keep=keep) if current and is_meant(current, wanted) else []
        present = Present(
            current=current,
            others=tuple(one for one in found if one is not current),
            uv_installed=(pathlib.Path(wanted.uv_folder) / "bin/uv").is_file(),
            free_mib=free_mib,
            free_files=free_files,
            usable=version is not None,
            package_version=version or "",
            link_is_foreign=link.exists() and not link.is_symlink(),
            wheel=self._wheel(wanted),
            damage=tuple(damage),
            python_folders=self._python_folders(),
            interpreter=interpreter_folder(current.path, str(self._root)) if current else "",
        )
        if not differences(present, wanted):
            return present
        # Only a build needs what follows.
        files = {one.path: EnvironmentFiles(one.path, str(self._root)) for one in present.others if is_meant(one, wanted)}
        damaged = frozenset(path for path, found in files.items() if found.damages(read_all=False)[0])
        return dataclasses.replace(present, damaged_others=damaged, uv_installed=present.uv_installed and self._tool_is_whole(wanted))

    def _damage(self, current: Environment, wanted: Wanted, *, keep: bool) -> list[Damage]:
        files = EnvironmentFiles(current.path, str(self._root))
        lost = bool(wanted.unit) and start_was_lost(wanted.unit, files.checked_at())
        read_all = wanted.verify_all or lost
        damage, touched = files.damages(read_all=read_all)
        if keep and not damage:
            with contextlib.suppress(OSError):
                if touched:
                    files.write_list()
                elif read_all:
                    files.note_check()
        return damage

    def _python_folders(self) -> tuple[str, ...]:
        return tuple(sorted(path.name for path in self._root.glob("python*") if path.is_dir() and not path.is_symlink()))

    def _tool_is_whole(self, wanted: Wanted) -> bool:
        return not EnvironmentFiles(wanted.uv_folder, wanted.uv_folder).record_damages()

    @staticmethod
    def _wheel(wanted: Wanted) -> KeptWheel | None:
        found = kept_wheel(wanted.source.wheel_folder) if wanted.source else None
        return KeptWheel(*found) if found else None

    def _folders(self) -> list[pathlib.Path]:
        try:
            return sorted(path for path in (self._root / "envs").iterdir() if path.is_dir())
        except FileNotFoundError:
            return []

    @staticmethod
    def _environment(path: pathlib.Path) -> Environment:
        try:
            marker = json.loads((path / MARKER).read_text())
        except (FileNotFoundError, ValueError):
            marker = {}
        packages: dict[str, str] = {}
        for folder in path.glob("lib/python3.*/site-packages"):
            packages.update(installed_from_names(os.listdir(folder)))
        return Environment(str(path), bool(marker), _python_version(path), packages, float(marker.get("built_at", 0)), str(marker.get("key", "")))

    def _space(self) -> tuple[int, int]:
        """Free MiB and inodes where the root is or will be; a file system without an inode limit counts as 0: not judged."""
        folder = next(path for path in (self._root, *self._root.parents) if path.exists())
        state = os.statvfs(folder)
        return state.f_bavail * state.f_frsize >> 20, state.f_favail

    @staticmethod
    def _package_version(environment: Environment, wanted: Wanted) -> str | None:
        """Ask the environment, as the service user, which version it holds; empty: package absent, None: cannot be run."""
        code = f"import importlib.metadata as m\ntry: print(m.version({wanted.package!r}))\nexcept m.PackageNotFoundError: print()"
        user = {"user": wanted.user.uid, "group": wanted.user.gid, "extra_groups": []} if wanted.user else {}
        try:
            done = subprocess.run(
                [f"{environment.path}/bin/python", "-I", "-c", code],
                capture_output=True,
                timeout=_IMPORT_TIMEOUT_S,
                check=False,
                text=True,
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
                **user,  # type: ignore[call-overload]  # typeshed has no overload for a mapping of these three
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    def prepare(self, wanted: Wanted) -> None:
        """Make the folders that every user may enter, and write the lock files that the steps read.

        :raises KproError: a file is in the way, or the file system refuses.
        """
        try:
            for folder in (self._root, self._root / "envs", self._root / "tools"):
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            (self._root / "tools/packages.txt").write_text(wanted.lock)
            (self._root / "tools/uv.txt").write_text(wanted.uv_lock)
            if wanted.source:
                for name, text in zip(("source", "source-tools"), wanted.source.split_lock(), strict=True):
                    (self._root / f"tools/{name}.txt").write_text(text)
        except OSError as error:
            raise KproError(str(self._root), error.strerror or str(error), "Correct the path or its file system") from error


def _python_version(path: pathlib.Path) -> str:
    """Return the version an environment was made for; empty if its interpreter is gone."""
    try:
        lines = (path / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return ""
    values = dict(line.split(" = ", 1) for line in lines if " = " in line)
    return values.get("version_info", values.get("version", "")) if os.access(path / "bin/python", os.X_OK) else ""
