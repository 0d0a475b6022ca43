# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import fcntl
import os
import time
import typing as t

import pytest

from ansible_collections.kpro.llm.tests.unit.plugins.module_utils.pve_recordings import failure_case
from ansible_collections.kpro.llm.tests.unit.plugins.modules.lxc_node import GPUS, NVIDIA_NODES, LxcNode

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes and gives folders away")

HAND_MADE = """\
#made by hand
arch: amd64
cores: 8
features: keyctl=1,nesting=1
hostname: llm
memory: 4096
net0: name=eth0,bridge=vmbr0,firewall=1,gw=10.77.0.1,hwaddr=BC:24:11:AA:BB:CC,ip=10.77.0.50/24,type=veth
ostype: debian
rootfs: local-zfs:subvol-129-disk-0,size=8G
swap: 512
lxc.cgroup2.devices.allow: c 195:* rwm
lxc.cgroup2.devices.allow: c 507:* rwm
lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file
lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file
lxc.prlimit.memlock: unlimited
"""
OURS = """\
arch: amd64
hostname: qwen
memory: 2048
net0: name=eth0,bridge=vmbr0,hwaddr=BC:24:11:AA:BB:CC,ip=dhcp,type=veth
ostype: debian
rootfs: local-zfs:subvol-129-disk-0,size=2G
swap: 0
tags: kpro-llm
unprivileged: 1
"""
NVIDIA = "dev0: /dev/nvidia0,mode=0666\ndev1: /dev/nvidiactl,mode=0666\ndev2: /dev/nvidia-uvm,mode=0666\ndev3: /dev/nvidia-uvm-tools,mode=0666\n"


def refused(node: LxcNode, *words: str, **options: t.Any) -> dict[str, t.Any]:
    """Run the usual declaration, which must end in an error that has these words, with nothing changed."""
    before = {path: path.read_text(encoding="utf-8") for path in (node.root / "etc/pve").rglob("*.conf")}
    result = node.deploy(**options)
    assert result.get("failed"), result
    assert all(word in result["msg"] for word in words), result["msg"]
    assert {path: path.read_text(encoding="utf-8") for path in (node.root / "etc/pve").rglob("*.conf")} == before
    assert node.writes() == []
    return result


def as_foretold(node: LxcNode, **options: t.Any) -> dict[str, t.Any]:
    """Run in check mode, for real, and again: the same plan, nothing touched before, nothing left after."""
    foretold = node.deploy(check=True, **options)
    assert not foretold.get("failed"), foretold
    assert node.writes() == []
    done = node.deploy(**options)
    assert not done.get("failed"), done
    assert (done["plan"], done["diff"]) == (foretold["plan"], foretold["diff"])
    again = node.deploy(**options)
    assert again.get("plan") == [], again
    return done


# --- a new container ---------------------------------------------------------------------------------------------------


def test_a_new_container_is_made_started_and_then_left_alone(node: LxcNode) -> None:
    made = as_foretold(node)
    assert made["changed"] and node.is_running() and made["running"] and made["address"] == "10.77.0.129"
    assert made["devices"] == ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert [gpu["uuid"] for gpu in made["gpus"]] == ["GPU-aaaa"] and made["gpus"][0]["memory_mib"] == 49140
    config = node.config()
    for line in (*NVIDIA.splitlines(), "features: nesting=1", "hostname: qwen", "tags: kpro-llm", "unprivileged: 1", "swap: 0"):
        assert line in config.splitlines(), config
    owner = (node.root / "srv/models").stat()
    assert (owner.st_uid, owner.st_gid, owner.st_mode & 0o777) == (100000, 100000, 0o755)


def test_a_run_without_changes_costs_four_reads(node: LxcNode) -> None:
    node.deploy()
    before = len(node.calls())
    assert node.deploy()["notes"] == []
    assert [argv[0] for argv in node.calls()[before:]] == ["get"] * 4


def test_what_the_creation_left_out_is_added_in_the_same_run(node: LxcNode) -> None:
    """LLMX-012."""
    node.faults(create_drops=["dev0", "dev1", "cores"])
    result = node.deploy()
    assert "dev0" in result["notes"][0] and "missing after creation" in result["notes"][0]
    assert "dev0: /dev/nvidia0,mode=0666" in node.config() and "cores: 2" in node.config()
    node.faults()
    assert node.deploy()["changed"] is False


def test_a_lost_answer_to_the_creation_is_looked_up(node: LxcNode) -> None:
    """LLMX-100: the lock could not be had, yet the container is there."""
    node.faults(lost_answer=f"create /nodes/{node.name}/lxc")
    result = node.deploy()
    assert not result.get("failed"), result
    assert "can't lock file" in result["notes"][0] and "129" in result["notes"][0]
    assert len([argv for argv in node.calls("create") if argv[1].endswith("/lxc")]) == 1


def test_pve_8_gets_its_privilege_level_spelled_out(node: LxcNode) -> None:
    node.release("12")
    assert node.deploy()["unprivileged"] is True
    assert "unprivileged: 1" in node.config()
    assert node.deploy()["changed"] is False


def test_a_missing_template_is_downloaded(node: LxcNode) -> None:
    name = "debian-13-standard_13.1-1_amd64.tar.zst"
    node.offers(name)
    result = as_foretold(node, template=name)
    assert result["plan"][0] == f"Download template {name} to local"
    assert (node.root / f"var/lib/vz/template/cache/{name}").exists()


def test_an_index_that_was_never_fetched_is_fetched_to_look(node: LxcNode) -> None:
    name = "debian-13-standard_13.1-1_amd64.tar.zst"
    node.index_comes_with_update(name)
    assert as_foretold(node, template=name)["plan"][0] == f"Download template {name} to local"


def test_an_unknown_template_is_refused_though_the_index_was_never_fetched(node: LxcNode) -> None:
    node.index_comes_with_update("debian-13-standard_13.1-1_amd64.tar.zst")
    words = ("debian-13-standard_13.9-1_amd64.tar.zst", "neither stored", "Near it: ", "debian-13-standard_13.1-1_amd64.tar.zst")
    refused(node, *words, template="debian-13-standard_13.9-1_amd64.tar.zst")


def test_a_template_that_no_index_tells_of_is_refused(node: LxcNode) -> None:
    refused(node, "debian-13-standard_13.9-1_amd64.tar.zst", "index of templates is empty", "pveam update", template="debian-13-standard_13.9-1_amd64.tar.zst")


