# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real LXC behind the core: nodes made, bindings checked, containers started as ``pve-container@ID`` units."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from . import devices, guest_files, lxc_config, normalise, storage
from .config_file import Config
from .driver import HotplugError, StartError
from .errors import failed
from .node import Node

TAR = (
    "tar xpf - --{0} --totals --one-file-system -p --sparse --numeric-owner --acls --xattrs --xattrs-include=user.* "
    "--xattrs-include=security.capability --warning=no-file-ignored --warning=no-xattr-write -C {1} --skip-old-files "
    "--anchored --exclude ./dev/*"
)
FILTERS = {"tzst": "zstd", "tgz": "gzip", "txz": "xz", "tbz2": "bzip2"}
LOG = "/run/kpro-standin/lxc-{0}.log"


def run(*argv: str, timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program without a shell and return what it said."""
    return subprocess.run(argv, text=True, capture_output=True, check=False, timeout=timeout_s, stdin=subprocess.DEVNULL)


class LxcDriver:
    """Debian's LXC, one systemd unit a container."""

    def is_running(self, node: Node, vmid: str) -> bool:
        """Ask the kernel for the container's command socket; no program is started for it."""
        mark = f"@/var/lib/lxc/{vmid}/command"
        with open("/proc/net/unix", encoding="ascii", errors="replace") as file:
            return any(line.rstrip("\n").endswith(mark) for line in file)

    def init_pid(self, node: Node, vmid: str) -> int | None:
        """Return the container's init as the node sees it."""
        answer = run("lxc-info", "-n", vmid, "-p", "-H").stdout.strip()
        return int(answer) if answer.isdigit() else None

    def write_runtime_config(self, node: Node, vmid: str, config: Config) -> None:
        """Write /var/lib/lxc/ID/config."""
        text = lxc_config.generate(node, vmid, config)
        folder = node.path(f"{lxc_config.LXC_DIR}/{vmid}")
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        (folder / "config").write_text(text, encoding="utf-8")

    def start(self, node: Node, vmid: str, config: Config) -> None:
        """Make the device nodes, write guest files, start the unit and wait for the guest's init."""
        values = config.current.values
        self.write_runtime_config(node, vmid, config)
        self._make_nodes(node, vmid, config)
        guest_files.write_all(node, vmid, config, storage.rootfs_folder(node, values["rootfs"]))
        log = node.path(LOG.format(vmid))
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        answer = run("systemctl", "start", f"pve-container@{vmid}.service")
        if answer.returncode:
            raise StartError(_log_lines(log) or answer.stderr.strip().splitlines())

    def _make_nodes(self, node: Node, vmid: str, config: Config) -> None:
        folder = lxc_config.passthrough_dir(node, vmid)
        shutil.rmtree(folder, ignore_errors=True)
        for device in devices.all_of(node, config.current.values):
            _make_node(folder, device, lxc_config.root_ids(config))

    def kill(self, node: Node, vmid: str) -> None:
        """End the container at once and wait for its unit."""
        answer = run("lxc-stop", "-n", vmid, "--kill")
        if answer.returncode not in (0, 2):
            raise failed(f"command 'lxc-stop -n {vmid} --kill' failed: exit code {answer.returncode}")
        self._wait_gone(node, vmid, 10)

    def shutdown(self, node: Node, vmid: str, timeout_s: int) -> bool:
        """Send the guest its halt signal and wait."""
        if timeout_s == 0:
            return False
        answer = run("lxc-stop", "-n", vmid, "--nokill", "--timeout", str(timeout_s))
        return answer.returncode in (0, 2) and self._wait_gone(node, vmid, 5)

    def _wait_gone(self, node: Node, vmid: str, limit_s: float) -> bool:
        deadline_s = time.monotonic() + limit_s
        while self.is_running(node, vmid):
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.02)
        run("systemctl", "stop", f"pve-container@{vmid}.service")
        return True

    def hotplug(self, node: Node, vmid: str, key: str, value: str | None, config: Config) -> None:
        """Do what a running container can take at once: new devices and bind mounts."""
        pid = self.init_pid(node, vmid)
        if value is None or pid is None or not key.startswith(("dev", "mp", "net")):
            return  # limits and names need no help here: there are no controllers in the sandbox
        from . import hotplug

        if key.startswith("net"):
            _set_address(pid, normalise.parts_of(key, value))
            return

        if key.startswith("dev"):
            device = devices.resolve(node, key, value)
            source = _make_node(lxc_config.passthrough_dir(node, vmid), device, lxc_config.root_ids(config))
            hotplug.bind(pid, source, device.path, read_only=False)
            return
        parts = normalise.parts_of(key, value)
        source = node.path(lxc_config.source_path(node, parts["volume"]))
        if not source.exists():
            raise HotplugError(f"unable to open '{source}': No such file or directory")
        hotplug.bind(pid, source, "/" + parts["mp"].lstrip("/"), read_only=parts.get("ro") == "1")

    @contextmanager
    def mounted(self, node: Node, vmid: str, rootfs: Path) -> Iterator[None]:
        """Bind the volume onto /var/lib/lxc/ID/rootfs, as Proxmox mounts it there."""
        target = node.path(f"{lxc_config.LXC_DIR}/{vmid}/rootfs")
        target.mkdir(parents=True, exist_ok=True)
        answer = run("mount", "--bind", str(rootfs), str(target))
        if answer.returncode:
            raise failed(f"command 'mount' failed: {answer.stderr.strip()}")
        try:
            yield
        finally:
            run("umount", "-l", str(target))

    def unpack(self, archive: Path, rootfs: Path, vmid: str, unprivileged: bool, log: Callable[[str], None]) -> None:
        """Unpack as Proxmox does: through ``lxc-usernsexec`` when ids are shifted."""
        argv = unpack_argv(archive, str(rootfs), unprivileged)
        if unprivileged:
            os.chown(rootfs, lxc_config.SHIFT, lxc_config.SHIFT)
        with open(archive, "rb") as source:
            answer = subprocess.run(argv, stdin=source, capture_output=True, check=False)
        for line in answer.stderr.decode(errors="replace").splitlines():
            log(line)
        if answer.returncode:
            raise failed(unpack_failure(archive, vmid, unprivileged, answer.returncode))

    def forget(self, node: Node, vmid: str) -> None:
        """Remove /var/lib/lxc/ID."""
        shutil.rmtree(node.path(f"{lxc_config.LXC_DIR}/{vmid}"), ignore_errors=True)
        node.path(LOG.format(vmid)).unlink(missing_ok=True)


