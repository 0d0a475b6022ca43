# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What we fetch is what the engine loads: its own choice of files, taken out of the published wheels, is asked in the folder that we would make."""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import random
import types
import typing as t
from pathlib import Path

import pytest
import stubs
from wheels import PINNED, fetch_pinned

from ansible_collections.kpro.llm.plugins.module_utils._model import engine_files as engine

FOLDERS = 600
SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
NAMES = [
    *("model.safetensors", "consolidated.safetensors", "model.fp16.safetensors", "adapter_model.safetensors", "mtp.safetensors", "extra.safetensors"),
    *("pytorch_model.bin", "training_args.bin", "model.gguf", "original/model.safetensors", "onnx/model.onnx", "other.bin", "consolidated.00.pth"),
]


def engine_choice(version: str) -> t.Callable[[Path], list[str]]:
    """The engine's choice in a folder, as its loader makes it for ``load_format: auto``."""
    names = stubs.namespace()
    names.update({"glob": glob, "os": os, "json": json, "fnmatch": fnmatch, "logger": types.SimpleNamespace(warning=print)})
    found = stubs.define(
        names,
        fetch_pinned(version).nodes("model_loader/weight_utils.py", ["filter_duplicate_safetensors_files", "filter_files_not_needed_for_inference"]),
    )

    def choose(folder: Path) -> list[str]:
        top = [str(path) for path in folder.glob("*.safetensors") if not path.name.startswith(".")]
        native = any(Path(path).name.startswith("consolidated") for path in top) and not any(Path(path).name.startswith("model") for path in top)
        if top:
            family = [path for path in top if not native or Path(path).name.startswith("consolidated")]
            index = engine.CONSOLIDATED_INDEX if native else engine.INDEX
            return sorted(Path(path).name for path in found["filter_duplicate_safetensors_files"](family, str(folder), index))
        return sorted(Path(path).name for path in found["filter_files_not_needed_for_inference"]([str(path) for path in folder.glob("*.bin")]))

    return choose


@pytest.mark.parametrize("version", sorted(PINNED))
def test_the_engine_loads_exactly_what_we_say_from_what_we_fetch(version: str, tmp_path: Path) -> None:
    choose, dice = engine_choice(version), random.Random(version)
    compared = 0
    for number in range(FOLDERS):
        paths = set(dice.sample(NAMES, dice.randrange(0, 6))) | (set(SHARDS) if dice.random() < 0.6 else set())
        sizes = dict.fromkeys(sorted(paths), 1 << 30)
        top = [path for path in sorted(paths) if path.endswith(".safetensors") and "/" not in path]
        index = {f"t{place}": path for place, path in enumerate(dice.sample(top, dice.randint(1, len(top))))} if top and dice.random() < 0.5 else None
        name = engine.index_name({*paths, engine.INDEX, engine.CONSOLIDATED_INDEX}, "org/model")
        found = engine.engine_files(sizes, index, {}, "org/model")
        if found.problem or not found.weights:
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        for path in paths - found.left_out.keys():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).touch()
        if index is not None:
            (folder / name).write_text(json.dumps({"weight_map": index}))
        assert choose(folder) == list(found.weights), (sorted(paths), index, found)
        compared += 1
    assert compared > FOLDERS / 2
