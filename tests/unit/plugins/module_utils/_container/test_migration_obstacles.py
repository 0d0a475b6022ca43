# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.kpro.llm.plugins.module_utils._container.migration_obstacles import obstacles, passed_paths
from ansible_collections.kpro.llm.plugins.module_utils._pve.config import Config
from ansible_collections.kpro.llm.plugins.module_utils._pve.idmap import FileState
from ansible_collections.kpro.llm.tests.unit.plugins.module_utils.pve_recordings import failure_case

FOLDER = FileState("/tank/models", "folder", 0o755)


def test_a_local_bind_mount_is_named_and_never_detached() -> None:
    """LLMX-103."""
    case = failure_case("LLMX-103")
    config = Config(case["repro"]["config"])
    (sentence,) = obstacles(config, "node-b", {"/tank/models": FOLDER})
    assert all(word in sentence for word in case["expect"]["must_mention"])
    assert "node-b has /tank/models" in sentence and "shared=1" in sentence
    assert not any(word in sentence for word in ("delete", "remove", "detach"))
    (sentence,) = obstacles(config, "node-b", {"/tank/models": FileState("/tank/models", "absent")})
    assert "node-b lacks /tank/models" in sentence and "copy it there first" in sentence


def test_a_device_that_the_target_lacks_is_named() -> None:
    """LLMX-081."""
    case = failure_case("LLMX-081")
    config = Config(case["repro"]["config"])
    there = {f"/dev/{name}" for name in case["repro"]["target_ls_dev"]}
    paths = {path: FileState(path, "device" if path in there else "absent") for path in passed_paths(config)}
    (sentence,) = obstacles(config, "node-b", paths)
    assert all(word in sentence for word in case["expect"]["must_mention"])
    assert "start there would fail" in sentence


def test_shared_mounts_and_volumes_are_in_nobodys_way() -> None:
    config = Config({"mp0": "/tank/models,mp=/models,shared=1", "mp1": "local-zfs:subvol-1-disk-1,mp=/data,size=8G"})
    assert obstacles(config, "node-b", {}) == [] and passed_paths(config) == {"/tank/models"}


def test_a_raw_mount_whose_source_the_target_lacks_is_named() -> None:
    """A file of the node's driver, of another version there, as one that a person mounted."""
    lines = (
        "/usr/lib/libcuda.so.580.126 usr/lib/libcuda.so.1 none bind,ro",
        "/dev/nvidia0 dev/nvidia0 none bind,optional",
        "/srv/x srv/x none bind",
        "proc proc proc",
    )
    config = Config({}, tuple(("lxc.mount.entry", line) for line in lines))
    assert passed_paths(config) == {"/usr/lib/libcuda.so.580.126", "/srv/x"}
    paths = {"/usr/lib/libcuda.so.580.126": FileState("", "absent"), "/srv/x": FOLDER}
    (sentence,) = obstacles(config, "node-b", paths)
    assert "/usr/lib/libcuda.so.580.126" in sentence and "a start there would fail" in sentence