def test_a_dhcp_address_is_waited_for_only_while_it_may_come(node: LxcNode) -> None:
    result = node.deploy(check=True, network={"bridge": "vmbr0", "ip": "dhcp"})
    assert result["address"] == ""


# --- bad input: a clear error, nothing changed -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"storage": "fast"}, ("storage 'fast'", "no such storage", "local-zfs")),
        ({"storage": "local"}, ("storage 'local'", "not for content 'rootdir'")),
        ({"template_storage": "fast"}, ("storage 'fast'",)),
        ({"template": "debian-99-standard_1_amd64.tar.zst"}, ("debian-99-standard_1_amd64.tar.zst", "neither stored")),
        ({"gpus": 3}, ("3 GPUs", "GPU-aaaa", "GPU-bbbb")),
        ({"gpus": ["GPU-cccc"]}, ("GPU 'GPU-cccc'", "no such GPU")),
        ({"gpus": [7]}, ("GPU '7'", "no such GPU")),
        ({"gpus": "all", "node_gpus": []}, ("no GPU at all",)),
        ({"network": {"bridge": "vmbr7", "ip": "dhcp"}}, ("bridge 'vmbr7'", "no such bridge")),
        ({"network": {"bridge": "vmbr0", "ip": "dhcp", "gw": "10.0.0.1"}}, ("gateway 10.0.0.1", "static ip")),
        ({"device_mode": "666"}, ("device mode '666'", "four octal digits")),
        ({"rootfs_gib": None}, ("rootfs_gib is not declared",)),
        ({"mounts": [{"source": "/srv/a", "target": "srv"}]}, ("target 'srv'", "absolute")),
        ({"mounts": [{"source": "/srv/a", "target": "/m"}, {"source": "/srv/b", "target": "/m/"}]}, ("declared twice",)),
        ({"options": {"memory": 17}}, ("option 'memory'",)),
        ({"options": {"lxc.idmap": "u 0 1 2"}}, ("option 'lxc.idmap'", "raw_lines")),
        ({"options": {"dev9": "/dev/null"}}, ("option 'dev9'",)),
    ],
)
def test_bad_input_is_named_before_anything_changes(node: LxcNode, options: dict[str, t.Any], words: tuple[str, ...]) -> None:
    node.offers("debian-13-standard_13.1-1_amd64.tar.zst")
    refused(node, *words, **options)
    assert not (node.root / "srv/models").exists()


def test_an_id_of_a_vm_is_refused(node: LxcNode) -> None:
    node.has("name: win\n", kind="qemu-server")
    refused(node, "id 129", "taken by the VM")


def test_an_id_of_a_foreign_container_is_refused(node: LxcNode) -> None:
    node.has(HAND_MADE)
    refused(node, "container 129 (llm)", "made by somebody else", "adopt: true")


def test_a_device_node_that_is_missing_is_named(node: LxcNode) -> None:
    (node.root / "dev/nvidia-uvm").unlink()
    refused(node, "/dev/nvidia-uvm", "no such device node", "gpu_node")


def test_a_device_node_that_is_a_file_is_named(node: LxcNode) -> None:
    """LLMX-142: left by an old bind mount."""
    node.has(f"{OURS}dev0: /dev/dri/renderD128,gid=104\n")
    node.file("dev/dri/renderD128", "").chmod(0)
    message = refused(node, "/dev/dri/renderD128", "is a file, not a device", gpus=None)["msg"]
    assert "chmod" not in message


def test_a_device_of_the_container_that_this_node_lacks_stops_the_start(node: LxcNode) -> None:
    """LLMX-081: moved to a node with fewer GPUs."""
    node.has(f"{OURS}{NVIDIA}dev4: /dev/nvidia1,mode=0666\n")
    (node.root / "dev/nvidia1").unlink()
    refused(node, "/dev/nvidia1", node.name, "no such device node", gpus=None)
    assert not node.is_running()


def test_a_gpu_of_another_container_is_refused_by_name_and_passed_over_by_count(node: LxcNode) -> None:
    node.has(f"hostname: llm-b\n{NVIDIA}", vmid=210)
    refused(node, "GPU-aaaa", "given to container 210 (llm-b) by dev0", "share_gpus", gpus=["GPU-aaaa"])
    refused(node, "2 GPUs", "1 of 2 are given to other guests", gpus=2)
    assert node.deploy(check=True, gpus=1)["gpus"][0]["uuid"] == "GPU-bbbb"
    assert node.deploy(check=True, gpus=["GPU-aaaa"], share_gpus=True)["gpus"][0]["uuid"] == "GPU-aaaa"


def test_a_gpu_of_a_vm_is_refused(node: LxcNode) -> None:
    node.has("name: win\nhostpci0: 0000:c1:00,pcie=1\n", vmid=300, kind="qemu-server")
    refused(node, "GPU-bbbb", "VM 300 (win) by hostpci0", gpus=["GPU-bbbb"])


# --- drift and repair --------------------------------------------------------------------------------------------------


HOOKED = "hostname: notes\nlxc.hook.mount: /usr/share/lxc/hooks/nvidia\nlxc.environment: NVIDIA_VISIBLE_DEVICES={}\n"
MAPPED = "a6000\n\tmap id=10de:2230,node={},path=0000:41:00.0\n\tmap id=10de:2230,node=far,path=0000:c1:00.0\n"


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        ("lxc", HOOKED.format("all"), "lxc.hook.mount with NVIDIA_VISIBLE_DEVICES=all"),
        ("lxc", HOOKED.format("GPU-aaaa"), "NVIDIA_VISIBLE_DEVICES=GPU-aaaa"),
        ("lxc", "hostname: notes\nlxc.include: /etc/lxc/gpu.conf\n", "lxc.hook.pre-mount with NVIDIA_VISIBLE_DEVICES=0"),
        ("lxc", "hostname: notes\nlxc.cgroup2.devices.allow: c 195:0 rwm\n", "lxc.cgroup2.devices.allow"),
        ("qemu-server", "name: notes\nonboot: 0\nhostpci0: mapping=a6000,pcie=1\n", "hostpci0"),
        ("qemu-server", "name: notes\nhostpci1: 00:1f.3;41:00\n", "hostpci1"),
        ("qemu-server", "name: notes\n[PENDING]\nhostpci0: mapping=a6000\n", "hostpci0 (pending)"),
    ],
)
def test_a_gpu_that_another_guest_has_another_way(node: LxcNode, kind: str, content: str, words: str) -> None:
    """T2-02, and a card that a VM has by a resource mapping."""
    node.file("etc/pve/mapping/pci.cfg", MAPPED.format(node.name))
    node.file("etc/lxc/gpu.conf", "lxc.hook.pre-mount = /usr/share/lxc/hooks/nvidia\nlxc.environment = NVIDIA_VISIBLE_DEVICES=0\n")
    node.has(content, vmid=210, kind=kind)
    who = f"{'VM' if kind == 'qemu-server' else 'container'} 210 (notes) by "
    refused(node, "GPU-aaaa", f"given to {who}", words, gpus=["GPU-aaaa"])
    refused(node, "2 GPUs", who, words, gpus=2)
    if "=all" not in words:
        assert node.deploy(check=True, gpus=1)["gpus"][0]["uuid"] == "GPU-bbbb"
    assert node.deploy(check=True, gpus=["GPU-aaaa"], share_gpus=True)["gpus"][0]["uuid"] == "GPU-aaaa"


