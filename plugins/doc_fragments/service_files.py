# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the files of the service lie."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  unit_path:
    description: Where the unit file lies. The default is C(/etc/systemd/system) and the unit's name.
    type: path
  config_path:
    description: Where the engine's configuration lies.
    type: path
    default: /etc/kpro-llm/sglang.yaml
  environment_path:
    description: Where the environment file lies.
    type: path
    default: /etc/kpro-llm/sglang.env
  gate_path:
    description: Where the gate lies.
    type: path
    default: /usr/local/lib/kpro-llm/sglang_gate.py
  launcher_path:
    description: Where the launcher lies.
    type: path
    default: /usr/local/lib/kpro-llm/sglang_launch.py
  started_path:
    description: The note that the gate leaves at each start.
    type: path
    default: /run/kpro-sglang/started.json
  api_key_path:
    description: File (mode 0600) that keeps the API key.
    type: path
    default: /etc/kpro-llm/api_key
  state_path:
    description: Folder of what is remembered between runs, the last good configuration and the rungs that failed.
    type: path
    default: /var/lib/kpro-llm
"""
