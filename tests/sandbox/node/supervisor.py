# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The process that holds a node: first in the new mount and process namespaces, so its end ends everything in them.

Started by ``lifecycle.start`` as ``launch`` (still outside: makes the cgroup) which becomes ``supervise`` (inside).
Standard input is a lifeline: unless the starting command writes ``keep``, its end is the node's end. Until then the node's
lock, inherited from that command, is held here, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from node import cgroup, cluster, link, slirp
from node.files import remove_tree
from node.folders import DEFAULT_BASE, Folders, NodeFolder, SandboxError
from node.layers import layer_upper
from node.record import Record, Runtime, start_ticks

NSPAWN_REBOOT = 133
_STOP_TIMEOUT_S = 90
# Kernel clock and modules are the machine's; the rest a Proxmox node has.
_DROPPED = "CAP_SYS_TIME,CAP_SYS_MODULE"
_SYSTEM_CALLS = "bpf add_key keyctl request_key @mount @module"
# On a link the other node and its containers reach this node's hub, too, and this node's containers the other node.
_ON_LINK = {
    "kpro-standin-hub": """\
[Service]
ExecStart=
ExecStart=/usr/bin/python3 /usr/lib/kpro-standin/hub/standin_hub --bind 0.0.0.0:8090 --models /srv/kpro-standin/hub \
--files /srv/kpro-standin/files --faults /etc/kpro-standin/hub.json --log /var/log/kpro-standin-hub/requests.jsonl
""",
    "networking": f"""\
[Service]
ExecStartPost=/usr/sbin/iptables -t nat -A POSTROUTING -s 10.77.0.0/24 -o {link.BRIDGE} -j MASQUERADE
""",
}
_ENTER = r"""
set -eu
echo 0 > "$CGROUP/cgroup.procs"
exec unshare --mount --net --propagation slave -- /bin/sh -euc '
  mkdir -p /run/systemd/nspawn
  mount -t tmpfs -o mode=755 tmpfs /run/systemd/nspawn
  mkdir /run/systemd/nspawn/node
  mount --bind "$ROOT" /run/systemd/nspawn/node
  if [ -d "$DATA" ]; then mkdir /run/systemd/nspawn/data; mount --bind "$DATA" /run/systemd/nspawn/data; fi
  if [ -n "$CLUSTER" ]; then mkdir /run/systemd/nspawn/cluster; mount --bind "$CLUSTER" /run/systemd/nspawn/cluster; fi
  mount -t tmpfs tmpfs /sys/fs/cgroup  # the kernel refuses cgroup2 right on top of cgroup2
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  mount -t tmpfs tmpfs /tmp
  echo >&"$READY_FD"
  read -r go <&"$GO_FD"
  eval "exec $READY_FD>&- $GO_FD<&-"
  exec "$@"
' sh "$@"
"""


def launch(name: str, mode: str, lock: str) -> int:
    """Enter the node's own cgroup, then become the supervisor in new namespaces."""
    folders = Folders.from_environment()
    folder = folders.node(name)
    # In a scope of the machine's systemd the cgroup is ours already (Delegate=yes).
    own = cgroup.own_folder() if mode == "scope" else cgroup.mount_point() / f"kpro-sandbox-{name}-{folders.mark}"
    Runtime(cgroup=str(own)).write(folder)
    cgroup.prepare(own)
    node_package = str(Path(__file__).resolve().parent)
    supervise_command = [sys.executable, "-B", node_package, "_supervise", name, lock]
    os.execvp(
        "unshare",
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "slave", "--", *supervise_command],
    )


