# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about what the container itself does not allow: a service fails there before its program runs."""

from __future__ import annotations

import typing as t

from .._pve import property as prop
from .case import Case, Diagnosis

EXIT_NAMESPACE = 226  # systemd.exec(5): EXIT_NAMESPACE


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
        "unit_namespace_denied",
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
        "nested_runtime_cgroups",
        "a GPU runtime inside the container can't read or write the device rules of its control group, which belong to the node",
        "Set no-cgroups = true under [nvidia-container-cli] in /etc/nvidia-container-runtime/config.toml of the container; dev[n] has passed the devices",
        (line,),
        action="fix_and_continue",
    )


RULES: tuple[t.Callable[[Case], Diagnosis | None], ...] = (namespace_denied, nested_runtime)
