# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to what is remembered between runs: failed rungs, the last good configuration, the unfinished run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import typing as t

from .._core.errors import KproError
from .._linux.state_file_edge import UnusableFile, read_state
from .._linux.text_file_edge import TextFile, write_text_file
from .files import TEXTS
from .record import Record, record_from


class ServiceState:
    """Three small files (mode 0600, they hold the API key) in a folder of ours. One that can't be used counts as absent, and is named in ``faults``."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.faults: list[str] = []

    @contextlib.contextmanager
    def alone(self, patience_s: float) -> t.Iterator[bool]:
        """Keep other runs from deciding anything meanwhile; yields false if another run held the lock too long."""
        path = os.path.join(self._folder, "ladder.lock")
        try:
            os.makedirs(self._folder, mode=0o755, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise KproError(path, f"it cannot be used as a lock ({error.strerror})", "Remove what is in its place") from error
        try:
            yield _locked(descriptor, time.monotonic() + patience_s)
        finally:
            os.close(descriptor)

    def record(self) -> Record | None:
        """Return the record of the unfinished run; None if there is none."""
        return record_from(self._read("ladder.json"))

    def keep_record(self, record: Record) -> None:
        """Note what the run is about to do, or has done."""
        self._write("ladder.json", record.as_dict())

    def drop_record(self) -> None:
        """The run has ended."""
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(os.path.join(self._folder, "ladder.json"))

    def rungs(self) -> dict[str, t.Any]:
        """Return what was kept about failed rungs; empty if nothing."""
        return self._read("rungs.json")

    def keep_rungs(self, values: dict[str, t.Any]) -> None:
        """Keep what is known about failed rungs, if it is news."""
        self._write("rungs.json", values)

    def good(self) -> dict[str, t.Any]:
        """Return the last good configuration; empty if there was none."""
        found = self._read("last_good.json")
        whole = isinstance(found.get("digest"), str) and all(isinstance(found.get(part, {}), dict) for part in ("texts", "names", "targets", "pools"))
        if found and not (whole and set(TEXTS) <= set(found.get("texts", {})) and all(isinstance(to, str) for to in found.get("targets", {}).values())):
            self._fault("last_good.json", "it holds no whole configuration")
            return {}
        return found

    def texts_of(self, good: t.Mapping[str, t.Any], part: str = "texts") -> dict[str, str]:
        """Return the texts (or ``names``) of a good configuration, with links that lead elsewhere by now replaced by where they led then."""
        texts = {str(role): str(text) for role, text in good.get(part, {}).items()}
        for path, target in good.get("targets", {}).items():
            if os.path.realpath(path) != target and os.path.exists(target):
                texts = {role: text.replace(path, target) for role, text in texts.items()}
        return texts

    def good_pools(self, digest: str) -> dict[str, float]:
        """Return the sizes of the engine's pools in the last good run with this configuration; empty without one."""
        found = self.good()
        pools = found.get("pools") if found.get("digest") == digest else None
        sizes = pools.items() if isinstance(pools, dict) else ()
        return {str(name): float(size) for name, size in sizes if isinstance(size, (int, float))}

    def keep_good(
        self,
        digest: str,
        texts: t.Mapping[str, str],
        paths: t.Sequence[str],
        rung: int,
        names: t.Mapping[str, str],
        pools: t.Mapping[str, float] | None = None,
        check: t.Mapping[str, t.Any] | None = None,
        api_key: str = "",
    ) -> None:
        """Keep a configuration that answered.

        :param names: engine version, model path and served name of the run identity.
        :param texts: text of each file by role.
        :param paths: links (to the environment, the model) whose present target belongs to the configuration.
        :param rung: number of its rung; -1 for one that was restored.
        :param check: by what it was judged good.
        :param api_key: key that its clients use; empty: none.
        :param pools: sizes of the engine's pools; the largest that this configuration ever had is kept, so that a smaller one stays noticed.
        """
        targets = {path: os.path.realpath(path) for path in paths if path and os.path.realpath(path) != path}
        before = self.good_pools(digest)
        largest = {**before, **{name: max(size, before.get(name, 0.0)) for name, size in (pools or {}).items()}}
        # A restored configuration keeps the rung that it once was.
        earlier = self.good().get("rung", 0)
        rung = rung if rung >= 0 else earlier if isinstance(earlier, int) else 0
        kept = {"digest": digest, "texts": dict(texts), "targets": targets, "rung": rung, "names": dict(names), "pools": largest}
        self._write("last_good.json", {**kept, "check": dict(check or {}), "api_key": api_key})

    def _read(self, name: str) -> dict[str, t.Any]:
        try:
            return read_state(os.path.join(self._folder, name))
        except UnusableFile as error:
            self._fault(name, str(error))
            return {}

    def _fault(self, name: str, reason: str) -> None:
        text = f"{os.path.join(self._folder, name)} is not used: {reason}"
        if text not in self.faults:
            self.faults.append(text)

    def _write(self, name: str, values: dict[str, t.Any]) -> None:
        if self._read(name) != values:
            write_text_file(TextFile(os.path.join(self._folder, name), f"{json.dumps(values, indent=1)}\n", 0o600, "root", "root"))


def _locked(descriptor: int, until: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.1)
