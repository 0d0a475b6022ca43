# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model folder as files: config and safetensors headers."""

from __future__ import annotations

import json
import pathlib
import typing as t

from .._core.errors import KproError
from .._model.safetensors import PREFIX_BYTES, header_size
from .headers import Entry, entries_of


class ModelFolder:
    """Reads what a plan needs of a folder with a model; never the weights themselves."""

    def __init__(self, path: str) -> None:
        self.path = pathlib.Path(path)

    def config(self) -> dict[str, t.Any]:
        """Return the parsed ``config.json``.

        :raises KproError: if it isn't there or can't be read.
        """
        file = self.path / "config.json"
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            raise KproError(str(file), f"it can't be read ({error.strerror})", "Give a folder with a complete model", field="model_path") from error
        try:
            config = json.loads(text)
        except ValueError as error:
            raise KproError(str(file), f"it is no JSON ({error})", "Download it again", field="config.json") from error
        if not isinstance(config, dict):
            raise KproError(str(file), "it holds no JSON object", "Download it again", field="config.json")
        return config

    def entries(self) -> list[Entry]:
        """Return the tensors of all safetensors files, or nothing if there is no such file.

        :raises KproError: for a file that is missing from the index, truncated or unreadable.
        """
        files = sorted(self.path.glob("*.safetensors"))
        self._check_complete({file.name for file in files})
        return [entry for file in files for entry in self._entries_of(file)]

    def _entries_of(self, file: pathlib.Path) -> list[Entry]:
        try:
            size = file.stat().st_size
            with file.open("rb") as stream:
                length = header_size(stream.read(PREFIX_BYTES), str(file), size)
                return entries_of(stream.read(length), size, str(file))
        except OSError as error:
            raise KproError(str(file), f"it can't be read ({error.strerror})", "Check the download", field="model_path") from error

    def _check_complete(self, present: set[str]) -> None:
        index = self.path / "model.safetensors.index.json"
        try:
            wanted = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise KproError(str(index), f"it can't be read ({error})", "Download it again", field="weight_map") from error
        missing = sorted(wanted - present)
        if missing and present:
            reason = f"{len(missing)} of its {len(wanted)} files are missing, the first is {missing[0]}"
            raise KproError(str(self.path), reason, "Finish the download", field="weight_map", value=missing[0])
