# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One call of hf_model: observe, plan, have it done."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
import typing as t
import urllib.request

from .._core.changes import Change, plan_result
from .._core.errors import KproError
from .._job.long_job_edge import LongJob
from . import hub_protocol as protocol
from . import manifest as manifests
from . import store_edge as store
from . import worker
from .hub_edge import Closed, Hub, HubAccess, Interrupted
from .hub_protocol import RemoteFile
from .plan import Present, check_space, files_to_check, plan_changes
from .reader_edge import ModelReader, NotHere, Selection, known_files
from .sources_edge import Source, manifest_of, part_of, source_of
from .transfer_edge import TransferSettings
from .worker import Job

MIB = 1 << 20
ASKS = 4
# A hub that is slow each time is not asked again and again.
LONGEST_ASKING_S = 120.0

T = t.TypeVar("T")


class HubSilent(KproError):
    """The hub does not answer, or only with errors of its own."""


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """The module's options, checked for form only."""

    repository: str
    revision: str
    store: str
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    verify: str
    sources: tuple[str, ...]
    offline: bool
    endpoint: str
    token: str = dataclasses.field(repr=False)
    ca_bundle: str
    connections: int
    reserve_mib: int
    stall_s: int
    patience_s: int
    poll_s: int
    ssh_key_file: str = ""
    ssh_known_hosts_file: str = ""

    def access(self) -> HubAccess:
        """Return how to reach the hub."""
        endpoint = self.endpoint or os.environ.get("HF_ENDPOINT", "") or protocol.PUBLIC_ENDPOINT
        if not endpoint.startswith(("http://", "https://")):
            raise KproError(f"endpoint {endpoint!r}", "it is not an http or https address", "Correct hf_model__endpoint")
        if self.ca_bundle and not os.path.isfile(self.ca_bundle):
            raise KproError(self.ca_bundle, "there is no such file on the target", "Correct hf_model__ca_bundle")
        return HubAccess(
            endpoint.rstrip("/"),
            self.token,
            self.ca_bundle,
            urllib.request.getproxies(),
            float(self.stall_s),
            self.ssh_key_file,
            self.ssh_known_hosts_file,
        )

    def job(self) -> LongJob:
        """Return the job for this very question; the same question finds the same unit."""
        question = json.dumps([os.path.realpath(self.store), self.repository, self.revision, self.include, self.exclude])
        key = hashlib.sha256(question.encode()).hexdigest()[:12]
        return LongJob(f"kpro-hf-model-{key}.service")


def ensure(options: ModelOptions, *, apply: bool) -> dict[str, t.Any]:
    """Bring the snapshot to what is wanted, or say what would be done (``apply`` false).

    :raises KproError: if the hub refuses, the space is short, or the work fails.
    """
    protocol.check_repository(options.repository)
    if done := _unchanged(options):
        return done
    store.check_mount(options.store)
    job = options.job()
    ended = None
    if apply and (job.unread() or job.running()):
        ended = job.wait(options.poll_s)
        if not ended.finished:
            return _unfinished(options, ended.progress)
    hub = Hub(options.access(), options.repository)
    commit = _commit(options, hub)
    snapshot = store.Snapshot(options.store, options.repository, commit)
    # The worker has just read what had to be read: asking for all again would never end.
    verify_all = options.verify == "all" and not ended
    files, selection, found = _observe(options, hub, snapshot)
    changes = plan_changes(f"{options.repository}@{commit}", snapshot.path, found, verify_all=verify_all)
    if ended and not changes:
        return {**_result(options, snapshot, selection), **plan_result(_fetched(ended.result)), **_origins(ended.result), "finished": True}
    result = {**_result(options, snapshot, selection), **plan_result(changes), "finished": True}
    if not changes and not files_to_check(found, verify_all=verify_all):
        return result
    check_space(options.store, found, options.reserve_mib * MIB)
    if not apply:
        return result
    work = _work(options, commit, files, found, verify_all)
    job.start(worker, work.to_dict(), f"kpro.llm: model {options.repository}")
    ended = job.wait(options.poll_s)
    if not ended.finished:
        return {**result, "finished": False, "progress": ended.progress}
    _files_again, _selection, after = _observe(options, hub, snapshot)
    if not manifests.complete(after.states):
        raise KproError(snapshot.path, "it is not complete although the download ended well", "Run again with --check --diff to see what differs")
    result = {**result, **_origins(ended.result)}
    return result if changes else {**result, **plan_result(_fetched(ended.result))}


def _work(options: ModelOptions, commit: str, files: t.Sequence[RemoteFile], found: Present, verify_all: bool) -> Job:
    """Return what the worker has to do."""
    selected = tuple(one.file.path for one in found.states)
    settings = TransferSettings(options.connections, float(options.patience_s))
    return Job(options.store, options.repository, commit, tuple(files), selected, verify_all, options.access(), options.sources, settings, options.offline)