def test_files_that_nobody_can_read_as_a_guest_claim_nothing(node: LxcNode) -> None:
    """What is no regular file would block the reader, and what has no number is no guest."""
    os.mkfifo(node.root / "srv/fifo")
    node.has("hostname: a\nlxc.include: /srv/fifo\nlxc.mount.fstab: /dev/zero\n", vmid=211)
    node.has(f"hostname: b\nlxc.include: /{'x' * 5000}\nlxc.include: /a\0b\nlxc.include: relative\nlxc.mount.entry: /a\\000b c\n", vmid=212)
    node.device("dev/zero", 1, 5)
    node.file("etc/pve/lxc/copy-of-212.conf", "dev0: /dev/nvidia0\n")
    node.file("etc/pve/lxc/213.conf", "\0\udcff".encode("utf-8", "surrogatepass").decode("latin-1") + "hostpci0 dev0: lxc.mount.entry")
    (node.root / "etc/pve/mapping").mkdir()
    os.mkfifo(node.root / "etc/pve/mapping/pci.cfg")
    assert node.deploy(check=True)["gpus"][0]["uuid"] == "GPU-aaaa"


def neighbour(vmid: int, gpus: t.Any, name: str = "other", **more: t.Any) -> list[dict[str, t.Any]]:
    return [{"vmid": vmid, "name": name, "gpus": gpus, **more}]


def test_two_containers_that_ask_for_one_gpu_each_get_different_ones(node: LxcNode) -> None:
    second = {"vmid": 130, "hostname": "second", "network": {"bridge": "vmbr0", "ip": "10.77.0.130/24"}, "neighbours": neighbour(129, 1)}
    foretold = [node.deploy(check=True, neighbours=neighbour(130, 1)), node.deploy(check=True, **second)]
    assert [answer["gpus"][0]["uuid"] for answer in foretold] == ["GPU-aaaa", "GPU-bbbb"]
    # The second one first: it takes what is its own all the same.
    done = [node.deploy(**second), node.deploy(neighbours=neighbour(130, 1))]
    assert [answer["gpus"][0]["uuid"] for answer in done] == ["GPU-bbbb", "GPU-aaaa"], done
    assert "dev0: /dev/nvidia1" in node.config(130) and "dev0: /dev/nvidia0" in node.config(129)
    assert [node.deploy(**second)["plan"], node.deploy(neighbours=neighbour(130, 1))["plan"]] == [[], []]


def test_two_of_ours_that_have_one_gpu_are_put_apart(node: LxcNode) -> None:
    """What earlier versions made, and what they then refused for ever."""
    for vmid in (129, 130):
        node.has(OURS.replace("129", str(vmid)) + NVIDIA, vmid=vmid)
    same = {"mounts": None, "network": None, "state": "present", "features": None}
    assert node.deploy(neighbours=neighbour(130, 1), **same)["gpus"][0]["uuid"] == "GPU-aaaa"
    moved = node.deploy(vmid=130, neighbours=neighbour(129, 1), **same)
    assert moved["gpus"][0]["uuid"] == "GPU-bbbb" and "dev0: /dev/nvidia1" in node.config(130), moved


def test_a_conflict_between_two_of_ours_has_both_names(node: LxcNode) -> None:
    refused(node, "container 129", "given to container 130 (other), which asks for it too", "for both", gpus=[0], neighbours=neighbour(130, ["GPU-aaaa"]))
    refused(node, "container 129", "container 128 (other)", gpus=2, neighbours=neighbour(128, 1))
    shared = node.deploy(check=True, gpus=[0], share_gpus=True, neighbours=neighbour(130, [0], share_gpus=True))
    assert shared["gpus"][0]["uuid"] == "GPU-aaaa"
    node.has(OURS.replace("129", "130") + NVIDIA, vmid=130)
    refused(node, "container 130 (other) still has it", "--limit", gpus=[0], neighbours=neighbour(130, [1], in_run=False))


def test_before_there_is_a_driver_the_bus_shows_what_can_be_given(node: LxcNode) -> None:
    cards = [{"bus_id": "0000:c1:00.0", "driver": None}, {"bus_id": "0000:41:00.0", "driver": "nouveau"}]
    bare = {"check": True, "node_gpus": None, "node_cards": cards, "require_devices": False}
    answer = node.deploy(**bare, neighbours=neighbour(128, 1))
    assert "container 129 will get GPU 0000:c1:00.0" in answer["notes"] and answer["gpus"] == []
    refused(node, "2 GPUs", "0000:41:00.0 to container 128 (other)", gpus=2, neighbours=neighbour(128, 1), **bare)


def test_two_runs_at_once_that_know_nothing_of_each_other(node: LxcNode) -> None:
    """The container that is being made shows no device yet, and so the second controller would take the same one."""
    node.faults(slow_unpack_s=4)
    child = os.fork()
    if child == 0:
        try:
            os._exit(int(bool(node.deploy().get("failed"))))
        finally:
            os._exit(9)
    record = node.root / "run/kpro-llm/gpus/129"
    while not record.exists() or not (node.root / "etc/pve/lxc/129.conf").exists():
        time.sleep(0.02)
    assert "dev0" not in node.config(129)
    node.faults()
    second = node.deploy(vmid=130, hostname="second", network={"bridge": "vmbr0", "ip": "10.77.0.130/24"})
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "dev0: /dev/nvidia0" in node.config(129) and "dev0: /dev/nvidia1" in node.config(130), second
    assert not list((node.root / "run/kpro-llm/gpus").glob("1*"))