def _set_address(pid: int, parts: dict[str, str]) -> None:
    """Give a running container's interface its static address, as Proxmox does; other changes wait for the next start."""
    address, name = parts.get("ip", ""), parts["name"]
    if "/" not in address:
        return
    inside = ("nsenter", "-t", str(pid), "-n", "--", "ip")
    if run(*inside, "link", "show", "dev", name).returncode:
        return
    steps = [("addr", "flush", "dev", name, "scope", "global"), ("addr", "add", address, "dev", name)]
    if "gw" in parts:
        steps.append(("route", "replace", "default", "via", parts["gw"], "dev", name))
    for step in steps:
        answer = run(*inside, *step)
        if answer.returncode:
            raise HotplugError(f"command 'ip {' '.join(step)}' failed: {answer.stderr.strip()}")


def unpack_argv(archive: Path, folder: str, unprivileged: bool) -> list[str]:
    """Return the command that unpacks a template from its standard input."""
    form = next((form for ending, form in storage.ARCHIVES.items() if archive.name.endswith(ending)), "tzst")
    argv = TAR.format(FILTERS[form], folder).split()
    if not unprivileged:
        return argv
    maps = [f"{kind}:0:{lxc_config.SHIFT}:65536" for kind in "ug"]
    return ["lxc-usernsexec", "-m", maps[0], "-m", maps[1], "--", *argv]


def unpack_failure(archive: Path, vmid: str, unprivileged: bool, code: int) -> str:
    """Return Proxmox's sentence about a template that could not be unpacked; it unpacks below /var/lib/lxc."""
    argv = unpack_argv(archive, f"{lxc_config.LXC_DIR}/{vmid}/rootfs", unprivileged)
    command = " ".join(f"'{word}'" if re.search(r"[*=]", word) else word for word in argv)
    return f"command '{command}' failed: exit code {code}"


def _make_node(folder: Path, device: devices.Device, root: tuple[int, int]) -> Path:
    """Make one device node as the container shall see it and return its path."""
    path = folder / device.path.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    kind = stat.S_IFCHR if device.kind == "c" else stat.S_IFBLK
    os.mknod(path, kind | device.mode, os.makedev(device.major, device.minor))
    path.chmod(device.mode)
    os.chown(path, root[0] + device.uid, root[1] + device.gid)
    return path


def _log_lines(log: Path) -> list[str]:
    """Return LXC's error lines as Proxmox's tasks show them ("function: line text")."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    pattern = re.compile(r"\S+ \S+ \S+ ERROR\s+\S+ - \S+?:(\w+):(\d+) - (.*)")
    return [f"{found[1]}: {found[2]} {found[3]}" for line in text.splitlines() if (found := pattern.match(line))]
