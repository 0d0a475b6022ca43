#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep a model of a hub in a folder."""

from __future__ import annotations

DOCUMENTATION = r"""
module: hf_model
short_description: Keep a model of a hub in a folder, complete and verified
version_added: 1.0.0
description:
  - Brings the files of one commit of a model repository into a folder of their own, checks each against the hub's hash, and keeps them so.
  - The folder appears under its name only when every selected file is there and right.
  - The download runs in a transient systemd unit. It survives a lost connection, and goes on where it stopped after a kill or a reboot
    of the target; at most 64 MiB are fetched twice.
  - An unchanged snapshot is confirmed from sizes and modification times without the hub, if O(revision) is a commit.
  - The standard library of Python is all that the target needs.
extends_documentation_fragment: [kpro.llm.attributes]
author: kpro (@kpro)
options:
  repository:
    description: Repository on the hub, as C(ORG/NAME).
    type: str
    required: true
  revision:
    description: Branch, tag or full commit id. A branch is resolved on each run; the commit is in RV(commit).
    type: str
    default: main
  store:
    description:
      - Folder of the snapshots. The model lies in C(STORE/ORG--NAME@COMMIT) with the first 12 digits of the commit.
      - It must be a folder for models only, as downloads on the way lie in C(.incoming) below it.
    type: path
    default: /srv/models
  include:
    description:
      - Glob patterns of the paths to fetch, and then exactly these.
      - None means the weights that the engine loads, and all that is no weights. Left out are a second family of the same weights
        (C(consolidated.safetensors), a C(fp16) variant), other formats (GGUF, ONNX, C(*.pth)) and weights in folders; RV(left_out) says what.
        A repository without weights for the engine is refused before anything is fetched. V(['*']) fetches all.
    type: list
    elements: str
    default: []
  exclude:
    description: Glob patterns of the paths to leave out.
    type: list
    elements: str
    default: []
  only:
    description:
      - V(commit) changes nothing and resolves O(revision).
      - V(config) changes nothing and returns RV(config) and RV(weights), read from the snapshot or from a few small answers of the hub.
    type: str
    choices: [all, config, commit]
    default: all
  known:
    description:
      - With O(only=config), what this module said with O(only=config) on another node that has the model. Nobody is asked then, and only
        C(missing_bytes) and C(free_bytes) are of this target.
    type: dict
    default: {}
  verify:
    description:
      - V(changed) reads the content of files that are new or whose size or modification time changed.
      - V(all) reads all files.
    type: str
    choices: [changed, all]
    default: changed
  sources:
    description:
      - Other places that may have the files, tried in this order before the hub. An absolute path on the target, C(ssh://[USER@]HOST[:PORT]/PATH)
        (with the keys and known hosts of the target's user), or the C(http(s)) address of plain files.
      - Each is a store that has the snapshot's folder, or a folder of the files themselves. Content is checked as if it came from the hub.
      - If O(revision) is a commit and the hub does not answer, the manifest that lies beside the files tells what belongs to the commit.
      - A source is left for the next place only if it lacks a file, refuses the login, or brings no byte for a minute (10 s if it never did), and is
        tried again a minute later. A source that was of no use is a warning.
    type: list
    elements: str
    default: []
  offline:
    description:
      - Never ask the hub. O(revision) must be a commit, O(sources) must hold it with its manifest, and nothing else is asked.
    type: bool
    default: false
  ssh_key_file:
    description: File on the target with the private key for C(ssh://) sources. Empty means the keys of the target's root user.
    type: path
    default: ""
  ssh_known_hosts_file:
    description: File on the target with the host keys of C(ssh://) sources. Empty means those that the target's root user knows.
    type: path
    default: ""
  endpoint:
    description: Address of the hub. Empty means the environment variable E(HF_ENDPOINT) of the target, or else the public hub.
    type: str
    default: ""
  token:
    description: Access token for gated and private repositories. It reaches the worker in a file that only root can read.
    type: str
    default: ""
  ca_bundle:
    description: File on the target with the certificates to trust. Empty means those of the system.
    type: str
    default: ""
  connections:
    description: How many parts are fetched at once.
    type: int
    default: 8
  reserve_mib:
    description: Space in MiB that has to stay free beyond what is fetched.
    type: int
    default: 1024
  stall_s:
    description: Seconds without a byte after which a connection is given up and another one opened.
    type: int
    default: 30
  patience_s:
    description: Seconds without a single byte after which the download is given up.
    type: int
    default: 900
  poll_s:
    description: Seconds that one call waits for the end of the work.
    type: int
    default: 10
"""

