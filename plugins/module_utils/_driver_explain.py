# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a step of a driver's installation failed, in one sentence. PRIVATE: for use in kpro.llm only."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.kpro.llm.plugins.module_utils._errors import KproError

_COMPILER_ERROR = re.compile(r"^.*?(?:: error: |: fatal error: |^ERROR: modpost: ).*$", re.MULTILINE)
_WIDTH = 400


def make_error(text: str) -> str | None:
    """Return the first compiler error in DKMS's make.log: later ones follow from it."""
    found = _COMPILER_ERROR.search(text)
    return found[0].strip()[:_WIDTH] if found else None


def installer_error(text: str) -> str | None:
    """Return the first ERROR paragraph of the vendor's installer, from its log or its output."""
    found = re.search(r"^\s*(?:->)?\s*ERROR: (.+?)(?:\n\s*\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(found[1].split())[:_WIDTH] if found else None


def last_lines(text: str, count: int = 3) -> str:
    """Return the last lines that say something, as one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-count:])[:_WIDTH]


def failure(kind: str, phase: str, output: str, logs: t.Mapping[str, str]) -> KproError:
    """Return the error for a step that failed.

    :param kind: the step's ``failure``.
    :param output: what the program said.
    :param logs: texts of "installer" (its log) and "make" (DKMS's make.log), empty where there is none of this step.
    """
    compiler = make_error(logs.get("make", ""))
    if kind in ("installer", "dkms") and compiler:
        return KproError(
            "kernel module",
            f"it does not compile: {compiler}",
            "Take a driver version that knows this kernel, or boot a kernel that the driver knows (proxmox-boot-tool kernel pin)",
            make_log=logs.get("make_path", ""),
        )
    if kind in ("installer", "dkms"):
        log = logs.get("installer", "") if kind == "installer" else ""
        reason = installer_error(log) or installer_error(output) or last_lines(output)
        return KproError(phase, reason or "it failed without a message", _installer_remedy(reason or ""))
    if kind == "load":
        return _load_failure(phase, output)
    if kind == "unload":
        return KproError(phase, last_lines(output), "Stop the programs and containers that use a GPU, or reboot the node, then run again")
    if kind == "apt":
        remedy = "Enable a Proxmox package repository (pve-no-subscription or enterprise)" if "proxmox-" in output else ""
        return KproError(phase, last_lines(output), remedy)
    return KproError(phase, last_lines(output) or "it failed without a message")


def _installer_remedy(reason: str) -> str:
    if "kernel source tree" in reason or "kernel headers" in reason:
        return "Install proxmox-headers of the running kernel; if apt has none, reboot into the newest kernel first"
    if "already be loaded" in reason:
        return "Stop the programs and containers that use a GPU, then run again"
    if "Nouveau" in reason:
        return "Reboot the node, then run again"
    return "See /var/log/nvidia-installer.log there"


def _load_failure(phase: str, output: str) -> KproError:
    reason = last_lines(output, 1)
    if "Key was rejected" in output:
        return KproError(
            phase,
            f"Secure Boot rejects the module ({reason})",
            "Enrol DKMS's key: mokutil --import /var/lib/dkms/mok.pub, reboot, confirm at the console, then run again",
        )
    if "No such device" in output:
        return KproError(phase, f"no GPU is free for it ({reason})", "Look with lspci -nnk for the driver that holds the GPU")
    return KproError(phase, reason or "it failed without a message", "See dmesg on the node")
