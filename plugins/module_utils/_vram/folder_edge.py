# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model folder as files: config and safetensors headers.

The folder may be another machine's work, or lie where a container's root can write: what is read of it is a regular file, and
bounded.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import stat
import typing as t

from .._core.errors import KproError
from .._linux.held_folder_edge import open_regular
from .._model import engine_files as engine
from .._model.safetensors import PREFIX_BYTES, header_size
from .headers import Entry, entries_of

_MOST_FILES = 100_000


class ModelFolder:
    """Reads what a plan needs of a folder with a model; never the weights themselves."""

    def __init__(self, path: str) -> None:
        self.path = pathlib.Path(path)
        # Files of the folder that the engine does not load, for a person.
        self.notes: list[str] = []

    def config(self) -> dict[str, t.Any]:
        """Return the parsed ``config.json``.

        :raises KproError: if it isn't there or can't be read.
        """
        file = self.path / engine.CONFIG
        return engine.config_of(self._text(file, engine.LONGEST_CONFIG_BYTES, "Give a folder with a complete model", "model_path"), str(file))

    def entries(self) -> list[Entry]:
        """Return the tensors of the files that the engine loads, or nothing if none of them is a safetensors file.

        :raises KproError: if the engine can't load the folder, or a file of it is truncated or unreadable.
        """
        sizes = self._sizes()
        name = engine.index_name(sizes, self.path.name)
        file = self.path / (name or engine.INDEX)
        index = engine.weight_map(self._text(file, engine.LONGEST_INDEX_BYTES, "Download it again", "weight_map"), str(file)) if name else None
        found = engine.engine_files(sizes, index, self.config() if engine.CONFIG in sizes else {}, self.path.name)
        # A folder of a config alone is planned by that.
        if any(path.endswith(".safetensors") for path in sizes) or not index:
            found.check(str(self.path))
        # Other formats, in the way of nothing, are not worth a word here.
        second = dataclasses.replace(found, left_out={path: why for path, why in found.left_out.items() if path.endswith(".safetensors")})
        self.notes = [f"not loaded by the engine, and not planned: {words}" for words in second.words(sizes)]
        entries: dict[str, Entry] = {}
        for path in found.weights:
            if path.endswith(".safetensors"):
                for entry in self._entries_of(self.path / path):
                    entries.setdefault(entry.name, entry)
        return list(entries.values())

    def _sizes(self) -> dict[str, int]:
        """Return the length of each regular file below the folder, by its path there."""
        found: dict[str, int] = {}
        seen = 0
        for folder, _folders, names in os.walk(self.path):
            seen += 1 + len(names)
            if seen > _MOST_FILES:
                raise KproError(str(self.path), f"it holds more than {_MOST_FILES} files", "Give the folder of one model", field="model_path")
            for name in names:
                file = os.path.join(folder, name)
                try:
                    status = os.stat(file)
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    found[os.path.relpath(file, self.path)] = status.st_size
        return found

    def _text(self, file: pathlib.Path, longest_bytes: int, remedy: str, field: str) -> bytes:
        try:
            with open(file, "rb", opener=_without_waiting) as stream:
                if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                    raise KproError(str(file), "it is no regular file", remedy, field=field)
                return stream.read(longest_bytes + 1)
        except OSError as error:
            raise KproError(str(file), f"it can't be read ({error.strerror})", remedy, field=field) from error

    def _entries_of(self, file: pathlib.Path) -> list[Entry]:
        try:
            with open(file, "rb", opener=_without_waiting) as stream:
                size = os.fstat(stream.fileno()).st_size
                length = header_size(stream.read(PREFIX_BYTES), str(file), size)
                return entries_of(stream.read(length), size, str(file))
        except OSError as error:
            raise KproError(str(file), f"it can't be read ({error.strerror})", "Check the download", field="model_path") from error


def _without_waiting(name: str, _flags: int) -> int:
    # A FIFO in the place of a file would be waited for.
    return open_regular(os.path.abspath(name), own_links=True)
