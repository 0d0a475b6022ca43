# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a member of a cluster says and refuses when the others don't answer. With others that do: tests/integration/test_two_nodes.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from kpro_standin_pve import api, cluster, migrate, node, storage, store  # noqa: E402
from kpro_standin_pve.errors import ApiError  # noqa: E402
from replay import inline  # noqa: E402

CONFIG = "arch: amd64\nhostname: ct\nostype: debian\nrootfs: local:900/vm-900-disk-0.raw,size=1G\n"
DEAD = "127.99.99.99"


@pytest.fixture
def here(tmp_path: Path) -> node.Node:
    """Return a node whose cluster has a second one that never answers."""
    inline.lay_out(tmp_path)
    for number, name in enumerate(("pve1", "pve2"), start=1):
        folder = tmp_path / "etc/pve/nodes" / name
        folder.mkdir(exist_ok=True)
        (folder / cluster.MEMBER_FILE).write_text(json.dumps({"address": DEAD, "number": number}), encoding="ascii")
    made = inline.make_node(tmp_path)[0]
    made.config_path("900").write_text(CONFIG, encoding="ascii")
    return made


def test_one_of_two_has_no_quorum_and_writes_nothing(here: node.Node) -> None:
    rows = api.call(here, "GET", "/cluster/status", {})
    assert [(row["type"], row.get("quorate"), row.get("online")) for row in rows] == [("cluster", 0, None), ("node", None, 1), ("node", None, 0)]
    with pytest.raises(ApiError, match=r"cluster not ready - no quorum\?"):
        api.call(here, "PUT", "/nodes/pve1/lxc/900/config", {"memory": "600"})
    assert here.config_path("900").read_text(encoding="ascii") == CONFIG
    outcome = api.call(here, "POST", "/nodes/pve1/lxc/900/status/start", {})
    assert outcome.exitstatus == cluster.NO_QUORUM
    assert api.call(here, "GET", "/nodes/pve1/lxc/900/config", {})["hostname"] == "ct", "reading needs none"


def test_expected_votes_stand_for_a_quorum(here: node.Node) -> None:
    (here.root / "etc/kpro-standin").mkdir()
    (here.root / node.SETTINGS.lstrip("/")).write_text('{"expected_votes": 1}', encoding="ascii")
    api.call(here, "PUT", "/nodes/pve1/lxc/900/config", {"memory": "600"})
    assert store.load(here, "900").current.values["memory"] == "600"


def test_a_guest_of_a_silent_node_is_known_by_its_file_only(here: node.Node) -> None:
    folder = here.root / "etc/pve/nodes/pve2/lxc"
    folder.mkdir()
    (folder / "901.conf").write_text(CONFIG, encoding="ascii")
    rows = {row["vmid"]: (row["node"], row["status"]) for row in api.call(here, "GET", "/cluster/resources", {"type": "vm"})}
    assert rows == {900: ("pve1", "stopped"), 901: ("pve2", "unknown")}
    assert api.call(here, "GET", "/cluster/nextid", {"vmid": "902"}) == "902"
    with pytest.raises(ApiError):
        api.call(here, "GET", "/cluster/nextid", {"vmid": "901"})
    assert api.call(here, "GET", "/nodes/pve1/lxc/900/migrate", {}) == {"running": 0, "allowed-nodes": [], "not-allowed-nodes": {}}


@pytest.mark.parametrize(
    ("mapping", "target"), [(None, "local-zfs"), ("1", "local-zfs"), ("fast", "fast"), ("local-zfs:fast", "fast"), ("other:fast", "local-zfs")]
)
def test_a_volume_goes_where_the_mapping_says(mapping: str | None, target: str) -> None:
    assert migrate.mapped_storage(mapping, "local-zfs") == target


def test_a_storage_is_on_the_nodes_that_it_names(here: node.Node) -> None:
    text = "dir: a\n\tpath /a\n\tnodes pve2\n\ndir: b\n\tpath /b\n\tnodes pve1,pve2\n"
    (here.root / "etc/pve/storage.cfg").write_text(text, encoding="ascii")
    assert list(storage.storages(here)) == ["b", "local"]
