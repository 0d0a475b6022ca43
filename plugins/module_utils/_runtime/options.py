# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of runtime_base, and what they ask for on a system."""

from __future__ import annotations

import typing as t

from .._apt.repository import Repository
from .._core.errors import KproError
from .base import Account, BaseWanted, certificates

REPOSITORY: dict[str, t.Any] = {
    "name": {"type": "str", "required": True},
    "uri": {"type": "str", "required": True},
    "key_url": {"type": "str", "required": True, "no_log": False},
    "key_fingerprint": {"type": "str", "required": True, "no_log": False},
    "distribution": {"type": "str", "default": ""},
}
ARGUMENTS: dict[str, t.Any] = {
    "certificates": {"type": "dict", "default": {}},
    "repositories": {"type": "list", "elements": "dict", "default": [], "options": REPOSITORY},
    "packages": {"type": "list", "elements": "str", "default": []},
    "user": {"type": "str", "default": ""},
    "home": {"type": "path", "default": "/var/lib/kpro-llm/home"},
    "shell": {"type": "path", "default": "/usr/sbin/nologin"},
}


def wanted_from(params: t.Mapping[str, t.Any], system: t.Mapping[str, t.Any]) -> BaseWanted:
    """Return what the options ask for on this system.

    :raises KproError: a certificate's name or text is none.
    """
    for name, text in params["certificates"].items():
        if not name.endswith(".crt") or "/" in name:
            raise KproError(f"certificate {name}", "its name is not a plain file name ending in .crt", "Rename the file")
        certificates(text, f"certificate {name}")
    here = f"{system['distribution']}{system['distribution_version']}"
    return BaseWanted(
        # A file's last newline is lost on the way through a lookup.
        authorities={name: text.rstrip("\n") + "\n" for name, text in params["certificates"].items()},
        packages=tuple(params["packages"]),
        repositories=tuple(Repository(**values) for values in _here(params["repositories"], here)),
        account=Account(params["user"], params["home"], params["shell"]) if params["user"] else None,
    )


def _here(repositories: t.Iterable[t.Mapping[str, t.Any]], here: str) -> t.Iterator[dict[str, t.Any]]:
    for values in repositories:
        if values["distribution"] in ("", here):
            yield {name: value for name, value in values.items() if name != "distribution"}
