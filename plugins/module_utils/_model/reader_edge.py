# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the files of a commit, wherever they lie: what the engine loads of them, config, tensors."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import os
import threading
import typing as t

from .._core.errors import KproError
from . import engine_files as engine
from . import hub_protocol as protocol
from . import manifest as manifests
from . import safetensors
from . import store_edge as store
from .engine_files import EngineFiles
from .hub_protocol import RemoteFile
from .manifest import Manifest

# Most headers fit into the first answer.
FIRST_BYTES = 1 << 17
# Of all headers of a model together: they are held in memory.
LONGEST_HEADERS_BYTES = 96 << 20

# Returns a part of a file of the commit from somewhere else than the snapshot.
Fetch = t.Callable[[RemoteFile, int, int], bytes]


class NotHere(Exception):
    """The snapshot lacks a small file that has to be read, and nobody else is to be asked."""


@dataclasses.dataclass(frozen=True)
class Selection:
    """The files that are wanted, and what the engine does with them.

    :param sizes: of all files that the patterns choose, by path.
    """

    files: tuple[RemoteFile, ...]
    engine: EngineFiles
    sizes: t.Mapping[str, int]

    def left_out(self) -> list[str]:
        """Return sentences about weights that are not wanted, or wanted and not loaded."""
        return self.engine.words(self.sizes)


class ModelReader:
    """Reads small files and headers of a commit, from the snapshot where they lie there unchanged, else by ``fetches``.

    :param fetches: ways to them; the next one is asked where what one gives can't be right.
    """

    def __init__(self, snapshot: store.Snapshot, files: t.Sequence[RemoteFile], manifest: Manifest | None, *fetches: Fetch) -> None:
        self._snapshot = snapshot
        self._files = {file.path: file for file in files}
        self._checked = manifest.checked if manifest else {}
        self._fetches = fetches
        self._lock = threading.Lock()
        self._headers_bytes = 0

    def selection(self, include: t.Sequence[str], exclude: t.Sequence[str]) -> Selection:
        """Return the files to have: those of the patterns; without ``include``, what the engine loads and all that is no weights.

        :raises KproError: if the repository's index can't be what it should be.
        """
        chosen = manifests.select(self._files.values(), include, exclude)
        sizes = {file.path: file.size_bytes for file in chosen}
        name = self._snapshot.repository
        index = engine.index_name(sizes, name)
        weights = engine.weight_map(self.whole(index, engine.LONGEST_INDEX_BYTES), index) if index else None
        # The config decides only for few families, and a repository need not have one.
        odd = any(path == "mtp.safetensors" or (path.endswith(".safetensors") and "/" in path) for path in sizes)
        config = self.config() if odd and engine.CONFIG in sizes else {}
        found = engine.engine_files(sizes, weights, config, name)
        wanted = chosen if include else [file for file in chosen if file.path not in found.left_out]
        return Selection(tuple(wanted), found, sizes)

    def config(self) -> dict[str, t.Any]:
        """Return the model's config.

        :raises KproError: if there is none, or it can't be read.
        """
        return engine.config_of(self.whole(engine.CONFIG, engine.LONGEST_CONFIG_BYTES), f"{engine.CONFIG} of model {self._snapshot.repository}")

    def whole(self, path: str, longest_bytes: int) -> bytes:
        """Return a small file; its content is that of the commit.

        :raises KproError: if the repository lacks it, it is too long, or its content is another.
        """
        file = self._files.get(path)
        what = f"model {self._snapshot.repository}"
        if file is None:
            raise KproError(what, f"it has no {path}", "Check hf_model__repository: is it a model for this engine?")
        if file.size_bytes > longest_bytes:
            raise KproError(
                what, f"its {path} has {file.size_bytes >> 20} MiB, and {longest_bytes >> 20} are the most that is read", "Choose another repository"
            )
        for data in self._parts(file, 0, file.size_bytes):
            if _is_of(data, file):
                return data
        raise KproError(what, f"{path} came with another content than the commit's", "Look for a proxy, a mirror or a source that holds something else")

    def _parts(self, file: RemoteFile, start: int, end: int) -> t.Iterator[bytes]:
        """Give a part of a file as each of the ways to it has it; raises as :meth:`_part`."""
        yield self._part(file, start, end, 0)
        if not self._unchanged(file):
            for way in range(1, len(self._fetches)):
                yield self._part(file, start, end, way)

    def _part(self, file: RemoteFile, start: int, end: int, way: int) -> bytes:
        """Return a part of a file from the snapshot, else by one of the ways.

        :raises NotHere: if it is not in the snapshot, and nobody is to be asked.
        """
        if start == end:
            return b""
        if self._unchanged(file):
            return store.read_part(os.path.join(self._snapshot.path, file.path), start, end)
        if not self._fetches:
            raise NotHere(file.path)
        return self._fetches[way](file, start, end)

    def _unchanged(self, file: RemoteFile) -> bool:
        present = store.stats(self._snapshot.path, [file.path]).get(file.path)
        return present is not None and present == self._checked.get(file.path)

    def weights(self, paths: t.Collection[str], connections: int) -> dict[str, t.Any]:
        """Return bytes and parameters by element type of the tensors in some safetensors files.

        :raises KproError: if a header can't be read.
        """
        shards = [self._files[path] for path in paths if path.endswith(".safetensors")]
        with concurrent.futures.ThreadPoolExecutor(max(1, connections)) as pool:
            return safetensors.summed(list(pool.map(self._header, shards))).to_dict()

    def _header(self, file: RemoteFile) -> dict[str, t.Any]:
        problem: KproError | None = None
        for way, first in enumerate(self._parts(file, 0, min(file.size_bytes, FIRST_BYTES))):
            try:
                return self._tensors(file, first, way)
            except KproError as error:
                problem = problem or error
        raise problem or KproError(file.path, "its safetensors header cannot be read", "Fetch it again")

    def _tensors(self, file: RemoteFile, first: bytes, way: int) -> dict[str, t.Any]:
        length = safetensors.header_size(first, file.path, file.size_bytes)
        with self._lock:
            self._headers_bytes += length
            if self._headers_bytes > LONGEST_HEADERS_BYTES:
                reason = f"the headers of its safetensors files have more than {LONGEST_HEADERS_BYTES >> 20} MiB together"
                raise KproError(f"model {self._snapshot.repository}", reason, "Choose another repository")
        end = safetensors.PREFIX_BYTES + length
        rest = self._part(file, len(first), end, way) if len(first) < end else b""
        return safetensors.tensors_of((first + rest)[safetensors.PREFIX_BYTES : end], file.path, file.size_bytes)


def _is_of(data: bytes, file: RemoteFile) -> bool:
    """Whether a content is that which the listing names."""
    if len(data) != file.size_bytes:
        return False
    if file.sha256:
        return hashlib.sha256(data).hexdigest() == file.sha256
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest() == file.git_sha1


def known_files(rows: t.Any, what: str) -> list[RemoteFile]:
    """Return the files that another machine says belong to a commit.

    :raises KproError: if that is no list of files.
    """
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise KproError(what, "what is known of it has no list of files", "Ask the other node again")
    found = (protocol.remote_file(row.get("path"), row.get("size_bytes"), row.get("sha256"), row.get("git_sha1"), what) for row in rows)
    return protocol.checked_listing(found, what)
