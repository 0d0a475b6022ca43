# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.shown_text import hides, one_line, printable, printable_values

HOSTILE = {
    "escape": "\x1b]0;title\x07",
    "clear screen": "\x1b[2J\x1b[H",
    "control sequence of 8 bits": "\x9b2J",
    "carriage return": "failed\rok",
    "backspace": "rm\b\bls",
    "delete": "a\x7f",
    "turned reading direction": "abc\u202egnp.exe",
    "isolate": "\u2066x\u2069",
    "mark": "\u200f\u061c",
    "zero width": "a\u200bb\ufeff",
    "line separator": "a\u2028b\u2029",
    "tag": "a\U000e0041",
    "half a pair": "a\ud800b",
    "NUL": "a\0b",
    "form feed": "a\x0cb\x0b",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_a_terminal_would_obey_is_made_visible(text: str) -> None:
    for shown in (printable(text), one_line(text)):
        assert shown.isprintable() and shown.encode()
        assert printable(shown) == shown
    assert hides(text)


@pytest.mark.parametrize("text", ["plain", "Grüße, 東京, עברית", "a b\u00a0c", "5 µs", "", "\ue0b0"])
def test_other_text_stays_as_it_is(text: str) -> None:
    assert (printable(text), one_line(text), hides(text)) == (text, text, False)


def test_lines_stay_lines_unless_one_is_asked_for() -> None:
    assert printable("a\r\nb\tc\n") == "a\nb\tc\n"
    assert one_line("a\r\nb\tc\nd") == "a b c d"
    assert one_line("x" * 3000).endswith("...") and len(one_line("x\n" * 3000)) == 2000


def test_colours_of_a_log_are_dropped() -> None:
    assert printable("\x1b[31mError:\x1b[0m no memory") == "Error: no memory"
    assert printable("\x1b[31;1\x1b[0mm") == "\\x1b[31;1m"


def test_texts_in_lists_and_mappings_and_keys_are_made_printable() -> None:
    value = {"a\x1b": ["\x9b", {"b": ("\r", 1, None, True)}], 3: 1.5}
    assert printable_values(value) == {"a\\x1b": ["\\x9b", {"b": ["\\r", 1, None, True]}], 3: 1.5}
