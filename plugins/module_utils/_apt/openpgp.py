# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fingerprints of OpenPGP keys, without a program for it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import typing as t

_PUBLIC_KEY = 6
_BLOCK = re.compile(r"-----BEGIN PGP PUBLIC KEY BLOCK-----\s*?\n(?:[^\n]*: [^\n]*\n)*\s*\n(?P<data>[A-Za-z0-9+/=\s]+?)(?:\n=[A-Za-z0-9+/]{4})?\s*-----END")


def fingerprints(armoured: str) -> list[str]:
    """Return the fingerprint of each primary key in an armoured text, in upper case hexadecimal digits; empty if it holds none.

    RFC 4880 section 12.2 for version 4: SHA-1 of 0x99, the two bytes of the packet's length, and the packet's body. A key of another
    version counts as an empty text, so that it can never be overlooked.
    """
    found = []
    for block in _BLOCK.finditer(armoured):
        try:
            data = base64.b64decode("".join(block["data"].split()))
        except binascii.Error:
            return [""]
        found += [_fingerprint(body) for tag, body in _packets(data) if tag == _PUBLIC_KEY]
    return found


def _fingerprint(body: bytes) -> str:
    digest = hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False)
    return digest.hexdigest().upper() if body[:1] == b"\x04" else ""


def _packets(data: bytes) -> t.Iterator[tuple[int, bytes]]:
    """Yield tag and body of each packet (RFC 4880 section 4.2); what has no plain length is yielded as an unreadable key."""
    at = 0
    while at < len(data):
        header, first = data[at], data[at + 1] if at + 1 < len(data) else 255
        old = not header & 0x40
        if not header & 0x80 or (old and header & 0x03 == 3) or (not old and 224 <= first < 255):
            yield _PUBLIC_KEY, b""
            return
        if old:
            tag, start = (header >> 2) & 0x0F, at + 1 + (1 << (header & 0x03))
            length = int.from_bytes(data[at + 1 : start], "big")
        elif first < 192:
            tag, start, length = header & 0x3F, at + 2, first
        elif first < 224:
            tag, start, length = header & 0x3F, at + 3, ((first - 192) << 8) + int.from_bytes(data[at + 2 : at + 3], "big") + 192
        else:
            tag, start, length = header & 0x3F, at + 6, int.from_bytes(data[at + 2 : at + 6], "big")
        yield tag, data[start : start + length]
        at = start + length
