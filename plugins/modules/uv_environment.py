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
  - An environment that already equals the lock file is recognised by looking at it, without asking an index. Files that are damaged are named.
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
  verify:
    description:
      - V(changed) compares size, time and mode of all files with those at the end of the build, and reads what differs. V(all) reads every file.
      - Every file is read, too, where O(unit) has ended since that was done last and does not run.
      - A damaged environment is built anew beside the old one. A service that runs from the old one is not touched.
    type: str
    choices: [changed, all]
    default: changed
  rebuild:
    description:
      - Build the environment anew although nothing differs.
      - Files of a new environment are always read against the packages' own records. Packages that come damaged out of uv's cache are dropped there and
        fetched again.
    type: bool
    default: false
  unit:
    description: The service that runs from the environment.
    type: str
    default: kpro-sglang.service
  source_package:
    description:
      - A package that the index has only as source. It joins the environment as a wheel that is built once and kept.
      - A wheel is kept in a folder of O(source_package.wheelhouse) named by package, version and O(source_package.tags), with its SHA-256. It is taken
        from there by every later environment that it fits, also after the folder was copied to another machine.
      - The build runs as O(user), never as root.
    type: dict
    suboptions:
      name:
        description: Name of the package.
        type: str
        required: true
      version:
        description: Version of the package.
        type: str
        required: true
      lock:
        description: Text of a lock file with the hash of the package's source archive, and of the wheels of the tools that build it.
        type: str
        required: true
      wheelhouse:
        description: Folder of kept wheels. A wheel put by hand into the folder of its key is taken, too.
        type: path
        required: true
      imports:
        description: Modules that O(user) has to be able to import before the environment is put in force.
        type: list
        elements: str
        default: []
      omit:
        description: Folders of the source that another package of the environment provides. They are left out of the wheel.
        type: list
        elements: str
        default: []
      tags:
        description: What a wheel is bound to besides name and version, for example the versions of torch, CUDA and Python, and the GPU architecture.
        type: dict
        default: {}
      build:
        description: Build the package where no wheel is kept. V(false) leaves it out then, with a warning.
        type: bool
        default: false
      variables:
        description: Environment variables of the build. C(MAX_JOBS) is set to what cores and memory allow.
        type: dict
        default: {}
      cuda_home:
        description: Folder of the CUDA toolkit that builds it.
        type: str
        default: ""
      job_memory_mib:
        description: Memory that one compiler takes at its peak. It bounds how many run at once.
        type: int
        default: 6144
      size_mib:
        description: Space that the build takes, checked before it. It is counted only together with O(size_mib).
        type: int
        default: 0
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
source_wheel:
  description: Path of the kept wheel of O(source_package). Empty if there is none.
  returned: when finished
  type: str
  sample: ""
"""

import typing as t

from ..module_utils._core.module import run_module
from ..module_utils._environment.ensure import ARGUMENTS, ensure


def main(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Observe, plan, apply."""
    return ensure(params, apply=not check_mode)


if __name__ == "__main__":
    run_module(main, ARGUMENTS)
