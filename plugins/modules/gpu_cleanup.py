#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_cleanup
short_description: End what is left of our service on the GPUs, and nothing else
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Ends leftover processes of the service and waits until their GPU memory is really free.
  - A process is ours if it is in the unit's control group while the unit does not run, or if it belongs to the service user, runs from one of
    O(roots), and has an NVIDIA device or the service's port open. Names never count. Its start time is checked again before each signal.
  - Everything else that holds a GPU is reported by program, user, unit and (from the node) container, and left alone.
  - In check mode it lists what it would end.
extends_documentation_fragment:
  - kpro.llm.attributes
options:
  unit:
    description: The service's unit.
    type: str
    default: kpro-sglang.service
  user:
    description: The service's user.
    type: str
    default: sglang
  roots:
    description: Folders of our Python environments.
    type: list
    elements: path
    default: [/opt/kpro-llm]
  port:
    description: The service's port; V(0) does not look at ports.
    type: int
    default: 30000
  container:
    description:
      - Id of the service's container, for a look from the node. V(0) looks from inside the container.
      - The container is asked whether the unit runs; if it does not answer, the unit counts as running and nothing of it is ended.
    type: int
    default: 0
  gpus:
    description: UUIDs of the GPUs whose memory is to be free; empty means all that can be seen.
    type: list
    elements: str
    default: []
  used_limit_mib:
    description: Memory in use on a GPU that still counts as free.
    type: int
    default: 500
  term_wait_s:
    description: Seconds to end by themselves after SIGTERM, before SIGKILL.
    type: int
    default: 10
  memory_wait_s:
    description: Seconds to wait for memory to be free; the driver frees it after the process is gone.
    type: int
    default: 90
  stale_files:
    description: Remove the service user's shared memory segments and build locks that nobody has open, if nothing of ours runs.
    type: bool
    default: true
  cache_roots:
    description: Folders of the service's kernel caches, where build locks lie.
    type: list
    elements: path
    default: [/var/lib/kpro-sglang]
  require_free:
    description: Fail if a GPU is still in use in the end, while the unit does not run.
    type: bool
    default: false
  reset:
    description:
      - The last resort. Reset those of O(gpus) that still hold memory in the end, although nothing of ours runs.
      - Works on the node only, which sees who has a GPU open, and fails while anybody has one.
    type: bool
    default: false
seealso:
  - module: kpro.llm.gpu_info
"""

EXAMPLES = r"""
- name: List what would be ended
  kpro.llm.gpu_cleanup:
  check_mode: true

- name: Free the GPUs of what is ours
  kpro.llm.gpu_cleanup:
    gpus: [GPU-8f6d2a4e-1c7b-4d5e-9a3f-2b6c8d0e1f2a]
    require_free: true
"""

RETURN = r"""
ended:
  description: Leftovers of ours, how they ended (in check mode V(planned)) and why they are ours.
  returned: success
  type: list
  elements: dict
  sample:
    - {pid: 512, command: "sglang::scheduler", how: terminated, reason: in the control group of kpro-sglang.service, note: ""}
foreign:
  description: Processes that hold a GPU and are none of ours; left alone.
  returned: success
  type: list
  elements: dict
  sample:
    - {pid: 9120, command: ollama serve, uid: 100998, unit: ollama.service, container: 131, devices: [/dev/nvidia1], note: ""}
memory_used_mib:
  description: Memory in use by GPU in the end.
  returned: success
  type: dict
  sample: {GPU-8f6d2a4e-1c7b-4d5e-9a3f-2b6c8d0e1f2a: 3}
removed:
  description: Stale files that were removed.
  returned: success
  type: list
  elements: str
reset:
  description: GPUs that were reset.
  returned: success
  type: list
  elements: str
not_seen:
  description: What cannot be seen from where the module ran.
  returned: success
  type: str
