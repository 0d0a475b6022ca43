#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: wheel_cache
short_description: Take over the wheels of another machine before an environment is built
version_added: 1.0.0
description:
  - Fills uv's cache with the wheels that the cache of a peer holds, and the folder of wheels that were built from source, over SSH, so that
    M(kpro.llm.uv_environment) has little or nothing to ask a package index for.
  - Each unpacked wheel is held to the hashes of its own list of files before it gets its name, and uv holds the hash of the wheel's archive
    to the lock file as always.
  - What was cut off is sent again, what is here is not. If the peer stops answering, a warning says so, and the index is left to give the rest.
  - The peer answers any request with C(tar) of its cache, without the entries that are named on its standard input. The role
    P(kpro.llm.sglang_runtime#role) lets it do that by a key of one run with a forced command.
author: kpro (@kpro)
extends_documentation_fragment: kpro.llm.attributes
requirements:
  - C(ssh)
  - systemd
options:
  root:
    description: Folder of the environments; uv's cache is the folder C(cache) in it.
    type: path
    required: true
  wheelhouse:
    description: Folder of wheels that were built from source.
    type: path
    required: true
  peer:
    description: Address of the peer, V(ssh://USER@HOST:PORT).
    type: str
    required: true
  ssh_key_file:
    description: Private key for the peer.
    type: path
    required: true
  ssh_known_hosts_file:
    description: File with the peer's host key.
    type: path
    required: true
  poll_s:
    description: The longest time in seconds that one call waits for the work.
    type: float
    default: 10
"""

EXAMPLES = r"""
- name: Take over the wheels of the old node
  kpro.llm.wheel_cache:
    root: /opt/kpro-llm/sglang
    wheelhouse: /var/lib/kpro-llm/wheelhouse
    peer: ssh://root@192.0.2.6:22
    ssh_key_file: /var/lib/kpro-llm/peer/id_ed25519
    ssh_known_hosts_file: /var/lib/kpro-llm/peer/known_hosts
"""

RETURN = r"""
finished:
  description: Whether the work has ended. The action plugin of this module repeats the call until it has.
  returned: success
  type: bool
  sample: true
progress:
  description: One line about work that goes on.
  returned: while it goes on
  type: str
  sample: "Take over wheels from the peer: 41 so far, 812 MiB, 104 MiB/s"
plan:
  description: What was done, or would be done in check mode.
  returned: success
  type: list
  elements: str
  sample: ["Take over the wheels of ssh://root@192.0.2.6:22"]
wheels:
  description: Unpacked wheels that were taken over.
  returned: when finished
  type: int
  sample: 88
size_bytes:
  description: Bytes that were taken over.
  returned: when finished
  type: int
  sample: 1893212160
"""

import typing as t

from ..module_utils._core.changes import Change, plan_result
from ..module_utils._core.module import run_module
from ..module_utils._environment import wheel_worker
from ..module_utils._job.long_job_edge import LongJob

UNIT = "kpro-wheels.service"

ARGUMENTS: dict[str, t.Any] = {
    **{name: {"type": "path", "required": True} for name in ("root", "wheelhouse", "ssh_key_file", "ssh_known_hosts_file")},
    "peer": {"type": "str", "required": True},
    "poll_s": {"type": "float", "default": 10.0},
}


def main(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Start the work or attach to it, and wait a moment."""
    change = Change(f"Take over the wheels of {params['peer']}", None, params["peer"])
    if check_mode:
        return {**plan_result([change]), "finished": True, "wheels": 0, "size_bytes": 0}
    work = LongJob(UNIT)
    started = not (work.running() or work.unread())
    if started:
        order = {name: params[name] for name in ARGUMENTS if name != "poll_s"}
        work.start(wheel_worker, order, "kpro.llm: take over wheels", ("UMask=0022", "TimeoutStopSec=20"))
    answer = work.wait(params["poll_s"])
    if not answer.finished:
        return {**plan_result([]), "finished": False, "progress": answer.progress, "started": started}
    result = answer.result
    problem = result.get("problem")
    warnings = [f"Not all wheels could be taken over from {params['peer']}; the package index is asked for the rest: {problem}"] if problem else []
    return {
        **plan_result([change] if result["size_bytes"] else []),
        "finished": True,
        "wheels": result["wheels"],
        "size_bytes": result["size_bytes"],
        "warnings": warnings,
    }


if __name__ == "__main__":
    run_module(main, ARGUMENTS)
