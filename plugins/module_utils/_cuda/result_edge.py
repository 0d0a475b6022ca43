# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to CUDA as the service user sees it, with the faults around it."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import typing as t

from .._gpu.findings import Finding, Versions, node_findings, nvml_findings, version_findings
from .._gpu.host_edge import GpuHost
from .._gpu.merge import merged_gpus
from .._gpu.model import NvmlReport
from .._linux.command_edge import Command
from .._linux.text_file_edge import TextFile, read_text_file, write_text_file
from . import p2p_verdict_file as memory
from .child_edge import CudaAnswer, ask_cuda
from .verdict import P2pVerdict, init_error, p2p_verdict


def findings(answer: CudaAnswer) -> list[Finding]:
    """Return what is wrong with driver and device nodes, the nodes as the user opened them."""
    host = GpuHost(Command())
    place, loaded = host.place(), host.loaded()
    versions = Versions(loaded, None, host.library("libnvidia-ml.so.1"), host.library("libcuda.so.1"))
    passed = [node.path for node in answer.nodes] if place == "container" else None
    gpus = merged_gpus(NvmlReport("none"), host.proc_gpus(), (), passed)[1]
    return [
        *nvml_findings(NvmlReport("none"), loaded, 0),
        *version_findings(versions, place),
        *(node_findings(answer.nodes, host.majors(), gpus, place) if loaded else []),
    ]


def error_of(answer: CudaAnswer, found: list[Finding]) -> str:
    """Return why CUDA is not usable, empty if it is."""
    if answer.error:
        return init_error(answer.error_code, answer.error, found)
    if not answer.devices:
        return f"CUDA does not answer: it hangs in {answer.doing}." if answer.doing else "CUDA has no device."
    return ""


def remembered(verdict: P2pVerdict, answer: CudaAnswer, path: str, keep: bool) -> P2pVerdict:
    """Return the verdict, or the kept one where nothing could be found out; keep one that is new.

    :param path: file of the memory.
    :param keep: whether it may be written.
    """
    loaded = GpuHost(Command()).loaded()
    of = memory.board(
        (device.uuid for device in answer.devices), loaded.version if loaded else "", os.uname().release, pathlib.Path("/proc/cmdline").read_text()
    )
    file = read_text_file(path)
    text = memory.note(verdict, of)
    if text and keep and (file is None or file.text != text):
        write_text_file(TextFile(path, text, 0o644, "root", "root"))
    return memory.settled(verdict, of, file.text if file else "")


def cuda_result(user: str, copy_sizes_mib: t.Sequence[int] = (1, 64), timeout_s: float = 60.0, remember: str = "", keep: bool = False) -> dict[str, t.Any]:
    """Ask CUDA as a user and return all that cuda_info says.

    :param remember: file of the last verdict on copies, empty: none is used.
    :param keep: whether that file may be written.
    """
    answer = ask_cuda(user, list(copy_sizes_mib), timeout_s)
    found = findings(answer)
    error = error_of(answer, found)
    verdict = p2p_verdict(answer.checks, len(answer.devices), answer.doing if answer.devices else "")
    if remember and not error and len(answer.devices) > 1:
        verdict = remembered(verdict, answer, remember, keep)
    return {
        "changed": False,
        "usable": not error,
        "error": error,
        "error_code": answer.error_code,
        "version": answer.version,
        "devices": [dataclasses.asdict(device) for device in answer.devices],
        "p2p": verdict.p2p if not error else "unknown",
        "p2p_reason": verdict.reason if not error else "CUDA is not usable",
        "p2p_disable": verdict.disable and not error,
        "checks": [dataclasses.asdict(check) for check in answer.checks],
        "problems": [finding.sentence for finding in found if finding.level == "error"],
    }
