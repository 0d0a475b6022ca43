# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of the sandbox."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from node import inside, layers, lifecycle, link, link_holder, machine, ssh
from node.content import package_list
from node.files import remove_tree, say, tail
from node.folders import Folders, SandboxError
from node.images import SUITES, build_image, current_image, template_key, template_path
from node.lifecycle import DEFAULT_NAME, DEFAULT_SUITE, Wanted
from node.publish import publish
from node.record import Record
from node.supervisor import launch, supervise


def _forward(text: str) -> tuple[int, int]:
    host, _unused, node = text.partition(":")
    if not (host.isdecimal() and node.isdecimal() and 0 < int(host) < 65536 and 0 < int(node) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOSTPORT:NODEPORT")
    return int(host), int(node)


def _file(text: str) -> tuple[Path, str]:
    source, _unused, target = text.rpartition(":")
    if not Path(source).is_file() or not target.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not FILE:PATH, FILE being a file here and PATH absolute")
    return Path(source).absolute(), target


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sandbox",
        description="A Debian node in systemd-nspawn that stands for a Proxmox VE node with GPUs. Everything lies in one folder, "
        "KPRO_SANDBOX_DIR (now " + str(Folders.from_environment().base) + ").",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, with_node: bool = True) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        if with_node:
            sub.add_argument("name", nargs="?", default=DEFAULT_NAME, help=f"node (default: {DEFAULT_NAME})")
        return sub

    sub = command("up", "Start a node; does nothing if it runs already.")
    sub.add_argument("--suite", choices=SUITES, help=f"trixie is PVE 9, bookworm is PVE 8 (default: {DEFAULT_SUITE})")
    sub.add_argument("--port", type=int, help="port of 127.0.0.1 for ssh (default: 2322, or the next free one)")
    sub.add_argument("--hostname", help="host name, so the Proxmox node's name (default: pve9 or pve8)")
    sub.add_argument("--forward", type=_forward, action="append", default=[], metavar="HOST:NODE", help="forward a port to the node")
    sub.add_argument("--layer", help="start from a saved layer")
    sub.add_argument("--link", help="a network shared with other nodes, made if needed")
    sub.add_argument("--cluster", action="store_true", help="one Proxmox cluster with the other nodes of the link that have this, too")
    sub.add_argument("--file", type=_file, action="append", default=[], metavar="FILE:PATH", help="put a file on the node before it boots, on each new disk")
    sub.add_argument("--pristine", action="store_true", help="no node, but a Debian as new, to try the project on (use exec)")
    sub.add_argument("--install-missing", action="store_true", help="install missing Debian packages on this machine first")

    sub = command("down", "Stop a node and remove its disk; the cache of images stays.")
    sub.add_argument("--keep", action="store_true", help="shut down in order and keep the disk for the next up")
    sub.add_argument("--all", action="store_true", help="all nodes")
    command("kill", "Cut a node's power: nothing is shut down, the disk stays, up starts it again.")
    command("reset", "Give a node a new disk and start it again.")
    sub = command("status", "Show nodes; exit code 3 if the named one does not run.", with_node=False)
    sub.add_argument("name", nargs="?", help="only this node")
    sub.add_argument("--json", action="store_true", help="as JSON")
    command("exec", "Run a command as root without ssh: exec [NAME] -- COMMAND ... (standard input and exit code pass).")
    command("ssh", "Log in, or run a command: ssh [NAME] [-- COMMAND ...].")
    sub = command("logs", "Show a node's journal (the console where it does not run).")
    sub.add_argument("--lines", type=int, default=100, help="how many lines (default: 100)")
    sub.add_argument("--unit", help="only this unit")
    sub.add_argument("--follow", action="store_true", help="go on with new lines")
    sub.add_argument("--console", action="store_true", help="the console and the supervisor's messages")
    sub = command("publish", "Copy folders to a node for its hub and its web server.")
    sub.add_argument("--hub", type=Path, metavar="DIR", help="holds ORGANISATION/REPOSITORY folders")
    sub.add_argument("--files", type=Path, metavar="DIR", help="holds wheels/, driver/ ...")

    sub = command("link", "Change a link: cut | restore [NODE] | shape RATE | forward PORT:ADDRESS:PORT | status | exec -- COMMAND ....", with_node=False)
    sub.add_argument("name", help="the link")
    sub.add_argument("action", choices=("cut", "restore", "shape", "forward", "status", "exec"))
    sub.add_argument("argument", nargs="?", default="", help="a node (default: all), a rate in tc's notation or none, a forward")

    sub = command("layer", "Keep provisioned disks: layer save NODE LAYER | list | has LAYER | remove LAYER.", with_node=False)
    sub.add_argument("action", choices=("save", "list", "has", "remove"))
    sub.add_argument("arguments", nargs="*")
    sub = command("build", "Build the images without starting a node.", with_node=False)
    sub.add_argument("--suite", choices=SUITES, action="append", help="default: " + DEFAULT_SUITE)
    sub.add_argument("--install-missing", action="store_true", help="install missing Debian packages on this machine first")
    sub = command("image-key", "Print the key of the image that this checkout asks for.", with_node=False)
    sub.add_argument("--suite", choices=SUITES, default=DEFAULT_SUITE)
    command("template", "Print the path of the container template, built if needed.", with_node=False)
    command("packages", "Print the Debian packages that this machine needs.", with_node=False)
    command("prune", "Remove cached images that nothing uses.", with_node=False)
    for hidden in ("_launch", "_supervise", "_link"):
        sub = commands.add_parser(hidden)
        sub.add_argument("arguments", nargs="*")
    return parser


