# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of the installed ``ssh`` connection plugin with the defaults that suit a container.

They are read from the plugin at hand and not written down here, because the plugin asks for each of
its options by name: an option that a newer ansible-core adds would end in a KeyError.

Each task that enters a container loads this file anew, so it must be cheap: libyaml reads, and JSON, which is YAML, is written.
"""

from __future__ import annotations

import json
import typing as t

import yaml
from ansible.plugins.connection import ssh

# A pty turns every line end into CRLF and makes lxc-attach relay through a second pty in small pieces.
# The socket has to outlive a task that downloads for minutes; compression only costs time on a LAN.
_DEFAULTS: dict[str, t.Any] = {
    "use_tty": False,
    "ssh_args": "-o ControlMaster=auto -o ControlPersist=10m -o ServerAliveInterval=15 -o ServerAliveCountMax=4",
}

_PIPELINING: dict[str, t.Any] = {
    "description": [
        "Run a module in one round trip by sending it on standard input.",
        "On by default, unlike in the C(ssh) plugin, as nothing inside the container asks for a terminal.",
    ],
    "type": "boolean",
    "default": True,
    "env": [{"name": "ANSIBLE_PIPELINING"}, {"name": "ANSIBLE_SSH_PIPELINING"}],
    "ini": [
        {"section": "defaults", "key": "pipelining"},
        {"section": "connection", "key": "pipelining"},
        {"section": "ssh_connection", "key": "pipelining"},
    ],
    "vars": [{"name": "ansible_pipelining"}, {"name": "ansible_ssh_pipelining"}],
}


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _without_version_marks(node: t.Any) -> t.Any:
    """``version_added`` of ansible-core would be read as a version of this collection."""
    if isinstance(node, dict):
        return {key: _without_version_marks(value) for key, value in node.items() if key != "version_added"}
    if isinstance(node, list):
        return [_without_version_marks(item) for item in node]
    return node


def _options() -> dict[str, t.Any]:
    options = _without_version_marks(yaml.load(ssh.DOCUMENTATION, Loader=_LOADER)["options"])
    for name, default in _DEFAULTS.items():
        options[name]["default"] = default
    return {**options, "pipelining": _PIPELINING}


class ModuleDocFragment:
    DOCUMENTATION: str = json.dumps({"options": _options()})