def test_what_a_dead_run_reserved_counts_only_while_its_creation_goes_on(node: LxcNode) -> None:
    node.file("run/kpro-llm/gpus/131", '{"vmid": 131, "name": "cut-off", "minors": [0]}')
    node.file("run/kpro-llm/gpus/132", "[")
    assert node.deploy(check=True)["gpus"][0]["uuid"] == "GPU-aaaa"
    node.has("lock: create\n", vmid=131)
    node.has("lock: create\n", vmid=132)
    assert node.deploy(check=True)["gpus"][0]["uuid"] == "GPU-bbbb"
    refused(node, "container 131 (cut-off) by a deployment that is under way", gpus=["GPU-aaaa"])


def test_what_was_changed_by_hand_is_put_right_while_it_runs(node: LxcNode) -> None:
    node.deploy()
    text = node.config().replace("memory: 2048", "memory: 512").replace("onboot: 1", "onboot: 0").replace("tags: kpro-llm", "tags: kpro-llm;x")
    node.has(text, running=True)
    result = as_foretold_after(node, tags=["llm"])
    assert result["plan"] == ["Set memory of container 129", "Set onboot of container 129", "Set tags of container 129"]
    assert "tags: kpro-llm;llm" in node.config() and not result["restart_needed"]
    assert len(node.calls("set")) == 1


def as_foretold_after(node: LxcNode, **options: t.Any) -> dict[str, t.Any]:
    """As as_foretold, on a container that exists already."""
    node.forget_calls()
    return as_foretold(node, **options)


def test_spelling_is_no_difference(node: LxcNode) -> None:
    node.deploy()
    text = node.config()
    for ours, theirs in (
        ("dev0: /dev/nvidia0,mode=0666", "dev0: mode=0666,path=/dev/nvidia0,uid=0,gid=0"),
        ("features: nesting=1", "features: keyctl=0,nesting=1"),
        ("mp0: /srv/models,mp=/srv/models", "mp0: volume=/srv/models/,ro=0,mp=/srv/models"),
        ("tags: kpro-llm", "tags: KPRO-LLM"),
    ):
        assert ours in text
        text = text.replace(ours, theirs)
    node.has(text, running=True)
    result = node.deploy()
    assert result["changed"] is False and node.config() == text


