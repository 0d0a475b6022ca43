# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One call of uv_environment: observe, plan, have it built."""

from __future__ import annotations

import dataclasses
import os
import time
import typing as t

from .._core.changes import plan_result
from .._core.errors import KproError
from .._job.long_job_edge import LongJob
from . import worker
from .edge import EnvironmentStore, find_user
from .plan import Present, Wanted, differences, package_diff, plan, target_path
from .source_package import SourcePackage, missing_wheel
from .steps import job, unit_name

# A unit that is stopped says so; what it runs may need a moment to end.
UNIT = ("UMask=0022", "TimeoutStopSec=20", "TasksMax=infinity")

# Answer of a build that has just ended.
_DONE: t.Mapping[str, t.Any] = {"rebuild": False, "verify": "changed", "unit": ""}

_SOURCE: dict[str, t.Any] = {
    "name": {"type": "str", "required": True},
    "version": {"type": "str", "required": True},
    "lock": {"type": "str", "required": True},
    "wheelhouse": {"type": "path", "required": True},
    "imports": {"type": "list", "elements": "str", "default": []},
    "omit": {"type": "list", "elements": "str", "default": []},
    "tags": {"type": "dict", "default": {}},
    "build": {"type": "bool", "default": False},
    "variables": {"type": "dict", "default": {}},
    "cuda_home": {"type": "str", "default": ""},
    "job_memory_mib": {"type": "int", "default": 6144},
    "size_mib": {"type": "int", "default": 0},
}
ARGUMENTS: dict[str, t.Any] = {
    "root": {"type": "path", "required": True},
    "lock": {"type": "str", "required": True},
    "uv_lock": {"type": "str", "required": True},
    "package": {"type": "str", "required": True},
    "package_version": {"type": "str", "required": True},
    "python": {"type": "str", "required": True},
    "python_source": {"type": "str", "choices": ["auto", "distribution", "managed"], "default": "auto"},
    "python_mirror": {"type": "str", "default": ""},
    "index_url": {"type": "str", "default": "", "no_log": True},
    "find_links": {"type": "list", "elements": "str", "default": []},
    "offline": {"type": "bool", "default": False},
    "ca_bundle": {"type": "path", "default": "/etc/ssl/certs/ca-certificates.crt"},
    "environment": {"type": "dict", "default": {}},
    "user": {"type": "str", "default": ""},
    "size_mib": {"type": "int", "default": 0},
    "files": {"type": "int", "default": 0},
    "keep": {"type": "int", "default": 1},
    "rebuild": {"type": "bool", "default": False},
    "verify": {"type": "str", "choices": ["changed", "all"], "default": "changed"},
    "unit": {"type": "str", "default": "kpro-sglang.service"},
    "source_package": {"type": "dict", "options": _SOURCE},
    "poll_s": {"type": "float", "default": 10.0},
}


def wanted_from(params: t.Mapping[str, t.Any]) -> Wanted:
    """Return the environment that the options describe."""
    distribution = os.access(f"/usr/bin/python{params['python']}", os.X_OK)
    same = ("lock", "uv_lock", "package", "package_version", "python", "index_url", "python_mirror", "offline", "size_mib", "files", "keep", "rebuild", "unit")
    return Wanted(
        root=params["root"].rstrip("/"),
        managed=params["python_source"] == "managed" or (params["python_source"] == "auto" and not distribution),
        find_links=tuple(params["find_links"]),
        ca_bundle=params["ca_bundle"] if os.path.exists(params["ca_bundle"]) else "",
        user=find_user(params["user"]) if params["user"] else None,
        environment={name: str(value) for name, value in params["environment"].items()},
        verify_all=params["verify"] == "all",
        source=_source(params["source_package"]) if params["source_package"] else None,
        **{name: params[name] for name in same},
    )


def _source(values: t.Mapping[str, t.Any]) -> SourcePackage:
    texts = {name: {key: str(value) for key, value in values[name].items()} for name in ("tags", "variables")}
    return SourcePackage(**{**values, **texts, "imports": tuple(values["imports"]), "omit": tuple(values["omit"])})


