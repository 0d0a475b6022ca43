# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wait for one start of the service."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  address:
    description: Address that the service is bound to.
    type: str
    default: 127.0.0.1
  port:
    description: Port of the service.
    type: int
    default: 30000
  answer_timeout_s:
    description: Seconds that one answer may take.
    type: int
    default: 300
  timeout_s:
    description:
      - Seconds that a run waits for one start, over all its calls. Then the task fails, and the start goes on; the next run waits on.
      - The last good configuration, once it has to be restored, is waited for as long as it makes progress.
    type: int
    default: 1800
  poll_s:
    description: Seconds after which a call returns with the progress so far.
    type: int
    default: 10
  hang_budgets_s:
    description: Seconds of silence allowed in a phase, by phase (V(weights), V(graphs), V(warmup) and so on), where the built-in limits do not fit.
    type: dict
    default: {}
  memory_events:
    description: File of the container's control group whose count C(oom_kill) tells a process killed because memory ran out from others; may be absent.
    type: path
    default: /sys/fs/cgroup/memory.events
  context:
    description: Facts for the diagnosis (versions, arguments, GPUs); see O(kpro.llm.sglang_diagnose#module:context).
    type: dict
    default: {}
"""