def test_only_the_chosen_gpu_stays(node: LxcNode) -> None:
    """LLMX-072: one GPU was asked for, the container got all."""
    node.has(f"{OURS}{NVIDIA.replace('dev1: /dev/nvidiactl', 'dev1: /dev/nvidia1')}dev4: /dev/nvidiactl,mode=0666\ndev5: /dev/kvm\n")
    node.device("dev/kvm", 10, 232)
    result = as_foretold(node, gpus=["0000:c1:00.0"])
    assert "Remove dev0 of container 129" in result["plan"]
    assert result["devices"] == ["/dev/nvidia1", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl", "/dev/kvm"]


def test_a_container_without_nvidia_entries_gets_them(node: LxcNode) -> None:
    """LLMX-075: other devices stay."""
    node.device("dev/null0", 1, 3)
    node.has(f"{OURS}dev0: /dev/null0,gid=44\n")
    result = as_foretold(node)
    assert result["devices"] == ["/dev/null0", "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert "dev0: /dev/null0,gid=44" in node.config()


def test_the_mac_address_stays_and_the_gateway_goes_with_dhcp(node: LxcNode) -> None:
    node.has(OURS.replace("ip=dhcp", "ip=10.77.0.9/24,gw=10.77.0.1,tag=5"))
    node.deploy(state="stopped", network={"bridge": "vmbr0", "ip": "dhcp"})
    assert "net0: name=eth0,bridge=vmbr0,hwaddr=BC:24:11:AA:BB:CC,ip=dhcp,tag=5,type=veth" in node.config()


def test_a_volume_is_never_allocated_twice(node: LxcNode) -> None:
    """LLMX-010 and LLMX-064."""
    node.has(f"{OURS}mp0: local-zfs:subvol-129-disk-1,mp=/models,size=100G\nmp1: /tank/models,mp=/tank\n")
    node.file("tank/models/x", "")
    mounts = [{"source": "local-zfs:100", "target": "/models"}, {"source": "/tank/models", "target": "/tank/"}]
    node.deploy(mounts=mounts)
    assert "mp0: local-zfs:subvol-129-disk-1,mp=/models,size=100G\nmp1: /tank/models,mp=/tank\n" in node.config()


def test_a_folder_that_is_no_longer_listed_is_taken_out_but_volumes_stay(node: LxcNode) -> None:
    node.has(f"{OURS}mp0: local-zfs:subvol-129-disk-1,mp=/data,size=1G\nmp1: /srv/old,mp=/old\n")
    node.file("srv/old/x", "")
    node.deploy()
    assert "mp0: local-zfs:subvol-129-disk-1" in node.config()
    assert "/srv/old" not in node.config() and (node.root / "srv/old/x").exists()


def test_a_folder_that_the_containers_root_cannot_write_is_told(node: LxcNode) -> None:
    folder = node.root / "srv/models"
    folder.mkdir()
    folder.chmod(0o700)
    result = node.deploy()
    assert "/srv/models" in result["notes"][0] and "0700 0:0" in result["notes"][0] and "can't write" in result["notes"][0]
    assert folder.stat().st_uid == 0


def test_the_root_file_system_is_never_shrunk(node: LxcNode) -> None:
    node.has(OURS.replace("size=2G", "size=200G"))
    assert any("200 GiB" in note and "never shrunk" in note for note in node.deploy()["notes"])
    assert "size=200G" in node.config()


def test_the_root_file_system_is_grown(node: LxcNode) -> None:
    node.deploy()
    node.forget_calls()
    assert as_foretold(node, rootfs_gib=3)["plan"] == ["Grow rootfs of container 129 from 2 to 3 GiB"]
    assert "rootfs: local-zfs:subvol-129-disk-0,size=3G" in node.config()


def test_another_edit_between_read_and_write_is_not_lost(node: LxcNode) -> None:
    node.has(OURS)
    node.faults(edited_meanwhile="cpuunits: 200\n")
    result = node.deploy()
    assert not result.get("failed"), result
    assert "cpuunits: 200" in node.config() and "cores: 2" in node.config()


def test_a_lost_answer_to_a_change_is_looked_up(node: LxcNode) -> None:
    node.has(OURS)
    node.faults(lost_answer=f"set /nodes/{node.name}/lxc/129/config")
    assert not node.deploy().get("failed")
    assert "cores: 2" in node.config() and len(node.calls("set")) == 1


def test_a_missing_mount_source_of_our_container_is_made_again(node: LxcNode) -> None:
    node.deploy(state="stopped")
    (node.root / "srv/models").rmdir()
    node.forget_calls()
    assert as_foretold(node)["plan"][0].startswith("Make the folder /srv/models")


def test_a_store_that_the_container_only_reads_belongs_to_the_nodes_root(node: LxcNode) -> None:
    mounts = [{"source": f"/srv/{name}", "target": f"/srv/{name}", "read_only": name == "shared"} for name in ("own", "shared")]
    plan = node.deploy(state="stopped", mounts=mounts)["plan"]
    assert "Make the folder /srv/own on the node for the container's root (100000:100000)" in plan
    assert "Make the folder /srv/shared on the node for its root (0:0), the container only reads it" in plan
    assert os.stat(node.root / "srv/shared").st_uid == os.geteuid()


def test_a_mount_source_that_a_container_leads_elsewhere_is_refused(node: LxcNode) -> None:
    (node.root / "srv").mkdir(exist_ok=True)
    (node.root / "srv/own").mkdir(mode=0o777)
    (node.root / "srv/own").chmod(0o777)
    (node.root / "srv/own/deep").symlink_to(node.root / "etc")
    answer = node.deploy(state="stopped", mounts=[{"source": "/srv/own/deep", "target": "/srv/own"}])
    assert answer.get("failed") and ("link that others than root could have made" in answer["msg"] or "system" in answer["msg"])


# --- restart ---------------------------------------------------------------------------------------------------------


def test_a_change_that_needs_a_restart_waits_without_consent(node: LxcNode) -> None:
    node.deploy()
    first = node.deploy(gpus=2)
    assert not first["restart_needed"]  # a new device is hot on PVE 9
    first = node.deploy(features={"nesting": True, "keyctl": True})
    assert first["changed"] and first["restart_needed"] and first["waiting"] == ["dev4", "features"]
    assert "restart: true" in first["notes"][-1] and node.is_running()
    second = node.deploy(features={"nesting": True, "keyctl": True})
    assert second["changed"] is False and second["waiting"] == ["dev4", "features"]


def test_a_change_that_needs_a_restart_is_made_with_one_restart(node: LxcNode) -> None:
    node.deploy()
    node.forget_calls()
    result = as_foretold(node, features={"nesting": True, "fuse": True}, memory_mib=1024, restart=True)
    assert result["plan"][0] == "Stop container 129 to apply features" and result["plan"][-1] == "Start container 129"
    assert "[pve:pending]" not in node.config() and node.is_running()
    assert [argv[1].rsplit("/", 1)[-1] for argv in node.writes()] == ["shutdown", "config", "start"]


def test_a_restart_that_is_due_from_an_earlier_run_is_made_up_for(node: LxcNode) -> None:
    node.deploy()
    features = {"nesting": True, "fuse": True}
    assert node.deploy(features=features)["restart_needed"]
    node.forget_calls()
    result = as_foretold(node, features=features, restart=True)
    assert result["plan"] == ["Stop container 129 to apply features", "Start container 129"]
    assert not result["restart_needed"] and "fuse=1" in node.config().partition("[pve:pending]")[0]


def test_pve_8_needs_a_restart_for_a_new_device(node: LxcNode) -> None:
    node.release("12")
    node.deploy(gpus=0)
    result = node.deploy(gpus=1)
    assert result["waiting"] == ["dev0", "dev1", "dev2", "dev3"]


def test_a_hotplug_that_is_refused_says_what_would_help(node: LxcNode) -> None:
    node.deploy(gpus=0)
    node.faults(no_hotplug=["dev0"])
    result = node.deploy(gpus=1)
    assert result["failed"] and "unable to hotplug dev0" in result["msg"] and "restart: true" in result["msg"]
    assert "dev0" not in node.config()


def test_a_guest_that_does_not_shut_down_is_not_killed(node: LxcNode) -> None:
    node.deploy()
    node.faults(hangs=True)
    result = node.deploy(features={"nesting": True, "fuse": True}, restart=True, shutdown_timeout_s=1)
    assert result["failed"] and "container did not stop" in result["msg"] and "pct stop 129" in result["msg"]
    assert node.is_running()


def test_after_a_failure_in_between_the_container_is_started_again(node: LxcNode) -> None:
    node.deploy()
    result = node.deploy(features={"nesting": True, "bogus": True}, restart=True)
    assert result["failed"] and "bogus" in result["msg"] and "started again as it was before" in result["msg"]
    assert node.is_running()


def test_device_nodes_with_an_old_major_inside_are_made_anew_by_a_restart(node: LxcNode) -> None:
    """LLMX-049: the driver was loaded again while the container ran; the configuration is as declared."""
    node.deploy()
    for device, numbers in NVIDIA_NODES.items():
        node.shows_inside(os.getpid(), device, *((509, numbers[1]) if "uvm" in device else numbers))
    told = node.deploy()
    assert told["changed"] is False and told["waiting"] == ["dev2", "dev3"]
    assert "509:0" in told["notes"][0] and "510:0" in told["notes"][0]
    done = node.deploy(restart=True)
    assert done["plan"] == ["Stop container 129 to apply dev2, dev3", "Start container 129"]


MOUNTS = [{"source": "/srv/models", "target": "/models"}]
MINE = "22 1 0:50 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"


def sees(node: LxcNode, inside: str, here: str = MINE) -> None:
    """Let the node and the running container have these mounts."""
    for device, numbers in NVIDIA_NODES.items():
        node.shows_inside(4711, device, *numbers)
    node.file("proc/self/mountinfo", here)
    node.file("proc/4711/mountinfo", inside)


@pytest.mark.parametrize(
    ("inside", "here", "words"),
    [
        ("90 80 0:50 /srv/models//deleted /models rw - ext4 /dev/sda1 rw\n", MINE, "a folder that was removed from the node"),
        (
            "90 80 0:50 /srv/models /models rw - ext4 x rw\n",
            f"{MINE}30 22 0:77 / /srv/models rw - zfs pool/models rw\n",
            "another file system than /srv/models",
        ),
        ("90 80 0:77 / /models rw - zfs pool/models rw\n", MINE, "another file system than /srv/models"),
        (
            "90 80 0:50 /srv/old\\040store /models rw - ext4 x rw\n",
            MINE,
            "shows /srv/old store of its file system, and /srv/models on the node is /srv/models now",
        ),
        ("91 80 0:60 / / rw - ext4 x rw\n", MINE, "/models is mounted no more in the running container"),
    ],
    ids=["removed", "mounted over", "unmounted", "renamed", "taken away inside"],
)
def test_a_store_that_the_running_container_does_not_see_any_more_needs_a_restart(node: LxcNode, inside: str, here: str, words: str) -> None:
    node.deploy(mounts=MOUNTS)
    sees(node, inside, here)
    told = node.deploy(mounts=MOUNTS)
    assert told["changed"] is False and told["restart_needed"] and told["waiting"] == ["mp0"]
    assert words in told["notes"][0] and "allow it with restart: true" in told["notes"][-1]
    done = node.deploy(mounts=MOUNTS, restart=True)
    assert done["plan"] == ["Stop container 129 to apply mp0", "Start container 129"]


def test_a_removed_store_is_made_again_before_the_container_starts(node: LxcNode) -> None:
    node.deploy(mounts=MOUNTS)
    (node.root / "srv/models").rmdir()
    sees(node, "90 80 0:50 /srv/models//deleted /models rw - ext4 /dev/sda1 rw\n")
    plan = node.deploy(mounts=MOUNTS, restart=True)["plan"]
    assert plan[0] == "Stop container 129 to apply mp0" and "Make the folder /srv/models" in plan[1] and plan[2] == "Start container 129"


@pytest.mark.parametrize(
    ("inside", "here"),
    [
        ("90 80 0:50 /srv/models /models rw - ext4 /dev/sda1 rw\n", MINE),
        ("90 80 0:77 / /models rw - zfs p rw\n", f"{MINE}30 22 0:77 / /srv/models rw - zfs p rw\n"),
        ("90 80 0:77 /sub /models rw - zfs p rw\n", f"{MINE}30 22 0:77 /sub /srv/models rw - zfs p rw\n"),
        ("", MINE),
        ("odd\n", "odd\n"),
    ],
    ids=["plain", "own file system", "a part of one", "not readable", "odd"],
)
def test_a_store_that_the_container_sees_needs_nothing(node: LxcNode, inside: str, here: str) -> None:
    node.deploy(mounts=MOUNTS)
    sees(node, inside, here)
    told = node.deploy(mounts=MOUNTS)
    assert told["changed"] is False and told["waiting"] == [] and not any("mount" in note for note in told["notes"])


def test_a_stale_mount_that_is_not_declared_is_told_and_restarts_nothing(node: LxcNode) -> None:
    node.deploy(mounts=MOUNTS)
    sees(node, "90 80 0:50 /srv/models//deleted /models rw - ext4 /dev/sda1 rw\n")
    told = node.deploy(restart=True, mounts=None)
    assert told["changed"] is False and told["waiting"] == [] and "removed from the node" in " ".join(told["notes"])


# --- locks -----------------------------------------------------------------------------------------------------------


def test_a_lock_in_the_configuration_is_left_alone(node: LxcNode) -> None:
    node.has(f"{OURS}lock: backup\n")
    refused(node, "CT is locked (backup)", "pct unlock 129")


def test_a_locked_container_that_is_as_declared_is_no_error(node: LxcNode) -> None:
    node.deploy()
    node.has(f"{node.config()}lock: backup\n", running=True)
    assert node.deploy()["changed"] is False


def test_a_busy_configuration_is_tried_a_bounded_number_of_times(node: LxcNode) -> None:
    node.has(OURS)
    with open(node.root / "run/lock/lxc/pve-config-129.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = node.deploy()
    assert result["failed"] and "can't lock file" in result["msg"] and "nothing of it was written" in result["msg"]
    assert len(node.calls("set")) == 3
    assert node.deploy()["running"]


# --- where it is, states, removal --------------------------------------------------------------------------------------


def test_a_container_on_another_node_is_an_answer(node: LxcNode) -> None:
    """LLMX-095."""
    node.has(OURS, node="node-b")
    result = node.deploy()
    assert result["changed"] is False and result["exists"] and not result["here"] and result["node"] == "node-b"
    assert f"Container 129 lives on node-b, the play says {node.name}" in result["notes"][0]
    assert node.writes() == [] and "create" not in result["notes"][0]


def test_what_keeps_a_container_from_coming_here_is_named(node: LxcNode) -> None:
    """LLMX-103, LLMX-081."""
    node.has(f"{OURS}mp0: /tank/models,mp=/models,ro=1\ndev0: /dev/nvidia7\n", node="node-b")
    before = node.root / "etc/pve/nodes/node-b/lxc/129.conf"
    content = before.read_text(encoding="utf-8")
    result = node.deploy()
    notes = " ".join(result["notes"])
    assert "mp0 (/tank/models)" in notes and "shared=1" in notes and f"/dev/nvidia7, which {node.name} does not have" in notes
    assert node.writes() == [] and before.read_text(encoding="utf-8") == content


def test_the_gpus_that_a_container_would_get_here_are_foreseen(node: LxcNode) -> None:
    """A move plans the engine's memory before it begins. What is in its way is told, and no error: nothing is done here."""
    node.has(OURS, node="node-b")
    assert len(node.deploy(gpus=1)["gpus"]) == 1 and node.writes() == []
    result = node.deploy(gpus=99)
    assert result["gpus"] == [] and "In the way of a migration: " in result["notes"][-1] and "99" in result["notes"][-1]


def test_states(node: LxcNode) -> None:
    assert not as_foretold(node, state="present")["running"]
    node.forget_calls()
    assert as_foretold(node, state="started")["plan"] == ["Start container 129"]
    node.forget_calls()
    assert as_foretold(node, state="stopped")["plan"] == ["Stop container 129 as declared"]
    node.forget_calls()
    node.deploy(state="started")
    node.forget_calls()
    assert as_foretold(node, state="absent")["plan"][-1] == "Remove container 129 with its volumes"
    assert not node.config_path().exists() and (node.root / "srv/models").exists()


def test_a_foreign_or_protected_container_is_never_removed(node: LxcNode) -> None:
    node.has(HAND_MADE)
    refused(node, "not ours", "pct destroy 129", state="absent", adopt=True)
    node.has(f"{OURS}protection: 1\n")
    refused(node, "protected against removal", state="absent")


def test_no_root_no_pvesh(node: LxcNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    refused(node, "pvesh", "not run as root")


# --- adoption ----------------------------------------------------------------------------------------------------------


def test_a_hand_made_container_is_taken_over_with_all_it_has(node: LxcNode) -> None:
    node.has(HAND_MADE, running=True)
    refused(node, "raw lxc lines", "restart: true", adopt=True)
    result = as_foretold(node, adopt=True, restart=True)
    config = node.config()
    assert "hwaddr=BC:24:11:AA:BB:CC" in config and "firewall=1" in config and "features: keyctl=1,nesting=1" in config
    assert "lxc.mount.entry" not in config and "devices.allow" not in config
    assert "lxc.prlimit.memlock: unlimited" in config and "#made by hand" in config
    assert all(line in config for line in NVIDIA.splitlines()) and "tags: kpro-llm" in config
    assert "unprivileged" not in config and any("stays privileged" in note for note in result["notes"])
    stale = next(sentence for sentence in result["plan"] if "507" in sentence)
    assert "510" in stale  # LLMX-034
    assert (node.root / "srv/models").stat().st_uid == 0
    assert node.is_running()


def test_a_server_started_by_hand_is_named_with_the_command_that_ends_it(node: LxcNode) -> None:
    node.has(HAND_MADE, running=True)
    node.holds_gpu(4711, 88, "python3", "-m", "sglang.launch_server", "--api-key", "secret")
    stopped = refused(node, "python3 -m sglang.launch_server", "/dev/nvidia0", "'pct exec 129 -- kill 88'", "restart: true", adopt=True)
    assert "secret" not in stopped["msg"]
    foretold = node.deploy(check=True, adopt=True, restart=True)
    assert any("The stop of container 129 ends" in note and "process 88" in note for note in foretold["notes"])
    node.has(f"{OURS.replace('tags: kpro-llm', 'tags: mine')}{NVIDIA}mp0: /srv/models,mp=/srv/models\n", running=True)
    taken = node.deploy(adopt=True, network=None)
    assert not taken.get("failed") and any("started by hand" in note and "kill 88" in note for note in taken["notes"]), taken
    assert node.is_running()


def test_raw_lines_are_declared_key_by_key(node: LxcNode) -> None:
    node.deploy()
    extra = "lxc.prlimit.memlock: 65536\nlxc.cap.drop: mac_admin\n"
    node.has(node.config() + extra, running=True)
    node.forget_calls()
    lines = ["lxc.prlimit.memlock = unlimited"]
    refused(node, "raw lxc lines", "restart: true", raw_lines=lines)
    done = as_foretold(node, raw_lines=lines, restart=True)
    assert done["plan"][0] == "Stop container 129 to apply raw lines" and done["plan"][-1] == "Start container 129"
    assert "memlock: unlimited" in node.config() and "65536" not in node.config() and "lxc.cap.drop: mac_admin" in node.config()
    assert node.is_running()


def test_raw_lines_of_a_new_container_are_there_at_its_first_start(node: LxcNode) -> None:
    made = as_foretold(node, raw_lines=["lxc.prlimit.memlock: unlimited"])
    assert [sentence.split()[0] for sentence in made["plan"][-3:]] == ["Create", "Add", "Start"]
    assert "lxc.prlimit.memlock: unlimited" in node.config()


def test_a_raw_line_that_proxmox_would_drop_is_refused(node: LxcNode) -> None:
    refused(node, "raw line 'lxc.foo: 1'", "drops it", raw_lines=["lxc.foo: 1"])


def test_nesting_that_a_units_sandbox_needs_is_given(node: LxcNode) -> None:
    """LLMX-044."""
    features = failure_case("LLMX-044")["repro"]["features"]
    node.has(f"{OURS}features: {features}\n", running=True)
    done = as_foretold(node, restart=True)
    assert any(sentence.startswith("Set features") for sentence in done["plan"]) and "features: keyctl=1,nesting=1" in node.config()


def test_the_mount_hook_of_a_privileged_container_goes(node: LxcNode) -> None:
    """LLMX-043."""
    node.has(f"{OURS.replace('unprivileged: 1', 'unprivileged: 0')}lxc.hook.mount: /usr/share/lxc/hooks/nvidia\n")
    result = as_foretold(node, unprivileged=False)
    assert any("hook" in sentence and "privileged" in sentence for sentence in result["plan"])
    assert "hook" not in node.config()


def test_driver_files_of_the_node_and_the_hook_s_variables_go(node: LxcNode) -> None:
    """T2-01, and what T2-02 left behind."""
    raw = [
        "lxc.mount.entry: /usr/bin/nvidia-smi usr/bin/nvidia-smi none bind,ro,create=file 0 0",
        "lxc.mount.entry: /usr/lib/x86_64-linux-gnu/libcuda.so.580.126 usr/lib/x86_64-linux-gnu/libcuda.so.1 none bind,ro,create=file 0 0",
        "lxc.hook.pre-start: /root/nvidia-nodes.sh",
        "lxc.environment: NVIDIA_VISIBLE_DEVICES=all",
        "lxc.environment.runtime: NVIDIA_DRIVER_CAPABILITIES=all",
    ]
    kept = ["lxc.environment: KEPT=1", "lxc.mount.entry: /srv/x srv/x none bind 0 0", "lxc.hook.post-stop: /root/nvidia-told.sh"]
    node.has(OURS.replace("tags: kpro-llm\n", "") + "".join(f"{line}\n" for line in (*raw, *kept)))
    foretold = node.deploy(check=True, adopt=True)
    assert "over the container's own, and the container can't start after the next change of the driver" in " ".join(foretold["plan"])
    done = as_foretold(node, adopt=True)
    assert sum(line in " ".join(done["plan"]) for line in raw) == len(raw)
    assert all(line not in node.config() for line in raw) and all(line in node.config() for line in kept)


def test_what_covers_the_places_of_ours_is_told(node: LxcNode) -> None:
    node.file("etc/lxc/gpu.conf", "lxc.mount.entry = /usr/lib/x86_64-linux-gnu/libcuda.so.1 usr/lib/x86_64-linux-gnu/libcuda.so.1 none bind 0 0\n")
    node.has(OURS + NVIDIA + "lxc.mount.entry: /usr/bin usr/bin none bind,ro 0 0\nlxc.include: /etc/lxc/gpu.conf\n")
    notes = " ".join(node.deploy(check=True)["notes"])
    assert "covers /usr/bin with /usr/bin" in notes and "(lxc.include) mounts /usr/lib/x86_64-linux-gnu/libcuda.so.1" in notes


def test_our_own_container_of_the_other_privilege_level_is_an_error(node: LxcNode) -> None:
    node.has(OURS)
    refused(node, "it is unprivileged, declared is privileged", "can't change that", unprivileged=False)


def test_keys_that_nobody_declared_stay(node: LxcNode) -> None:
    extra = "cpuunits: 300\nstartup: order=9\ntimezone: host\nfoo: bar\n"
    node.has(OURS.replace("tags: kpro-llm", "tags: kpro-llm;prod") + extra + "lxc.cap.drop: mac_admin\n")
    node.deploy()
    for line in (*extra.splitlines(), "lxc.cap.drop: mac_admin", "tags: kpro-llm;prod"):
        assert line in node.config()


# --- before the driver is there ----------------------------------------------------------------------------------------


def test_a_check_before_the_driver_is_loaded_plans_without_devices(node: LxcNode) -> None:
    for name in os.listdir(node.root / "dev"):
        (node.root / "dev" / name).unlink()
    unknown = node.deploy(check=True, node_gpus=None, require_devices=False)
    assert unknown["changed"] and unknown["gpus"] == []
    known = node.deploy(check=True, node_gpus=GPUS, require_devices=False)
    assert "dev0" in known["diff"]["after"] and any("/dev/nvidia0" in note for note in known["notes"])


# --- whose folders, whose container, whose ids ------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["/", "/srv/..", "/etc", "/etc/", "/root", "/var/lib", "/usr/share", "/home/alice", "/etc/pve/nodes"])
def test_a_system_folder_is_never_mounted(node: LxcNode, source: str) -> None:
    (node.root / "etc").mkdir(exist_ok=True)
    message = refused(node, "mount source", "Nothing was changed", mounts=[{"source": source, "target": "/srv/models"}])["msg"]
    assert "chown" not in message


@pytest.mark.parametrize(("link", "source"), [("../etc", "/srv/link"), ("..", "/srv/link"), ("../etc", "/srv/link/new"), ("../var", "/srv/link/lib")])
def test_a_link_to_a_system_folder_is_never_mounted(node: LxcNode, link: str, source: str) -> None:
    (node.root / "srv/link").symlink_to(link)
    before = {path: (path.lstat().st_uid, path.lstat().st_mode) for path in node.root.rglob("*")}
    message = refused(node, "mount source", "leads to", "system's", mounts=[{"source": source, "target": "/srv/models"}])["msg"]
    assert "chown" not in message
    assert {path: (path.lstat().st_uid, path.lstat().st_mode) for path in before} == before


def test_an_admins_link_to_a_pool_is_fine(node: LxcNode) -> None:
    (node.root / "rpool/models").mkdir()
    os.chown(node.root / "rpool/models", 100000, 100000)
    (node.root / "srv/models").symlink_to("../rpool/models")
    assert node.deploy().get("failed") is None


def test_a_container_that_is_taken_over_is_named_in_plan_and_diff(node: LxcNode) -> None:
    node.has(HAND_MADE.replace("hostname: llm", "hostname: pihole"))
    planned = node.deploy(check=True, adopt=True)
    assert planned["plan"][0] == "Take over container 129 (takes over 'pihole', made by somebody else)"
    assert "'pihole', tags: none" in planned["diff"]["before"]
    done = as_foretold(node, adopt=True)
    assert done["plan"] == planned["plan"]
    assert not [sentence for sentence in node.deploy(adopt=True)["plan"] if "Take over" in sentence]


def test_read_only_that_is_taken_out_of_the_declaration_is_taken_off(node: LxcNode) -> None:
    mount = {"source": "/srv/models", "target": "/srv/models"}
    node.deploy(mounts=[{**mount, "read_only": True}])
    assert "ro=1" in node.config()
    waits = node.deploy(check=True, mounts=[mount])
    assert waits["plan"] == ["Set mp0 of container 129"] and waits["restart_needed"]
    assert not node.deploy(mounts=[mount], restart=True).get("failed")
    assert "ro=1" not in node.config()


IDMAP_BEFORE_ANYTHING = [
    (["lxc.idmap: g 0 100000 65536"], "no uid for the container's root"),
    (["lxc.idmap: b 0 100000 65536"], "'b' is not one of them"),
    (["lxc.idmap: u 0 200000 65536", "lxc.idmap: g 0 200000 65536"], "its files belong to the root 100000:100000"),
    (["lxc.idmap: u 0 100000 65536", "lxc.idmap: g 0 100000 65536", "lxc.idmap: u 65000 300000 9"], "overlap"),
    (["lxc.idmap: u 0 100000 1000", "lxc.idmap: u 1000 1000 1", "lxc.idmap: g 0 100000 65536"], "root:1000:1"),
]


@pytest.mark.parametrize(("lines", "words"), IDMAP_BEFORE_ANYTHING)
def test_a_map_that_can_not_work_is_refused_before_the_container_is_made(node: LxcNode, lines: list[str], words: str) -> None:
    for name in ("subuid", "subgid"):
        node.file(f"etc/{name}", "root:100000:300000\n")
    refused(node, words, raw_lines=lines)
    assert not (node.root / "srv/models").exists()


@pytest.mark.parametrize(("lines", "words"), IDMAP_BEFORE_ANYTHING[:2])
def test_a_map_that_can_not_work_is_told_of_a_container_that_has_it(node: LxcNode, lines: list[str], words: str) -> None:
    node.has("\n".join([*OURS.splitlines(), *lines, ""]))
    refused(node, words)


def test_a_folder_is_made_for_the_root_of_the_containers_own_map(node: LxcNode) -> None:
    """Also of a privileged one: the lines count whatever its level."""
    node.has(f"{OURS.replace('unprivileged: 1', '')}lxc.idmap: u 0 200000 65536\nlxc.idmap: g 0 300000 65536\n")
    assert not node.deploy(unprivileged=False).get("failed")
    owner = (node.root / "srv/models").stat()
    assert (owner.st_uid, owner.st_gid) == (200000, 300000)
