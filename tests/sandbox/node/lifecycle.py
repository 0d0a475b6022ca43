# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start, stop and reset nodes."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from node import cgroup, inside, layers, link, slirp, ssh
from node.files import discard, locked, remove_tree, say, tail
from node.folders import SOURCE, Folders, NodeFolder, SandboxError
from node.images import Image, build_image, current_image
from node.record import Record, Runtime

DEFAULT_NAME = "sandbox"
DEFAULT_PORT = 2322
DEFAULT_SUITE = "trixie"
HOSTNAMES = {"trixie": "pve9", "bookworm": "pve8"}
_START_TIMEOUT_S = 120
_BOOT_TIMEOUT_S = 300
_STOP_TIMEOUT_S = 100
_STATE_CHECK = "{0}systemctl is-system-running --wait; systemctl --failed --no-legend --plain | cut -d' ' -f1"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}\Z")


@dataclass(frozen=True)
class Wanted:
    """What the user asked for; ``None`` means no wish."""

    name: str
    suite: str | None = None
    port: int | None = None
    hostname: str | None = None
    layer: str | None = None
    forwards: tuple[tuple[int, int], ...] = ()
    pristine: bool = False
    link: str | None = None
    cluster: bool = False
    files: tuple[tuple[Path, str], ...] = ()


def check_name(name: str) -> str:
    if not _NAME.match(name):
        raise SandboxError(f"node name {name!r}: use lower-case letters, digits and dashes, a letter first, at most 31")
    return name


@contextlib.contextmanager
def _node_lock(folders: Folders, name: str) -> Iterator[NodeFolder]:
    with _start_lock(folders, name) as (folder, _unused):
        yield folder


@contextlib.contextmanager
def _start_lock(folders: Folders, name: str) -> Iterator[tuple[NodeFolder, int]]:
    """Yield the lock's descriptor, too, for a start to hand on."""
    folders.make()
    with locked(folders.locks / f"node-{check_name(name)}", f"node {name}") as lock:
        yield folders.node(name), lock


def is_running(folder: NodeFolder) -> bool:
    runtime = Runtime.read(folder)
    return runtime is not None and runtime.alive


def _end(folder: NodeFolder, orderly: bool) -> bool:
    """End a node and whatever a crash left of it; only what was recorded is touched."""
    runtime = Runtime.read(folder)
    if runtime is None:
        return True
    was_alive = runtime.alive
    in_order = runtime.end(_STOP_TIMEOUT_S if orderly else 0)
    if runtime.boot_id == Runtime(cgroup="").boot_id and "kpro-sandbox-" in Path(runtime.cgroup).name:
        cgroup.kill_and_remove(Path(runtime.cgroup))
    folder.runtime.unlink(missing_ok=True)
    (folder.path / slirp.SOCKET_NAME).unlink(missing_ok=True)
    return in_order or not was_alive


def _port_is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _choose_port(folders: Folders, name: str) -> int:
    """Return the first port that no other node has and nothing listens on."""
    taken = {port for record in ssh.records(folders) if record.name != name for port in _ports(record)}
    if name == DEFAULT_NAME and DEFAULT_PORT not in taken:
        return DEFAULT_PORT
    for port in range(DEFAULT_PORT + 1, DEFAULT_PORT + 200):
        if port not in taken and _port_is_free(port):
            return port
    raise SandboxError("no free port found for ssh; give one with --port")


def _reserve_ports(folders: Folders, folder: NodeFolder, record: Record) -> Record:
    """Give the node its ports and write its record, which keeps others off them; one command at a time."""
    with locked(folders.locks / "ports", "the ports of nodes"):
        if not record.port and not record.image.pristine:
            record = replace(record, port=_choose_port(folders, record.name))
        _check_ports(folders, record)
        if record.link:
            record = replace(record, link_number=link.free_number(ssh.records(folders), record))
            _check_cluster(folders, record)
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        record.write(folder)
    return record


def _ports(record: Record) -> list[int]:
    return [port for port in (record.port, *(host for host, _unused in record.forwards)) if port]


