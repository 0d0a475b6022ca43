# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

MAKER = Path(__file__).parent / "make_tiny_model.py"


def make(folder: Path, *words: str) -> dict[str, bytes]:
    subprocess.run([sys.executable, str(MAKER), str(folder), *words], check=True, stdout=subprocess.DEVNULL)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tensors(data: bytes) -> dict[str, tuple[list[int], bytes]]:
    length = int.from_bytes(data[:8], "little")
    head: dict[str, t.Any] = json.loads(data[8 : 8 + length])
    body = data[8 + length :]
    return {name: (one["shape"], body[slice(*one["data_offsets"])]) for name, one in head.items() if name != "__metadata__"}


def one_hot_row(matrix: tuple[list[int], bytes], column: int) -> int:
    """Return the only row of a bfloat16 matrix whose value in a column is not zero."""
    (rows, columns), data = matrix
    found = [row for row in range(rows) if data[2 * (row * columns + column) :][:2] != b"\0\0"]
    assert len(found) == 1
    return found[0]


def test_the_same_bytes_each_time_and_the_same_tensors_in_shards(tmp_path: Path) -> None:
    whole, again = make(tmp_path / "a"), make(tmp_path / "b")
    assert whole == again
    parts = make(tmp_path / "c", "--shards", "3")
    index = json.loads(parts["model.safetensors.index.json"])
    joined: dict[str, tuple[list[int], bytes]] = {}
    for name, data in parts.items():
        if name.endswith(".safetensors"):
            found = tensors(data)
            assert all(index["weight_map"][tensor] == name for tensor in found)
            joined |= found
    assert joined == tensors(whole["model.safetensors"])
    assert index["metadata"]["total_size"] == sum(len(data) for _name, data in joined.values())


@pytest.mark.parametrize("answer", ["Hello from the tiny test model.", "One more sentence to say!"])
def test_the_chain_of_tokens_says_the_sentence_and_stops(tmp_path: Path, answer: str) -> None:
    made = make(tmp_path / "m", "--answer", answer)
    words = json.loads(made["tokenizer.json"])
    texts = {number: text for text, number in words["model"]["vocab"].items()} | {one["id"]: one["content"] for one in words["added_tokens"]}
    ids = {text: number for number, text in texts.items()}
    successor = tensors(made["model.safetensors"])["lm_head.weight"]
    token, said = ids["</think>"], ""
    for _round in range(20):
        token = one_hot_row(successor, token)
        if texts[token] == "<|im_end|>":
            break
        said += texts[token]
    assert said.replace("\u0120", " ").replace("\u010a", "\n") == f"\n\n{answer}"
