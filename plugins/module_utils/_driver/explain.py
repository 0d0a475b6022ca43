# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a step of a driver's installation failed, in one sentence."""

from __future__ import annotations

import re
import typing as t

from .._apt.explain import explain, source_failures
from .._core.errors import KproError
from .._gpu.text import version_key

_COMPILER_ERROR = re.compile(r"^.*?(?:: error: |: fatal error: |^ERROR: modpost: ).*$", re.MULTILINE)
_WIDTH = 400
# Reports of users with Proxmox's kernels; a back-port can break any of them, so this only words the advice.
FIRST_DRIVERS: t.Mapping[tuple[int, ...], str] = {(6, 8): "535.161", (6, 14): "570.133", (6, 17): "580.82", (7, 0): "580.173.02"}


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


def failure(kind: str, phase: str, output: str, logs: t.Mapping[str, str], files: t.Mapping[str, str] | None = None) -> KproError:
    """Return the error for a step that failed.

    :param kind: the step's ``failure``.
    :param output: what the program said.
    :param logs: texts of "installer" (its log) and "make" (DKMS's make.log), empty where there is none of this step; the driver's "version",
        the "running" and the "newest" kernel, and "built", the kernels for which DKMS has some module ready; the vendor's "repository", if it
        is used, and what apt's "update" said before.
    :param files: the file that names a source of packages, by the source's address.
    """
    if kind in ("installer", "dkms", "apt") and _build_failed(output, logs.get("make", "")):
        return _build_failure(phase, output, logs)
    if kind in ("installer", "dkms"):
        log = logs.get("installer", "") if kind == "installer" else ""
        reason = installer_error(log) or installer_error(output) or last_lines(output)
        return KproError(phase, reason or "it failed without a message", _installer_remedy(reason or ""))
    if kind == "load":
        return _load_failure(phase, output)
    if kind == "unload":
        return KproError(phase, last_lines(output), "Stop the programs and containers that use a GPU, or reboot the node, then run again")
    if kind == "apt":
        return _apt_failure(phase, output, logs, files or {})
    return KproError(phase, last_lines(output) or "it failed without a message")


def _build_failed(output: str, make_log: str) -> bool:
    return bool(make_log) and (
        make_error(make_log) is not None or re.search(r"\bError \d+$|Bad return status", f"{make_log}\n{output}", re.MULTILINE) is not None
    )


def _build_failure(phase: str, output: str, logs: t.Mapping[str, str]) -> KproError:
    """Return why the module is not there, with the two ways out: a newer driver, or a kernel that has a module."""
    version = logs.get("version", "")
    named = re.search(r"(?:for kernel |on kernel: |-k |for )(\d+\.[\w.+-]*\w)", f"{logs.get('make', '').partition(chr(10))[0]}\n{output}\n{phase}")
    kernel = named[1] if named else logs.get("running", "")
    what = f"kernel module of driver {version} for kernel {kernel}" if version and kernel else "kernel module"
    ways = ["Take a driver version that knows this kernel"]
    first = first_driver(kernel)
    if first and version and version_key(version) < version_key(first):
        ways = [f"Take driver {first} or newer, the first that is known to build on kernel {'.'.join(kernel.split('.')[:2])}"]
    ready = [each for each in logs.get("built", "").split() if each != kernel]
    ways.append(
        f"boot a kernel that has a module: proxmox-boot-tool kernel pin {ready[-1]}"
        if ready
        else "boot a kernel that the driver knows (proxmox-boot-tool kernel pin)"
    )
    reason = make_error(logs["make"]) or last_lines(logs["make"], 2)
    return KproError(what, f"it does not compile: {reason}", ", or ".join(ways), make_log=logs.get("make_path", ""))


def first_driver(kernel: str) -> str | None:
    """Return the first driver that is known to build on a kernel of Proxmox VE, None for one that nothing is known of."""
    return FIRST_DRIVERS.get(version_key(kernel)[:2])


def _apt_failure(phase: str, output: str, logs: t.Mapping[str, str], files: t.Mapping[str, str]) -> KproError:
    missing = re.search(r"Unable to locate package proxmox-headers-(\S+)", output)
    running, newest = logs.get("running", ""), logs.get("newest", "")
    if missing and missing[1] == running and newest not in ("", running):
        return KproError(
            f"headers of the running kernel {running}",
            f"the package sources have none any more, and the newest installed kernel is {newest} (E: {missing[0]})",
            f"Reboot the node into {newest}, then run again",
        )
    dkms = re.findall(r"^Error! .*$", output, re.MULTILINE)
    problem = explain(output, logs.get("update", ""), files, phase.replace(",", " ").split())
    ours = logs.get("repository", "").rstrip("/")
    if ours and any(each.kind == "signature" and each.uri.startswith(ours) for each in source_failures(f"{logs.get('update', '')}\n{output}", files)):
        return KproError(phase, problem.reason, "The repository is signed with another key: see gpu_node__cuda_repository_key_fingerprint")
    reason = problem.reason if problem.kind != "other" or not dkms else last_lines("\n".join([*dkms, problem.reason]))
    return KproError(phase, reason, problem.remedy)


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
