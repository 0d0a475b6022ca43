# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about what the host gives: the card (Xid events, errors that CUDA reports) and the container, which may deny a unit its sandbox."""

from __future__ import annotations

import typing as t

from .._engine.failures import Failure
from .._gpu.findings import xid_events
from .._pve import property as prop
from .case import Case, Diagnosis

EXIT_NAMESPACE = 226  # systemd.exec(5): EXIT_NAMESPACE
_RESTART = "Restart the service; if it comes again, copies between the GPUs or a kernel are at fault"
# Source: NVIDIA, "Xid errors", and its GPU debug guidelines. (Class of event, what it means, what to do.)
_MEANING: dict[int, tuple[Failure, str, str]] = {
    **dict.fromkeys((13, 31, 43, 45), (Failure.GPU_PROGRAM_FAULT, "a program on the GPU failed or was ended", _RESTART)),
    94: (Failure.GPU_PROGRAM_FAULT, "an uncorrectable memory error was contained to one program", "Restart the service"),
    **dict.fromkeys(
        (48, 95), (Failure.GPU_FAULT, "uncorrectable errors in the GPU's memory", "Stop what uses the GPU and reset it (kpro.llm.gpu_cleanup, reset)")
    ),
    63: (Failure.GPU_FAULT, "a row of the GPU's memory is to be remapped", "Reset the GPU (kpro.llm.gpu_cleanup, reset) when nobody uses it"),
    64: (Failure.GPU_FAULT, "a row of the GPU's memory could not be remapped", "Have the card replaced"),
    **dict.fromkeys((61, 62, 69, 109), (Failure.GPU_FAULT, "an engine of the GPU hangs", "Reset the GPU (kpro.llm.gpu_cleanup, reset), or reboot the node")),
    74: (Failure.GPU_FAULT, "NVLink reports errors", "Seat the bridge between the cards anew; look at nvidia-smi nvlink -e"),
    79: (Failure.GPU_FAULT, "the GPU has fallen off the bus", "Look at power and PCIe; the node needs a cold start"),
    **dict.fromkeys(
        (119, 120), (Failure.GPU_FAULT, "the GPU's own processor (GSP) does not answer", "Reset the GPU or reboot the node, and update the driver")
    ),
    154: (Failure.GPU_FAULT, "the driver itself asks for a reset or a reboot", "Do what its line in the kernel's log says"),
}


def xid(case: Case) -> Diagnosis | None:
    """The driver reported an event of the card; the most serious one decides, and of those the first."""
    given = case.get("xids")
    events = [event for event in given if isinstance(event, dict)] if isinstance(given, list) else []
    events += xid_events("\n".join([*case.kernel_lines, str(case.get("dmesg", "kernel_log") or "")]))
    known = [event for event in events if int(event.get("xid") or 0) in _MEANING]
    if not known:
        return None
    worst = next((event for event in known if _MEANING[int(event["xid"])][0] == Failure.GPU_FAULT), known[0])
    number, bus, text = int(worst["xid"]), str(worst.get("bus_id") or "?"), str(worst.get("text") or "")
    class_, words, remedy = _MEANING[number]
    said = f" ({text})" if text else ""
    return Diagnosis(class_, f"GPU {bus} reported Xid {number}: {words}{said}", remedy, (f"Xid {number}, GPU {bus}: {text}",))


def cuda_error(case: Case) -> Diagnosis | None:
    """CUDA failed, but not for lack of memory; the node's kernel log says why."""
    found = case.find(
        r"(?:CUDA|cuda|Triton Error \[CUDA\]|Cuda failure \d+)(?: driver"
        r"| runtime)?(?: error)?: '?((?!out of memory)(?:an illegal memory access was encountered|unspecified launch failure"
        r"|uncorrectable ECC error encountered|misaligned address"
        r"|device-side assert triggered|hardware stack error|the launch timed out and was terminated|unknown error|[a-z][\w /-]+))"
    )
    if not found:
        return None
    who = f"rank {case.rank}: " if case.rank else ""
    remedy = f"Look for Xid events in the node's kernel log (kpro.llm.gpu_info on the node). {_RESTART}"
    return Diagnosis(Failure.CUDA_ERROR, f"{who}the GPU reported '{found[1]}'", remedy, (found.string,), confidence="likely")


def namespace_denied(case: Case) -> Diagnosis | None:
    """The unit's sandbox needs namespaces that a container without nesting may not make; the program never ran."""
    status = case.number("unit.ExecMainStatus", "unit.exec_status", "exit.status", "systemctl_show.ExecMainStatus")
    line = case.line(r"226/NAMESPACE|Failed to set up mount namespacing|Failed at step NAMESPACE")
    if status != EXIT_NAMESPACE and not line:
        return None
    given = case.get("features")
    known = prop.parse(str(given), prop.FEATURES) if given is not None else {}
    without = f" (the container has features {given})" if given and prop.flag(known.get("nesting", "0")) != "1" else ""
    directives = case.get("unit")
    asked = f"; the unit asks for {', '.join(map(str, directives))}" if isinstance(directives, list) else ""
    return Diagnosis(
        Failure.UNIT_NAMESPACE_DENIED,
        f"systemd could not set up the unit's sandbox (226/NAMESPACE), so the program was never started{asked}{without}",
        "Let the container phase give it nesting=1 (gpu_container__features: {nesting: true}, gpu_container__restart: true)",
        (line or f"ExecMainStatus={EXIT_NAMESPACE}",),
        action="fix_and_continue",
    )


def nested_runtime(case: Case) -> Diagnosis | None:
    """A container runtime inside the container wants to write device rules, which only the node may."""
    line = case.line(r"bpf_prog_query\(BPF_CGROUP_DEVICE\) failed: operation not permitted|failed to (?:add|apply) device rules:")
    if not line:
        return None
    return Diagnosis(
        Failure.NESTED_RUNTIME_CGROUPS,
        "a GPU runtime inside the container can't read or write the device rules of its control group, which belong to the node",
        "Set no-cgroups = true under [nvidia-container-cli] in /etc/nvidia-container-runtime/config.toml of the container; dev[n] has passed the devices",
        (line,),
        action="fix_and_continue",
    )


RULES: tuple[t.Callable[[Case], Diagnosis | None], ...] = (namespace_denied, nested_runtime, xid)
