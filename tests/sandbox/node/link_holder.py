# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The process that holds a link: a network namespace with a bridge, one port for each node, and a router to the machine's network.

It never enters the namespace itself, it only keeps it open; its end is the end of the namespace and of all that is in it.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from node import link, slirp
from node.folders import Folders, LinkFolder, SandboxError
from node.record import Runtime, start_ticks

_SWITCH = "lan"
_UPLINK = "uplink"
_NODE_INTERFACE = "eth1"
_CLONE_NEWNET = 0x40000000
_FIRST_CONNECTION_TIMEOUT_S = 60
# What a switch would buffer; the first is also the largest piece that the kernel sends over a virtual cable at once.
_BURST = "128kb"
_QUEUE_DELAY = "50ms"
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Port:
    """The link's side of one node's cable."""

    interface: str
    number: int


class Holder:
    """Answers requests, one at a time; each is a JSON object with ``do``."""

    def __init__(self, folder: LinkFolder) -> None:
        self.folder = folder
        self.namespace = f"/proc/{os.getpid()}/fd/{_new_network()}"
        self.ports: dict[str, Port] = {}
        self.cut: set[str] = set()
        self.cut_all = False
        self.rate = "none"
        self.requests: dict[str, Callable[..., dict[str, Any] | None]] = {
            "hello": lambda: None,
            "attach": self.attach,
            "cut": self.cut_ports,
            "restore": self.restore,
            "shape": self.shape,
            "forward": self.forward,
            "status": self.status,
        }

    def start(self) -> None:
        """Make the switch, and the router behind which the machine's network lies (its own loopback does not)."""
        self._in_link("ip", "link", "set", "lo", "up")
        self._in_link("ip", "link", "add", _SWITCH, "type", "bridge", "stp_state", "0", "forward_delay", "0")
        self._in_link("ip", "address", "add", f"{link.NETWORK}.1/{link.PREFIX_LENGTH}", "dev", _SWITCH)
        self._in_link("ip", "link", "set", _SWITCH, "up")
        slirp.start(self.folder.path, self.namespace, _UPLINK, f"--cidr={link.NETWORK}.0/{link.PREFIX_LENGTH}")
        self._in_link("ip", "link", "set", _UPLINK, "master", _SWITCH, "up")
        # slirp4netns takes whatever it sees for its own: what floods while a node is cut off would get its resets.
        self._in_link("ip", "link", "set", _UPLINK, "type", "bridge_slave", "flood", "off", "mcast_flood", "off")
        self._in_link("ip", "route", "add", "default", "via", f"{link.NETWORK}.2")

    def serve(self) -> None:
        """Answer until the last connection is closed."""
        os.chdir(self.folder.path)
        name = self.folder.socket.name
        self.folder.socket.unlink(missing_ok=True)
        with selectors.DefaultSelector() as selector, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
            server.bind(name)
            server.listen(16)
            selector.register(server, selectors.EVENT_READ)
            print("ready", flush=True)
            _leave_output()
            connections = 0
            while True:
                events = selector.select(None if connections else _FIRST_CONNECTION_TIMEOUT_S)
                for key, _unused in events:
                    if key.fileobj is server:
                        selector.register(server.accept()[0], selectors.EVENT_READ)
                        connections += 1
                    elif isinstance(key.fileobj, socket.socket) and not self._answer(key.fileobj):
                        selector.unregister(key.fileobj)
                        key.fileobj.close()
                        connections -= 1
                if not connections:
                    return

    def _answer(self, connection: socket.socket) -> bool:
        """Answer one request; tell whether the connection goes on."""
        try:
            message, descriptors, _flags, _address = socket.recv_fds(connection, 65536, 1)
        except OSError:
            return False
        try:
            if not message:
                return False
            request = json.loads(message)
            if descriptors:
                request["descriptor"] = descriptors[0]
            try:
                answer = self.requests[request.pop("do")](**request) or {}
            except (SandboxError, KeyError, TypeError) as error:
                answer = {"error": str(error)}
            connection.send(json.dumps(answer).encode())
        except OSError:
            return False
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    # --- requests ---

    def attach(self, node: str, number: int, descriptor: int) -> None:
        """Give a node's new network namespace its interface: a bridge on the cable, as a Proxmox node has it on its LAN."""
        port = Port(f"port{number}", number)
        # A node that just went may still have the old cable in its hands.
        self._in_link("ip", "link", "delete", port.interface, check=False)
        inside = f"/proc/{os.getpid()}/fd/{descriptor}"
        self._in_link("ip", "link", "add", port.interface, "type", "veth", "peer", "name", _NODE_INTERFACE, "netns", inside)
        for words in (
            ("ip", "link", "add", link.BRIDGE, "address", f"02:6b:70:72:6f:{number:02x}", "type", "bridge", "stp_state", "0", "forward_delay", "0"),
            ("ip", "link", "set", _NODE_INTERFACE, "master", link.BRIDGE, "up"),
            ("ip", "address", "add", f"{link.address(number)}/{link.PREFIX_LENGTH}", "dev", link.BRIDGE),
            ("ip", "link", "set", link.BRIDGE, "up"),
        ):
            _in_namespace(inside, *words)
        self._in_link("ip", "link", "set", port.interface, "up")
        self.ports[node] = port
        self._plug(node)
        self._limit(port)

    def cut_ports(self, node: str = "") -> None:
        """Let the switch lose what a node (or any) sends: both ends see a cable, nothing passes."""
        if node:
            self.cut.add(node)
        else:
            self.cut_all = True
        self._plug_all()

    def restore(self, node: str = "") -> None:
        """Undo ``cut``; without a node undo all."""
        self.cut.discard(node)
        if not node:
            self.cut_all = False
            self.cut.clear()
        self._plug_all()

    def shape(self, rate: str) -> None:
        """Limit what each node can receive, and so each direction between two nodes."""
        self.rate = link.check_rate(rate)
        for port in self._present():
            self._limit(port)

    def forward(self, host_port: int, guest: str, guest_port: int) -> None:
        """Forward a port of the machine's 127.0.0.1 to an address of the link."""
        slirp.add_forwards(self.folder.path, [(host_port, guest_port)], guest)

    def status(self) -> dict[str, Any]:
        """Tell rate, cuts, and each node's address and the bytes that it sent and received over the link."""
        counts = {row["ifname"]: row["stats64"] for row in json.loads(self._in_link("ip", "-json", "-stats", "link", "show"))}
        nodes = {
            name: {
                "address": link.address(port.number),
                "cut": self._is_cut(name),
                "sent_bytes": counts[port.interface]["rx"]["bytes"],
                "received_bytes": counts[port.interface]["tx"]["bytes"],
            }
            for name, port in sorted(self.ports.items())
            if port.interface in counts
        }
        return {"name": self.folder.name, "rate": self.rate, "cut": self.cut_all, "nodes": nodes, "namespace": self.namespace}

    # --- parts ---

    def _present(self) -> list[Port]:
        """Return the ports of nodes that are there: a cable goes with its node."""
        found = self._in_link("ip", "-json", "link", "show")
        names = {row["ifname"] for row in json.loads(found)}
        return [port for port in self.ports.values() if port.interface in names]

    def _is_cut(self, node: str) -> bool:
        return self.cut_all or node in self.cut

    def _plug_all(self) -> None:
        present = {port.interface for port in self._present()}
        for name, port in self.ports.items():
            if port.interface in present:
                self._plug(name)

    def _plug(self, node: str) -> None:
        switch = ("nomaster",) if self._is_cut(node) else ("master", _SWITCH)
        self._in_link("ip", "link", "set", self.ports[node].interface, *switch)

    def _limit(self, port: Port) -> None:
        if self.rate == "none":
            self._in_link("tc", "qdisc", "delete", "dev", port.interface, "root", check=False)
            return
        limit = ("rate", self.rate, "burst", _BURST, "latency", _QUEUE_DELAY)
        self._in_link("tc", "qdisc", "replace", "dev", port.interface, "root", "tbf", *limit)

    def _in_link(self, *words: str, check: bool = True) -> str:
        return _in_namespace(self.namespace, *words, check=check)


def _in_namespace(namespace: str, *words: str, check: bool = True) -> str:
    done = subprocess.run(["nsenter", f"--net={namespace}", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SandboxError(f"'{' '.join(words)}' failed: {done.stderr.strip()}")
    return done.stdout


def _new_network() -> int:
    """Make a network namespace and return it as an open file, without staying in it."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _call(_libc.unshare, _CLONE_NEWNET)
        made = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        _call(_libc.setns, own, _CLONE_NEWNET)
    finally:
        os.close(own)
    return made


def _call(function: Callable[..., int], *arguments: int) -> None:
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise SandboxError(f"no network namespace can be made here: {os.strerror(number)}")


def _leave_output() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def hold(name: str) -> int:
    """Hold a link until nobody is connected to it any more."""
    folder = Folders.from_environment().link(name)
    os.umask(0o077)
    try:
        pid = os.getpid()
        Runtime(cgroup="", pid=pid, ticks=start_ticks(pid) or 0).write(folder)
        holder = Holder(folder)
        holder.start()
        holder.serve()
    except (SandboxError, OSError) as error:
        print(f"error {error}", flush=True)
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0
