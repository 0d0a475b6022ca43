# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of the stand-in that no recording shows: what goes to LXC and into the guest, the order at boot, the PCI list."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from kpro_standin_pve import api, config_file, guest_files, lifecycle, lxc_config, node  # noqa: E402
from kpro_standin_pve.errors import ApiError  # noqa: E402
from replay import inline  # noqa: E402

CONFIG = """arch: amd64
dev0: /dev/nvidia0,deny-write=1
features: nesting=1
hostname: llm.example.test
mp0: /srv/a b,mp=/srv/models,ro=1
mp10: /srv,mp=/late
mp2: /srv,mp=/early
net0: name=eth0,bridge=vmbr0,gw=192.0.2.1,hwaddr=BC:24:11:00:00:01,ip=192.0.2.5/24,mtu=1400,type=veth
ostype: debian
rootfs: local:900/vm-900-disk-0.raw,size=1G
unprivileged: 1
lxc.prlimit.nofile: 1048576
"""


@pytest.fixture
def here(tmp_path: Path) -> node.Node:
    inline.lay_out(tmp_path)
    (tmp_path / "srv/a b").mkdir()
    return inline.make_node(tmp_path)[0]


def generated(here: node.Node, text: str) -> list[str]:
    return lxc_config.generate(here, "900", config_file.parse(text, "900")).splitlines()


def test_an_unprivileged_container_is_mapped_and_its_device_list_left_open(here: node.Node) -> None:
    lines = generated(here, CONFIG)
    assert "lxc.idmap = u 0 100000 65536" in lines
    assert "lxc.cgroup2.devices.allow = a" in lines
    assert "lxc.cgroup2.devices.deny = c 1:3 w" in lines  # the device of the temporary folder is /dev/null
    assert f"lxc.mount.entry = {here.root}/var/lib/lxc/900/passthrough/dev/nvidia0 dev/nvidia0 none bind,create=file 0 0" in lines


def test_a_privileged_container_gets_rules_only(here: node.Node) -> None:
    lines = generated(here, CONFIG.replace("unprivileged: 1\n", ""))
    assert not [line for line in lines if line.startswith("lxc.idmap") or line.endswith("allow = a")]
    assert "lxc.cgroup2.devices.allow = c 1:3 r" in lines


@pytest.mark.parametrize("level", ["unprivileged: 1\n", ""])
def test_a_map_of_its_own_replaces_the_default_one_at_either_level(here: node.Node, level: str) -> None:
    own = ["u 0 200000 1000", "u 1000 1000 1", "g 0 300000 65536"]
    text = CONFIG.replace("unprivileged: 1\n", level) + "".join(f"lxc.idmap: {line}\n" for line in own)
    lines = generated(here, text)
    assert [line for line in lines if line.startswith("lxc.idmap")] == [f"lxc.idmap = {line}" for line in own]
    assert f"lxc.include = {lxc_config.INCLUDES}/userns.conf" in lines
    assert lxc_config.root_ids(config_file.parse(text, "900")) == (200000, 300000)


def test_a_map_without_a_line_for_the_root_leaves_it_at_0(here: node.Node) -> None:
    text = f"{CONFIG}lxc.idmap: g 0 100000 65536\n"
    assert [line for line in generated(here, text) if line.startswith("lxc.idmap")] == ["lxc.idmap = g 0 100000 65536"]
    assert lxc_config.root_ids(config_file.parse(text, "900")) == (0, 100000)


def test_a_map_for_both_kinds_is_not_read(here: node.Node) -> None:
    with pytest.raises(ApiError, match="failed to parse idmap: b 0 100000 65536"):
        generated(here, f"{CONFIG}lxc.idmap: b 0 100000 65536\n")


def test_mount_points_keep_blanks_and_come_by_number(here: node.Node) -> None:
    entries = [line for line in generated(here, CONFIG) if line.startswith("lxc.mount.entry = /srv")]
    assert entries == [
        "lxc.mount.entry = /srv/a\\040b srv/models none bind,ro,create=dir 0 0",
        "lxc.mount.entry = /srv early none bind,create=dir 0 0",
        "lxc.mount.entry = /srv late none bind,create=dir 0 0",
    ]


def test_raw_lines_come_after_the_generated_ones_and_proc_is_always_there(here: node.Node) -> None:
    lines = generated(here, CONFIG)
    assert lines.index("lxc.prlimit.nofile = 1048576") > lines.index("lxc.net.0.mtu = 1400")
    assert "lxc.mount.entry = /run/kpro-standin/proc/driver proc/driver none bind,ro,optional 0 0" in lines
    assert "lxc.mount.entry = /run/kpro-standin/proc/devices proc/devices none bind,ro,optional 0 0" in lines


