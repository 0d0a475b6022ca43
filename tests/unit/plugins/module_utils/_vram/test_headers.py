# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from plan_world import CONFIGS

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._vram.cards import Card
from ansible_collections.kpro.llm.plugins.module_utils._vram.folder_edge import ModelFolder
from ansible_collections.kpro.llm.plugins.module_utils._vram.headers import Entry, header_weights
from ansible_collections.kpro.llm.plugins.module_utils._vram.model import model_of
from ansible_collections.kpro.llm.plugins.module_utils._vram.request import Request, planned
from ansible_collections.kpro.llm.plugins.module_utils._vram.weights import Layout, resident_bytes, target_tensors

GIB = 1 << 30


def published_tensors() -> list[Entry]:
    """The tensors of the BF16 checkpoint as its index lists them: separate projections, one layer after the other."""
    text = CONFIGS["qwen3.6-27b"]["text_config"]
    h, f, vocabulary = text["hidden_size"], text["intermediate_size"], text["vocab_size"]
    heads, kv, dim = text["num_attention_heads"], text["num_key_value_heads"], text["head_dim"]
    key, value, slots = 16 * 128, 48 * 128, 48
    entries = [Entry("model.language_model.embed_tokens.weight", vocabulary * h * 2), Entry("lm_head.weight", vocabulary * h * 2)]

    def layer(prefix: str, attention: bool) -> None:
        parts = {"mlp.gate_proj": f * h, "mlp.up_proj": f * h, "mlp.down_proj": f * h, "input_layernorm": h, "post_attention_layernorm": h}
        if attention:
            parts |= {
                "self_attn.q_proj": 2 * heads * dim * h,
                "self_attn.k_proj": kv * dim * h,
                "self_attn.v_proj": kv * dim * h,
                "self_attn.o_proj": heads * dim * h,
            }
        else:
            parts |= {"linear_attn.in_proj_qkv": (2 * key + value) * h, "linear_attn.in_proj_z": value * h, "linear_attn.out_proj": value * h}
            parts |= {"linear_attn.in_proj_a": slots * h, "linear_attn.in_proj_b": slots * h, "linear_attn.conv1d": (2 * key + value) * 4}
        entries.extend(Entry(f"{prefix}.{name}.weight", count * 2) for name, count in parts.items())

    for number in range(64):
        layer(f"model.language_model.layers.{number}", number % 4 == 3)
    layer("mtp.layers.0", attention=True)
    entries.append(Entry("mtp.fc.weight", 2 * h * h * 2))
    entries.append(Entry("model.visual.blocks.attn.qkv.weight", int(0.46e9 * 2)))
    return entries


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_the_sum_of_the_headers_agrees_with_the_config(tp: int) -> None:
    model = model_of(CONFIGS["qwen3.6-27b"])
    by_headers = header_weights(published_tensors(), model, Layout(tp, tp))
    assert by_headers.target == pytest.approx(resident_bytes(target_tensors(model, Layout(tp, tp))), rel=0.01)
    assert by_headers.draft_stay / GIB == pytest.approx({1: 0.79, 2: 0.445, 4: 0.27}[tp], abs=0.01)
    assert by_headers.draft_drop / GIB == pytest.approx(4.736 / tp, abs=0.01)


def test_key_heads_fewer_than_gpus_are_on_each_of_them() -> None:
    model = model_of(CONFIGS["qwen3.6-27b"])
    entry = [Entry("model.layers.3.self_attn.k_proj.weight", 8_000_000)]
    assert header_weights(entry, model, Layout(4, 4)).target == header_weights(entry, model, Layout(8, 8)).target


