# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask what the machine is and has, before anything is started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from node.content import package_list
from node.files import say
from node.folders import SOURCE, SandboxError

MACHINE_PACKAGES = SOURCE / "machine-packages.txt"

# A program that the package brings; packages without one are asked for by a file.
_PROOF = {
    "ca-certificates": "update-ca-certificates",
    "debian-archive-keyring": "/usr/share/keyrings/debian-archive-keyring.gpg",
    "iproute2": "tc",
    "mmdebstrap": "mmdebstrap",
    "openssh-client": "ssh",
    "python3": "python3",
    "slirp4netns": "slirp4netns",
    "systemd-container": "systemd-nspawn",
    "zstd": "zstd",
}
_ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing_packages() -> list[str]:
    """Return the Debian packages from ``machine-packages.txt`` that the machine lacks."""
    path = f"{os.environ.get('PATH', '')}:{_ROOT_PATH}"
    return [
        package
        for package in package_list(MACHINE_PACKAGES)
        if not (Path(_PROOF[package]).exists() if _PROOF[package].startswith("/") else shutil.which(_PROOF[package], path=path))
    ]


def check_user() -> None:
    """Refuse where the sandbox can't run at all."""
    if not sys.platform.startswith("linux"):
        raise SandboxError("the sandbox node runs on Linux only (it is a systemd-nspawn container); use a Linux machine or VM")
    if os.geteuid() != 0:
        raise SandboxError("the sandbox node needs root (it makes namespaces, mounts and device nodes); run the same command with sudo")


def check_machine(install_missing: bool) -> None:
    """Check user and programs; with ``install_missing`` install what is missing by apt-get."""
    check_user()
    # A login without the administrator's folders in PATH is common on Debian (su without a dash).
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:{_ROOT_PATH}"
    missing = missing_packages()
    if not missing:
        return
    names = " ".join(missing)
    if not shutil.which("apt-get"):
        raise SandboxError(f"programs are missing that Debian has in the packages {names}; install them")
    if not install_missing:
        raise SandboxError(f"these Debian packages are missing: {names}; run 'apt-get install {names}' or give --install-missing")
    say(f"installing missing Debian packages: {names}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
        done = subprocess.run(["apt-get", "-qq", *command], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SandboxError(f"apt-get {command[0]} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    still = missing_packages()
    if still:
        raise SandboxError(f"still missing after apt-get install: {' '.join(still)}")
