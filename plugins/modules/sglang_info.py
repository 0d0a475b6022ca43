#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_info
short_description: Tell how the engine's service stands and who holds its port
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Reports the systemd unit of the engine, the identity of its present run, and the process that listens on its port.
  - Runs in the container and never changes anything.
extends_documentation_fragment:
  - kpro.llm.attributes.info
options:
  unit:
    description: Name of the systemd unit.
    type: str
    default: kpro-sglang.service
  port:
    description: Port of the endpoint.
    type: int
    default: 30000
seealso:
  - module: kpro.llm.sglang_service
"""

EXAMPLES = r"""
- name: Look at the service
  kpro.llm.sglang_info:
  register: service
"""

RETURN = r"""
state:
  description: How systemd sees the unit; C(load_state) is V(not-found) if it was never installed.
  returned: always
  type: dict
  sample: {active_state: active, sub_state: running, n_restarts: 0, main_pid: 812}
identity:
  description: The identity of the present run.
  returned: always
  type: dict
  sample: {unit: kpro-sglang.service, main_pid: 812, n_restarts: 0}
running:
  description: Whether the unit has a main process.
  returned: always
  type: bool
  sample: true
port_taken:
  description: Whether anybody listens on O(port).
  returned: always
  type: bool
  sample: true
port_owner:
  description: Who listens, in words; empty if nobody does.
  returned: always
  type: str
  sample: pid 812 (/opt/kpro-llm/sglang/venv/bin/python) of kpro-sglang.service
port_is_ours:
  description: Whether the listener belongs to O(unit).
  returned: always
  type: bool
  sample: true
"""

import typing as t

from ..module_utils._core.module import run_module
from ..module_utils._service.unit_edge import observe_unit

ARGUMENT_SPEC: dict[str, t.Any] = {
    "unit": {"type": "str", "default": "kpro-sglang.service"},
    "port": {"type": "int", "default": 30000},
}


def look(params: dict[str, t.Any], _check_mode: bool) -> dict[str, t.Any]:
    """Observe unit and port."""
    return {"changed": False, **observe_unit(params["unit"], params["port"])}


def main() -> None:
    run_module(look, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
