# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a tiny, complete model folder of the architecture of Qwen3.5 and Qwen3.6 dense models.

    python3 make_tiny_model.py FOLDER [--answer TEXT] [--shards N] [--layers N]

Standard library only, no download, about a second, the same bytes each time. Qwen3_5ForConditionalGeneration: text layers
of which every fourth is full attention and the others gated delta net, and a vision tower of one layer.

The weights are random but laid out so that greedy decoding says a fixed sentence: the embedding is one-hot, the output
projection of each block is zero (the residual stream stays the embedding of the last token) and ``lm_head`` maps each token
to its successor in a chain. The server's attention, MLP and delta-net code all run, on random numbers; the answer is the
same for every prompt:

    thinking on:   <think>\\nThinking.</think>\\n\\nANSWER<|im_end|>
    thinking off:  \\n\\nANSWER<|im_end|>      (the template closes the block)
"""

from __future__ import annotations

import argparse
import json
import random
import re
import struct
import typing as t
from pathlib import Path

ANSWER = "Hello from the tiny test model."
HIDDEN = 320  # at least the vocabulary, so that the embedding can be one-hot
HEAD_DIM = 32
HEADS = 4
KV_HEADS = 2
FFN = 64
CONTEXT = 262144  # as Qwen3.6-27B, so that an inventory made for that model can be tried with this one
LINEAR_KEY_HEADS = 2
LINEAR_VALUE_HEADS = 4
CONV = 4
VISION_HIDDEN = 64
VISION_MERGE = 2
VISION_PATCH = 16

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

TEMPLATE = """{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.content is string %}{{- m.content }}{%- else %}
{%- for part in m.content or [] %}
{%- if part.type in ('image', 'image_url') %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif 'text' in part %}{{- part.text }}{%- endif %}
{%- endfor %}{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>' }}
{%- else %}{{- '<think>\\n' }}{%- endif %}
{%- endif %}"""


def byte_alphabet() -> list[str]:
    """Return one printable character for each byte, as byte-level BPE wants it."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    extra = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(extra)) for byte in range(256)]


class Vocabulary:
    """256 bytes, the words of the answer, then the special tokens."""

    def __init__(self, answer: str) -> None:
        self._alphabet = byte_alphabet()
        self.words = {character: byte for byte, character in enumerate(self._alphabet)}
        words = re.findall(r"\S+", answer)
        self.answer = [self._add((" " if number else "") + word) for number, word in enumerate(words)]
        self.thought = self._add("Thinking.")
        self.blank = self._add("\n\n")
        self.ids = {name: len(self.words) + number for number, name in enumerate(SPECIAL + MARKS)}
        if len(self.words) + len(self.ids) > HIDDEN:
            raise SystemExit("the answer is too long for this model")

    def _add(self, text: str) -> int:
        token = "".join(self._alphabet[byte] for byte in text.encode())
        # The chain needs one id for each place in the sentence.
        if token in self.words:
            raise SystemExit(f"a repeated or one-byte word in the answer: {text!r}")
        self.words[token] = len(self.words)
        return self.words[token]

    def successors(self) -> list[int]:
        """Return for each token id the id that follows it."""
        follow = [self.answer[0]] * HIDDEN
        follow[10] = self.thought  # the newline byte ends the prompt "<think>\n"
        follow[self.ids["<think>"]] = 10
        follow[self.thought] = self.ids["</think>"]
        follow[self.ids["</think>"]] = self.blank
        for left, right in zip(self.answer, [*self.answer[1:], self.ids["<|im_end|>"]], strict=True):
            follow[left] = right
        return follow


class Weights:
    """Named bfloat16 tensors, in order."""

    def __init__(self) -> None:
        self._random = random.Random(0)
        self.items: dict[str, tuple[list[int], bytes]] = {}

    def put(self, name: str, shape: t.Sequence[int], values: t.Sequence[float]) -> None:
        raw = struct.pack(f"<{len(values)}f", *values)
        low = bytearray(len(values) * 2)
        low[0::2], low[1::2] = raw[2::4], raw[3::4]  # bfloat16 is the upper half of a float
        self.items[name] = (list(shape), bytes(low))

    def noise(self, name: str, *shape: int) -> None:
        self.put(name, shape, [self._random.gauss(0.0, 0.05) for _round in range(_count(shape))])

    def fill(self, name: str, value: float, *shape: int) -> None:
        self.put(name, shape, [value] * _count(shape))

    def save(self, folder: Path, shards: int) -> None:
        """Write ``model.safetensors``, or ``shards`` files and their index."""
        names = list(self.items)
        if shards == 1:
            _write_safetensors(folder / "model.safetensors", self.items)
            return
        place = {}
        for number in range(shards):
            file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
            part = {name: self.items[name] for name in names[number::shards]}
            place |= dict.fromkeys(part, file)
            _write_safetensors(folder / file, part)
        total = sum(len(blob) for _name, blob in self.items.values())
        _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": dict(sorted(place.items()))})


def _count(shape: t.Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _write_safetensors(path: Path, items: t.Mapping[str, tuple[list[int], bytes]]) -> None:
    head: dict[str, t.Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (shape, blob) in items.items():
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(blob)]}
        at += len(blob)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blob for _name, blob in items.values()))


