#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: uv_environment
short_description: Keep a Python environment equal to a hash-locked file
version_added: 1.0.0
description:
  - Installs a pinned C(uv) and builds a virtual environment that holds exactly the packages of a lock file, each checked by its SHA-256 hash.
  - A new environment is built beside the one in force, its bytecode is compiled, the service user imports from it, and only then a link is switched in
    one step. The previous environment stays for a roll-back, older ones are removed unless a process still runs from them.
  - The build runs in a transient systemd unit that survives a lost connection. A later call attaches to it.
  - An environment that already equals the lock file is recognised by looking at it, without asking an index.
author: kpro (@kpro)
extends_documentation_fragment: kpro.llm.attributes
requirements:
  - Debian's C(python3) and C(python3-venv)
  - systemd
options:
  root:
    description: Folder that holds the environments, uv and its cache.
    type: path
    required: true
  lock:
    description: Text of the lock file, as C(uv pip compile --generate-hashes) writes it.
    type: str
    required: true
  uv_lock:
    description: Text of the lock file of uv itself; it pins the version.
    type: str
    required: true
  package:
    description: The package whose version is asserted in the finished environment.
    type: str
    required: true
  package_version:
    description: The version that O(package) must have. The lock file has to pin the same.
    type: str
    required: true
  python:
    description: Version of Python, like V(3.11).
    type: str
    required: true
  python_source:
    description:
      - V(distribution) uses C(/usr/bin/pythonX.Y), V(managed) lets uv fetch one of its own builds.
      - V(auto) takes the distribution's Python where that version is installed, and a managed one otherwise.
    type: str
    choices: [auto, distribution, managed]
    default: auto
  python_mirror:
    description: Address of a mirror of uv's Python builds.
    type: str
    default: ""
  index_url:
    description: Address of the package index (simple API). Empty leaves the choice to the configuration of pip and uv on the machine.
    type: str
    default: ""
  find_links:
    description: Folders or link pages with further wheels. They are checked against the lock file like all others.
    type: list
    elements: str
    default: []
  offline:
    description: Ask no index. O(find_links) has to hold every wheel, that of uv included.
    type: bool
    default: false
  ca_bundle:
    description: File with the certificate authorities to trust. It is used if it exists.
    type: path
    default: /etc/ssl/certs/ca-certificates.crt
  environment:
    description:
      - Further environment variables for uv and pip, for example C(UV_CONCURRENT_DOWNLOADS) or a proxy.
      - Ansible's verbose output shows them, so keep passwords out.
    type: dict
    default: {}
  user:
    description: The service user that has to be able to read and run the environment. Empty means root.
    type: str
    default: ""
  size_mib:
    description: Space that a finished environment takes, checked before a build. V(0) skips the check.
    type: int
    default: 0
  files:
    description: Inodes that a finished environment takes, checked before a build. V(0) skips the check.
    type: int
    default: 0
  keep:
    description: How many previous environments stay for a roll-back.
    type: int
    default: 1
  poll_s:
    description: The longest time in seconds that one call waits for a running build.
    type: float
    default: 10
"""

EXAMPLES = r"""
- name: Build the environment of SGLang
  kpro.llm.uv_environment:
    root: /opt/kpro-llm/sglang
    lock: "{{ lookup('ansible.builtin.file', 'locks/cu13-cp312.txt') }}"
    uv_lock: "{{ lookup('ansible.builtin.file', 'locks/uv-0.13.9.txt') }}"
    package: sglang
    package_version: 0.5.23
    python: "3.12"
    user: sglang
"""

RETURN = r"""
finished:
  description: Whether the build has ended. The action plugin of this module repeats the call until it has.
  returned: success
  type: bool
  sample: true
progress:
  description: One line about a running build.
  returned: while a build runs
  type: str
  sample: >-
    Build sglang-0.5.23-cp311-640e075c: download and unpack packages, 84 of 88 packages fetched, 812 of at most 2300 MiB (35 %), 116 MiB/s,
    at most 12 s left, 7 s so far
plan:
  description: What was done, or would be done in check mode.
  returned: success
  type: list
  elements: str
  sample: ["Install uv 0.13.9 in /opt/kpro-llm/sglang/tools/uv-0.13.9"]
venv:
  description:
    - Path of the environment itself, in check mode of the one that would be built.
    - It changes with each build, so that a running service never sees files of another one.
  returned: when finished
  type: str
  sample: /opt/kpro-llm/sglang/envs/sglang-0.5.23-cp311-640e075c
link:
  description: Path of the link to the environment in force.
  returned: when finished
  type: str
  sample: /opt/kpro-llm/sglang/venv
python:
  description: Path of the environment's interpreter.
  returned: when finished
  type: str
  sample: /opt/kpro-llm/sglang/envs/sglang-0.5.23-cp311-640e075c/bin/python
