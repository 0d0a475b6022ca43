# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``pveversion``, ``pvesm`` and ``pveam``: the few of their commands that the collection and its users type."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from . import cli_options, node_api, storage
from .cli_options import UsageError
from .errors import ApiError, bad_parameters, failed
from .node import REPOID, Node, this_node

STRING = {"type": "string"}
PVESM_USAGE = """USAGE: pvesm <COMMAND> [ARGS] [OPTIONS]

       pvesm list <storage> [OPTIONS]
       pvesm status  [OPTIONS]
       pvesm path <volume>
       pvesm free <volume> [OPTIONS]
"""
PVEAM_USAGE = """USAGE: pveam <COMMAND> [ARGS] [OPTIONS]

       pveam download <storage> <template>

       pveam available  [OPTIONS]
       pveam list <storage>
       pveam remove <template_path>
       pveam update 

       pveam help [<extra-args>] [OPTIONS]
"""  # noqa: W291
Handler = Callable[[Node, dict[str, str]], None]


def _run(usage: str, line: str, work: Callable[[], None]) -> int:
    try:
        work()
    except UsageError as error:
        sys.stderr.write(f"{error}\n{line}\n")
        return 255
    except ApiError as error:
        return cli_options.report(error, line)
    return 0


def pveversion(argv: Sequence[str], node: Node | None = None) -> int:
    """Print the manager's version; with --verbose a short list that names the stand-in."""
    node = node or this_node(cli_options.notice)
    manager = f"pve-manager/{node.version}/{REPOID}"
    if any(word not in ("-v", "--verbose", "-verbose") for word in argv):
        bad = next(word for word in argv if word not in ("-v", "--verbose", "-verbose"))
        sys.stderr.write(f"Unknown option: {bad.lstrip('-')}\nUSAGE: pveversion [--verbose]\n")
        return 255
    kernel = os.uname().release
    if argv:
        print(f"proxmox-ve: {node.release}.0 (running kernel: {kernel})")
        print(f"pve-manager: {node.version} (running version: {node.version}/{REPOID})")
        print("kpro-standin: no Proxmox, a stand-in for tests")
    else:
        print(f"{manager} (running kernel: {kernel})")
    return 0


def pvesm(argv: Sequence[str], node: Node | None = None) -> int:
    """Run status, list or path."""
    node = node or this_node(cli_options.notice)
    commands: dict[str, tuple[str, dict[str, object], tuple[str, ...], Handler]] = {
        "status": (" [OPTIONS]", {"storage": STRING, "content": STRING}, (), _status),
        "list": ("<storage> [OPTIONS]", {"content": STRING, "vmid": STRING}, ("storage",), _list),
        "path": ("<volume>", {}, ("volume",), _path),
        "free": ("<volume> [OPTIONS]", {"storage": STRING}, ("volume",), _free),
    }
    return _dispatch("pvesm", PVESM_USAGE, commands, node, argv)


def pveam(argv: Sequence[str], node: Node | None = None) -> int:
    """Run list, available, update, download or remove."""
    node = node or this_node(cli_options.notice)
    commands: dict[str, tuple[str, dict[str, object], tuple[str, ...], Handler]] = {
        "list": ("<storage>", {}, ("storage",), _templates),
        "available": (" [OPTIONS]", {"section": STRING}, (), _available),
        "update": ("", {}, (), _update),
        "download": ("<storage> <template>", {}, ("storage", "template"), _download),
        "remove": ("<template_path>", {}, ("template_path",), _remove),
    }
    return _dispatch("pveam", PVEAM_USAGE, commands, node, argv)