def write(folder: Path, name: str, entries: list[Entry], cut: int = 0) -> None:
    """A safetensors file with sparse content of the right length, cut short by some bytes."""
    header: dict[str, t.Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry in entries:
        header[entry.name] = {"dtype": "BF16", "shape": [entry.nbytes // 2], "data_offsets": [end, end + entry.nbytes]}
        end += entry.nbytes
    text = json.dumps(header).encode()
    with (folder / name).open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + end - cut)


def folder_with(path: Path, config: str, files: dict[str, list[Entry]], cut: int = 0) -> ModelFolder:
    (path / "config.json").write_text(json.dumps(CONFIGS[config]), encoding="utf-8")
    for name, entries in files.items():
        write(path, name, entries, cut)
    return ModelFolder(str(path))


def test_a_mixed_checkpoint_is_planned_from_its_files(tmp_path: Path) -> None:
    quantised = [Entry("model.layers.0.mlp.up_proj.weight_packed", 19 * GIB), Entry("mtp.layers.0.mlp.up_proj.weight", GIB), Entry("lm_head.weight", GIB)]
    folder = folder_with(tmp_path, "qwen3.8-27b-nvfp4", {"a.safetensors": quantised[:1], "b.safetensors": quantised[1:]})
    args = {"kv_cache_dtype": "fp8_e4m3", "mem_fraction_static": 0.9, "mamba_ssm_dtype": "bfloat16"}
    request = Request(folder.config(), "", folder.entries(), (Card(32607, 32000),), "0.5.23", args)
    result = planned(request)
    assert result["weights_gib"] == pytest.approx(20.06, abs=0.01) and result["weights_source"] == "safetensors headers"


def test_files_of_another_model_are_noticed(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "qwen3.6-27b", {"a.safetensors": [Entry("model.layers.0.mlp.up_proj.weight", 30 * GIB)]})
    result = planned(Request(folder.config(), "", folder.entries(), (Card(49140, 48691),) * 2, "0.5.23", {"tp_size": 2}))
    assert any("30.00 GiB" in note and "51.23" not in note for note in result["notes"]) and result["weights_source"] == "safetensors headers"


def test_a_plain_checkpoint_is_planned_from_its_config(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "qwen3.6-27b", {"a.safetensors": published_tensors()})
    result = planned(Request(folder.config(), "", folder.entries(), (Card(49140, 48691),) * 2, "0.5.23", {"tp_size": 2}))
    assert result["weights_source"] == "config" and not any("headers" in note for note in result["notes"])


def test_a_head_that_is_only_partly_quantised_is_planned_from_the_headers(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "qwen3.6-27b-fp8", {"a.safetensors": published_tensors()})
    config = folder.config()
    config["quantization_config"]["modules_to_not_convert"] = ["mtp.layers.0.mlp.down_proj"]
    args = {"tp_size": 2, "mem_fraction_static": 0.85, "speculative_algorithm": "NEXTN"}
    result = planned(Request(config, "", folder.entries(), (Card(81559, 81000),) * 2, "0.5.23", args))
    assert result["weights_source"] == "safetensors headers" and result["draft"]["stays_gib"] == pytest.approx(0.445, abs=0.01)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x10\x00\x00", ["header length"]),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f{}", ["header length"]),
        ((64).to_bytes(8, "little") + b'{"a": {"dtype":', ["header length is 64 bytes and the file holds 23: it is truncated"]),
        ((9).to_bytes(8, "little") + b'{"a": [1]', ["header cannot be read"]),
    ],
)
def test_a_damaged_header_is_named_with_its_file(tmp_path: Path, content: bytes, words: list[str]) -> None:
    folder = folder_with(tmp_path, "qwen3.6-27b", {})
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(KproError) as error:
        folder.entries()
    assert str(tmp_path / "model.safetensors") in error.value.sentence
    assert all(word in error.value.sentence for word in words)


def test_a_file_shorter_than_its_tensors_is_truncated(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "qwen3.6-27b", {"a.safetensors": [Entry("x", 1_000_000)]}, cut=100)
    with pytest.raises(KproError, match=r"a\.safetensors: its data_offsets end at 1000000 bytes and the file holds 999900: it is truncated"):
        folder.entries()


def test_missing_files_of_the_index_are_named(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "qwen3.6-27b", {"model-1.safetensors": [Entry("x", 10)]})
    index = {"weight_map": {"x": "model-1.safetensors", "y": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(KproError, match=r"1 of its 2 files are missing, the first is model-2\.safetensors"):
        folder.entries()


@pytest.mark.parametrize(("text", "words"), [(None, "can't be read"), ("{", "no JSON"), ("[]", "no JSON object")])
def test_a_config_that_is_none_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(KproError, match=words) as error:
        ModelFolder(str(tmp_path)).config()
    assert str(tmp_path / "config.json") in error.value.sentence