def observe(params: t.Mapping[str, t.Any], *, keep: bool = False) -> tuple[Wanted, Present, list[str]]:
    """Return what is wanted, what is there, and warnings.

    A package that is built from source only if asked for is not wanted where no wheel is kept and the environment in force has none.
    """
    wanted = wanted_from(params)
    store = EnvironmentStore(wanted.root)
    present = store.observe(wanted, keep=keep)
    source = wanted.source
    if source is None or source.build or present.wheel or not differences(present, wanted):
        return wanted, present, []
    without = dataclasses.replace(wanted, source=None)
    return without, store.observe(without, keep=keep), [missing_wheel(source)]


def ensure(params: t.Mapping[str, t.Any], *, apply: bool, keep: bool = False) -> dict[str, t.Any]:
    """Bring the environment to what is wanted, or say what would be done (``apply`` false).

    :param keep: whether it may be noted that all files were read and found whole.
    :raises KproError: the options contradict each other, space is short, or the build failed.
    """
    builder = LongJob(unit_name(params["root"].rstrip("/")))
    # Before the look at the disk: a build that ends in between must not be started again.
    ended = None
    attached = apply and (builder.running() or builder.unread())
    if attached:
        work = builder.job()
        ours = work.get("key") in _keys(params)
        if builder.running() and not ours:
            raise KproError(builder.unit, f"it is building {work.get('target')}", "Wait for it, or stop it with systemctl stop")
        if ours:
            ended = builder.wait(params["poll_s"])
            if not ended.finished:
                return {**plan_result([]), "finished": False, "progress": ended.progress}
            # The request was just met: a new environment, with every file read.
            params = {**params, **_DONE}
    wanted, present, warnings = observe(params, keep=keep or apply)
    changes = plan(present, wanted)
    result = {**plan_result(changes), "diff": [plan_result(changes)["diff"], package_diff(present, wanted)], "warnings": warnings}
    if not changes and ended:
        # The call that started the work has told the plan.
        result = {**result, "changed": True, "warnings": [*warnings, *ended.result.get("notes", [])]}
    if not changes or not apply:
        return {**result, **outcome(present, wanted)}
    if params["user"] and not wanted.user:
        raise KproError(f"user {params['user']}", "there is no such user", "Create it before the environment")
    EnvironmentStore(wanted.root).prepare(wanted)
    order = job(present, wanted, os.environ, time.time())
    builder.start(worker, order, f"kpro.llm: build {order['target']}", UNIT)
    ended = builder.wait(params["poll_s"])
    if not ended.finished:
        return {**result, "finished": False, "progress": ended.progress, "started": True}
    wanted, present, warnings = observe({**params, **_DONE})
    left = plan(present, wanted)
    if left:
        raise KproError(f"environment {wanted.link}", f"after the build this is still to do: {left[0].sentence}", "Report this with the unit's journal")
    return {**result, "warnings": [*warnings, *ended.result.get("notes", [])], **outcome(present, wanted)}


def _keys(params: t.Mapping[str, t.Any]) -> set[str]:
    """Return the names under which the environment may be built: with the package that is built from source, and without."""
    wanted = wanted_from(params)
    return {wanted.key, dataclasses.replace(wanted, source=None).key}


def outcome(present: Present, wanted: Wanted) -> dict[str, t.Any]:
    """Return what is known of the environment in force, or where the one wanted will be."""
    current = present.current
    path = target_path(present, wanted) if differences(present, wanted) else current.path if current else ""
    return {
        "finished": True,
        "venv": path,
        "link": wanted.link,
        "python": f"{path}/bin/python",
        "python_version": current.python if current else "",
        "package_version": present.package_version,
        "packages": len(wanted.pins),
        "uv": f"{wanted.uv_folder}/bin/uv",
        "source_wheel": present.wheel.path if present.wheel else "",
    }
