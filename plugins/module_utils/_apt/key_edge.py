# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge that gets the key of a package repository."""

from __future__ import annotations

import http.client
import urllib.request

from .._core.errors import KproError
from .._linux.text_file_edge import TextFile, write_text_file
from .openpgp import fingerprints
from .repository import Repository

TIMEOUT_S = 60.0


def fetch_key(repository: Repository, path: str) -> None:
    """Write the key of a repository, if it is exactly the expected one.

    :raises KproError: it can't be got, or is another one.
    """
    what = f"key of the repository {repository.name}"
    try:
        with urllib.request.urlopen(repository.key_url, timeout=TIMEOUT_S) as answer:
            text = answer.read().decode()
    except (OSError, UnicodeDecodeError, http.client.HTTPException) as error:
        raise KproError(what, f"{repository.key_url}: {error}", "Check the address and the way to it") from error
    found = fingerprints(text)
    if found != [repository.key_fingerprint]:
        raise KproError(
            what,
            f"{repository.key_url} holds {' and '.join(found) or 'no key'}, and {repository.key_fingerprint} alone is expected",
            "Find out whether the vendor changed its key before you change the expected one",
        )
    write_text_file(TextFile(path, text, 0o644, "root", "root"))
