# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record written before a call of ``pvesh``."""

from __future__ import annotations

import dataclasses
import re
import typing as t

STARTED_BY_PATH = {"lxc": "create", "migrate": "migrate", "resize": "resize", "aplinfo": "download", "config": "set"}


@dataclasses.dataclass(frozen=True)
class Record:
    """The record written before a call.

    :param name: name of the work, for example ``create-129``.
    :param kind: the work: ``create``, ``destroy``, ``start``, ``shutdown``, ``resize``, ``migrate``, ``download``, ``set``.
    :param vmid: the container; 0 for work on none.
    :param node: node on which the work is done.
    :param boot_id: the boot of the node during which it was begun.
    :param began_s: when, in seconds since the epoch.
    :param upid: name of its task, empty until it is known.
    :param ended: whether its end was seen and good.
    :param details: what else a later run has to know.
    """

    name: str
    kind: str
    vmid: int = 0
    node: str = ""
    boot_id: str = ""
    began_s: float = 0.0
    upid: str = ""
    ended: bool = False
    details: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)

    @property
    def words(self) -> str:
        """The work in words."""
        nouns = {"create": "creation", "destroy": "removal", "set": "change", "migrate": "migration"}
        noun = nouns.get(self.kind, self.kind)
        return f"{noun} of container {self.vmid}" if self.vmid else f"{noun} of {self.details.get('template', 'a template')}"


def work_of(verb: str, path: str, params: t.Mapping[str, t.Any]) -> Record:
    """Return name, kind, container and node of the work that a call does."""
    parts = path.strip("/").split("/")
    node = parts[1] if parts[0] == "nodes" and len(parts) > 1 else ""
    of_container = len(parts) > 2 and parts[2] == "lxc"
    vmid = int(params.get("vmid") or (parts[3] if of_container and len(parts) > 3 else 0))
    kind = STARTED_BY_PATH.get(parts[-1], parts[-1])
    if verb == "delete":
        kind = "destroy" if of_container else "free"
    about = [str(params[key]) for key in ("storage", "template", "disk") if params.get(key)] if kind in ("download", "resize") else []
    about += parts[5:] if kind == "free" else []
    name = "-".join([kind, *([str(vmid)] if vmid else []), *about])
    details = {key: str(params[key]) for key in ("storage", "template") if key in params} if kind == "download" else {}
    return Record(re.sub(r"[^A-Za-z0-9._-]", "_", name), kind, vmid, node, details=details)