EXAMPLES = r"""
- name: Keep the model that is served
  kpro.llm.hf_model:
    repository: Qwen/Qwen3.6-27B
    revision: main
    store: /srv/models

- name: Take the model from the old node, and only what it lacks from the hub
  kpro.llm.hf_model:
    repository: Qwen/Qwen3.6-27B
    sources: [ssh://root@kpro6/srv/models]

- name: Learn the shape of a model before its weights are fetched
  kpro.llm.hf_model:
    repository: Qwen/Qwen3.6-27B
    only: config
"""

RETURN = r"""
path:
  description: Folder of the snapshot.
  returned: always
  type: str
  sample: /srv/models/kpro--tiny-qwen3_5@61c730d05ca9
repository:
  description: The repository.
  returned: always
  type: str
  sample: kpro/tiny-qwen3_5
commit:
  description: The commit that O(revision) stands for.
  returned: always
  type: str
  sample: 61c730d05ca9442da241f060ac94334938dd1a7c
size_bytes:
  description: Size of the selected files.
  returned: unless O(only=commit)
  type: int
  sample: 2812243
left_out:
  description: A sentence for each kind of weights that the engine does not load.
  returned: unless O(only=commit)
  type: list
  elements: str
  sample: ["consolidated.safetensors (29.5 GB): the index does not name it"]
config:
  description: The model's C(config.json).
  returned: if O(only=config)
  type: dict
  sample: {model_type: qwen3_5}
weights:
  description: Bytes and parameters by element type, and the number of tensors, from the headers of the safetensors files.
  returned: if O(only=config)
  type: dict
  sample: {bytes_by_dtype: {BF16: 2787712}, parameters_by_dtype: {BF16: 1393856}, tensors: 77}
plan:
  description: What was done or would be done, one sentence each.
  returned: always
  type: list
  elements: str
  sample: ["Download kpro/tiny-qwen3_5 to /srv/models/kpro--tiny-qwen3_5@61c730d05ca9"]
origins:
  description: Bytes that came from each place, by the address of the source or of the hub.
  returned: if something was fetched
  type: dict
  sample: {"ssh://root@kpro6/srv/models": 2812243}
finished:
  description: Whether the work is over; if not, call again with the same options. The action plugin does that.
  returned: always
  type: bool
  sample: true
progress:
  description: How far the work is.
  returned: if RV(finished) is false
  type: str
  sample: Downloading 42 % of 55.6 GB, 6 of 29 files, 108 MB/s, 5 min left
"""

import typing as t

from ..module_utils._core.module import run_module
from ..module_utils._model.ensure import ModelOptions, describe, describe_as, ensure, resolve

SPEC: dict[str, t.Any] = {
    "repository": {"type": "str", "required": True},
    "revision": {"type": "str", "default": "main"},
    "store": {"type": "path", "default": "/srv/models"},
    "include": {"type": "list", "elements": "str", "default": []},
    "exclude": {"type": "list", "elements": "str", "default": []},
    "only": {"type": "str", "choices": ["all", "config", "commit"], "default": "all"},
    "known": {"type": "dict", "default": {}},
    "verify": {"type": "str", "choices": ["changed", "all"], "default": "changed"},
    "sources": {"type": "list", "elements": "str", "default": []},
    "offline": {"type": "bool", "default": False},
    "endpoint": {"type": "str", "default": ""},
    "token": {"type": "str", "default": "", "no_log": True},
    "ca_bundle": {"type": "str", "default": ""},
    "connections": {"type": "int", "default": 8},
    "reserve_mib": {"type": "int", "default": 1024},
    "stall_s": {"type": "int", "default": 30},
    "patience_s": {"type": "int", "default": 900},
    "poll_s": {"type": "int", "default": 10},
    "ssh_key_file": {"type": "path", "default": "", "no_log": False},
    "ssh_known_hosts_file": {"type": "path", "default": ""},
}


def run(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Answer one call."""
    values = dict(params)
    only, known = values.pop("only"), values.pop("known")
    values |= {"include": tuple(values["include"]), "exclude": tuple(values["exclude"]), "sources": tuple(values["sources"])}
    options = ModelOptions(**values)
    if only == "all":
        return ensure(options, apply=not check_mode)
    if only == "commit":
        return resolve(options)
    return describe_as(options, known) if known else describe(options)


def main() -> None:
    run_module(run, SPEC)


if __name__ == "__main__":
    main()
