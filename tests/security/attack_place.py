# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the attacks have in common: the attacker's store, the victims beside it, processes that swap, and a limit in time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import stat
import time
import traceback
import typing as t
import warnings
from pathlib import Path

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._job.status_edge import JobStatus
from ansible_collections.kpro.llm.plugins.module_utils._model import store_edge as store
from ansible_collections.kpro.llm.plugins.module_utils._model.hub_edge import HubAccess
from ansible_collections.kpro.llm.plugins.module_utils._model.hub_protocol import RemoteFile
from ansible_collections.kpro.llm.plugins.module_utils._model.transfer_edge import TransferSettings
from ansible_collections.kpro.llm.plugins.module_utils._model.worker import Job, Worker

# Who a container's root is on the node; all containers of a node have the same map.
ATTACKER = 100000
REPOSITORY, COMMIT = "org/model", "c" * 40
SWAPS = 10_000 if os.environ.get("KPRO_TEST_EVERYTHING") else 500
PATIENCE_S = 2.0
HANG_S = 60.0


class Hang(AssertionError):
    """A trial did not end."""


def remote(path: str, data: bytes) -> RemoteFile:
    return RemoteFile(path, len(data), hashlib.sha256(data).hexdigest())


class Place:
    """Folders of one trial.

    :ivar store: the attacker's; ``outside``: everybody else's.
    :ivar private: a folder of the node's root, 0700; ``secret``: a file of it; ``other``: another container's folder, of the same
        user on the node, so that no permission protects it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        self.store = folder / "store"
        self.outside = folder / "outside"
        self.private, self.other = self.outside / "private", self.outside / "other"
        self.secret, self.others_file = self.private / "secret.json", self.other / "config.json"
        self.source = folder / "source"
        for path in (self.store, self.outside, self.private, self.other, self.source, self.source / "deep"):
            path.mkdir()
        self.private.chmod(0o700)
        self.secret.write_text(json.dumps({"digest": "secret", "invocation_id": "secret", "model_type": "secret"}))
        self.secret.chmod(0o600)
        (self.private / "inner").mkdir(mode=0o700)
        self.others_file.write_text(json.dumps({"model_type": "others"}))
        data = {"config.json": b"{}" * 40, "deep/model.safetensors": random.Random(1).randbytes(200_000), "copy.bin": b"{}" * 40}
        self.files = []
        for path, content in data.items():
            (self.source / path).write_bytes(content)
            self.files.append(remote(path, content))
        for path in (self.store, self.other, self.others_file):
            os.chown(path, ATTACKER, ATTACKER)
        self.snapshot = store.Snapshot(str(self.store), REPOSITORY, COMMIT)
        self._children: list[int] = []
        self.outside_before = self.outside_now()

    # -- the victims ----------------------------------------------------------

    def outside_now(self) -> dict[str, tuple[t.Any, ...]]:
        """Return all that can be seen of what is not the attacker's."""
        found = {}
        for folder, folders, names in os.walk(self.outside):
            for path in (folder, *(os.path.join(folder, name) for name in (*folders, *names))):
                status = os.lstat(path)
                content = Path(path).read_bytes() if stat.S_ISREG(status.st_mode) else os.readlink(path) if stat.S_ISLNK(status.st_mode) else b""
                found[path] = (oct(status.st_mode), status.st_uid, status.st_gid, content)
        return found

    # -- the attacker ---------------------------------------------------------

    def path(self, name: str) -> Path:
        """Return a path of the attacker's store; NAME is the snapshot's folder, PART the name of a partial file. Its folders are made."""
        name = name.replace("NAME", self.snapshot.name).replace("PART", store.part_name(self.files[1]))
        path = self.store / name
        todo = [one for one in path.parents if one.is_relative_to(self.store) and not one.exists()]
        for folder in reversed(todo):
            folder.mkdir()
            os.chown(folder, ATTACKER, ATTACKER)
        return path

    def own(self, path: Path) -> Path:
        os.chown(path, ATTACKER, ATTACKER, follow_symlinks=False)
        return path

    def link(self, name: str, target: Path) -> None:
        path = self.path(name)
        path.symlink_to(target)
        self.own(path)

    def write(self, name: str, data: bytes) -> None:
        path = self.path(name)
        path.write_bytes(data)
        self.own(path)

    def pipe(self, name: str) -> None:
        path = self.path(name)
        os.mkfifo(path)
        self.own(path)

    def device(self, name: str) -> None:
        """``/dev/zero``, which never ends; a privileged container's root can make it."""
        path = self.path(name)
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
        self.own(path)

    def giant(self, name: str, size_bytes: int = 1 << 40) -> None:
        path = self.path(name)
        path.touch()
        os.truncate(path, size_bytes)
        self.own(path)

    def directory(self, name: str) -> None:
        path = self.path(name)
        path.mkdir()
        (path / "inner").mkdir()
        self.own(path / "inner")
        self.own(path)

    def as_attacker(self, work: t.Callable[[], None]) -> None:
        """Run something as the container's root in its store (the folders above it are closed to it), until the trial ends."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                os.chdir(self.store)
                os.setgroups([])
                os.setgid(ATTACKER)
                os.setuid(ATTACKER)
                work()
            finally:
                os._exit(0)
        self._children.append(pid)

    def swap(self, choices: t.Sequence[tuple[str, Path]], again: t.Sequence[str] = (), seed: int = 1) -> None:
        """Put links in the place of folders or files, and those back, as fast as it goes.

        :param again: files that are made again if they are gone.
        """
        paths = [(self.path(name).relative_to(self.store), target) for name, target in choices]

        def work() -> None:
            chance = random.Random(seed)
            while True:
                path, target = chance.choice(paths)
                aside = path.with_name(f"{path.name}.aside")
                with contextlib.suppress(OSError):
                    os.rename(path, aside)
                with contextlib.suppress(OSError):
                    os.symlink(target, path)
                time.sleep(0.0002)
                with contextlib.suppress(OSError):
                    os.unlink(path)
                with contextlib.suppress(OSError):
                    os.rename(aside, path)
                # The other side has made the folder again meanwhile: without this no swap would succeed any more.
                shutil.rmtree(aside, ignore_errors=True)
                for name in again:
                    with contextlib.suppress(OSError):
                        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
                        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o644))
                time.sleep(chance.random() * 0.001)

        self.as_attacker(work)

    def end(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._children.clear()

    # -- the node's root ------------------------------------------------------

    def fetch(self, files: t.Sequence[RemoteFile] = (), verify_all: bool = False) -> t.Any:
        """Do what hf_model does on the node: look, then let the worker complete the snapshot from a folder of the node."""
        wanted = tuple(files or self.files)
        self.snapshot = snapshot = store.Snapshot(str(self.store), REPOSITORY, COMMIT)
        manifest = snapshot.manifest()
        present = store.stats(snapshot.path, [file.path for file in wanted])
        for file in wanted:
            snapshot.arrived_bytes(file), snapshot.part_bytes(file)
        for path in present:
            store.read_part(os.path.join(snapshot.path, path), 0, 100)
        snapshot.leftovers()
        store.space(snapshot.store)
        access = HubAccess("http://127.0.0.1:9", "", "", {}, 5.0)
        settings = TransferSettings(4, PATIENCE_S)
        selected = tuple(file.path for file in wanted)
        job = Job(
            str(self.store),
            REPOSITORY,
            COMMIT,
            tuple(manifest.files) if manifest else wanted,
            selected,
            verify_all,
            access,
            (str(self.source),),
            settings,
            True,
        )
        run = self.folder / "run"
        run.mkdir(exist_ok=True)
        return Worker(job, JobStatus(str(run))).run()

    def is_right(self) -> bool:
        """Whether the snapshot is whole, of plain files that are the attacker's own."""
        for file in self.files:
            path = Path(self.snapshot.path, file.path)
            status = os.lstat(path) if os.path.lexists(path) else None
            if not status or not stat.S_ISREG(status.st_mode) or path.read_bytes() != (self.source / file.path).read_bytes():
                return False
        return True


def outcome(work: t.Callable[[], t.Any], limit_s: float = HANG_S) -> str:
    """Run something in a process of its own; return ``done``, or the sentence with which it was refused.

    :raises Hang: if it does not end in time.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Of the runner's own threads; the child runs Python of ours alone.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            os.write(writer, _said(work).encode()[:4000])
        finally:
            os._exit(0)
    os.close(writer)
    until = time.monotonic() + limit_s
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(reader)
            raise Hang(f"it has not ended in {limit_s:.0f} s")
        time.sleep(0.002)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    assert said and not said.startswith("crash"), said
    return said


def _said(work: t.Callable[[], t.Any]) -> str:
    try:
        found = work()
    except KproError as error:
        return f"refused: {error.sentence}"
    except Exception:
        return f"crash: {traceback.format_exc()}"
    return "done" if found is None or isinstance(found, dict) else f"done: {found!r}"
