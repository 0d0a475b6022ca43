# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._driver import explain

# Lines of a true failure: Debian's nvidia-open-kernel-dkms 550.163.01-2 on 6.12.117+deb13-amd64.
MAKE_LOG = """\
DKMS make.log for nvidia-550.163.01 for kernel 6.12.117+deb13-amd64 (x86_64)
  CC [M]  /var/lib/dkms/nvidia/550.163.01/build/nvidia/nv-pci.o
/var/lib/dkms/nvidia/550.163.01/build/nvidia/nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'
  237 |     if (pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size) != 0)
/var/lib/dkms/nvidia/550.163.01/build/nvidia/nv-pci.c:240:1: error: something that follows from it
make[3]: *** [nvidia/nv-pci.o] Error 1
"""
LOADED = """
ERROR: An NVIDIA kernel module 'nvidia-uvm' appears to already be loaded in your kernel.  This may be because it is in use
       (for example, by an X server, a CUDA program, or the NVIDIA Persistence Daemon).

ERROR: Installation has failed.  Please see the file '/var/log/nvidia-installer.log' for details.
"""


@pytest.mark.parametrize("kind", ["installer", "dkms"])
def test_the_first_compiler_error_is_the_reason(kind: str) -> None:
    error = explain.failure(kind, "Install driver", "Error! Bad return status for module build", {"make": MAKE_LOG, "make_path": "/x/make.log"})
    assert "nv-pci.c:237:9: error: too few arguments to function 'pci_resize_resource'" in error.reason
    assert "follows from it" not in error.reason
    assert "driver version that knows this kernel" in error.remedy
    assert error.details["make_log"] == "/x/make.log"


def test_missing_headers() -> None:
    text = "ERROR: Unable to find the kernel source tree for the currently running kernel.  Please make sure you have installed the kernel source files.\n\n"
    error = explain.failure("installer", "Install driver", "", {"installer": text})
    assert error.reason.startswith("Unable to find the kernel source tree")
    assert "proxmox-headers" in error.remedy


def test_module_in_use_is_one_sentence_out_of_a_wrapped_paragraph() -> None:
    error = explain.failure("installer", "Install driver", LOADED, {})
    assert error.reason.startswith("An NVIDIA kernel module 'nvidia-uvm' appears to already be loaded in your kernel. This may be because it is in use (for")
    assert "Installation has failed" not in error.reason
    assert "Stop the programs" in error.remedy


@pytest.mark.parametrize(
    ("output", "words", "remedy"),
    [
        ("modprobe: ERROR: could not insert 'nvidia': Key was rejected by service", "Secure Boot", "mokutil --import"),
        ("modprobe: ERROR: could not insert 'nvidia': No such device", "no GPU is free", "lspci"),
        ("modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.14.8-2-pve", "not found in directory", "dmesg"),
    ],
)
def test_module_that_does_not_load(output: str, words: str, remedy: str) -> None:
    error = explain.failure("load", "Load nvidia", output, {})
    assert words in error.reason and remedy in error.remedy


def test_headers_that_apt_does_not_have() -> None:
    error = explain.failure("apt", "Install dkms", "Reading package lists...\nE: Unable to locate package proxmox-headers-6.2.16-3-pve\n", {})
    assert "proxmox-headers-6.2.16-3-pve" in error.reason and "repository" in error.remedy


def test_unload() -> None:
    error = explain.failure("unload", "Unload the kernel modules", "modprobe: FATAL: Module nvidia_uvm is in use.", {})
    assert error.reason == "modprobe: FATAL: Module nvidia_uvm is in use." and "reboot" in error.remedy


def test_dkms_alone_is_not_explained_by_the_installers_log() -> None:
    old = {"installer": "ERROR: something of last month\n\n"}
    output = "Error! Your kernel headers for kernel 6.17.2-1-pve cannot be found at /lib/modules/6.17.2-1-pve/build\n"
    error = explain.failure("dkms", "Build the kernel module for 6.17.2-1-pve", output, old)
    assert "kernel headers for kernel 6.17.2-1-pve cannot be found" in error.reason and "last month" not in error.reason


def test_silence() -> None:
    assert explain.failure("installer", "Install driver", "", {}).reason == "it failed without a message"
