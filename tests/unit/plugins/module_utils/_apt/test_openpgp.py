# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Against two keys of Debian, with the fingerprints that gpg 2.2 shows for them."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._apt.openpgp import fingerprints

FIXTURES = Path(__file__).parents[1] / "fixtures"
ED25519 = (FIXTURES / "key-debian-bookworm-stable.asc").read_text()
RSA_WITH_SIGNATURES = (FIXTURES / "key-debian-bullseye-stable.asc").read_text()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (ED25519, ["4D64FEC119C2029067D6E791F8D2585B8783D481"]),
        (RSA_WITH_SIGNATURES, ["A4285295FC7B1A81600062A9605C66F00D6C9793"]),
        (ED25519.replace("\n", "\r\n"), ["4D64FEC119C2029067D6E791F8D2585B8783D481"]),
        ("<html>Not found</html>", []),
        ("", []),
    ],
)
def test_each_primary_key_is_found_with_its_fingerprint(text: str, found: list[str]) -> None:
    assert fingerprints(text) == found


def test_a_second_key_in_the_file_is_never_overlooked() -> None:
    assert len(fingerprints(ED25519 + RSA_WITH_SIGNATURES)) == 2


@pytest.mark.parametrize("packet", [b"\xc6\xe1", b"\x9b\x04", b"\x00\x00"], ids=["partial length", "no length", "no packet"])
def test_what_cannot_be_read_counts_as_a_key_of_its_own(packet: bytes) -> None:
    data = base64.b64decode("".join(line for line in ED25519.splitlines() if len(line) > 30 and not line.startswith("-")) + "==")
    text = base64.b64encode(data + packet).decode()
    assert fingerprints(f"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n{text}\n-----END PGP PUBLIC KEY BLOCK-----\n")[-1] == ""


def test_a_damaged_key_is_not_the_same_key() -> None:
    lines = ED25519.splitlines()
    body = next(number for number, line in enumerate(lines) if len(line) > 40 and not line.startswith("-"))
    lines[body] = lines[body][:20] + ("A" if lines[body][20] != "A" else "B") + lines[body][21:]
    assert fingerprints("\n".join(lines)) != fingerprints(ED25519)