def _check_ports(folders: Folders, record: Record) -> None:
    ports = _ports(record)
    if len(set(ports)) != len(ports):
        raise SandboxError(f"node {record.name}: a port of the machine is asked for twice: {ports}")
    for other in ssh.records(folders):
        both = set(ports) & set(_ports(other))
        if other.name != record.name and both:
            raise SandboxError(f"port {min(both)} belongs to node {other.name}; give another one with --port or --forward")
    for port in ports:
        if not _port_is_free(port):
            raise SandboxError(f"port {port} of 127.0.0.1 is used by another program; give another one with --port or --forward")


def _check_cluster(folders: Folders, record: Record) -> None:
    for other in ssh.records(folders):
        if other.name != record.name and other.link == record.link and other.cluster and record.cluster and other.hostname == record.hostname:
            raise SandboxError(f"the cluster on link {record.link} has a node {record.hostname} already; give another name with --hostname")


def _new_record(folders: Folders, wanted: Wanted) -> Record:
    chain: tuple[str, ...] = ()
    hostname = wanted.hostname
    if wanted.layer:
        information, chain = layers.layer_chain(folders, wanted.layer)
        image = Image(**information["image"])
        if wanted.suite and wanted.suite != image.suite:
            raise SandboxError(f"layer {wanted.layer} was made on {image.suite}, not on {wanted.suite}")
        hostname = hostname or information["hostname"]
        if image != current_image(image.suite):
            say(f"note: layer {wanted.layer} stands on an older image than this checkout would build")
    else:
        image = build_image(folders, wanted.suite or DEFAULT_SUITE, wanted.pristine)
    return Record(
        name=wanted.name,
        image=image,
        hostname=check_name(hostname or (wanted.name if image.pristine else HOSTNAMES[image.suite])),
        port=wanted.port or 0,
        machine_id=uuid.uuid4().hex,
        forwards=wanted.forwards,
        layers=chain,
        link=link.check_name(wanted.link) if wanted.link else "",
        cluster=wanted.cluster,
    )


def _give_files(folder: NodeFolder, files: tuple[tuple[Path, str], ...]) -> None:
    """Keep the files that this and each later disk of the node gets before its first boot."""
    for source, target in files:
        copy = folder.extra / target.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)


def _check_disk_parts(folders: Folders, record: Record) -> None:
    for path in [*(layers.layer_upper(folders, key) for key in record.layers), *record.image.lowers(folders)]:
        if not path.exists():
            raise SandboxError(f"node {record.name} stands on {path}, which is gone; 'sandbox reset {record.name}' makes it new")


def up(folders: Folders, wanted: Wanted) -> Record:
    """Make a node run: a new one, a stopped one, or one that runs already (then only new forwards are added)."""
    with _start_lock(folders, wanted.name) as (folder, lock):
        record = Record.read(folder)
        if record is not None and is_running(folder):
            return _up_running(folders, folder, record, wanted)
        _end(folder, orderly=False)
        fresh = record is None
        if record is None:
            record = _new_record(folders, wanted)
            _discard_disk(folder)
            remove_tree(folder.extra)
            _give_files(folder, wanted.files)
        else:
            _refuse_other(record, wanted)
            record = replace(record, port=wanted.port or record.port, forwards=_merge(record.forwards, wanted.forwards))
            _check_disk_parts(folders, record)
        record = _reserve_ports(folders, folder, record)
        with link.held(folders, record.link):
            _start(folders, folder, record, fresh, lock)
        return record


def _discard_disk(folder: NodeFolder) -> None:
    folder.extra_given.unlink(missing_ok=True)
    discard(folder.upper)
    discard(folder.data)


