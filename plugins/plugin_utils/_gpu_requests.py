# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The requests of all containers of the inventory for one node's GPUs."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from jinja2.exceptions import TemplateError

from ..module_utils._core.errors import KproError
from ..module_utils._pve.giving import count_of

HostVars = t.Mapping[str, t.Mapping[str, t.Any]]
ALL = "all"  # the role's default
SSH_PORT = 22


def requests_on(hosts: t.Iterable[str], hostvars: HostVars, node: str, in_run: t.Container[str] | None = None) -> list[dict[str, t.Any]]:
    """Return what each container on a node asks for, as ``neighbours`` of ``lxc_container``; one of which that, its id or its node can't be told is left out.

    :param node: inventory name of the node; another name for the same address is the same node.
    :param in_run: the hosts that this run treats; None: all.
    """
    place = _place(hostvars, node)
    found = []
    for host in hosts:
        values = hostvars[host]
        vmid = str(_value(values, "gpu_container__vmid", _value(values, "pct_vmid", "")))
        if _place(hostvars, str(_value(values, "pct_node", ""))) != place or not vmid.isdecimal():
            continue
        wanted = _value(values, "gpu_container__gpus", None) if "gpu_container__gpus" in values else ALL
        if _value(values, "gpu_container__state", "started") == "absent":
            wanted = "none"
        if wanted is None:
            continue  # it can't be told: what its container has is then not for it to give up
        row = {"vmid": int(vmid), "name": host, "gpus": wanted}
        found.append({**row, "share_gpus": _flag(_value(values, "gpu_container__share_gpus", False)), "in_run": in_run is None or host in in_run})
    return found


def needed_on(rows: t.Sequence[t.Mapping[str, t.Any]]) -> t.Any:
    """Return what all of them need together, as one of them would ask for it: ``all``, a list, or a number.

    Named GPUs and numbers together are a number: which ones the numbers take is decided later. Those who share count once.
    """
    if not rows or any(row["gpus"] == ALL for row in rows):
        return ALL
    lists = [_names(row["gpus"]) for row in rows if _number(row["gpus"]) is None]
    names = list(dict.fromkeys(str(name) for each in lists for name in each))
    numbers = [(_number(row["gpus"]) or 0, row["share_gpus"]) for row in rows if _number(row["gpus"]) is not None]
    apart = sum(number for number, share in numbers if not share)
    shared = max((number for number, share in numbers if share), default=0)
    if not apart and not shared:
        return names if names else 0
    return max(apart + len(names), shared)


def _number(wanted: t.Any) -> int | None:
    try:
        return count_of(wanted)
    except KproError:
        return 0  # no number at all: whoever treats the container says so


def _names(wanted: t.Any) -> t.Sequence[t.Any]:
    return wanted if isinstance(wanted, (list, tuple)) else str(wanted).replace(",", " ").split()


def _place(hostvars: HostVars, node: str) -> tuple[str, str]:
    """Return address and port: several nodes may lie behind one address (a jump host that forwards ports)."""
    values = hostvars[node] if node and node in hostvars else {}
    return str(_value(values, "ansible_host", node)), str(_value(values, "ansible_port", None) or SSH_PORT)


def _value(values: t.Mapping[str, t.Any], name: str, default: t.Any) -> t.Any:
    """Return a variable; one that can't be told (it may ask for what only a later phase knows) is not there."""
    try:
        found = values.get(name, default)
        found = [each for each in found if str(each) is not None] if isinstance(found, (list, tuple)) else found
        str(found)  # a value that is not defined says so only when it is used
    except (AnsibleError, TemplateError, KeyError):
        return default
    return found


def _flag(value: t.Any) -> bool:
    return bool(boolean(value, strict=False))