def _up(folders: Folders, options: argparse.Namespace) -> int:
    machine.check_machine(options.install_missing)
    wanted = Wanted(options.name, options.suite, options.port, options.hostname, options.layer, tuple(options.forward), options.pristine)
    wanted = replace(wanted, link=options.link, cluster=options.cluster, files=tuple(options.file))
    if wanted.pristine and (wanted.port or wanted.forwards or wanted.layer or wanted.link):
        raise SandboxError("a pristine system has neither ssh nor forwards nor layers nor links")
    if wanted.cluster and not wanted.link:
        raise SandboxError("nodes of a cluster need a network between them; give --link NAME, too")
    record = lifecycle.up(folders, wanted)
    print(_line(folders, record))
    return 0


def _line(folders: Folders, record: Record) -> str:
    state = "running" if lifecycle.is_running(folders.node(record.name)) else "stopped"
    if record.image.pristine:
        return f"{record.name}: {state}, pristine {record.image.suite} (sandbox exec {record.name} -- COMMAND)"
    forwards = " ".join(f"{host}:{node}" for host, node in record.forwards) or "-"
    layer = record.layers[0] if record.layers else "-"
    line = f"{record.name}: {state}, {record.image.suite}, host name {record.hostname}, ssh 127.0.0.1:{record.port}, forwards {forwards}, layer {layer}"
    if record.link:
        line += f", link {record.link} {link.address(record.link_number)}{' (cluster)' if record.cluster else ''}"
    return line


def _down(folders: Folders, options: argparse.Namespace) -> int:
    machine.check_user()
    names = sorted(path.name for path in folders.state.iterdir()) if options.all and folders.state.is_dir() else [options.name]
    for name in names:
        if lifecycle.down(folders, name, options.keep):
            say(f"node {name} is down" + (" (disk kept)" if options.keep else ""))
        elif not options.all:
            say(f"there is no node {name}")
    return 0


def _kill(folders: Folders, options: argparse.Namespace) -> int:
    machine.check_user()
    say(f"node {options.name} " + ("has no power any more" if lifecycle.kill(folders, options.name) else "did not run"))
    return 0


def _reset(folders: Folders, options: argparse.Namespace) -> int:
    machine.check_machine(install_missing=False)
    print(_line(folders, lifecycle.reset(folders, options.name)))
    return 0


