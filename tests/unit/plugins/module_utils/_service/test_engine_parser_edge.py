# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._service.engine_parser_edge import check_options


def engine(folder: Path, body: str) -> str:
    """A stand-in of the engine's Python: it gets -c, the program and the config files."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{body}\n", encoding="ascii")
    program.chmod(0o755)
    return str(program)


def test_what_the_engine_caches_at_import_lies_nowhere_where_the_service_writes(tmp_path: Path) -> None:
    state = tmp_path / "state"
    environment = f"HOME={state}\nTORCHINDUCTOR_CACHE_DIR={state}/kernels/inductor\nTRITON_CACHE_DIR={state}/kernels/triton\nOTHER=kept\n"
    python = engine(tmp_path, f'mkdir -p "$HOME" "$TORCHINDUCTOR_CACHE_DIR" "$TRITON_CACHE_DIR"; echo "$OTHER $HOME" > {tmp_path}/told')
    check_options(python, ["tp-size: 1\n"], environment, must_be_there=True)
    assert not state.exists()
    kept, home = (tmp_path / "told").read_text(encoding="utf-8").split()
    assert kept == "kept" and not Path(home).exists(), "and is gone afterwards"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('echo "sglang serve: error: unrecognized arguments: --speed" >&2; exit 2', "refuses them: unrecognized arguments: --speed"),
        ('echo "ImportError: torch" >&2; exit 1', "cannot be loaded: ImportError: torch"),
    ],
)
def test_its_own_words_are_the_reason(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(KproError, match=words):
        check_options(engine(tmp_path, body), ["speed: 1\n"], "", must_be_there=True)


def test_an_engine_that_is_not_there_is_an_error_only_where_it_has_to_be(tmp_path: Path) -> None:
    check_options(str(tmp_path / "python"), [""], "", must_be_there=False)
    with pytest.raises(KproError, match="is not there"):
        check_options(str(tmp_path / "python"), [""], "", must_be_there=True)