def test_networkd_and_ifupdown_get_the_same_address() -> None:
    parts = {"name": "eth0", "ip": "192.0.2.5/24", "gw": "192.0.2.1"}
    assert "Address = 192.0.2.5/24\nGateway = 192.0.2.1\n" in guest_files.networkd_unit(parts)
    assert "iface eth0 inet static\n\taddress 192.0.2.5/24\n\tgateway 192.0.2.1\n" in guest_files.interfaces([parts])
    assert "DHCP = ipv4" in guest_files.networkd_unit({"name": "eth0", "ip": "dhcp"})
    assert "iface eth0 inet dhcp\n" in guest_files.interfaces([{"name": "eth0", "ip": "dhcp"}])


def test_a_block_in_a_guest_file_is_replaced_and_the_rest_kept() -> None:
    once = guest_files.replace_block("127.0.0.1 localhost", "192.0.2.5 a\n")
    twice = guest_files.replace_block(f"{once}192.0.2.9 mine\n", "192.0.2.6 b\n")
    assert twice == "127.0.0.1 localhost\n# --- BEGIN PVE ---\n192.0.2.6 b\n# --- END PVE ---\n192.0.2.9 mine\n"


def test_a_link_in_the_guest_is_replaced_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("untouched", encoding="ascii")
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/hostname").symlink_to(outside)
    guest_files.Guest(root, root.stat().st_uid).write("/etc/hostname", "llm\n")
    assert outside.read_text(encoding="ascii") == "untouched"
    assert (root / "etc/hostname").read_text(encoding="ascii") == "llm\n"


def test_guests_start_by_order_then_number_and_only_with_onboot(here: node.Node) -> None:
    for vmid, lines in {"100": "onboot: 1", "101": "onboot: 1\nstartup: order=2,up=3", "102": "startup: order=1", "103": "onboot: 1\nstartup: 1"}.items():
        here.config_path(vmid).write_text(f"{lines}\n", encoding="ascii")
    assert lifecycle.boot_order(here) == [("103", 0), ("101", 3), ("100", 0)]


def test_cards_are_pci_devices_with_numbers_as_text(here: node.Node) -> None:
    state = {"gpus": [{"name": "A6000", "bus_id": "0000:41:00.0", "pci_id": "0x223010de"}, {"name": "B", "bus_id": "0000:61:00.0", "lost": True}]}
    (here.root / "etc/kpro-standin").mkdir()
    (here.root / "etc/kpro-standin/gpu.json").write_text(json.dumps(state), encoding="ascii")
    rows = api.call(here, "GET", "/nodes/pve1/hardware/pci", {})
    assert [(row["id"], row["vendor"], row["device"]) for row in rows] == [("0000:41:00.0", "0x10de", "0x2230")]


def test_it_claims_another_version_only_if_told_to(here: node.Node) -> None:
    assert node.claimed_version(here.root) == ""
    (here.root / "etc/kpro-standin").mkdir()
    (here.root / node.SETTINGS).write_text('{"version": "7.4-17"}', encoding="ascii")
    here.claimed_version = node.claimed_version(here.root)
    assert (here.version, here.release) == ("7.4-17", "7.4")


def test_a_machine_that_claims_a_card_is_seen(here: node.Node) -> None:
    folder = here.root / "etc/pve/nodes/pve1/qemu-server"
    folder.mkdir()
    (folder / "200.conf").write_text("name: games\nhostpci0: 0000:41:00,pcie=1\n", encoding="ascii")
    assert api.call(here, "GET", "/nodes/pve1/qemu", {})[0]["name"] == "games"
    assert api.call(here, "GET", "/nodes/pve1/qemu/200/config", {})["hostpci0"] == "0000:41:00,pcie=1"


def test_a_call_that_only_proxmox_has_says_so(here: node.Node) -> None:
    with pytest.raises(ApiError, match="not provided by the kpro stand-in") as refused:
        api.call(here, "DELETE", "/nodes/pve1/tasks/UPID:x", {})
    assert refused.value.status == 501


@pytest.mark.parametrize(("text", "major"), [("12.12\n", "12"), ("13.1\n", "13"), ("bookworm/sid\n", "12"), ("forky/sid\n", "13")])
def test_the_release_follows_debian(tmp_path: Path, text: str, major: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/debian_version").write_text(text, encoding="ascii")
    assert node.debian_major(tmp_path) == major
