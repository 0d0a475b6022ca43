# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The work of hf_model in its transient unit: verify, reuse, fetch, put in place."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import threading
import time
import typing as t

from .._job.status_edge import JobStatus, run_worker
from .._linux.held_folder_edge import HeldFolder, Refused
from . import manifest as manifests
from . import store_edge as store
from .hub_edge import Hub, HubAccess
from .hub_protocol import MANIFEST_NAME, RemoteFile
from .manifest import Manifest, Stat
from .sources_edge import nowhere, opener_of, source_of
from .transfer_edge import Opener, Transfer, TransferSettings
from .transfer_plan import Progress

RATE_WINDOW_S = 10.0


@dataclasses.dataclass(frozen=True)
class Job:
    """The order that the module gives to its worker; only root can read its file."""

    store: str
    repository: str
    commit: str
    files: tuple[RemoteFile, ...]
    selected: tuple[str, ...]
    verify_all: bool
    access: HubAccess
    sources: tuple[str, ...]
    settings: TransferSettings
    offline: bool = False

    def to_dict(self) -> dict[str, t.Any]:
        """Return plain values for :meth:`from_dict`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: t.Mapping[str, t.Any]) -> Job:
        """Read what :meth:`to_dict` gave."""
        more = {
            "files": tuple(RemoteFile(**row) for row in data["files"]),
            "selected": tuple(data["selected"]),
            "sources": tuple(data["sources"]),
            "access": HubAccess(**data["access"]),
            "settings": TransferSettings(**data["settings"]),
        }
        return cls(**{**data, **more})


class Worker:
    """Makes one snapshot complete."""

    def __init__(self, job: Job, status: JobStatus) -> None:
        self._job = job
        self._status = status
        self._snapshot = store.Snapshot(job.store, job.repository, job.commit)
        self._wanted = [file for file in job.files if file.path in set(job.selected)]
        self._checked: dict[str, Stat] = {}
        self._staged: dict[str, Stat] = {}
        self._fetched: list[str] = []
        self._twins: dict[str, list[RemoteFile]] = {}
        self._origins: dict[str, int] = {}
        self._troubles: list[str] = []
        self._lock = threading.Lock()
        self._samples: list[tuple[float, int]] = []
        self._total_bytes = sum(file.size_bytes for file in self._wanted)

    def run(self) -> dict[str, t.Any]:
        """Do what is missing; everything that is right stays.

        Returns the paths that were ``fetched``, the bytes that came from each place (``origins``), and sentences about what was
        found damaged or could not be used (``troubles``).

        :raises KproError: if that cannot be done.
        """
        self._say("Waiting for another download of this model", 0)
        try:
            lock = self._snapshot.take(self._job.settings.patience_s)
        except OSError as error:
            raise store.disk_error(self._job.store, error) from error
        try:
            self._clean_up()
            self._verify(self._snapshot.folder(), self._snapshot.manifest(), force=self._job.verify_all)
            self._take_over_staged()
            self._reuse()
            self._transfer()
            self._put_in_place()
            self._snapshot.staging().all.remove(self._snapshot.name)
            return {"fetched": self._fetched, "origins": self._origins, "troubles": self._troubles}
        except OSError as error:
            raise store.disk_error(self._job.store, error) from error
        finally:
            lock.close()

    def _missing(self) -> list[RemoteFile]:
        return [file for file in self._wanted if file.path not in self._checked]

    def _clean_up(self) -> None:
        staging = self._snapshot.staging()
        for path in self._snapshot.leftovers():
            staging.all.remove(os.path.basename(path))
        for file in self._wanted:
            store.take_over_older_part(staging.parts, file)
        known = {store.part_name(file) for file in self._wanted}
        for name in staging.parts.names():
            if name.removesuffix(".json") not in known:
                staging.parts.remove(name)

    def _verify(self, folder: HeldFolder | None, manifest: Manifest | None, *, force: bool) -> None:
        """Note which files of a folder are right, hashing those about which nothing is known."""
        if folder is None:
            return
        present = store.stats(folder, [file.path for file in self._wanted])
        found = manifests.states(self._wanted, present, {} if force or not manifest else manifest.checked)
        unsure = [one.file for one in found if one.state == "unknown"]
        self._checked |= {one.file.path: present[one.file.path] for one in found if one.state == "ok"}
        for one in found:
            if one.state == "size":
                self._damaged(folder, one.file, present[one.file.path].size_bytes)
        if not unsure:
            return
        total, done = sum(file.size_bytes for file in unsure), 0

        def advance(count: int) -> None:
            nonlocal done
            done += count

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            work = {pool.submit(store.hash_matches, folder, file.path, file, advance): file for file in unsure}
            waiting = set(work)
            while waiting:
                _done, waiting = concurrent.futures.wait(waiting, timeout=0.5)
                self._status.running(Progress("Checking", done, total, len(work) - len(waiting), len(work), self._rate(done)).line())
            for future, file in work.items():
                if _right(future):
                    self._checked[file.path] = present[file.path]
                else:
                    self._damaged(folder, file, file.size_bytes)
        self._samples.clear()

    def _damaged(self, folder: HeldFolder, file: RemoteFile, size_bytes: int) -> None:
        head = store.head_of(folder, file.path)
        self._troubles.append(f"{manifests.damage_words(file.path, size_bytes, file.size_bytes, head)}. It is fetched again")

    def _take_over_staged(self) -> None:
        """Count in what an earlier run fetched and checked but did not put in place."""
        folder = self._snapshot.staging().files
        before = dict(self._checked)
        self._verify(folder, store.read_manifest(folder), force=False)
        self._staged = {path: stat for path, stat in self._checked.items() if before.get(path) != stat}

    def _reuse(self) -> None:
        """Take files of the same content from this snapshot and from others of this repository (a moved branch changes few of them)."""
        missing = _by_content(self._missing())
        own = {path: stat for path, stat in self._checked.items() if path not in self._staged}
        self._reuse_from(self._snapshot.folder(), self._wanted, own, missing)
        self._reuse_from(self._snapshot.staging().files, self._wanted, dict(self._staged), missing)
        for other in store.other_snapshots(self._snapshot):
            manifest = other.manifest()
            if manifest and missing:
                self._reuse_from(other.folder(), manifest.files, manifest.checked, missing)

    def _reuse_from(
        self, folder: HeldFolder | None, files: t.Iterable[RemoteFile], checked: t.Mapping[str, Stat], missing: dict[tuple[str, int], list[RemoteFile]]
    ) -> None:
        for file in files:
            stat = checked.get(file.path)
            if not folder or not stat or _content(file) not in missing or store.stats(folder, [file.path]).get(file.path) != stat:
                continue
            for wanted in missing.pop(_content(file)):
                store.place(folder, file.path, self._snapshot.staging().files, wanted.path, copy=True)
                self._stage(wanted)

    def _transfer(self) -> None:
        missing = _by_content(self._missing())
        if not missing:
            return
        # One path for each content, the one of which most has arrived; the others get the same file in the end.
        first = {content: max(files, key=self._snapshot.arrived_bytes) for content, files in missing.items()}
        self._twins = {first[content].path: [file for file in files if file is not first[content]] for content, files in missing.items()}
        hub = Hub(self._job.access, self._job.repository)

        def from_hub(file: RemoteFile, start: int, end: int | None) -> t.Any:
            return hub.open(self._job.commit, file.path, start, end)

        folder = os.path.basename(self._snapshot.path)
        ways: list[tuple[str, Opener]] = [(address, opener_of(source_of(address, folder, self._job.access))) for address in self._job.sources]
        ways.append(("no other place", nowhere) if self._job.offline else (self._job.access.endpoint, from_hub))
        transfer = Transfer(self._snapshot, ways, self._job.settings)
        ready = sum(file.size_bytes for file in self._wanted if file.path in self._checked)

        def report() -> None:
            self._say("Downloading", ready + transfer.resumed_bytes + transfer.received_bytes, transfer.received_bytes, transfer.note)

        transfer.run(list(first.values()), self._finish, report)
        self._origins = transfer.ways.received()
        self._troubles += [*transfer.ways.troubles(), *dict.fromkeys(transfer.events)]

    def _finish(self, file: RemoteFile, _part: str) -> None:
        staging, name = self._snapshot.staging(), store.part_name(file)
        store.place(staging.parts, name, staging.files, file.path)
        staging.parts.remove(f"{name}.json")
        self._stage(file)
        for twin in self._twins.get(file.path, ()):
            store.place(staging.files, file.path, staging.files, twin.path, copy=True)
            self._stage(twin)
            staging.parts.remove(store.part_name(twin))
            staging.parts.remove(f"{store.part_name(twin)}.json")
        with self._lock:
            self._fetched += [file.path, *(twin.path for twin in self._twins.get(file.path, ()))]

    def _stage(self, file: RemoteFile) -> None:
        """Note a file that is whole and right, so that a later run need not read it again; called from any thread."""
        folder = self._snapshot.staging().files
        stat = store.stats(folder, [file.path]).get(file.path)
        if stat is None:
            raise Refused(os.path.join(folder.path, file.path), "somebody else has removed or replaced it")
        with self._lock:
            self._checked[file.path] = self._staged[file.path] = stat
            store.write_manifest(folder, Manifest(self._job.repository, self._job.commit, self._job.files, dict(self._staged)))

    def _put_in_place(self) -> None:
        """Make the snapshot appear whole, or mend the one that is there file by file."""
        manifest = Manifest(self._job.repository, self._job.commit, self._job.files, self._all_checked())
        staging = self._snapshot.staging()
        if staging.store.status(self._snapshot.name) is None:
            store.write_manifest(staging.files, manifest)
            store.open_to_readers(staging.files, [*self._staged, MANIFEST_NAME])
            staging.own.move("files", staging.store, self._snapshot.name)
            target = staging.files
        else:
            target = staging.store.folder(self._snapshot.name)
            for path in self._staged:
                store.place(staging.files, path, target, path)
            store.write_manifest(target, manifest)
            store.open_to_readers(target, [*self._checked, MANIFEST_NAME])
        target.sync()
        staging.store.sync()

    def _all_checked(self) -> dict[str, Stat]:
        """Return what is known now, and what the old manifest knows about files that were not asked for."""
        old = self._snapshot.manifest()
        known = {path: stat for path, stat in old.checked.items() if path not in self._job.selected} if old else {}
        return {**known, **self._checked}

    def _say(self, phase: str, done_bytes: int, moved_bytes: int = 0, note: str = "") -> None:
        counts = (min(done_bytes, self._total_bytes), self._total_bytes, len(self._wanted) - len(self._missing()), len(self._wanted))
        self._status.running(Progress(phase, *counts, self._rate(moved_bytes), note).line())

    def _rate(self, count: int) -> float:
        """Return bytes per second over the last seconds."""
        now = time.monotonic()
        self._samples = [one for one in self._samples if now - one[0] <= RATE_WINDOW_S] + [(now, count)]
        (start, first), (end, last) = self._samples[0], self._samples[-1]
        return max(0.0, (last - first) / (end - start)) if end > start else 0.0


def _content(file: RemoteFile) -> tuple[str, int]:
    return file.key, file.size_bytes


def _by_content(files: t.Iterable[RemoteFile]) -> dict[tuple[str, int], list[RemoteFile]]:
    """Return the files of each content: several paths may have the same."""
    found: dict[tuple[str, int], list[RemoteFile]] = {}
    for file in files:
        found.setdefault(_content(file), []).append(file)
    return found


def _right(check: concurrent.futures.Future[bool]) -> bool:
    """Return the outcome of a check; what can't be read as a plain file is not right, but a disk that fails is told."""
    try:
        return check.result()
    except (Refused, FileNotFoundError):
        return False


def main(folder: str) -> int:
    """Run the job in a folder of the run directory; called by the unit."""
    os.umask(0o022)

    def work(values: dict[str, t.Any], status: JobStatus) -> t.Mapping[str, t.Any]:
        # The job may hold a token: it is not needed on disk any more.
        os.unlink(os.path.join(folder, "job.json"))
        return Worker(Job.from_dict(values), status).run()

    return run_worker(folder, work, "model")