def _describe(folders: Folders, record: Record) -> dict[str, Any]:
    return {
        "name": record.name,
        "running": lifecycle.is_running(folders.node(record.name)),
        "suite": record.image.suite,
        "hostname": record.hostname,
        "address": "127.0.0.1",
        "port": record.port,
        "forwards": dict(record.forwards),
        "layers": list(record.layers),
        "link": record.link,
        "link_address": link.address(record.link_number) if record.link else "",
        "cluster": record.cluster,
        "image_key": record.image.key,
        "ssh_config": str(folders.ssh / "config"),
        "ssh_key": str(folders.ssh / "id_ed25519"),
        "known_hosts": str(folders.ssh / "known_hosts"),
    }


def _status(folders: Folders, options: argparse.Namespace) -> int:
    machine.check_user()
    found = [record for record in ssh.records(folders) if options.name in (None, record.name)]
    if options.json:
        print(json.dumps([_describe(folders, record) for record in found], indent=2))
    else:
        for record in found:
            print(_line(folders, record))
        if not found:
            print("no node" if options.name is None else f"no node {options.name}")
    running = any(lifecycle.is_running(folders.node(record.name)) for record in found)
    return 0 if running or options.name is None else 3


def _running_record(folders: Folders, name: str) -> Record:
    machine.check_user()
    record = Record.read(folders.node(lifecycle.check_name(name)))
    if record is None or not lifecycle.is_running(folders.node(name)):
        raise SandboxError(f"node {name} does not run; 'sandbox up {name}' starts it")
    return record


def _ssh(folders: Folders, options: argparse.Namespace) -> int:
    if _running_record(folders, options.name).image.pristine:
        raise SandboxError(f"{options.name} is a pristine system without ssh; use 'sandbox exec {options.name} -- COMMAND'")
    words: list[str] = options.remote
    # One word is a line for the node's shell, as with ssh itself; several are a command and its arguments.
    remote = words if len(words) < 2 else [shlex.join(words)]
    command = ssh.command(folders, options.name, *remote)
    os.execvp(command[0], command)


def _exec(folders: Folders, options: argparse.Namespace) -> int:
    record = _running_record(folders, options.name)
    inside.enter_cgroup(folders.node(options.name))
    command = inside.command(folders, record, options.remote or ["/bin/sh"], with_ssh=False)
    os.execvp(command[0], command)


def _logs(folders: Folders, options: argparse.Namespace) -> int:
    machine.check_user()
    folder = folders.node(lifecycle.check_name(options.name))
    if not folder.path.exists():
        raise SandboxError(f"there is no node {options.name}")
    if options.console or not lifecycle.is_running(folder):
        for path in (folder.supervisor_log, folder.console):
            print(tail(path, options.lines))
        return 0
    remote = ["journalctl", "--no-pager", f"--lines={options.lines}"]
    remote += [f"--unit={options.unit}"] if options.unit else []
    remote += ["--follow"] if options.follow else []
    return subprocess.run(ssh.command(folders, options.name, shlex.join(remote)), stdin=subprocess.DEVNULL, check=False).returncode


def _publish(folders: Folders, options: argparse.Namespace) -> int:
    _running_record(folders, options.name)
    sources = {kind: path for kind, path in (("hub", options.hub), ("files", options.files)) if path is not None}
    if not sources:
        raise SandboxError("nothing to publish: give --hub DIR or --files DIR")
    print(f"{publish(folders, options.name, sources)} files sent")
    return 0


def _link(folders: Folders, options: argparse.Namespace) -> int:
    machine.check_user()
    connection = link.require(folders, options.name)
    if options.action == "exec":
        namespace = connection.ask("status")["namespace"]
        command = ["nsenter", f"--net={namespace}", *(options.remote or ["/bin/sh"])]
        # The open connection goes along: the link stays as long as the command runs.
        os.set_inheritable(connection.connection.fileno(), True)
        os.execvp(command[0], command)
    if options.action == "status":
        print(json.dumps(connection.ask("status"), indent=2))
    elif options.action == "shape":
        connection.ask("shape", rate=link.check_rate(options.argument))
    elif options.action == "forward":
        host, guest, port = _link_forward(options.argument)
        connection.ask("forward", host_port=host, guest=guest, guest_port=port)
    else:
        connection.ask(options.action, **({"node": options.argument} if options.argument else {}))
    return 0


