# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fingerprint of an OpenPGP key, without a program for it. PRIVATE: for use in kpro.llm only."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

_PUBLIC_KEY = 6


def fingerprint(armoured: str) -> str:
    """Return the fingerprint of an armoured version 4 public key in upper case hexadecimal digits; empty if the text is none.

    RFC 4880 section 12.2: SHA-1 of 0x99, the two bytes of the packet's length, and the packet's body.
    """
    block = re.search(
        r"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[^\n]*: [^\n]*\n)*\s*\n(?P<data>[A-Za-z0-9+/=\s]+?)(?:\n=[A-Za-z0-9+/]{4})?\s*-----END", armoured
    )
    if not block:
        return ""
    try:
        data = base64.b64decode("".join(block["data"].split()))
    except binascii.Error:
        return ""
    body = _first_packet(data)
    return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False).hexdigest().upper() if body[:1] == b"\x04" else ""


def _first_packet(data: bytes) -> bytes:
    """Return the body of the first packet if it is a public key (RFC 4880 section 4.2), else nothing."""
    if len(data) < 6 or not data[0] & 0x80:
        return b""
    if data[0] & 0x40:
        tag, first = data[0] & 0x3F, data[1]
        if first < 192:
            start, length = 2, first
        elif first < 224:
            start, length = 3, ((first - 192) << 8) + data[2] + 192
        else:
            start, length = 6, int.from_bytes(data[2:6], "big")
    else:
        tag, size = (data[0] >> 2) & 0x0F, 1 << (data[0] & 0x03)
        start, length = 1 + size, int.from_bytes(data[1 : 1 + size], "big")
    return data[start : start + length] if tag == _PUBLIC_KEY else b""
