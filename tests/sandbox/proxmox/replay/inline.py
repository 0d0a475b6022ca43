# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node without containers: a temporary folder, a driver that remembers who runs, command lines run in this process."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kpro_standin_pve import cli_options, cli_pct, cli_pvesh, cli_small
from kpro_standin_pve.config_file import Config
from kpro_standin_pve.driver import HotplugError
from kpro_standin_pve.errors import failed
from kpro_standin_pve.lxc_config import generate
from kpro_standin_pve.lxc_driver import unpack_failure
from kpro_standin_pve.node import Node

NODE_NAME = "pve1"
TEMPLATE = "debian-12-standard_12.7-1_amd64.tar.zst"
TEMPLATE_BYTES = 65570127
DEVICES = ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "null", "loop0")


class MemoryDriver:
    """Remembers in files which containers run (tasks are processes of their own).

    ``refusals`` maps the beginning of a key to the text with which it can't be changed while running: recorded
    scenarios say what their environment refused.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.refusals: dict[str, str] = {}

    def _mark(self, vmid: str) -> Path:
        return self._folder / f"running-{vmid}"

    def is_running(self, node: Node, vmid: str) -> bool:
        """Tell whether the container was started."""
        return self._mark(vmid).exists()

    def init_pid(self, node: Node, vmid: str) -> int | None:
        """Return a process that exists."""
        return os.getpid() if self._mark(vmid).exists() else None

    def write_runtime_config(self, node: Node, vmid: str, config: Config) -> None:
        """Generate LXC's configuration, so that what it refuses is refused here too."""
        generate(node, vmid, config)

    def start(self, node: Node, vmid: str, config: Config) -> None:
        """Note that the container runs."""
        self._mark(vmid).touch()

    def kill(self, node: Node, vmid: str) -> None:
        """Note that the container is down."""
        self._mark(vmid).unlink(missing_ok=True)

    def shutdown(self, node: Node, vmid: str, timeout_s: int) -> bool:
        """Note that the container is down."""
        self._mark(vmid).unlink(missing_ok=True)
        return True

    def hotplug(self, node: Node, vmid: str, key: str, value: str | None, config: Config) -> None:
        """Refuse what the scenario's environment refused."""
        for prefix, reason in self.refusals.items():
            if key.startswith(prefix):
                raise HotplugError(reason)

    def mounted(self, node: Node, vmid: str, rootfs: Path) -> contextlib.AbstractContextManager[None]:
        """Mount nothing."""
        return contextlib.nullcontext()

    def unpack(self, archive: Path, rootfs: Path, vmid: str, unprivileged: bool, log: Callable[[str], None]) -> None:
        """Lay out as much of a Debian 12 as the core looks at; a broken archive is refused as tar does."""
        if archive.stat().st_size < 10:
            raise failed(unpack_failure(archive, vmid, unprivileged, 2))
        if archive.name.startswith("empty"):
            return
        for folder in ("etc", "usr/bin", "usr/lib/systemd"):
            (rootfs / folder).mkdir(parents=True)
        (rootfs / "etc/os-release").write_text('ID=debian\nVERSION_ID="12"\n', encoding="ascii")
        (rootfs / "usr/lib/systemd/libsystemd-shared-252.so").touch()
        (rootfs / "usr/bin/sh").write_bytes(b"\x7fELF\x02\x01\x01" + b"\0" * 11 + (62).to_bytes(2, "little"))
        log("Total bytes read: 1")

    def forget(self, node: Node, vmid: str) -> None:
        """Nothing is kept."""


def lay_out(root: Path) -> None:
    """Lay out a node's files below ``root``: all that the recordings take for granted but the containers."""
    for folder in ("srv", "dev/nvidia-caps", "dev/fd", "sys/class/net/vmbr0", "run", "root", "tmp", "var/lib/vz/images", "var/lib/vz/snippets"):
        (root / folder).mkdir(parents=True)
    (root / f"etc/pve/nodes/{NODE_NAME}/lxc").mkdir(parents=True)
    (root / "etc/pve/lxc").symlink_to(f"nodes/{NODE_NAME}/lxc")
    for name in DEVICES:
        # Any character device will do: no recorded answer shows numbers.
        (root / "dev" / name).symlink_to("/dev/null")


def make_node(root: Path) -> tuple[Node, MemoryDriver]:
    """Return the node whose files lie below ``root``, with its template (a hole of the recorded size)."""
    template = root / "var/lib/vz/template/cache" / TEMPLATE
    template.parent.mkdir(parents=True, exist_ok=True)
    template.touch()
    os.truncate(template, TEMPLATE_BYTES)
    driver = MemoryDriver(root / "run")
    return Node(root, NODE_NAME, driver, lock_wait_s=0.2), driver


class InlineCommands:
    """Runs the command lines of the stand-in in this process against a node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def run(self, argv: list[str], stdin: bytes, env: dict[str, str], cwd: str | None) -> tuple[int, bytes, bytes]:
        """Run one command of the stand-in; anything else has no meaning here."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self._node.notice = cli_options.notice
            try:
                rc = self._dispatch(argv)
            finally:
                self._node.notice = lambda text: None
        return rc, out.getvalue().encode(), err.getvalue().encode()

    def _dispatch(self, argv: list[str]) -> int:
        name, rest = argv[0], argv[1:]
        if name == "pct":
            return cli_pct.run(self._node, rest)
        if name == "pvesh":
            return cli_pvesh.main(rest, self._node)
        small = {"pvesm": cli_small.pvesm, "pveam": cli_small.pveam, "pveversion": cli_small.pveversion}
        if name in small:
            return small[name](rest, self._node)
        return self._shell(rest)

    def _shell(self, argv: list[str]) -> int:
        """Run a scenario's set-up with every path of the node turned into one below the temporary root."""
        script = re.sub(r"(?<![\w./])/(?=(?:var|etc|root|srv|tmp)\b)", f"{self._node.root}/", argv[-1])
        answer = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
        sys.stdout.write(answer.stdout)
        sys.stderr.write(answer.stderr)
        return answer.returncode
