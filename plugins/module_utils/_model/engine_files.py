# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files of a repository the engine loads as weights. Pure.

Read in SGLang 0.5.9 to 0.5.23 (``model_loader/loader.py`` ``_prepare_weights``, ``weight_utils.py``
``filter_duplicate_safetensors_files`` and ``maybe_add_mtp_safetensors``, ``arg_groups/model_path_hook.py``
``is_mistral_native_format``, ``models/cosmos3*.py``, ``models/gemma3_causal.py``):

* It takes ``*.safetensors`` of the top folder; only if there is none, ``*.bin``.
* With ``model.safetensors.index.json`` it keeps those that the index names; without, all, so that two families of the same
  tensors would both be loaded. Of two families only one is fetched, and then there is only one to load.
* ``consolidated*.safetensors`` without ``model*.safetensors`` is loaded in Mistral's own format, with an index of that name.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import typing as t

from .._core.errors import KproError
from .._core.shown_text import one_line
from .._core.untrusted_json import BadJson, object_of
from .hub_protocol import path_problem
from .transfer_plan import size_words

INDEX = "model.safetensors.index.json"
CONSOLIDATED_INDEX = "consolidated.safetensors.index.json"
CONFIG = "config.json"
# The longest index of today's models has some 15 MB.
LONGEST_INDEX_BYTES = 32 << 20
LONGEST_CONFIG_BYTES = 8 << 20
# Formats in which weights are published.
_SUFFIXES = (
    *(".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".ggml", ".onnx", ".onnx_data", ".onnx.data", ".h5", ".msgpack", ".ot"),
    *(".tflite", ".pb", ".mlmodel", ".nemo", ".npz", ".llamafile", ".mar", ".pdparams"),
)
# These also hold small things that are no weights: vocabularies, voices, statistics.
_MIXED_SUFFIXES = (".bin", ".pt", ".pth", ".npz", ".pb")
_SMALL_BYTES = 16 << 20
_SHARD = re.compile(r"-(?P<number>\d{5,6})-of-(?P<count>\d{5,6})(?=\.)")
_TORCH = re.compile(r"pytorch_model(-\d{5,6}-of-\d{5,6})?\.bin")
# In the order in which one of several is preferred.
_VARIANTS = ("bf16", "fp16", "half", "fp32", "fp8", "int8", "8bit", "int4", "4bit", "ema", "non_ema")
_BY_NAME_NATIVE = ("mistral-large-3", "mistral-small-4", "leanstral")
_WITH_MTP = ("Glm4MoeForCausalLM", "Glm4MoeForCausalLMNextN", "Glm4MoeLiteForCausalLM", "Glm4MoeLiteForCausalLMNextN")
# Architectures whose weights lie in folders.
_IN_FOLDERS = {
    "Cosmos3ForConditionalGeneration": ("transformer/*.safetensors", "vision_encoder/*.safetensors"),
    "Cosmos3EdgeForConditionalGeneration": ("[tv]*er/*.safetensors",),
}
# The dense layers behind an embedding model, named by modules.json.
_DENSE = re.compile(r"\d+_\w+/[^/]+")

Sizes = t.Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class EngineFiles:
    """The engine's use of the files of a folder.

    :param weights: paths of the weights that it loads, sorted.
    :param left_out: path of each file with other weights, and why it is not loaded.
    :param problem: why the engine can't load the folder; empty if it can.
    :param remedy: what to do about that.
    """

    weights: tuple[str, ...]
    left_out: t.Mapping[str, str]
    problem: str = ""
    remedy: str = ""

    def check(self, what: str) -> EngineFiles:
        """Return itself.

        :raises KproError: if the engine can't load the folder.
        """
        if self.problem:
            raise KproError(what, self.problem, self.remedy, field="weights")
        return self

    def words(self, sizes: Sizes) -> list[str]:
        """Return a sentence for each reason why something is left out, the largest first."""
        by_reason: dict[str, list[str]] = {}
        for path, reason in sorted(self.left_out.items()):
            by_reason.setdefault(reason, []).append(path)
        rows = sorted(((sum(sizes.get(path, 0) for path in paths), reason, paths) for reason, paths in by_reason.items()), reverse=True)
        return [f"{_names(paths)} ({size_words(total)}): {reason}" for total, reason, paths in rows]


def index_name(paths: t.Collection[str], name: str) -> str:
    """Return the path of the index that the engine reads; empty if there is none.

    :param name: of the repository or its folder; it decides for a few families.
    """
    wanted = CONSOLIDATED_INDEX if _native(paths, name) else INDEX
    return wanted if wanted in paths else ""


def weight_map(text: bytes, path: str) -> dict[str, str]:
    """Return name of tensor -> path of file of an index.

    :raises KproError: if it can't be read, or names a path that is none of the folder.
    """
    try:
        found = object_of(text, LONGEST_INDEX_BYTES).get("weight_map")
    except BadJson as error:
        raise KproError(path, f"it can't be read ({error})", "Choose another revision, or fetch it again", field="weight_map") from error
    if not isinstance(found, dict):
        raise KproError(path, "it can't be read (it has no weight_map)", "Choose another revision, or fetch it again", field="weight_map")
    for file in {one if isinstance(one, str) else "" for one in found.values()}:
        if problem := path_problem(file):
            words = f"it names the file '{one_line(file, 100)}', which {problem}"
            raise KproError(path, words, "Nothing was fetched by it. Choose another repository", field="weight_map")
    return found


def config_of(text: bytes, path: str) -> dict[str, t.Any]:
    """Return the content of a ``config.json``.

    :raises KproError: if it is none.
    """
    try:
        return object_of(text, LONGEST_CONFIG_BYTES)
    except BadJson as error:
        raise KproError(path, f"{error}", "Choose another revision, or fetch it again", field="config.json") from error


def engine_files(sizes: Sizes, index: t.Mapping[str, str] | None, config: t.Mapping[str, t.Any], name: str) -> EngineFiles:
    """Return which weights the engine loads.

    :param sizes: length of each file by path.
    :param index: tensor -> file, of the index that :func:`index_name` gave; None if there is none.
    :param config: content of ``config.json``; empty if there is none.
    :param name: of the repository or its folder.
    """
    top = [path for path in sizes if "/" not in path and not path.startswith(".")]
    native = _native(sizes, name)
    family = [path for path in top if path.endswith(".safetensors") and (path.startswith("consolidated") or not native)]
    architectures = config.get("architectures")
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    if patterns := _IN_FOLDERS.get(architecture):
        family = [path for path in sizes if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)]
        index = None
    if index is not None:
        found = _by_index(sizes, family, set(index.values()), config, architecture)
        if _native([path for path in sizes if path not in found.left_out], name) == native:
            return found
        # Without these the engine would take the rest for Mistral's own format.
        return dataclasses.replace(found, left_out={path: why for path, why in found.left_out.items() if not path.startswith("model")})
    weights, reasons, problem = _without_index(family)
    if weights:
        return _found(sizes, weights, reasons, problem)
    return _other_formats(sizes, top)


