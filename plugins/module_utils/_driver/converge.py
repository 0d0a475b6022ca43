# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Observe, plan, apply for a driver."""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.changes import plan_result
from .._core.errors import KproError
from .._gpu.text import version_key
from .._job.long_job_edge import LongJob
from . import worker
from .checks import check_node, check_version
from .edge import DriverEdge, record_path
from .fetch_edge import Package
from .model import Present, Wanted
from .plan import DriverPlan, node_plan, userland_plan
from .salvage import facts_before
from .sources import check_sources
from .steps import node_steps, package_name, package_path, package_url, userland_steps


class Driver:
    """One driver on one system.

    :param job: gives the long job of a version; its unit's name is always the same.
    """

    def __init__(self, edge: DriverEdge, job: t.Callable[[str], LongJob], poll_s: float) -> None:
        self._edge = edge
        self._job = job
        self._poll_s = poll_s

    def converge(self, wanted: Wanted, check_mode: bool) -> dict[str, t.Any]:
        """Bring the system to what is wanted, or say what that takes; returns the module's result.

        :raises KproError: something is in the way, or a step failed.
        """
        present = self._observe(wanted)
        wanted = resolved(wanted, present, check_mode)
        job = self._job(wanted.version)
        attached = not check_mode and (job.running() or job.unread())
        if attached:
            answer = job.wait(self._poll_s)
            if not answer.finished:
                return {"changed": True, "finished": False, "progress": answer.progress}
            present = self._observe(wanted)
        plan = make_plan(wanted, present)
        if check_mode or not plan.changes:
            return self._result(wanted, present, plan, plan, attached)
        for change in plan.first_changes:
            self._edge.apply(change)
        if plan.long_actions:
            job.start(worker, self._work(wanted, present, plan).to_dict(), f"kpro.llm: NVIDIA driver {wanted.version}")
            answer = job.wait(self._poll_s)
            if not answer.finished:
                return {**self._result(wanted, present, plan, plan, True), "finished": False, "progress": answer.progress}
        return self._finish(wanted, plan, attached)

    def _finish(self, wanted: Wanted, first: DriverPlan, attached: bool) -> dict[str, t.Any]:
        """Make the quick changes that are left, and insist that nothing is left then."""
        plan = make_plan(wanted, self._observe(wanted))
        if plan.long_actions:
            raise KproError(
                f"NVIDIA driver {wanted.version}",
                f"its installation ended without an error, yet this is still to do: {'; '.join(change.sentence for change in plan.changes)}",
                "See /var/log/nvidia-installer.log and dkms status there",
            )
        for change in plan.changes:
            self._edge.apply(change)
        present = self._observe(wanted)
        left = make_plan(wanted, present)
        if left.changes:
            raise KproError(f"NVIDIA driver {wanted.version}", f"not as wanted after all steps: {'; '.join(change.sentence for change in left.changes)}")
        return self._result(wanted, present, _with_surprises(first, plan), left, attached)

    def _observe(self, wanted: Wanted) -> Present:
        return self._edge.observe(wanted)

    def _work(self, wanted: Wanted, present: Present, plan: DriverPlan) -> worker.Job:
        name = package_name(wanted.version)
        package = Package(package_url(wanted.url, wanted.version), package_path(wanted.version), wanted.sha256, record_path(name))
        steps = node_steps(wanted, present, plan.long_actions) if wanted.scope == "node" else userland_steps(wanted)
        return worker.Job(wanted.version, package, steps, _facts(wanted, present))

    def _result(self, wanted: Wanted, present: Present, plan: DriverPlan, left: DriverPlan, changed: bool) -> dict[str, t.Any]:
        result = plan_result(plan.changes)
        return {
            **result,
            "changed": result["changed"] or changed,
            "version": wanted.version,
            "url": package_url(wanted.url, wanted.version),
            "sha256": wanted.sha256 or self._edge.recorded_sha256(package_name(wanted.version)),
            "loaded": present.loaded.version if present.loaded else None,
            "flavour": present.loaded.flavour if present.loaded else None,
            "users": [user.words for user in present.users],
            "reboot_needed": bool(left.reboot),
            "reboot_reason": left.reboot,
            "foreign_guests": list(self._edge.foreign_guests()) if left.reboot else [],
            "notes": list(plan.notes),
            "warnings": list(plan.notes),
        }


def _with_surprises(first: DriverPlan, last: DriverPlan) -> DriverPlan:
    """Return the first plan with changes that only showed when it was carried out, so that the report leaves nothing out."""
    known = {change.sentence for change in first.changes}
    return dataclasses.replace(first, changes=(*first.changes, *(change for change in last.changes if change.sentence not in known)))


def _facts(wanted: Wanted, present: Present) -> dict[str, str]:
    """Return what explains a failure of the long work."""
    built = sorted({entry.kernel for entry in present.dkms if entry.state == "installed" and entry.kernel in present.kernels}, key=version_key)
    newest = max(present.kernels, key=version_key)
    former = facts_before(present) if wanted.scope == "node" else {}
    ours = {"repository": wanted.repository.uri} if wanted.repository else {}
    return {**ours, "version": wanted.version, "running": present.kernel, "newest": newest, "built": " ".join(built), **former}


def make_plan(wanted: Wanted, present: Present) -> DriverPlan:
    """Return the plan, after all that could stop it was looked at.

    :raises KproError: something is in the way.
    """
    if wanted.scope == "node":
        check_node(wanted, present)
        return node_plan(wanted, present)
    check_sources(wanted, present)
    return userland_plan(wanted, present)


def resolved(wanted: Wanted, present: Present, foreseen: bool) -> Wanted:
    """Return what is wanted with the version settled: a container takes what the node's kernel runs.

    :param foreseen: the node may still have to be changed, as in check mode: a given version is believed.
    :raises KproError: no full version, no driver visible in the container, or another one than the caller expects.
    """
    if wanted.scope == "userland" and not (foreseen and wanted.version):
        if present.loaded is None:
            raise KproError("NVIDIA driver", "/proc/driver/nvidia/version is not there: the node runs no driver", "Run the node's phase first")
        if wanted.version and wanted.version != present.loaded.version:
            raise KproError(
                "NVIDIA driver",
                f"the node's kernel runs {present.loaded.version}, {wanted.version} was asked for in the container",
                "Run the node's phase first: both have to be the same",
            )
        wanted = dataclasses.replace(wanted, version=present.loaded.version)
    check_version(wanted.version)
    return wanted