def _write_json(path: Path, data: t.Any) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tokenizer(folder: Path, vocabulary: Vocabulary) -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": number, "content": name, "special": name in SPECIAL, **flags} for name, number in vocabulary.ids.items()]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary.words, "merges": []}  # fmt: skip
    _write_json(folder / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model,
    })  # fmt: skip
    _write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT, "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "clean_up_tokenization_spaces": False, "chat_template": TEMPLATE,
    })  # fmt: skip
    _write_json(folder / "generation_config.json", {
        "eos_token_id": [vocabulary.ids["<|im_end|>"], vocabulary.ids["<|endoftext|>"]],
        "pad_token_id": vocabulary.ids["<|endoftext|>"], "do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20,
    })  # fmt: skip


def add_text(weights: Weights, vocabulary: Vocabulary, kinds: t.Sequence[str]) -> None:
    eye, successor = [0.0] * (HIDDEN * HIDDEN), [0.0] * (HIDDEN * HIDDEN)
    for token, follower in enumerate(vocabulary.successors()):
        eye[token * HIDDEN + token] = 1.0
        successor[follower * HIDDEN + token] = 2.0
    root = "model.language_model."
    weights.put(f"{root}embed_tokens.weight", (HIDDEN, HIDDEN), eye)
    weights.put("lm_head.weight", (HIDDEN, HIDDEN), successor)
    weights.fill(f"{root}norm.weight", 0.0, HIDDEN)  # norms of this architecture store weight minus one
    for number, kind in enumerate(kinds):
        layer = f"{root}layers.{number}."
        weights.fill(f"{layer}input_layernorm.weight", 0.0, HIDDEN)
        weights.fill(f"{layer}post_attention_layernorm.weight", 0.0, HIDDEN)
        add_attention(weights, layer) if kind == "full_attention" else add_delta_net(weights, layer)
        weights.noise(f"{layer}mlp.gate_proj.weight", FFN, HIDDEN)
        weights.noise(f"{layer}mlp.up_proj.weight", FFN, HIDDEN)
        weights.fill(f"{layer}mlp.down_proj.weight", 0.0, HIDDEN, FFN)


