# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._model import engine_files as engine

GB = 10**9
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
SMALL = ("config.json", "tokenizer.json", "README.md")


def chosen(*paths: str, index: t.Sequence[str] | None = None, config: dict[str, t.Any] | None = None, name: str = "org/model", size: int = GB) -> t.Any:
    sizes = {path: 1000 if path in SMALL or path.endswith(".json") else size for path in (*SMALL, *paths)}
    named = None if index is None else {f"t{number}": path for number, path in enumerate(index)}
    return engine.engine_files(sizes, named, config or {}, name)


@pytest.mark.parametrize(
    ("paths", "index", "weights"),
    [
        (["model.safetensors"], None, ["model.safetensors"]),
        ([*SHARDS, "consolidated.safetensors"], SHARDS, SHARDS),
        ([*SHARDS, "consolidated.safetensors"], None, SHARDS),
        (["model.safetensors", "consolidated.safetensors"], None, ["model.safetensors"]),
        (["consolidated.safetensors"], None, ["consolidated.safetensors"]),
        (["consolidated-00001-of-00002.safetensors", "consolidated-00002-of-00002.safetensors"], None, None),
        (["model.safetensors", "model.fp16.safetensors"], None, ["model.safetensors"]),
        (["model.fp16.safetensors", "model.fp32.safetensors"], None, ["model.fp16.safetensors"]),
        (["model.fp16.safetensors"], None, ["model.fp16.safetensors"]),
        ([*SHARDS, "model.safetensors"], None, ["model.safetensors"]),
        ([*SHARDS, "model-00001-of-00003.safetensors"], None, SHARDS),
        ([*SHARDS, "adapter_model.safetensors"], None, SHARDS),
        ([*SHARDS, "original/model.safetensors", "onnx/model.onnx", "onnx/model.onnx_data"], SHARDS, SHARDS),
        ([*SHARDS, "pytorch_model-00001-of-00001.bin", "model.q4.gguf", "consolidated.00.pth", "flax_model.msgpack", "tf_model.h5"], SHARDS, SHARDS),
        (["pytorch_model.bin", "training_args.bin", "model.gguf"], None, ["pytorch_model.bin"]),
        (["layers-1.safetensors", "layers-2.safetensors", "head.safetensors"], None, None),
        ([*SHARDS, "mtp.safetensors"], None, [*SHARDS, "mtp.safetensors"]),
        ([*SHARDS, ".hidden.safetensors"], None, SHARDS),
    ],
)
def test_one_family_is_chosen_and_the_rest_is_left_out(paths: list[str], index: t.Any, weights: t.Any) -> None:
    found = chosen(*paths, index=index)
    expected = set(paths if weights is None else weights)
    assert set(found.weights) == expected and not found.problem
    assert set(found.left_out) == set(paths) - expected


def test_the_example_of_two_families_is_told_with_its_size() -> None:
    sizes = {"config.json": 700, SHARDS[0]: 29_500_000_000, "consolidated.safetensors": 29_500_000_000, "onnx/a.onnx": 5, "onnx/b.onnx": 5}
    found = engine.engine_files(sizes, {"t": SHARDS[0]}, {}, "o/m")
    assert found.words(sizes) == [
        "consolidated.safetensors (29.5 GB): the index does not name it",
        "onnx/a.onnx and 1 more (10 B): the engine loads the top folder only",
    ]


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["q2.gguf", "q4.gguf", "q5.gguf", "q8.gguf"], "no safetensors, 4 .gguf files; this engine is deployed with safetensors"),
        (["model.onnx"], "no safetensors, 1 .onnx file;"),
        (["consolidated.00.pth", "consolidated.01.pth"], "no safetensors, 2 .pth files;"),
        (["a/model.safetensors", "b/model.safetensors"], "no safetensors in its top folder, 2 .safetensors files in folders;"),
        (["ggml-model-q4.bin"], "no safetensors, 1 .bin file;"),
        (["adapter_model.safetensors"], "it holds an adapter"),
        (["adapter_model.bin"], "it holds an adapter"),
        (["a.gguf", "b.h5", "c.ckpt"], "no safetensors, 1 .ckpt file, 1 .gguf file, 1 .h5 file;"),
    ],
)
def test_a_repository_without_weights_for_this_engine_is_refused_in_one_sentence(paths: list[str], words: str) -> None:
    with pytest.raises(KproError) as error:
        chosen(*paths).check("model org/model")
    assert words in error.value.sentence and error.value.remedy


