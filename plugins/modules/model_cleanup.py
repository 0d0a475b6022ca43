#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: model_cleanup
short_description: Remove a deployment's model from a node that it has left
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Removes the snapshots that a deployment put into a folder of the node, and nothing else. A snapshot is the deployment's if the manifest in
    it names the deployment's repository and commit; of its files those go that the manifest lists and that nobody has changed since.
  - Fails, with nothing removed, if a guest's configuration refers to the snapshot (also of a stopped guest, in a snapshot of a guest, by
    raw lines or by a directory mapping of a VM), if somebody has it mounted, or if a process has a file of it open.
  - The store's folder goes if it is empty then. A folder that the container mounts read-only is never touched.
  - Links in the store are not followed.
extends_documentation_fragment:
  - kpro.llm.attributes
options:
  leaving:
    description: Containers that leave the node in this run, the deployment's own one among them. They do not count as users, if they carry the tag V(kpro-llm).
    type: list
    elements: int
    default: []
  mounts:
    description: Mounts of the container, as C(gpu_container__mounts) declares them.
    type: list
    elements: dict
    default: []
  store:
    description: Folder of the snapshots in the container.
    type: path
    default: /srv/models
  repository:
    description: The model, as ORG/NAME.
    type: str
    required: true
  revision:
    description:
      - Revision that the deployment uses. The snapshot of its commit goes, those of other commits stay.
      - Unless it is a commit itself (40 digits), O(locked) says which commit it is.
    type: str
    default: main
  locked:
    description: Lines of the file in which C(hf_model__lock_file) keeps the commits, each with repository, revision and commit.
    type: list
    elements: str
    default: []
  allow_shared:
    description:
      - Whether snapshots may be removed from a folder that other machines may use too, on NFS, CIFS, Ceph or another network
        file system, on a storage that Proxmox shares, or mounted with C(shared).
    type: bool
    default: false
  other_users:
    description: Other deployments that use this node, in words. With any of them nothing is removed.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
seealso:
  - module: kpro.llm.hf_model
"""

EXAMPLES = r"""
- name: Remove the model of the deployment that has moved away
  kpro.llm.model_cleanup:
    leaving: [129]
    mounts:
      - source: /srv/models
        target: /srv/models
    repository: Qwen/Qwen3.6-27B
    revision: 0123456789abcdef0123456789abcdef01234567
  delegate_to: kpro6
"""

RETURN = r"""
plan:
  description: What was removed, or would be in check mode, one sentence for each folder. The diff lists each file.
  returned: success
  type: list
  elements: str
  sample: [Remove the snapshot /srv/models/Qwen--Qwen3.6-27B@0123456789ab (29 files, 55.6 GB)]
paths:
  description: Each path that was removed, or would be.
  returned: success
  type: list
  elements: str
  sample: [/srv/models/Qwen--Qwen3.6-27B@0123456789ab/config.json]
notes:
  description: What stays, and why.
  returned: success
  type: list
  elements: str
  sample: ["/srv/models/kpro--other@0123456789ab stays: it is not of this deployment"]
"""

import typing as t

from ..module_utils._core.errors import KproError
from ..module_utils._core.module import run_module
from ..module_utils._pve.host_edge import Host
from ..module_utils._removal.models import RemovalOptions, commits_of
from ..module_utils._removal.models_converge import clean_up

ARGUMENT_SPEC: dict[str, t.Any] = {
    "leaving": {"type": "list", "elements": "int", "default": []},
    "mounts": {"type": "list", "elements": "dict", "default": []},
    "store": {"type": "path", "default": "/srv/models"},
    "repository": {"type": "str", "required": True},
    "revision": {"type": "str", "default": "main"},
    "locked": {"type": "list", "elements": "str", "default": []},
    "allow_shared": {"type": "bool", "default": False},
    "other_users": {"type": "list", "elements": "str", "default": []},
}

HOST_ROOT = "/"


def main_model_cleanup(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Observe, plan, apply."""
    host = Host()
    if not host.is_root:
        raise KproError("the node's guests and processes", "the module does not run as root", "Use a root login on the node, or become")
    options = RemovalOptions(
        tuple(params["leaving"]),
        tuple(params["mounts"]),
        params["store"],
        params["repository"],
        commits_of(params["repository"], params["revision"], params["locked"]),
        params["allow_shared"],
        tuple(params["other_users"]),
    )
    return clean_up(options, host.node, HOST_ROOT, apply=not check_mode)


def main() -> None:
    """Run the module."""
    run_module(main_model_cleanup, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
