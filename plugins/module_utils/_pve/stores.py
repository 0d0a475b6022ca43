# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Storages and templates of a node: is what a new container needs there?"""

from __future__ import annotations

import difflib
import typing as t

from .._core.errors import KproError

GIB = 1024**3
Rows = t.Sequence[t.Mapping[str, t.Any]]
# Storages that reserve a volume's whole size when it is made; all others grow with what is written.
THICK = frozenset({"lvm", "iscsidirect"})
UNPACKED_FACTOR = 4  # a zstd template of Debian unpacks to about three times its size
LEAST_GIB = 1.0


def may_hold_volumes(row: t.Mapping[str, t.Any]) -> bool:
    """Tell whether a storage that can be reached may hold volumes of containers."""
    return _usable(row) and bool({"rootdir", "images"} & _contents(row))


def check_storage(name: str, content: str, rows: Rows, login: str = "") -> t.Mapping[str, t.Any]:
    """Return the row of a storage that may hold this kind of content.

    :param content: ``rootdir`` or ``vztmpl``.
    :param login: who asked, if the list may be filtered by what they may see.
    :raises KproError: if it is absent, disabled, offline, or for other content.
    """
    what = f"storage '{name}'"
    fitting = [str(row["storage"]) for row in rows if _usable(row) and content in _contents(row)]
    seen = f" that {login} may see" if login else ""
    remedy = f"Storages of this node for {content}{seen}: {', '.join(sorted(fitting)) or 'none'}"
    row = next((row for row in rows if row.get("storage") == name), None)
    if row is None and login:
        raise KproError(what, f"the node has no such storage, or {login} may not see it", f"Grant Datastore.AllocateSpace on /storage/{name}. {remedy}")
    if row is None:
        raise KproError(what, "the node has no such storage", remedy)
    if not _usable(row):
        raise KproError(what, "it is disabled or not reachable now", remedy)
    if content not in _contents(row):
        raise KproError(what, f"it is not for content '{content}', only for {', '.join(sorted(_contents(row)))}", remedy)
    return row


def check_space(row: t.Mapping[str, t.Any], wanted_gib: float, template_bytes: int) -> str:
    """Stop if a new root file system can't be made; return a sentence if it can but can't be filled, else nothing.

    :raises KproError: with the numbers.
    """
    if row.get("avail") is None:
        return ""
    free_gib = int(row["avail"]) / GIB
    name = f"storage '{row['storage']}'"
    needed = wanted_gib if row.get("type") in THICK else template_bytes * UNPACKED_FACTOR / GIB + LEAST_GIB
    if free_gib < needed:
        raise KproError(name, f"{free_gib:.1f} GiB free, {needed:.1f} GiB needed", "Free space there or choose another storage")
    if free_gib < wanted_gib:
        return f"{name} has {free_gib:.1f} GiB free, less than the {wanted_gib:g} GiB that the container may grow to"
    return ""


def template_volume(template: str, storage: str) -> str:
    """Return the volume id of a template that is given by file name or volume id."""
    return template if ":" in template else f"{storage}:vztmpl/{template}"


def template_file(volume: str) -> str:
    """Return the file name in a template's volume id."""
    return volume.rsplit("/", 1)[-1]


def check_offer(volume: str, stored: Rows, offered: Rows, index_failure: str = "") -> None:
    """Stop if a missing template is not among those that Proxmox offers for download.

    :param offered: answer of ``aplinfo``; empty means that the index could not be had.
    :param index_failure: what ``pveam update`` said when it was run to fetch it, and failed.
    :raises KproError: with the names that come near.
    """
    names = [str(row.get("template", "")) for row in offered]
    wanted = template_file(volume)
    if wanted in names:
        return
    near = [str(row["volid"]) for row in stored if _is_near(wanted, template_file(str(row["volid"])))]
    near += [name for name in names if _is_near(wanted, name)]
    remedies = []
    if not offered and index_failure:
        remedies = [f"Proxmox's index of templates is empty, and 'pveam update' could not fetch it ({index_failure})"]
    elif not offered:
        remedies = ["Proxmox's index of templates is empty: run 'pveam update' on the node"]
    remedies += [f"Near it: {', '.join(near)}"] if near else []
    raise KproError(
        f"template '{volume}'",
        "it is neither stored on the node nor offered for download",
        ". ".join(remedies) or "See 'pveam available' on the node",
    )


def _is_near(wanted: str, name: str) -> bool:
    """Tell whether a template is of the same family (``debian-12-standard``), or of one that is spelled alike."""
    return bool(difflib.get_close_matches(wanted.split("_")[0], [name.split("_")[0]], cutoff=0.8))


def _usable(row: t.Mapping[str, t.Any]) -> bool:
    return bool(int(row.get("enabled", 1) or 0)) and bool(int(row.get("active", 1) or 0))


def _contents(row: t.Mapping[str, t.Any]) -> set[str]:
    return {part for part in str(row.get("content", "")).split(",") if part}