def _native(paths: t.Collection[str], name: str) -> bool:
    """Whether the engine reads the folder in Mistral's own format."""
    if "params.json" in paths and any(one in name.lower() for one in _BY_NAME_NATIVE):
        return True
    top = [path for path in paths if "/" not in path and path.endswith(".safetensors")]
    return any(path.startswith("consolidated") for path in top) and not any(path.startswith("model") for path in top)


def _by_index(sizes: Sizes, family: t.Sequence[str], named: set[str], config: t.Mapping[str, t.Any], architecture: str) -> EngineFiles:
    if missing := sorted(named - sizes.keys()):
        reason = f"{len(missing)} of its {len(named)} files are missing, the first is {missing[0]} (its index names it)"
        return EngineFiles((), {}, reason, "Choose another revision, or fetch the rest")
    weights = [path for path in family if path in named]
    if not weights:
        return EngineFiles((), {}, "its index names no safetensors file of its top folder", "Choose another repository or revision")
    if "mtp.safetensors" in family and "mtp.safetensors" not in named and architecture in _WITH_MTP and _draft_layers(config) > 0:
        weights.append("mtp.safetensors")
    found = _found(sizes, weights, dict.fromkeys((path for path in family if path not in weights), "the index does not name it"))
    # The engine wants every file of its index there, also those that it does not load.
    return dataclasses.replace(found, left_out={path: reason for path, reason in found.left_out.items() if path not in named})


def _draft_layers(config: t.Mapping[str, t.Any]) -> int:
    text = config.get("text_config")
    found = (text if isinstance(text, dict) else config).get("num_nextn_predict_layers", config.get("num_nextn_predict_layers", 0))
    return found if isinstance(found, int) else 0