python_version:
  description: Version of that interpreter.
  returned: when finished
  type: str
  sample: 3.11.2
package_version:
  description: Version of O(package) that the environment reported, equal to the one asked for. Empty in check mode if nothing is there yet.
  returned: when finished
  type: str
  sample: 0.5.23
packages:
  description: Number of packages that the lock file pins.
  returned: when finished
  type: int
  sample: 88
uv:
  description: Path of the pinned uv.
  returned: when finished
  type: str
  sample: /opt/kpro-llm/sglang/tools/uv-0.13.9/bin/uv
"""

import inspect
import os
import time
import typing as t

from ansible_collections.kpro.llm.plugins.module_utils import _uv_worker
from ansible_collections.kpro.llm.plugins.module_utils._changes import plan_result
from ansible_collections.kpro.llm.plugins.module_utils._command import Command
from ansible_collections.kpro.llm.plugins.module_utils._errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._module import run_module
from ansible_collections.kpro.llm.plugins.module_utils._uv_edge import EnvironmentStore, find_user
from ansible_collections.kpro.llm.plugins.module_utils._uv_job import Job, JobState
from ansible_collections.kpro.llm.plugins.module_utils._uv_plan import Present, Wanted, differences, package_diff, plan, target_path
from ansible_collections.kpro.llm.plugins.module_utils._uv_steps import job, progress_line, unit_name

LAST_LINES = 4  # of a failed program, in the message; all that is kept stands in the details

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
    "poll_s": {"type": "float", "default": 10.0},
}


def wanted_from(params: dict[str, t.Any]) -> Wanted:
    """Return the environment that the options describe."""
    distribution = os.access(f"/usr/bin/python{params['python']}", os.X_OK)
    same = ("lock", "uv_lock", "package", "package_version", "python", "index_url", "python_mirror", "offline", "size_mib", "files", "keep")
    return Wanted(
        root=params["root"].rstrip("/"),
        managed=params["python_source"] == "managed" or (params["python_source"] == "auto" and not distribution),
        find_links=tuple(params["find_links"]),
        ca_bundle=params["ca_bundle"] if os.path.exists(params["ca_bundle"]) else "",
        user=find_user(params["user"]) if params["user"] else None,
        environment={name: str(value) for name, value in params["environment"].items()},
        **{name: params[name] for name in same},
    )


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
    }


def build(state: JobState, order: dict[str, t.Any], wanted: Wanted, builder: Job, poll_s: float) -> JobState:
    """Start the build, or attach to the one that runs, and wait for its end or for ``poll_s``.

    :raises KproError: another environment is being built under the same root, or the build failed.
    """
    if state.running and state.job.get("target") != order["target"]:
        raise KproError(builder.unit, f"it is building {state.job.get('target')}", "Wait for it, or stop it with systemctl stop")
    if not state.running:
        EnvironmentStore(wanted.root).prepare(wanted)
        builder.start(inspect.getsource(_uv_worker), order)
    state = builder.wait(poll_s)
    if not state.running and not state.result.get("ok"):
        lines = [line.strip() for line in str(state.result.get("message") or builder.why_it_ended()).splitlines() if line.strip()]
        raise KproError(
            f"environment {order['target']}",
            f"{state.result.get('phase', 'start')} failed: {' '.join(lines[-LAST_LINES:])}",
            f"The environment in force was not touched. See journalctl -u {builder.unit}",
            output=lines,
        )
    return state


def main(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Observe, plan, apply."""
    wanted = wanted_from(params)
    store = EnvironmentStore(wanted.root)
    builder = Job(unit_name(wanted.root), f"{wanted.root}/job", Command())
    before = builder.state()  # before the look at the disk: a build that ends in between must not be started again
    present = store.observe(wanted)
    changes = plan(present, wanted)
    result = {**plan_result(changes), "diff": [plan_result(changes)["diff"], package_diff(present, wanted)]}
    if not changes or check_mode:
        return {**result, **outcome(present, wanted)}
    if params["user"] and not wanted.user:
        raise KproError(f"user {params['user']}", "there is no such user", "Create it before the environment")
    state = build(before, job(present, wanted, os.environ, time.time()), wanted, builder, params["poll_s"])
    if state.running:
        return {**result, "finished": False, "progress": progress_line(state.job, state.status, builder.counters(state, time.time()))}
    present = store.observe(wanted)
    left = plan(present, wanted)
    if left:
        raise KproError(f"environment {wanted.link}", f"after the build this is still to do: {left[0].sentence}", "Report this with the unit's journal")
    return {**result, **outcome(present, wanted)}


if __name__ == "__main__":
    run_module(main, ARGUMENTS)
