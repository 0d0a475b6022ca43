# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A store that is removed, made anew or mounted anew on the node under a running container: real mounts, a real kernel's words."""

from __future__ import annotations

import json
import os
import re
import subprocess
import typing as t
from collections.abc import Callable

import pytest

import lanes
from conftest import ROOT, VMID, Node

pytestmark = pytest.mark.sandbox
STORE = "/srv/kpro-test-store"
TMPFS = f"mount -t tmpfs -o mode=755,uid=100000,gid=100000 tmpfs {STORE}"
HARMS = {
    "removed": f"rm -rf {STORE}",
    "made anew": f"rm -rf {STORE}; mkdir {STORE}; chown 100000:100000 {STORE}",
    "renamed": f"rm -rf {STORE}.old; mv {STORE} {STORE}.old; mkdir {STORE}; chown 100000:100000 {STORE}",
    # A file system that comes on top of a plain folder reaches the container by itself (mounts propagate); one in place of another does not.
    "mounted anew": f"umount {STORE}; {TMPFS}",
}


@pytest.fixture
def ask(node: Node) -> Callable[..., dict[str, t.Any]]:
    ansible = lanes.environment(lanes.available()[-1], "dev") / "bin" / "ansible"

    def asked(host: str, module: str, check: bool = False, **options: t.Any) -> dict[str, t.Any]:
        argv = [ansible, host, "-i", node.inventory, "-m", f"kpro.llm.{module}", "-a", json.dumps(options), *(["--check"] if check else [])]
        env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_FORCE_COLOR": "0"}
        shown = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, cwd="/").stdout
        found = re.search(rf"^{host} \| (\w+)!? => (\{{.*?^\}})", shown, re.MULTILINE | re.DOTALL)
        assert found, shown
        return {**json.loads(found[2]), "failed": found[1] == "FAILED"}

    return asked


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_store_that_the_container_sees_no_more_is_found_and_mended(node: Node, ask: Callable[..., dict[str, t.Any]], harm: str) -> None:
    node.run(f"while mountpoint -q {STORE}; do umount {STORE}; done; mkdir -p {STORE}; chown 100000:100000 {STORE}")
    if "mount" in harm:
        node.run(TMPFS)
        node.run(f"pct status {VMID} | grep -q stopped || pct stop {VMID}; pct start {VMID}")
    wanted = {"vmid": VMID, "adopt": True, "mounts": [{"source": STORE, "target": "/srv/models"}]}
    made = ask("node", "lxc_container", restart=True, **wanted)
    assert not made["failed"], made
    sound = ask("node", "lxc_container", check=True, **wanted)
    assert not sound["restart_needed"] and not sound["changed"], sound
    node.run(harm)
    found = ask("node", "lxc_container", check=True, **wanted)
    assert found["restart_needed"] and found["waiting"] == ["mp0"] and "/srv/models" in " ".join(found["notes"]), found
    if "rm -rf" in harm and ".old" not in harm:
        refused = ask("container", "hf_model", repository="org/model", revision="0" * 40, store="/srv/models", endpoint="http://127.0.0.1:9")
        assert refused["failed"] and "removed from the node" in refused["msg"] and "gpu_container__restart" in refused["msg"], refused
    mended = ask("node", "lxc_container", restart=True, **wanted)
    assert not mended["failed"] and not mended["restart_needed"], mended
    node.run(f"lxc-attach -n {VMID} --clear-env -- touch /srv/models/it-works && test -e {STORE}/it-works")
    assert not ask("node", "lxc_container", check=True, **wanted)["restart_needed"]
