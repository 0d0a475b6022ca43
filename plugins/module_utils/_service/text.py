# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Texts of the service: what in them matters, and what must not be shown."""

from __future__ import annotations

import hashlib
import re
import typing as t

from .._core.errors import KproError

API_KEY_PLACEHOLDER = "@KPRO_API_KEY@"
ADMIN_KEY_PLACEHOLDER = "@KPRO_ADMIN_API_KEY@"
DIGEST_NAME = "KPRO_CONFIG_DIGEST"
MASK = "********"

_SECRET_LINE = re.compile(
    r"^(?P<head>\s*[\w-]*(?:token|secret|password|api[_-]?key|credential)[\w-]*\s*[:=]\s*)(?P<value>\S.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_SECRET_NAME = re.compile(r"token|secret|passw|api[_-]?key|credential|auth", re.IGNORECASE)
# Limits and counts are named "...tokens" too and are no secret.
_PLAIN_VALUE = re.compile(r"^[\"']?(?:\d+(?:\.\d+)?|true|false|null|none)[\"']?$", re.IGNORECASE)


def effective_text(text: str) -> str:
    """Return the text without blank lines, whole-line comments and trailing blanks: what the reader of the file obeys."""
    lines = (line.rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.lstrip().startswith(("#", ";")))


def settings_text(text: str) -> str:
    """Return :func:`effective_text` without the digest line that the module itself adds to the environment file."""
    return "\n".join(line for line in effective_text(text).split("\n") if not line.startswith(f"{DIGEST_NAME}="))


def without_digest_line(text: str) -> str:
    """Return the text of an environment file as it was rendered, comments included."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(f"{DIGEST_NAME}="))


def environment_of(text: str) -> dict[str, str]:
    """Return the variables of an environment file as systemd would read it (one ``NAME=value`` a line, double quotes allowed)."""
    found = {}
    for line in effective_text(text).split("\n"):
        name, equals, value = line.partition("=")
        if not equals:
            continue
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = re.sub(r'\\(["\\$`])', r"\1", value[1:-1])
        found[name.strip()] = value
    return found


def quoted_for_systemd(value: str) -> str:
    """Return a value in double quotes as systemd's environment files want it.

    :raises KproError: if it holds a line break, which such a file cannot.
    """
    if "\n" in value or "\r" in value:
        raise KproError("environment value", "it holds a line break, which systemd's environment files cannot", "Give it on one line")
    return '"' + re.sub(r'(["\\$`])', r"\\\1", value) + '"'


def quoted_for_yaml(value: str) -> str:
    """Return what stands for a text between YAML's double quotes, whatever the text; only printable ASCII comes out (YAML 1.2, 5.7)."""
    return "".join(_yaml_character(character) for character in value)


def _yaml_character(character: str) -> str:
    number = ord(character)
    if character in '"\\':
        return f"\\{character}"
    if 0x20 <= number < 0x7F:
        return character
    if number <= 0xFF:
        return f"\\x{number:02X}"
    return f"\\u{number:04X}" if number <= 0xFFFF else f"\\U{number:08X}"


def texts_digest(texts: t.Mapping[str, str]) -> str:
    """Return one SHA-256 (hex) over named texts; comments and the order of names do not count."""
    digest = hashlib.sha256()
    for name in sorted(texts):
        body = effective_text(texts[name]).encode()
        digest.update(f"{name}\0{len(body)}\0".encode() + body)
    return digest.hexdigest()


def without_secrets(text: str, secrets: t.Iterable[str] = ()) -> str:
    """Return the text with known secrets, and values of names that sound like one, replaced by stars."""
    # The lines first: a secret may be a part of such a name.
    text = _SECRET_LINE.sub(_masked_line, text)
    for secret in secrets:
        if secret:
            text = text.replace(secret, MASK)
    return text


def without_secret_names(environment: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Return an environment without the variables whose names sound like a secret; numbers and switches are none, whatever their names."""
    return {name: value for name, value in environment.items() if not _SECRET_NAME.search(name) or _PLAIN_VALUE.match(str(value).strip())}


def _masked_line(match: re.Match[str]) -> str:
    if _PLAIN_VALUE.match(match["value"].strip()):
        return match[0]
    return f"{match['head']}{MASK}"