def _without_index(family: t.Sequence[str]) -> tuple[list[str], dict[str, str], str]:
    """Return what is loaded, why the rest of the family is not, and what is wrong."""
    kept, reasons = set(family), dict[str, str]()

    def drop(paths: t.Iterable[str], reason: str) -> None:
        for path in list(paths):
            kept.discard(path)
            reasons[path] = reason

    drop((path for path in family if path.startswith("adapter_model")), "it is an adapter, not the model")
    if any(path.startswith("model") for path in kept):
        drop((path for path in list(kept) if path.startswith("consolidated")), "the same weights under other names")
    by_stem: dict[str, list[str]] = {}
    for path in sorted(kept):
        by_stem.setdefault(_SHARD.sub("", path).removesuffix(".safetensors"), []).append(path)
    for stem, paths in _second_variants(by_stem):
        drop(paths, f"another variant of the same weights ({stem})")
        del by_stem[stem]
    problem = ""
    for stem, paths in by_stem.items():
        chosen, broken = _one_set(paths)
        problem = problem or (f"{stem}: {broken}" if broken else "")
        drop((path for path in paths if path not in chosen), "the same weights in other pieces")
    return sorted(kept), reasons, problem


def _second_variants(by_stem: t.Mapping[str, t.Sequence[str]]) -> list[tuple[str, t.Sequence[str]]]:
    """Return the stems that are variants (``model.fp16``) of others that are there."""
    variants: dict[str, list[str]] = {}
    for stem in by_stem:
        base, _dot, word = stem.rpartition(".")
        if base and word.lower() in _VARIANTS:
            variants.setdefault(base, []).append(stem)
    found = []
    for base, stems in variants.items():
        stems.sort(key=lambda stem: _VARIANTS.index(stem.rpartition(".")[2].lower()))
        found += stems if base in by_stem else stems[1:]
    return [(stem, by_stem[stem]) for stem in found]


def _one_set(paths: t.Sequence[str]) -> tuple[list[str], str]:
    """Return the files of one stem that make up the weights: a single file, or one complete set of shards."""
    sets: dict[int, list[str]] = {}
    for path in paths:
        shard = _SHARD.search(path)
        if shard is None:
            return [path], ""
        sets.setdefault(int(shard["count"]), []).append(path)
    for count, shards in sorted(sets.items(), reverse=True):
        if len(shards) == count:
            return shards, ""
    count, shards = max(sets.items())
    return shards, f"{count - len(shards)} of its {count} shards are missing"


def _other_formats(sizes: Sizes, top: t.Sequence[str]) -> EngineFiles:
    """Without safetensors the engine takes PyTorch's files; any other is of no use to it."""
    torch = [path for path in top if _TORCH.fullmatch(path)]
    if torch:
        chosen, broken = _one_set(torch)
        return _found(sizes, chosen, {}, f"pytorch_model: {broken}" if broken else "")
    weights = [path for path in sizes if path.endswith(_SUFFIXES) and not (path.endswith(_MIXED_SUFFIXES) and sizes[path] < _SMALL_BYTES)]
    if not weights:
        return EngineFiles((), {})
    if adapters := [path for path in weights if path.rpartition("/")[2].startswith("adapter_model")]:
        reason = f"it holds an adapter ({adapters[0]}) and no model"
        return EngineFiles((), {}, reason, "Deploy the model that it was made for, and give the adapter as the engine's lora_paths")
    counts: dict[tuple[str, bool], int] = {}
    for path in weights:
        kind = f".{path.rpartition('.')[2]}", "/" in path and path.endswith(".safetensors")
        counts[kind] = counts.get(kind, 0) + 1
    rows = [f"{count} {suffix} file{'s' if count > 1 else ''}{' in folders' if deep else ''}" for (suffix, deep), count in sorted(counts.items())]
    where = " in its top folder" if any(deep for _suffix, deep in counts) else ""
    reason = f"no safetensors{where}, {', '.join(rows)}; this engine is deployed with safetensors"
    return EngineFiles((), {}, reason, "Choose a repository with safetensors (hf_model__repository)")


def _found(sizes: Sizes, weights: t.Iterable[str], reasons: t.Mapping[str, str], problem: str = "") -> EngineFiles:
    loaded = set(weights)
    left_out = dict(reasons)
    torch = any(path.endswith(".bin") for path in loaded)
    for path, size_bytes in sizes.items():
        if path in loaded or path in left_out or not path.endswith(_SUFFIXES):
            continue
        if "modules.json" in sizes and _DENSE.fullmatch(path):
            continue
        # A second *.bin in the top folder would be loaded with the first.
        if path.endswith(_MIXED_SUFFIXES) and size_bytes < _SMALL_BYTES and not (torch and "/" not in path and path.endswith(".bin")):
            continue
        left_out[path] = _reason(path, torch)
    return EngineFiles(tuple(sorted(loaded)), left_out, problem, "Choose another revision, or a complete repository" if problem else "")


def _reason(path: str, torch: bool) -> str:
    if "/" in path:
        return "the engine loads the top folder only"
    if path.endswith(".bin") and torch:
        return "it is no part of the weights"
    return "the engine does not load it" if path.endswith(".safetensors") else f"the engine loads {'.bin files' if torch else 'safetensors'} only"


def _names(paths: t.Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
