# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``pct``: containers on the command line."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import cli_options
from .cli_options import UsageError
from .errors import ApiError
from .node import Node
from .tasks import Outcome

BASE = "/nodes/localhost/lxc/{vmid}"
USAGE = """USAGE: pct <COMMAND> [ARGS] [OPTIONS]

       pct create <vmid> <ostemplate> [OPTIONS]
       pct destroy <vmid> [OPTIONS]
       pct list 
       pct pending <vmid>
       pct restore <vmid> <ostemplate> [OPTIONS]

       pct config <vmid> [OPTIONS]
       pct set <vmid> [OPTIONS]

       pct enter <vmid> [OPTIONS]
       pct exec <vmid> [<extra-args>] [OPTIONS]
       pct migrate <vmid> <target> [OPTIONS]
       pct pull <vmid> <path> <destination> [OPTIONS]
       pct push <vmid> <file> <destination> [OPTIONS]

       pct reboot <vmid> [OPTIONS]
       pct shutdown <vmid> [OPTIONS]
       pct start <vmid> [OPTIONS]
       pct stop <vmid> [OPTIONS]

       pct status <vmid> [OPTIONS]
       pct unlock <vmid>
"""  # noqa: W291
VMID = {"type": "integer", "format": "pve-vmid", "minimum": 100, "maximum": 999999999}
VERBOSE = {"verbose": {"type": "boolean", "optional": 1}, "vmid": VMID}


@dataclass(frozen=True)
class Command:
    """One command: its call and its positional arguments; without a call it is done here."""

    usage: str
    method: str = ""
    path: str = ""
    positional: tuple[str, ...] = ("vmid",)


COMMANDS = {
    "create": Command("<vmid> <ostemplate> [OPTIONS]", "POST", "/nodes/localhost/lxc", ("vmid", "ostemplate")),
    "restore": Command("<vmid> <ostemplate> [OPTIONS]", "POST", "/nodes/localhost/lxc", ("vmid", "ostemplate")),
    "destroy": Command("<vmid> [OPTIONS]", "DELETE", BASE),
    "start": Command("<vmid> [OPTIONS]", "POST", f"{BASE}/status/start"),
    "stop": Command("<vmid> [OPTIONS]", "POST", f"{BASE}/status/stop"),
    "shutdown": Command("<vmid> [OPTIONS]", "POST", f"{BASE}/status/shutdown"),
    "reboot": Command("<vmid> [OPTIONS]", "POST", f"{BASE}/status/reboot"),
    "set": Command("<vmid> [OPTIONS]", "PUT", f"{BASE}/config"),
    "config": Command("<vmid> [OPTIONS]", "GET", f"{BASE}/config"),
    "pending": Command("<vmid>", "GET", f"{BASE}/pending"),
    "list": Command("", "GET", "/nodes/localhost/lxc", ()),
    "migrate": Command("<vmid> <target> [OPTIONS]", "POST", f"{BASE}/migrate", ("vmid", "target")),
    "status": Command("<vmid> [OPTIONS]"),
    "unlock": Command("<vmid>"),
}


def run(node: Node, argv: Sequence[str]) -> int:
    """Run ``pct ARGS`` against a node (all but exec and enter, which become another program)."""
    if argv and argv[0] in ("push", "pull"):
        from . import cli_files

        return cli_files.run(node, argv[0], argv[1:])
    if argv and argv[0] == "help":
        sys.stdout.write(USAGE)
        return 0
    if not argv or argv[0] not in COMMANDS:
        reason = "no command specified" if not argv else f"unknown command 'pct {argv[0]}'"
        sys.stderr.write(f"ERROR: {reason}\n{USAGE}")
        return 255
    command = COMMANDS[argv[0]]
    usage = f"pct {argv[0]} {command.usage}"
    try:
        return _run(node, argv[0], command, argv[1:])
    except UsageError as error:
        sys.stderr.write(f"{error}\n{usage}\n")
        return 255
    except ApiError as error:
        return cli_options.report(error, usage)