def add_attention(weights: Weights, layer: str) -> None:
    part = f"{layer}self_attn."
    weights.noise(f"{part}q_proj.weight", 2 * HEADS * HEAD_DIM, HIDDEN)  # query and gate
    weights.noise(f"{part}k_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN)
    weights.noise(f"{part}v_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN)
    weights.fill(f"{part}o_proj.weight", 0.0, HIDDEN, HEADS * HEAD_DIM)
    weights.fill(f"{part}q_norm.weight", 0.0, HEAD_DIM)
    weights.fill(f"{part}k_norm.weight", 0.0, HEAD_DIM)


def add_delta_net(weights: Weights, layer: str) -> None:
    part = f"{layer}linear_attn."
    width = (2 * LINEAR_KEY_HEADS + LINEAR_VALUE_HEADS) * HEAD_DIM
    weights.noise(f"{part}in_proj_qkv.weight", width, HIDDEN)
    weights.noise(f"{part}in_proj_z.weight", LINEAR_VALUE_HEADS * HEAD_DIM, HIDDEN)
    weights.noise(f"{part}in_proj_a.weight", LINEAR_VALUE_HEADS, HIDDEN)
    weights.noise(f"{part}in_proj_b.weight", LINEAR_VALUE_HEADS, HIDDEN)
    weights.noise(f"{part}conv1d.weight", width, 1, CONV)
    weights.fill(f"{part}dt_bias", 1.0, LINEAR_VALUE_HEADS)
    weights.fill(f"{part}A_log", 0.5, LINEAR_VALUE_HEADS)
    weights.fill(f"{part}norm.weight", 1.0, HEAD_DIM)
    weights.fill(f"{part}out_proj.weight", 0.0, HIDDEN, LINEAR_VALUE_HEADS * HEAD_DIM)


def add_vision(weights: Weights) -> None:
    root, hidden = "model.visual.", VISION_HIDDEN
    weights.noise(f"{root}patch_embed.proj.weight", hidden, 3, 2, VISION_PATCH, VISION_PATCH)
    weights.fill(f"{root}patch_embed.proj.bias", 0.0, hidden)
    weights.noise(f"{root}pos_embed.weight", 16, hidden)
    for name in ("norm1", "norm2"):
        weights.fill(f"{root}blocks.0.{name}.weight", 1.0, hidden)
        weights.fill(f"{root}blocks.0.{name}.bias", 0.0, hidden)
    for name, rows in (("attn.qkv", 3 * hidden), ("attn.proj", hidden), ("mlp.linear_fc1", hidden), ("mlp.linear_fc2", hidden)):
        weights.noise(f"{root}blocks.0.{name}.weight", rows, hidden)
        weights.fill(f"{root}blocks.0.{name}.bias", 0.0, rows)
    weights.fill(f"{root}merger.norm.weight", 1.0, hidden)
    weights.fill(f"{root}merger.norm.bias", 0.0, hidden)
    wide = hidden * VISION_MERGE**2
    for name, rows in (("linear_fc1", wide), ("linear_fc2", HIDDEN)):
        weights.noise(f"{root}merger.{name}.weight", rows, wide)
        weights.fill(f"{root}merger.{name}.bias", 0.0, rows)


def text_config(vocabulary: Vocabulary, kinds: t.Sequence[str]) -> dict[str, t.Any]:
    return {
        "model_type": "qwen3_5_text", "dtype": "bfloat16", "vocab_size": HIDDEN, "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": len(kinds), "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "hidden_act": "silu", "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "attention_bias": False,
        "attention_dropout": 0.0, "initializer_range": 0.02, "tie_word_embeddings": False, "use_cache": True,
        "bos_token_id": vocabulary.ids["<|endoftext|>"], "eos_token_id": vocabulary.ids["<|im_end|>"],
        "layer_types": list(kinds), "full_attention_interval": 4, "attn_output_gate": True, "linear_conv_kernel_dim": CONV,
        "linear_key_head_dim": HEAD_DIM, "linear_value_head_dim": HEAD_DIM, "linear_num_key_heads": LINEAR_KEY_HEADS,
        "linear_num_value_heads": LINEAR_VALUE_HEADS, "mamba_ssm_dtype": "float32", "partial_rotary_factor": 0.25,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
                            "mrope_interleaved": True, "mrope_section": [2, 1, 1]},
    }  # fmt: skip


def write_config(folder: Path, vocabulary: Vocabulary, kinds: t.Sequence[str]) -> None:
    ids = vocabulary.ids
    vision = {
        "model_type": "qwen3_5", "depth": 1, "hidden_size": VISION_HIDDEN, "intermediate_size": VISION_HIDDEN, "num_heads": 2,
        "in_channels": 3, "hidden_act": "gelu_pytorch_tanh", "patch_size": VISION_PATCH, "spatial_merge_size": VISION_MERGE,
        "temporal_patch_size": 2, "out_hidden_size": HIDDEN, "num_position_embeddings": 16, "deepstack_visual_indexes": [],
    }  # fmt: skip
    _write_json(folder / "config.json", {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "dtype": "bfloat16",
        "tie_word_embeddings": False, "image_token_id": ids["<|image_pad|>"], "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"], "vision_end_token_id": ids["<|vision_end|>"],
        "text_config": text_config(vocabulary, kinds), "vision_config": vision,
    })  # fmt: skip
    processor = {
        "patch_size": VISION_PATCH, "temporal_patch_size": 2, "merge_size": VISION_MERGE,
        "size": {"shortest_edge": 1024, "longest_edge": 262144}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        "processor_class": "Qwen3VLProcessor",
    }  # fmt: skip
    _write_json(folder / "preprocessor_config.json", {**processor, "image_processor_type": "Qwen2VLImageProcessorFast"})
    _write_json(folder / "video_preprocessor_config.json", {**processor, "video_processor_type": "Qwen3VLVideoProcessor"})


def make(folder: Path, answer: str, shards: int, layers: int) -> None:
    """Write the whole model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = ["full_attention" if number % 4 == 3 else "linear_attention" for number in range(layers)]
    vocabulary = Vocabulary(answer)
    write_tokenizer(folder, vocabulary)
    write_config(folder, vocabulary, kinds)
    weights = Weights()
    add_text(weights, vocabulary, kinds)
    add_vision(weights)
    weights.save(folder, shards)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a tiny model of the Qwen3.5 architecture that says a fixed sentence.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--answer", default=ANSWER)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    make(args.folder, args.answer, args.shards, args.layers)
    size_bytes = sum(path.stat().st_size for path in args.folder.iterdir())
    print(f"tiny model in {args.folder}: {size_bytes} bytes")


if __name__ == "__main__":
    main()