def _link_forward(text: str) -> tuple[int, str, int]:
    found = re.fullmatch(r"(\d{1,5}):([0-9.]+):(\d{1,5})", text)
    if not found:
        raise SandboxError(f"{text!r} is not PORT:ADDRESS:PORT")
    return int(found[1]), found[2], int(found[3])


def _layer(folders: Folders, options: argparse.Namespace) -> int:
    machine.check_user()
    counts = {"save": 2, "list": 0, "has": 1, "remove": 1}
    if len(options.arguments) != counts[options.action]:
        raise SandboxError("use: layer save NODE LAYER | layer list | layer has LAYER | layer remove LAYER")
    if options.action == "save":
        name, key = options.arguments
        lifecycle.save_layer(folders, name, key)
        say(f"layer {key} saved; 'sandbox up {name} --layer {key}' starts from it")
    elif options.action == "list":
        for key in layers.layer_keys(folders):
            print(key)
    elif options.action == "has":
        return 0 if layers.layer_information(folders, options.arguments[0]) else 1
    else:
        used = {key for record in ssh.records(folders) for key in record.layers}
        layers.remove(folders, options.arguments[0], used)
    return 0


def _build(folders: Folders, options: argparse.Namespace) -> int:
    machine.check_machine(options.install_missing)
    for suite in options.suite or [DEFAULT_SUITE]:
        print(build_image(folders, suite).key)
    return 0


def _image_key(folders: Folders, options: argparse.Namespace) -> int:
    print(current_image(options.suite).key)
    return 0


def _template(folders: Folders, options: argparse.Namespace) -> int:
    machine.check_machine(install_missing=False)
    if not template_path(folders).exists():
        build_image(folders, DEFAULT_SUITE)
    print(template_path(folders))
    return 0


def _packages(folders: Folders, options: argparse.Namespace) -> int:
    print("\n".join(package_list(machine.MACHINE_PACKAGES)))
    return 0


def _prune(folders: Folders, options: argparse.Namespace) -> int:
    machine.check_user()
    images = [record.image for record in ssh.records(folders)] + [current_image(suite, pristine) for suite in SUITES for pristine in (False, True)]
    for key in layers.layer_keys(folders):
        information = layers.layer_information(folders, key)
        if information:
            images.append(type(images[0])(**information["image"]))
    used = {path.parent for image in images for path in image.lowers(folders)} | {folders.templates / template_key()}
    for parent in (folders.images, folders.parts, folders.templates):
        for path in sorted(parent.iterdir()) if parent.is_dir() else []:
            if path not in used:
                remove_tree(path)
                say(f"removed {path}")
    return 0


_COMMANDS: dict[str, Callable[[Folders, argparse.Namespace], int]] = {
    "up": _up,
    "down": _down,
    "kill": _kill,
    "reset": _reset,
    "status": _status,
    "ssh": _ssh,
    "exec": _exec,
    "logs": _logs,
    "publish": _publish,
    "layer": _layer,
    "link": _link,
    "build": _build,
    "image-key": _image_key,
    "template": _template,
    "packages": _packages,
    "prune": _prune,
    "_launch": lambda _, options: launch(*options.arguments),
    "_supervise": lambda _, options: supervise(*options.arguments),
    "_link": lambda _, options: link_holder.hold(*options.arguments),
}


def main(arguments: list[str]) -> int:
    """Run one command. Exit codes: 0 done, 1 no (``layer has``), 2 refused or failed, 3 not running (``status``)."""
    remote: list[str] = []
    if arguments[:1] in (["ssh"], ["exec"], ["link"]) and "--" in arguments:
        cut = arguments.index("--")
        arguments, remote = arguments[:cut], arguments[cut + 1 :]
    options = _parser().parse_args(arguments)
    options.remote = remote
    try:
        return _COMMANDS[options.command](Folders.from_environment(), options)
    except SandboxError as error:
        print(f"sandbox: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"sandbox: {error} (folder of the sandbox: {Folders.from_environment().base})", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("sandbox: interrupted; nothing was left running by this command", file=sys.stderr)
        return 130