"""

import typing as t

from ..module_utils._core.changes import Change, plan_result
from ..module_utils._core.errors import KproError
from ..module_utils._core.module import run_module
from ..module_utils._gpu.memory_edge import GpuMemory
from ..module_utils._gpu.reset_edge import check_reset, reset, to_reset
from ..module_utils._linux.processes import Process, process_words
from ..module_utils._linux.processes_edge import ProcessTable
from ..module_utils._service.cleanup_edge import end_leftovers, leftover_row, owner_of, survey
from ..module_utils._service.ownership import Owner, state_words
from ..module_utils._service.stale_files_edge import remove_file, stale_files

ARGUMENT_SPEC: dict[str, t.Any] = {
    "unit": {"type": "str", "default": "kpro-sglang.service"},
    "user": {"type": "str", "default": "sglang"},
    "roots": {"type": "list", "elements": "path", "default": ["/opt/kpro-llm"]},
    "port": {"type": "int", "default": 30000},
    "container": {"type": "int", "default": 0},
    "gpus": {"type": "list", "elements": "str", "default": []},
    "used_limit_mib": {"type": "int", "default": 500},
    "term_wait_s": {"type": "int", "default": 10},
    "memory_wait_s": {"type": "int", "default": 90},
    "stale_files": {"type": "bool", "default": True},
    "cache_roots": {"type": "list", "elements": "path", "default": ["/var/lib/kpro-sglang"]},
    "require_free": {"type": "bool", "default": False},
    "reset": {"type": "bool", "default": False},
}

HOST_ROOT = "/"


def main_result(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Observe, plan, apply."""
    if params["reset"]:
        check_reset(params["gpus"], HOST_ROOT)
    table = ProcessTable()
    owner = owner_of(params["unit"], params["user"], params["roots"], params["container"])
    found, foreign = survey(table, owner, params["port"])
    stale = _stale(params, owner, table) if not owner.unit_runs else []
    changes = [
        *(Change(f"End {process_words(left.process)}: {left.reason}", left.process.command, None, ("end",)) for left in found),
        *(Change(f"Remove {path}", path, None, ("remove", path)) for path in stale),
    ]
    ended = [leftover_row(left, "planned") for left in found] if check_mode else end_leftovers(table, found, params["term_wait_s"])
    if not check_mode:
        for path in stale:
            remove_file(path)
    wait_s = params["memory_wait_s"] if not (check_mode or owner.unit_runs) else 0
    used = GpuMemory().wait_until_free(params["gpus"], params["used_limit_mib"], wait_s)
    full = to_reset(params["gpus"], used, params["used_limit_mib"]) if params["reset"] and not owner.unit_runs else []
    changes += [Change(f"Reset GPU {uuid}", f"{used[uuid]} MiB in use", "free", ("reset", uuid)) for uuid in full]
    if full and not check_mode:
        reset(full, [process for process in table.snapshot(owner.uid) if process.devices])
        used = GpuMemory().wait_until_free(params["gpus"], params["used_limit_mib"], params["memory_wait_s"])
    if not check_mode:
        _assert_free(params, owner, used, foreign, ended)
    return {
        **plan_result(changes),
        "ended": ended,
        "foreign": [_foreign_row(process) for process in foreign],
        "memory_used_mib": used,
        "removed": stale,
        "reset": full,
        "not_seen": "" if params["container"] else "processes outside this container; look from the node for other holders",
    }


def _stale(params: dict[str, t.Any], owner: Owner, table: ProcessTable) -> list[str]:
    if not params["stale_files"] or owner.uid <= 0 or params["container"]:
        return []
    return stale_files(owner.uid, "/dev/shm", params["cache_roots"], table.open_paths())


def _foreign_row(process: Process) -> dict[str, t.Any]:
    return {
        "pid": process.pid,
        "command": process.command,
        "uid": process.uid,
        "unit": process.unit,
        "container": process.container,
        "cgroup": process.cgroup,
        "devices": list(process.devices),
        "note": state_words(process),
    }


def _assert_free(params: dict[str, t.Any], owner: Owner, used: dict[str, int], foreign: list[Process], ended: list[dict[str, t.Any]]) -> None:
    full = {uuid: mib for uuid, mib in used.items() if mib > params["used_limit_mib"]}
    if not params["require_free"] or owner.unit_runs or not full:
        return
    stuck = [f"pid {row['pid']} ({row['command'][:60]}) {row['note'] or 'did not end'}" for row in ended if row["how"] == "alive"]
    holders = [process_words(process) for process in foreign]
    who = f"held by {'; '.join(holders)}" if holders else "held by nobody who can be seen from here"
    raise KproError(
        f"GPU {', '.join(sorted(full))}",
        f"{', '.join(f'{mib} MiB' for mib in full.values())} still in use after {params['memory_wait_s']} s, {'; '.join(stuck) or who}",
        "It is not ours, so it was left alone: end it where it belongs, or look from the node",
        memory_used_mib=used,
        foreign=[_foreign_row(process) for process in foreign],
    )


def main() -> None:
    run_module(main_result, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