def _unchanged(options: ModelOptions) -> dict[str, t.Any] | None:
    """Return the result if the snapshot of a pinned commit is as it was left: no hub, no other program is asked."""
    if options.verify == "all" or not protocol.COMMIT.fullmatch(options.revision):
        return None
    snapshot = store.Snapshot(options.store, options.repository, options.revision)
    manifest = snapshot.manifest()
    if not manifest:
        return None
    try:
        selection = ModelReader(snapshot, manifest.files, manifest).selection(options.include, options.exclude)
    except NotHere:
        return None
    if not selection.files:
        return None
    present = store.stats(snapshot.path, [file.path for file in selection.files])
    states = manifests.states(selection.files, present, manifest.checked)
    return {**_result(options, snapshot, selection), **plan_result([]), "finished": True} if manifests.complete(states) else None


def resolve(options: ModelOptions) -> dict[str, t.Any]:
    """Return the commit of the revision and where it would lie; never changes anything.

    :raises KproError: if the hub refuses or does not answer.
    """
    protocol.check_repository(options.repository)
    commit = _commit(options, Hub(options.access(), options.repository))
    path = store.Snapshot(options.store, options.repository, commit).path
    return {"changed": False, "plan": [], "finished": True, "path": path, "repository": options.repository, "commit": commit}


def describe(options: ModelOptions) -> dict[str, t.Any]:
    """Return config and weights of the model without fetching it; never changes anything.

    :raises KproError: if the hub refuses or the files are not those of a model.
    """
    protocol.check_repository(options.repository)
    hub = Hub(options.access(), options.repository)
    commit = _commit(options, hub)
    snapshot = store.Snapshot(options.store, options.repository, commit)
    _files_of_commit, reader = _reader(options, hub, snapshot)
    config = reader.config()
    selection = reader.selection(options.include, options.exclude)
    selection.engine.check(f"model {options.repository}")
    weights = reader.weights(selection.engine.weights, options.connections)
    return {"config": config, "weights": weights, "left_out": selection.left_out(), **_amounts(options, snapshot, selection.files)}


