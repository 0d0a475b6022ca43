#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: runtime_base
short_description: Provide what an engine's environment needs of the distribution
version_added: 1.0.0
description:
  - Converges certificate authorities, apt repositories, packages and the service user of a Debian-like system in one round trip.
  - Returns the facts of the system that the choice of an engine lane asks for.
author: kpro (@kpro)
extends_documentation_fragment: kpro.llm.attributes
options:
  certificates:
    description:
      - Certificate authorities to trust besides the distribution's, as file name (ending in C(.crt)) and PEM text.
      - Files are written with the prefix C(kpro-llm-). Those with the prefix that are not named here are removed.
    type: dict
    default: {}
  repositories:
    description: Flat apt repositories. The key is accepted only with the given fingerprint.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Base name of the files.
        type: str
        required: true
      uri:
        description: Address of the repository.
        type: str
        required: true
      key_url:
        description: Address of its armoured public key.
        type: str
        required: true
      key_fingerprint:
        description: Fingerprint of that key, 40 hexadecimal digits in upper case.
        type: str
        required: true
      distribution:
        description: Use the repository only on this system, like V(debian12). Empty means on any.
        type: str
        default: ""
  packages:
    description: Packages that have to be installed. Their versions are left to apt.
    type: list
    elements: str
    default: []
  user:
    description: Name of the system user that the service runs as. Empty leaves users alone.
    type: str
    default: ""
  home:
    description: Home folder of O(user).
    type: path
    default: /var/lib/kpro-llm/home
  shell:
    description: Login shell of O(user).
    type: path
    default: /usr/sbin/nologin
"""

EXAMPLES = r"""
- name: Provide Python and a service user
  kpro.llm.runtime_base:
    packages: [python3-venv, ca-certificates]
    user: sglang

- name: Trust the authority of a company's proxy
  kpro.llm.runtime_base:
    certificates:
      company.crt: "{{ lookup('ansible.builtin.file', 'company.crt') }}"
"""

RETURN = r"""
plan:
  description: What was done, or would be done in check mode.
  returned: success
  type: list
  elements: str
  sample: ["Install python3-venv", "Create the user sglang"]
system:
  description: Facts of the system.
  returned: success
  type: dict
  contains:
    distribution:
      description: C(ID) of C(/etc/os-release).
      type: str
      sample: debian
    distribution_version:
      description: C(VERSION_ID) of C(/etc/os-release).
      type: str
      sample: "12"
    glibc:
      description: Version of the C library.
      type: str
      sample: "2.36"
    architecture:
      description: Machine name of the kernel.
      type: str
      sample: x86_64
    python:
      description: Version of the distribution's Python.
      type: str
      sample: "3.11"
    toolkits:
      description: Versions of the CUDA toolkits under C(/usr/local).
      type: list
      elements: str
      sample: ["13.0"]
"""

import typing as t

from ..module_utils._core.changes import plan_result
from ..module_utils._core.errors import KproError
from ..module_utils._core.module import run_module
from ..module_utils._linux.command_edge import Command
from ..module_utils._runtime.base import plan_base
from ..module_utils._runtime.base_edge import Distribution
from ..module_utils._runtime.options import ARGUMENTS, wanted_from


def main(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Observe, plan, apply."""
    distribution = Distribution(Command())
    wanted = wanted_from(params, distribution.facts())
    changes = plan_base(distribution.observe(wanted), wanted)
    if changes and not check_mode:
        for change in changes:
            distribution.apply(change)
        left = plan_base(distribution.observe(wanted), wanted)
        if left:
            raise KproError("base of the runtime", f"still to do after the run: {left[0].sentence}", "See what the programs said before")
    return {**plan_result(changes), "system": distribution.facts()}


if __name__ == "__main__":
    run_module(main, ARGUMENTS)