def test_what_an_index_or_a_set_of_shards_lacks_is_named() -> None:
    assert "1 of its 3 files are missing, the first is model-3.safetensors" in chosen(*SHARDS, index=[*SHARDS, "model-3.safetensors"]).problem
    assert chosen("a/x.safetensors", index=["a/x.safetensors"]).problem == "its index names no safetensors file of its top folder"
    found = chosen("model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors")
    assert found.problem == "model: 1 of its 3 shards are missing" and len(found.weights) == 2
    assert chosen(*SHARDS).problem == "" and chosen().problem == ""


def test_small_files_of_mixed_formats_stay() -> None:
    assert set(chosen(*SHARDS, "voices/one.pt", "speakers.npz", "x.bin", size=1_000_000).left_out) == set()
    # A second .bin file would be loaded with the first.
    assert set(chosen("pytorch_model.bin", "other.bin", size=1_000_000).left_out) == {"other.bin"}


def test_families_with_rules_of_their_own() -> None:
    glm = {"architectures": ["Glm4MoeForCausalLM"], "num_nextn_predict_layers": 1}
    assert "mtp.safetensors" in chosen(*SHARDS, "mtp.safetensors", index=SHARDS, config=glm).weights
    assert "mtp.safetensors" in chosen(*SHARDS, "mtp.safetensors", index=SHARDS).left_out
    cosmos = {"architectures": ["Cosmos3ForConditionalGeneration"]}
    assert chosen("transformer/a.safetensors", "vae/b.safetensors", config=cosmos).weights == ("transformer/a.safetensors",)
    assert not chosen("model.safetensors", "2_Dense/model.safetensors", "modules.json").left_out
    native = chosen(*SHARDS, "consolidated.safetensors", "params.json", name="mistralai/Mistral-Large-3-675B")
    assert native.weights == ("consolidated.safetensors",) and set(native.left_out) == set(SHARDS)
    assert engine.index_name(["consolidated.safetensors", engine.CONSOLIDATED_INDEX], "o/m") == engine.CONSOLIDATED_INDEX
    assert engine.index_name([*SHARDS, engine.INDEX], "o/m") == engine.INDEX
    assert engine.index_name(SHARDS, "o/m") == ""


@pytest.mark.parametrize("odd", [{"architectures": 1}, {"architectures": [{}]}, {"architectures": "x", "text_config": 7, "num_nextn_predict_layers": "x"}])
def test_an_odd_config_decides_nothing(odd: dict[str, t.Any]) -> None:
    assert chosen(*SHARDS, "mtp.safetensors", index=SHARDS, config=odd).weights == SHARDS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "it holds no JSON object"),
        ("{}", "it has no weight_map"),
        ('{"weight_map": ["a"]}', "it has no weight_map"),
        ('{"weight_map": {"a": 1}}', "is no text"),
        (json.dumps({"weight_map": {"a": "../../etc/shadow"}}), "'../../etc/shadow', which lies outside"),
        (json.dumps({"weight_map": {"a": "/etc/shadow"}}), "lies outside"),
        (json.dumps({"weight_map": {"a": "x\x1b[2J"}}), "can't be seen"),
        ("[" * 100_000, "nests too deeply"),
    ],
)
def test_an_index_that_can_not_be_one_is_refused(text: str, words: str) -> None:
    with pytest.raises(KproError) as error:
        engine.weight_map(text.encode(), "model.safetensors.index.json")
    assert words in error.value.sentence and "\x1b" not in error.value.sentence
