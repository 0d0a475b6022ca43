# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._environment.source_package import SourcePackage, after_kill, compiled_of, job_count, missing_wheel

HASH = f"--hash=sha256:{'a' * 64}"
LOCK = f"# tools and source\nflash-attn==2.8.3 \\\n    {HASH}\nninja==1.13.2 \\\n    {HASH} \\\n    --hash=sha256:{'b' * 64}\n"
TAGS = {"torch": "2.14.1", "CUDA": "13.0", "Python": "3.11", "sm": "80"}
SOURCE = SourcePackage("flash-attn", "2.8.3", LOCK, "/opt/wheelhouse", tags=TAGS)


def test_the_key_names_all_that_a_wheel_is_bound_to() -> None:
    assert SOURCE.key == "flash-attn-2.8.3+torch2.14.1-CUDA13.0-Python3.11-sm80"
    assert SOURCE.wheel_folder == "/opt/wheelhouse/flash-attn-2.8.3+torch2.14.1-CUDA13.0-Python3.11-sm80"


@pytest.mark.parametrize("name", TAGS)
def test_any_other_tag_is_another_wheel(name: str) -> None:
    assert dataclasses.replace(SOURCE, tags={**TAGS, name: "9"}).key != SOURCE.key


def test_several_architectures_stay_apart_and_make_no_path() -> None:
    key = dataclasses.replace(SOURCE, tags={"sm": "80;90/../x"}).key
    assert key.endswith("+sm80+90..x") and "/" not in key


def test_the_source_and_its_tools_are_told_apart() -> None:
    own, tools = SOURCE.split_lock()
    assert own == f"flash-attn==2.8.3 {HASH}\n"
    assert tools == f"ninja==1.13.2 {HASH} --hash=sha256:{'b' * 64}\n"


def test_a_lock_of_another_version_is_refused() -> None:
    with pytest.raises(KproError, match=r"does not pin flash-attn 2\.9"):
        dataclasses.replace(SOURCE, version="2.9").split_lock()


@pytest.mark.parametrize(
    ("cores", "memory_mib", "jobs"),
    [(16, 32768, 5), (4, 65536, 4), (64, 5000, 1), (2, 0, 1), (1, 1 << 20, 1)],
)
def test_compilers_are_bounded_by_cores_and_memory(cores: int, memory_mib: int, jobs: int) -> None:
    assert job_count(cores, memory_mib, 6144) == jobs


@pytest.mark.parametrize(
    ("kills", "lines", "retries"),
    [
        (3, ["ninja: build stopped: subcommand failed."], True),
        (0, ["nvcc error : 'cicc' died due to signal 9 (Kill signal)"], True),
        (0, ["cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes"], True),
        (0, ['error: identifier "foo" is undefined'], False),
    ],
)
def test_a_build_that_ran_out_of_memory_goes_on_with_fewer_compilers(kills: int, lines: list[str], retries: bool) -> None:
    assert bool(after_kill(16, 32768, 6144, kills, lines)) == retries


def test_a_single_compiler_that_runs_out_of_memory_is_not_tried_again() -> None:
    assert after_kill(1, 4096, 6144, 1, []) is None


def test_a_wheel_that_is_not_there_is_named_with_its_folder_and_what_building_costs() -> None:
    warning = missing_wheel(SOURCE)
    assert "torch 2.14.1, CUDA 13.0, Python 3.11, sm 80 in /opt/wheelhouse/" in warning and "6 GiB of memory for each compiler" in warning


@pytest.mark.parametrize(("line", "count"), [("  [12/73] /usr/bin/nvcc -x cu", (12, 73)), ("[INFO] x", None), ("copying [1/2]", None)])
def test_ninja_s_count_is_read(line: str, count: tuple[int, int] | None) -> None:
    assert compiled_of(line) == count