def _merge(old: tuple[tuple[int, int], ...], new: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    return (*old, *(pair for pair in new if pair not in old))


def _refuse_other(record: Record, wanted: Wanted) -> None:
    for what, have, want in (
        ("suite", record.image.suite, wanted.suite),
        ("host name", record.hostname, wanted.hostname),
        ("pristine system", record.image.pristine, wanted.pristine or None),
        ("layer", record.layers[0] if record.layers else "none", wanted.layer),
        ("link", record.link or "none", wanted.link),
        ("cluster", record.cluster, wanted.cluster or None),
    ):
        if want is not None and want != have:
            raise SandboxError(f"node {record.name} exists with {what} {have}; 'sandbox down {record.name}' first to have {want}")


def _up_running(folders: Folders, folder: NodeFolder, record: Record, wanted: Wanted) -> Record:
    _refuse_other(record, wanted)
    if wanted.port not in (None, record.port):
        raise SandboxError(f"node {record.name} runs on port {record.port}; 'sandbox down {record.name}' first to have {wanted.port}")
    merged = _merge(record.forwards, wanted.forwards)
    added = merged[len(record.forwards) :]
    if added:
        for port, _unused in added:
            if not _port_is_free(port):
                raise SandboxError(f"port {port} of 127.0.0.1 is used by another program; give another one with --forward")
        slirp.add_forwards(folder.path, added)
        record = replace(record, forwards=merged)
        record.write(folder)
    say(f"node {record.name} runs already")
    if not record.layers and record.image != current_image(record.image.suite, record.image.pristine):
        say(f"note: the sandbox's files changed since it was made; 'sandbox reset {record.name}' takes the new ones")
    return record


def _start_command(name: str, lock: int) -> list[str]:
    """Return the command of the node's supervisor; where systemd rules the machine's cgroups, in a scope of its own."""
    booted = Path("/run/systemd/system").is_dir()
    command = [sys.executable, "-B", str(SOURCE), "_launch", name, "scope" if booted else "direct", str(lock)]
    if not booted:
        return command
    unit = f"kpro-sandbox-{name}-{uuid.uuid4().hex[:8]}"
    return ["systemd-run", "--scope", "--quiet", "--collect", "--property=Delegate=yes", f"--unit={unit}", "--", *command]


def _start(folders: Folders, folder: NodeFolder, record: Record, fresh: bool, lock: int) -> None:
    """Start a node and return when its systemd has finished booting; on any failure nothing keeps running.

    The supervisor holds the node's lock with us until it knows that it stays, so that whoever comes after a killed start
    waits for the end of that start and never takes it for a running node.
    """
    ssh.make_keys(folders, folder)
    ssh.write_client_files(folders)
    folder.console.unlink(missing_ok=True)
    access = f"ssh on 127.0.0.1:{record.port}" if record.port else "pristine"
    say(f"starting node {record.name} ({record.image.suite}, host name {record.hostname}, {access})")
    with folder.supervisor_log.open("wb") as log:
        process = subprocess.Popen(
            _start_command(record.name, lock),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env={**os.environ, "KPRO_SANDBOX_DIR": str(folders.base)},
            start_new_session=True,
            pass_fds=(lock,),
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        _await_word(folder, process, "started")
        _await_login(folders, record, process)
        process.stdin.write(b"keep\n")
        process.stdin.flush()
        _await_word(folder, process, "kept")
    except BaseException:
        process.stdin.close()
        _end(folder, orderly=False)
        if fresh:
            folder.record.unlink(missing_ok=True)
            ssh.write_client_files(folders)
        raise
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.stdout.close()
    say(f"node {record.name} is up")


def _await_word(folder: NodeFolder, process: subprocess.Popen[bytes], word: str) -> None:
    """Wait for a word of the supervisor; anything else is the reason why the node does not run."""
    assert process.stdout is not None
    readable, _unused, _unused = select.select([process.stdout], [], [], _START_TIMEOUT_S)
    line = process.stdout.readline().decode(errors="replace").strip() if readable else "no answer"
    if line != word:
        process.stdin and process.stdin.close()
        reason = line.removeprefix("error ") or tail(folder.supervisor_log, 10) or "it ended without a word"
        raise SandboxError(f"node {folder.name} did not start: {reason}")


def _await_login(folders: Folders, record: Record, process: subprocess.Popen[bytes]) -> None:
    """Wait until ssh answers and the node's systemd says that it has booted."""
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    folder = folders.node(record.name)
    while not (inside.has_systemd(folder) if record.image.pristine else _ssh_answers(record.port)):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise SandboxError(f"node {record.name} did not come up; the end of its console:\n{tail(folder.console, 20)}")
        time.sleep(0.05)
    command = inside.command(folders, record, ["/bin/sh", "-c", _STATE_CHECK.format("timeout 30 " if record.cluster else "")])
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_BOOT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise SandboxError(f"node {record.name} has not finished booting after {_BOOT_TIMEOUT_S} s") from None
    words = done.stdout.split()
    if not words and record.cluster and done.returncode == 0:
        # Its guests wait for the quorum, that is for the other nodes; everything else is up.
        return say(f"note: node {record.name} has not finished booting: a node of a cluster waits for the others before it starts guests")
    if not words:
        raise SandboxError(f"node {record.name} does not let us in: {done.stderr.strip()}")
    if words[0] != "running":
        say(f"note: systemd of node {record.name} says {' '.join(words)}")


def _ssh_answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def down(folders: Folders, name: str, keep: bool) -> bool:
    """Stop a node; without ``keep`` also remove its disk. Return whether there was one."""
    with _node_lock(folders, name) as folder:
        if not folder.path.exists():
            return False
        in_order = _end(folder, orderly=keep)
        if keep:
            if not in_order:
                say(f"note: node {name} did not shut down in time and was ended")
            return True
        record = Record.read(folder)
        folder.record.unlink(missing_ok=True)
        remove_tree(folder.path)
        ssh.write_client_files(folders)
        link.tidy(folders, record.link if record else "")
        return True


def kill(folders: Folders, name: str) -> bool:
    """Cut a node's power: nothing is shut down, its disk stays. Return whether it ran."""
    with _node_lock(folders, name) as folder:
        if not folder.path.exists():
            raise SandboxError(f"there is no node {name}")
        ran = is_running(folder)
        _end(folder, orderly=False)
        return ran


def reset(folders: Folders, name: str) -> Record:
    """Give a node a new empty disk on the current image, or on its layer, and start it."""
    with _start_lock(folders, name) as (folder, lock):
        record = Record.read(folder)
        if record is None:
            raise SandboxError(f"there is no node {name}; 'sandbox up {name}' makes it")
        wanted = Wanted(
            name=name,
            suite=record.image.suite,
            port=record.port or None,
            hostname=record.hostname,
            layer=record.layers[0] if record.layers else None,
            forwards=record.forwards,
            pristine=record.image.pristine,
            link=record.link or None,
            cluster=record.cluster,
        )
        record = replace(_new_record(folders, wanted), link_number=record.link_number)
        _end(folder, orderly=False)
        _discard_disk(folder)
        record = _reserve_ports(folders, folder, record)
        with link.held(folders, record.link):
            _start(folders, folder, record, fresh=False, lock=lock)
        return record


def save_layer(folders: Folders, name: str, key: str) -> None:
    """Shut a node down in order and keep its disk as a layer; the node is gone after that."""
    layers.check_key(key)
    if layers.layer_information(folders, key) is not None:
        raise SandboxError(f"layer {key} is there already; remove it with 'sandbox layer remove {key}'")
    with _node_lock(folders, name) as folder:
        record = Record.read(folder)
        if record is None:
            raise SandboxError(f"there is no node {name}")
        if record.cluster:
            raise SandboxError(f"node {name} keeps its containers' configuration in a cluster, so that its disk alone can't be a layer")
        if not _end(folder, orderly=True):
            raise SandboxError(f"node {name} did not shut down in time, so its disk was not kept as a layer")
        # Without its record the node is gone: a kill in the middle must not leave one that starts with another disk.
        folder.record.unlink()
        layers.store(folders, key, folder.upper, record)
        remove_tree(folder.path)
        ssh.write_client_files(folders)
        link.tidy(folders, record.link)