def describe_as(options: ModelOptions, known: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return the same as :func:`describe` by what another node said of the model; nobody is asked, only this store is looked at.

    :param known: the other node's answer.
    :raises KproError: if it is about another model.
    """
    protocol.check_repository(options.repository)
    if known.get("repository") != options.repository:
        raise KproError(f"model {options.repository}", f"what is known is about {known.get('repository')}", "Ask the other node for this model")
    what = f"model {options.repository}"
    commit = protocol.commit_of({"sha": known.get("commit")}, what)
    left_out = known.get("left_out") or []
    if not isinstance(known.get("config"), dict) or not isinstance(known.get("weights"), dict) or not isinstance(left_out, list):
        raise KproError(what, "what is known of it has no config and weights", "Ask the other node again")
    amounts = _amounts(options, store.Snapshot(options.store, options.repository, commit), known_files(known.get("files"), what))
    return {"config": known["config"], "weights": known["weights"], "left_out": left_out, **amounts}


def _amounts(options: ModelOptions, snapshot: store.Snapshot, selected: t.Sequence[RemoteFile]) -> dict[str, t.Any]:
    present = store.stats(snapshot.path, [file.path for file in selected])
    return {
        "changed": False,
        "plan": [],
        "finished": True,
        "path": snapshot.path,
        "repository": options.repository,
        "commit": snapshot.commit,
        "size_bytes": sum(file.size_bytes for file in selected),
        "missing_bytes": sum(file.size_bytes - snapshot.arrived_bytes(file) for file in selected if file.path not in present),
        "free_bytes": store.space(options.store)[0],
        "files": [dataclasses.asdict(file) for file in selected],
    }


def _commit(options: ModelOptions, hub: Hub) -> str:
    if protocol.COMMIT.fullmatch(options.revision):
        return options.revision
    if options.offline:
        raise KproError(f"revision {options.revision}", "only the hub knows its commit, and it is not to be asked", "Give a commit as hf_model__revision")
    return _asked(lambda: hub.commit(options.revision))


def _sources(options: ModelOptions, snapshot: store.Snapshot) -> list[Source]:
    return [source_of(address, os.path.basename(snapshot.path), options.access()) for address in options.sources]


def _part(options: ModelOptions, hub: Hub, snapshot: store.Snapshot, file: RemoteFile, start: int, end: int) -> bytes:
    """Return a part of a file from the first source that has it, else from the hub. Only the download checks contents."""
    for source in _sources(options, snapshot):
        with contextlib.suppress(Interrupted):
            return part_of(source, file.path, start, end)
    if options.offline:
        raise KproError(f"{file.path} of model {options.repository}", "no source has it, and the hub is not to be asked", "Give a store that holds it")
    return _asked(lambda: hub.read(snapshot.commit, file.path, start, end))


def _files(options: ModelOptions, hub: Hub, snapshot: store.Snapshot) -> t.Sequence[RemoteFile]:
    """Return all files of the commit, from the hub; only if that does not answer, as another source has them written down."""
    sources = _sources(options, snapshot)
    if not options.offline:
        try:
            return _asked(lambda: hub.files(snapshot.commit))
        except HubSilent as error:
            silence = error
    for source in sources:
        if found := manifest_of(source, options.repository, snapshot.commit):
            return found.files
    if options.offline:
        raise KproError(f"model {options.repository}@{snapshot.commit}", "no source has a manifest of this commit", "Give a store that holds it complete")
    raise silence


def _reader(options: ModelOptions, hub: Hub, snapshot: store.Snapshot) -> tuple[t.Sequence[RemoteFile], ModelReader]:
    """Return all files of the commit, and what reads them; the hub is asked for the list only if no manifest has it."""
    manifest = snapshot.manifest()
    files: t.Sequence[RemoteFile] = manifest.files if manifest else _files(options, hub, snapshot)

    def fetch(file: RemoteFile, start: int, end: int) -> bytes:
        return _part(options, hub, snapshot, file, start, end)

    def by_hub(file: RemoteFile, start: int, end: int) -> bytes:
        return _asked(lambda: hub.read(snapshot.commit, file.path, start, end))

    # A mirror's headers are checked by nothing else: where they can't be right, the hub is asked.
    more = (by_hub,) if options.sources and not options.offline else ()
    return files, ModelReader(snapshot, files, manifest, fetch, *more)


def _observe(options: ModelOptions, hub: Hub, snapshot: store.Snapshot) -> tuple[t.Sequence[RemoteFile], Selection, Present]:
    """Return all files of the commit, the selected ones, and what there is of these.

    :raises KproError: if nothing is selected, or the engine has no use for the repository.
    """
    what = f"model {options.repository}"
    files, reader = _reader(options, hub, snapshot)
    selection = reader.selection(options.include, options.exclude)
    if selection.engine.problem and not selection.engine.weights and not options.include:
        remedy = f"{selection.engine.remedy}. To fetch the files anyway, name them in hf_model__include"
        raise KproError(what, selection.engine.problem, remedy, field="weights")
    if not selection.files:
        raise KproError(what, "no file is selected", "Correct hf_model__include and hf_model__exclude")
    _check_case(options.store, what, selection.files)
    manifest = snapshot.manifest()
    present = store.stats(snapshot.path, [file.path for file in selection.files])
    states = tuple(manifests.states(selection.files, present, manifest.checked if manifest else {}))
    if manifests.complete(states):
        return files, selection, Present(states, {}, {}, 0, None)
    lacking = [one.file for one in states if one.state in ("missing", "size")]
    parts = {file.path: snapshot.arrived_bytes(file) for file in lacking}
    free_bytes, free_inodes = store.space(options.store)
    return files, selection, Present(states, parts, snapshot.leftovers(), free_bytes, free_inodes)


def _check_case(folder: str, what: str, files: t.Sequence[RemoteFile]) -> None:
    """Refuse two files whose names differ in case only, where the store can't tell them apart."""
    both = protocol.same_but_for_case(files)
    while both and not os.path.isdir(folder):
        folder = os.path.dirname(folder) or "/"
    base = os.path.basename(folder.rstrip("/"))
    other = os.path.join(os.path.dirname(folder.rstrip("/")), base.swapcase())
    if both and base.swapcase() != base and os.path.exists(other) and os.path.samefile(folder, other):
        reason = f"it has {both[0]} and {both[1]}, and the store's file system does not tell capital letters apart"
        raise KproError(what, reason, "Set hf_model__store to another file system, or leave one out with hf_model__exclude")


def _result(options: ModelOptions, snapshot: store.Snapshot, selection: Selection) -> dict[str, t.Any]:
    return {
        "path": snapshot.path,
        "repository": options.repository,
        "commit": snapshot.commit,
        "size_bytes": sum(file.size_bytes for file in selection.files),
        "left_out": selection.left_out(),
    }


def _fetched(result: t.Mapping[str, t.Any]) -> list[Change]:
    """Return what the worker did beyond a plan made from sizes and times."""
    return [Change(f"Fetch {path}", "missing or damaged", "as in the commit") for path in result.get("fetched", ())]


def _origins(result: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return where the bytes came from, and a warning for each thing that was damaged or could not be used."""
    troubles = list(result.get("troubles", ()))
    return {"origins": result.get("origins", {}), **({"warnings": troubles} if troubles else {})}


def _unfinished(options: ModelOptions, progress: str) -> dict[str, t.Any]:
    # The call that started the work reported whether something changes; the last call reports it again.
    empty = {"path": "", "repository": options.repository, "commit": "", "size_bytes": 0, "left_out": []}
    return {**empty, **plan_result([]), "finished": False, "progress": progress}


def _asked(question: t.Callable[[], T]) -> T:
    """Ask the hub, a few times if it is out of order for the moment.

    :raises KproError: if it stays so.
    """
    until = time.monotonic() + LONGEST_ASKING_S
    for number in range(ASKS):
        try:
            return question()
        except Closed as error:
            raise KproError("the model hub", str(error), "Check hf_model__endpoint, and whether a proxy answers in its place") from error
        except Interrupted as error:
            problem = error
            if time.monotonic() > until:
                break
            if number < ASKS - 1:
                time.sleep(max(min(error.wait_s, 10.0), 0.5 * 2.0**number))
    raise HubSilent("the model hub", f"it does not answer ({problem})", "Check hf_model__endpoint, name resolution and proxy from this machine") from problem
