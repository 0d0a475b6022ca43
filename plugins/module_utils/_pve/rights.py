# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings that only root@pam itself may change.

Proxmox compares with the login itself: no role grants it, and an API token of root is another user (PVE::LXC::check_ct_modify_config_perm;
recorded scenarios access-token-privsep and create-as-token).
"""

from __future__ import annotations

import typing as t

from .._core.errors import KproError
from . import config as cfg
from . import property as prop

ROOT = "root@pam"
# Steps of a plan for which the API has no call: folders of the node, raw lines of the file.
NODE_ONLY = frozenset({"folder", "raw"})


def root_only(before: t.Mapping[str, str | None], after: t.Mapping[str, str | None], unprivileged: bool) -> dict[str, str]:
    """Return the changed keys that only root@pam may set, each with what it is.

    :param before: stored values of the keys that change.
    :param after: their new values (None: removed).
    """
    found: dict[str, str] = {}
    for key, value in after.items():
        kind = cfg.kind_of(key)
        texts = [text for text in (before.get(key), value) if text]
        if kind == "dev":
            found[key] = "device passthrough"
        elif kind == "mp" and any(prop.parse(text, prop.MOUNT).get("volume", "").startswith("/") for text in texts):
            source = prop.parse(texts[-1], prop.MOUNT)["volume"]
            found[key] = f"a bind mount of {source}"
        elif key == "hookscript":
            found[key] = "a hook script"
        elif key == "features" and not (unprivileged and _only_nesting(before.get(key), value)):
            found[key] = "feature flags other than nesting" if unprivileged else "feature flags of a privileged container"
    return found


def check_rights(user: str, found: t.Mapping[str, str]) -> None:
    """Stop before anything is sent if another login than root@pam would have to set such keys.

    :param user: the login, a token as ``user@realm!name``.
    :raises KproError: naming the keys.
    """
    if user == ROOT or not found:
        return
    kind = f"token {user}" if "!" in user else f"user {user}"
    keys = ", ".join(f"{key} ({what})" for key, what in found.items())
    raise KproError(
        keys,
        f"only {ROOT} itself may set {'it' if len(found) == 1 else 'them'}, and the {kind} is not that user, whatever its roles",
        f"Run the module on the node over SSH (without api_host), or log in with the password of {ROOT}",
    )


def check_place(steps: t.Iterable[str]) -> None:
    """Stop before anything is sent if a plan made over the network has steps that only the node itself can do.

    :raises KproError: naming them.
    """
    found = list(steps)
    if found:
        raise KproError(
            "; ".join(found),
            "the API can't do that, it takes access to the node's files",
            "Run the module on the node over SSH (without api_host), where it goes through pvesh",
        )


def _only_nesting(before: str | None, after: str | None) -> bool:
    old, new = (dict(prop.canonical(text or "", prop.FEATURES)) for text in (before, after))
    return all(old.get(name) == new.get(name) for name in {*old, *new} - {"nesting"})
