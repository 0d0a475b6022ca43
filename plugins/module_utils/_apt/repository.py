# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One apt repository of ours: its source file, its key, and the fingerprint that the key must have."""

from __future__ import annotations

import dataclasses

SOURCES = "/etc/apt/sources.list.d"
KEYRINGS = "/usr/share/keyrings"


@dataclasses.dataclass(frozen=True)
class Repository:
    """A flat apt repository with the fingerprint of the key that signs it."""

    name: str
    uri: str
    key_url: str
    key_fingerprint: str

    @property
    def sources_path(self) -> str:
        """Where apt looks for it."""
        return f"{SOURCES}/{self.name}.sources"

    @property
    def key_path(self) -> str:
        """Where its key lies; the suffix tells apt that it is armoured."""
        return f"{KEYRINGS}/{self.name}.asc"

    @property
    def sources_text(self) -> str:
        """The repository in apt's own format."""
        return f"Types: deb\nURIs: {self.uri}\nSuites: /\nSigned-By: {self.key_path}\n"