def _run(node: Node, name: str, command: Command, argv: Sequence[str]) -> int:
    from . import api, schema

    if not command.method:
        options, _rest = cli_options.parse(argv, VERBOSE if name == "status" else {"vmid": VMID}, command.positional)
        _check_vmid(options)
        return _status(node, options) if name == "status" else _unlock(node, options["vmid"])
    found = schema.find(command.method, command.path.format(vmid="100"))
    properties = {key: spec for key, spec in found.properties.items() if key != "node"} if found else {}
    options, _rest = cli_options.parse(argv, properties, command.positional)
    if name == "restore":
        options["restore"] = "1"
    path = command.path
    if "{vmid}" in path:
        _check_vmid(options, keep=True)
        path = path.format(vmid=options.pop("vmid"))
    if name == "config":
        _check_stored(node, path.split("/")[4])
    answer = api.call(node, command.method, path, options, cli_options.echo)
    if isinstance(answer, Outcome):
        return _finished(answer)
    _show(name, answer)
    return 0


def _check_vmid(options: Mapping[str, str], keep: bool = False) -> None:
    from .errors import bad_parameters
    from .schema import check_value

    if reason := check_value("vmid", options["vmid"], VMID):
        raise bad_parameters({"vmid": reason})


def _check_stored(node: Node, vmid: str) -> None:
    from . import normalise, store

    errors = normalise.invalid_values(store.load(node, vmid))
    if errors:
        raise ApiError(400, "Result verification failed", errors)


def _finished(outcome: Outcome) -> int:
    sys.stdout.flush()
    if not outcome.is_success:
        cli_options.notice(outcome.exitstatus)
        return 255
    if outcome.warnings:
        cli_options.notice(f"Task finished with {outcome.warnings} warning(s)!")
    return 0


def _status(node: Node, options: Mapping[str, str]) -> int:
    from . import guest_api

    row = guest_api.summary(node, options["vmid"])
    if options.get("verbose") == "1":
        for key in sorted(row):
            cli_options.echo(f"{key}: {row[key]}")
    else:
        cli_options.echo(f"status: {row['status']}")
    return 0


def _unlock(node: Node, vmid: str) -> int:
    from . import store
    from .locks import config_lock

    with config_lock(node, vmid):
        config = store.load(node, vmid)
        config.current.values.pop("lock", None)
        store.save(node, vmid, config)
    return 0


def _show(name: str, answer: Any) -> None:
    if name == "list":
        _show_list(answer)
    elif name == "config":
        _show_config(answer)
    elif name == "pending":
        for row in sorted(answer, key=lambda row: row["key"]):
            _show_pending(row)


def _show_list(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    form = "{:<10} {:<10} {:<12} {:<20}"
    cli_options.echo(form.format("VMID", "Status", "Lock", "Name"))
    for row in sorted(rows, key=lambda row: int(row["vmid"])):
        cli_options.echo(form.format(row["vmid"], row["status"], row.get("lock", ""), row["name"]))


def _show_config(values: Mapping[str, Any]) -> None:
    for key in sorted(values):
        if key not in ("digest", "lxc"):
            cli_options.echo(f"{key}: {_one_line(key, values[key])}")
    for key, text in values.get("lxc", []):
        cli_options.echo(f"{key}: {text}")


def _one_line(key: str, value: Any) -> str:
    if key != "description":
        return str(value)
    from .config_file import encode_text

    return encode_text(str(value))


def _show_pending(row: Mapping[str, Any]) -> None:
    key = row["key"]
    if key == "digest":
        return
    if key == "lxc":
        for name, text in row["value"]:
            cli_options.echo(f"cur {name}: {text}")
        return
    if "delete" in row:
        cli_options.echo(f"del {key}: {_one_line(key, row['value'])}")
        return
    if "value" in row:
        cli_options.echo(f"cur {key}: {_one_line(key, row['value'])}")
    if "pending" in row:
        cli_options.echo(f"new {key}: {_one_line(key, row['pending'])}")