def _dispatch(
    tool: str,
    usage: str,
    commands: dict[str, tuple[str, dict[str, object], tuple[str, ...], Handler]],
    node: Node,
    argv: Sequence[str],
) -> int:
    if not argv or argv[0] not in commands:
        reason = "no command specified" if not argv else f"unknown command '{tool} {argv[0]}'"
        sys.stderr.write(f"ERROR: {reason}\n{usage}")
        return 255
    shape, specs, positional, handler = commands[argv[0]]

    def work() -> None:
        options, _rest = cli_options.parse(argv[1:], specs, positional)
        handler(node, options)

    return _run(usage, f"{tool} {argv[0]} {shape}", work)


def _status(node: Node, options: dict[str, str]) -> None:
    name = options.get("storage")
    if name is not None and name not in storage.storages(node):
        raise bad_parameters({"storage": "No such storage."})
    print("Name         Type     Status     Total (KiB)      Used (KiB) Available (KiB)        %")
    for found in storage.storages(node).values():
        if name not in (None, found.name):
            continue
        total, used, available = (size // 1024 for size in storage.usage(node, found))
        percent = 100 * used / total if total else 0
        kind = found.kind.rjust(8)
        print(f"{found.name:<12} {kind} {'active':>10} {total:>15} {used:>15} {available:>15} {percent:7.2f}%")


def _list(node: Node, options: dict[str, str]) -> None:
    found = storage.contents(node, storage.get(node, options["storage"]), options.get("content"), options.get("vmid"))
    if not found:
        return
    width = max(len(volume.volid) for volume in found)
    sizes = max(len(str(volume.size)) for volume in found)
    print(f"{'Volid':<{width}} Format  Type    {'Size':>{sizes + 2}} VMID")
    for volume in sorted(found, key=lambda volume: volume.volid):
        vmid = f" {volume.vmid}" if volume.vmid is not None else ""
        print(f"{volume.volid:<{width}} {volume.format:<7} {volume.content:<7} {volume.size:>{sizes + 2}}{vmid}")


def _path(node: Node, options: dict[str, str]) -> None:
    volume = options["volume"]
    if ":" not in volume:
        raise bad_parameters({"volume": f"invalid format - unable to parse volume ID '{volume}'\n"})
    print(storage.volume_path(node, volume))


def _free(node: Node, options: dict[str, str]) -> None:
    volid = options["volume"]
    if storage.content_of(volid) != "rootdir":
        raise failed("the stand-in frees volumes of containers only")
    if not node.path(storage.volume_path(node, volid)).exists():
        raise failed(f"volume '{volid}' does not exist")
    storage.free(node, volid)
    print(f"Removed volume '{volid}'")


def _templates(node: Node, options: dict[str, str]) -> None:
    found = storage.contents(node, storage.get(node, options["storage"]), "vztmpl", None)
    print(f"{'NAME':<60} {'SIZE':<6}")
    for volume in found:
        print(f"{volume.volid:<60} {volume.size / 1024 / 1024:.2f}MB")


def _available(node: Node, options: dict[str, str]) -> None:
    node_api.tell_of_absent_index(node)
    for name, entry in sorted(node_api.template_index(node).items()):
        section = entry.get("section", "system")
        if options.get("section") in (None, section):
            print(f"{section:<15} {name}")


def _update(node: Node, options: dict[str, str]) -> None:
    fetched = node_api.update_template_index(node)
    if not fetched:
        log = node.path("/var/log/pveam.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a", encoding="utf-8") as file:
            file.write("starting update\nupdate failed: 500 Can't connect to download.proxmox.com:80 (Temporary failure in name resolution)\n")
        cli_options.notice("update failed - see /var/log/pveam.log for details")
        return
    print("update successful")


def _download(node: Node, options: dict[str, str]) -> None:
    from . import api

    outcome = api.call(node, "POST", "/nodes/localhost/aplinfo", options, cli_options.echo)
    if not outcome.is_success:
        raise failed(outcome.exitstatus)


def _remove(node: Node, options: dict[str, str]) -> None:
    volid = options["template_path"]
    path = node.path(storage.volume_path(node, volid))
    if not path.is_file():
        raise failed(f"volume '{volid}' does not exist")
    path.unlink()