class Supervisor:
    """Runs one node: mounts its disk, boots it again after each reboot, ends it on SIGTERM."""

    def __init__(self, folders: Folders, folder: NodeFolder, lock: int) -> None:
        self.folders = folders
        self.lock = lock
        self.folder = folder
        self.kept = False
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_write, False)
        self.stop_wanted = False
        self.link: link.Connection | None = None
        runtime = Runtime.read(folder)
        record = Record.read(folder)
        if runtime is None or record is None:
            raise SandboxError(f"no record of node {folder.name}")
        self.record = record
        # /proc is still the machine's here, so this is the number under which the machine knows us.
        pid = int(os.readlink("/proc/self"))
        self.cgroup = Path(runtime.cgroup)
        Runtime(cgroup=runtime.cgroup, pid=pid, ticks=start_ticks(pid) or 0).write(folder)

    def run(self) -> int:
        signal.set_wakeup_fd(self.wake_write)
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        _mount("proc", "/proc", "proc")
        self._mount_disk()
        while True:
            status = self._boot()
            if status != NSPAWN_REBOOT or self.stop_wanted:
                return status

    def _on_stop(self, *_: object) -> None:
        self.stop_wanted = True

    def _mount_disk(self) -> None:
        """Mount layers, stand-ins and image read-only below the node's own folder."""
        folder = self.folder
        remove_tree(folder.work)
        for path in (folder.upper, folder.work, folder.root, *([folder.data] if self.record.image.pristine else [])):
            path.mkdir(exist_ok=True)
        lowers = [layer_upper(self.folders, key) for key in self.record.layers] + self.record.image.lowers(self.folders)
        # Short relative names: mount options have 4095 bytes.
        os.chdir(folder.path)
        names = []
        for number, lower in enumerate(lowers):
            link = Path(f"lower{number}")
            link.unlink(missing_ok=True)
            link.symlink_to(lower)
            names.append(link.name)
        options = f"lowerdir={':'.join(names)},upperdir=up,workdir=work,index=off,metacopy=off,redirect_dir=on"
        try:
            _mount("overlay", "root", "overlay", f"{options},volatile")
        except OSError as error:
            raise SandboxError(
                f"{folder.path} can't hold a node's disk (overlay mount: {error.strerror}): it must be on a file system such as "
                "ext4, xfs, btrfs or tmpfs, and not itself on an overlay; set KPRO_SANDBOX_DIR to a folder on one"
            ) from error
        self._give_files(folder.root)
        self._personalise(folder.root)
        if self.record.cluster:
            cluster.join(self.folders, self.record, folder.root)

    def _give_files(self, root: Path) -> None:
        """Put files on a new disk (``up --file``)."""
        if self.folder.extra_given.exists():
            return
        for source in sorted(path for path in self.folder.extra.rglob("*") if path.is_file()):
            target = root / source.relative_to(self.folder.extra)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        self.folder.extra_given.touch()

    def _personalise(self, root: Path) -> None:
        """Give the tree the node's own name and keys."""
        record = self.record
        (root / "etc/hostname").write_text(f"{record.hostname}\n", encoding="utf-8")
        address = link.address(record.link_number) if record.link else slirp.NODE_ADDRESS
        hosts = f"127.0.0.1 localhost\n{address} {record.hostname}.sandbox.internal {record.hostname}\n"
        (root / "etc/hosts").write_text(hosts, encoding="utf-8")
        (root / "etc/machine-id").write_text(f"{record.machine_id}\n", encoding="ascii")
        if record.image.pristine:
            return
        for unit, text in _ON_LINK.items():
            drop_in = root / f"etc/systemd/system/{unit}.service.d/link.conf"
            if record.link:
                drop_in.parent.mkdir(parents=True, exist_ok=True)
                drop_in.write_text(text, encoding="ascii")
            else:
                drop_in.unlink(missing_ok=True)
        for name, mode in (("ssh_host_ed25519_key", 0o600), ("ssh_host_ed25519_key.pub", 0o644)):
            path = root / "etc/ssh" / name
            path.touch(mode=mode)
            path.chmod(mode)
            path.write_text((self.folder.keys / name).read_text(encoding="ascii"), encoding="ascii")
        authorized = root / "root/.ssh/authorized_keys"
        authorized.parent.mkdir(mode=0o700, exist_ok=True)
        key = (self.folders.ssh / "id_ed25519.pub").read_text(encoding="ascii")
        if not authorized.exists() or key not in authorized.read_text(encoding="utf-8"):
            with authorized.open("a", encoding="utf-8") as handle:
                handle.write(key)
        authorized.chmod(0o600)

    def _boot(self) -> int:
        """Boot the node once, in a new network namespace as a real reboot has new interfaces, and wait for its end."""
        ready_read, ready_write = os.pipe()
        go_read, go_write = os.pipe()
        environment = {
            **os.environ,
            "CGROUP": str(self.cgroup / cgroup.NODE),
            "ROOT": str(self.folder.root),
            "DATA": str(self.folder.data),
            "CLUSTER": str(self.folders.link(self.record.link).cluster) if self.record.cluster else "",
            "READY_FD": str(ready_write),
            "GO_FD": str(go_read),
            "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1",
            "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
            "SYSTEMD_NSPAWN_LOCK": "0",
        }
        with self.folder.console.open("ab") as console:
            node = subprocess.Popen(
                ["/bin/sh", "-c", _ENTER, "sh", *self._nspawn_command()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                pass_fds=(ready_write, go_read),
            )
        os.close(ready_write)
        os.close(go_read)
        network = None
        try:
            if not os.read(ready_read, 1):
                raise SandboxError(f"the node's namespaces could not be made (exit {node.wait()}); see {self.folder.console}")
            namespace = f"/proc/{node.pid}/ns/net"
            network = slirp.start(self.folder.path, namespace, "eth0", *(["--configure"] if self.record.image.pristine else []))
            self._attach(namespace)
            record = Record.read(self.folder) or self.record
            slirp.add_forwards(self.folder.path, [*([(record.port, 22)] if record.port else []), *record.forwards])
            os.write(go_write, b"go\n")
            self._tell("started")
            return self._wait(node)
        finally:
            for descriptor in (ready_read, go_write):
                os.close(descriptor)
            if network is not None:
                network.kill()
                network.wait()
            if node.poll() is None:
                node.kill()
                node.wait()

    def _attach(self, namespace: str) -> None:
        """Plug the node into its link. The connection stays open: it is what keeps the link."""
        if not self.record.link:
            return
        if self.link is not None:
            self.link.close()
            self.link = None
        descriptor = os.open(namespace, os.O_RDONLY)
        try:
            self.link = link.require(self.folders, self.record.link)
            self.link.ask("attach", descriptor, node=self.record.name, number=self.record.link_number)
        except SandboxError as error:
            if not self.kept:
                raise
            # Nobody listens any more: a node that reboots after its link was ended goes on without it.
            print(error, file=sys.stderr, flush=True)
        finally:
            os.close(descriptor)

    def _nspawn_command(self) -> list[str]:
        return [
            "systemd-nspawn",
            "--quiet",
            "--boot",
            "--register=no",
            "--keep-unit",
            "--directory=/run/systemd/nspawn/node",
            f"--machine={self.record.name}",
            f"--hostname={self.record.hostname}",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            "--private-users=no",
            "--capability=all",
            f"--drop-capability={_DROPPED}",
            f"--system-call-filter={_SYSTEM_CALLS}",
            "--console=pipe",
            *(f"--bind={device}" for device in ("/dev/fuse", "/dev/net/tun") if Path(device).exists()),
            *([f"--bind=/run/systemd/nspawn/data:{DEFAULT_BASE}"] if self.record.image.pristine else []),
            *([f"--bind=/run/systemd/nspawn/cluster:{cluster.SHARED_ON_NODE}"] if self.record.cluster else []),
        ]

    def _wait(self, node: subprocess.Popen[bytes]) -> int:
        """Wait for the node's end, for SIGTERM and for the lifeline, without polling."""
        stopping = False
        watched = [self.wake_read] if self.kept else [self.wake_read, 0]
        while node.poll() is None:
            readable, _unused, _unused = select.select(watched, [], [], _STOP_TIMEOUT_S if stopping else None)
            if not readable:
                node.kill()
                return node.wait()
            if self.wake_read in readable:
                os.read(self.wake_read, 512)
            if 0 in readable:
                if os.read(0, 16) != b"keep\n":
                    raise SandboxError("the command that started the node ended before the node was up")
                watched = [self.wake_read]
                self._keep()
            if self.stop_wanted and not stopping:
                stopping = True
                node.terminate()
        return node.wait()

    def _keep(self) -> None:
        """Stay without the command that started us, which may have been killed right after its last word."""
        self.kept = True
        fcntl.flock(self.lock, fcntl.LOCK_UN)  # closing it would not do: our parent has it, too
        os.close(self.lock)
        with contextlib.suppress(BrokenPipeError):
            os.write(1, b"kept\n")
        _leave_terminal()

    def _tell(self, text: str) -> None:
        if not self.kept:
            print(text, flush=True)


def _leave_terminal() -> None:
    """Drop the pipes of the command that started us."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    os.close(null)


def _mount(source: str, target: str, kind: str, options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), 0, options.encode() or None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def supervise(name: str, lock: str) -> int:
    """Run a node until it ends; problems before it is up go to the command that started it."""
    folders = Folders.from_environment()
    os.umask(0o022)
    try:
        return Supervisor(folders, folders.node(name), int(lock)).run()
    except (SandboxError, OSError) as error:
        print(f"error {error}", flush=True)
        print(error, file=sys.stderr, flush=True)
        return 1
