# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role gpu_container on nodes of Proxmox VE 8 and 9, from every state in which it may find a container.

Each case: the plan that ``--check --diff`` prints is what the run does, the second run has nothing to do, or the run stops with
cause and remedy and has changed nothing. Without KPRO_TEST_EVERYTHING only the three most telling ones, on one node.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import container_node as states
import pytest
from container_node import BY_HAND, DEVICES, LOAD_DRIVER, TEMPLATE, VMID, World
from foretold import MOST_ROUND_TRIPS

from conftest import SANDBOX

pytestmark = pytest.mark.sandbox
everything = pytest.mark.skipif("KPRO_TEST_EVERYTHING" not in os.environ, reason="bin/test --all has the whole matrix")

INDEX = "/var/lib/pve-manager/apl-info/kpro-standin.json"
HAND_MADE = """\
arch: amd64
cores: 1
hostname: llm
memory: 512
net0: name=eth0,bridge=vmbr0,gw=10.77.0.1,hwaddr=BC:24:11:AA:BB:CC,ip=10.77.0.210/24,type=veth
ostype: debian
rootfs: {rootfs}
swap: 0
unprivileged: {unprivileged}
lxc.cgroup2.devices.allow: c 195:* rwm
lxc.cgroup2.devices.allow: c {uvm}:* rwm
lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file
lxc.mount.entry: /dev/nvidiactl dev/nvidiactl none bind,optional,create=file
lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file
lxc.environment: KEPT=1
"""


@pytest.fixture(scope="module", params=os.environ.get("KPRO_TEST_SUITES", "trixie").split(","))
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    started = states.start(request.param, tmp_path_factory.mktemp("inventory"))
    yield started
    states.stop(started)


@pytest.fixture
def container(node: World) -> Iterator[World]:
    """The node with the declared container running, made or repaired by the role itself."""
    made = node.converge(adopt=True, restart=True)
    assert made.rc == 0, made.output
    yield node
    node.run(f"sed -i '/^lock: /d' /etc/pve/lxc/{VMID}.conf 2>/dev/null; true")


def remove(node: World, vmid: int = VMID) -> None:
    """Take a container away, whoever made it."""
    node.run(f"pct stop {vmid} 2>/dev/null; pct destroy {vmid} --purge 2>/dev/null; rm -f /etc/pve/lxc/{vmid}.conf; true")


def offer_template(node: World, name: str, checksum: str = "") -> None:
    """Have Proxmox offer a template for download that is not on the node, with the right or a wrong checksum."""
    source = f"/srv/elsewhere/{name}"
    found = node.run(f"mkdir -p {Path(INDEX).parent} /srv/elsewhere; cp /var/lib/vz/template/cache/{TEMPLATE} {source}; sha512sum {source}").split()[0]
    offer = json.dumps({name: {"source": source, "sha512sum": checksum or found, "section": "system"}})
    node.run(f"printf '%s' '{offer}' > {INDEX}")


# --- the three most telling ------------------------------------------------------------------------------------------------------------


def test_a_new_container_from_a_template_that_is_fetched(node: World) -> None:
    name = TEMPLATE.replace("12.12-1", "12.99-1")
    remove(node)
    node.run("rm -rf /srv/models")
    offer_template(node, name)
    made = node.as_foretold(template=name)
    assert [sentence.split()[0] for sentence in made.plan] == ["Download", "Make", "Create", "Start"]
    assert "unprivileged: 1" in node.config() and "tags: kpro-llm" in node.config()
    # The container's root may write to the model folder, its users may read it.
    assert node.run("stat -c %u:%g:%a /srv/models").strip() == "100000:100000:755"
    node.inside("echo weights > /srv/models/file")
    assert node.run("cat /srv/models/file").strip() == "weights"
    assert node.inside("setpriv --reuid 65534 --clear-groups cat /srv/models/file").strip() == "weights"
    assert node.inside("stat -c '%F %a' /dev/nvidia0").strip() == "character special file 666"
    assert made.result["devices"] == DEVICES and made.result["address"] == "10.77.0.210"
    print(f"\nround trips of the container phase without changes: {node.round_trips[-1]} (promised: at most {MOST_ROUND_TRIPS})")


@pytest.mark.parametrize("unprivileged", [pytest.param(0, id="privileged"), pytest.param(1, id="unprivileged", marks=everything)])
def test_a_container_made_by_hand_is_taken_over_with_all_it_has(node: World, unprivileged: int) -> None:
    """What the manual bring-up left: raw NVIDIA lines, a server under nohup in VRAM, files in root's home."""
    remove(node)
    node.run(
        f"pct create {VMID} local:vztmpl/{TEMPLATE} --rootfs local-zfs:2 --unprivileged {unprivileged} --features nesting=1 --memory 512"
        " --net0 name=eth0,bridge=vmbr0,ip=10.77.0.210/24,gw=10.77.0.1"
    )
    rootfs = re.search(r"^rootfs: (.*)$", node.config(), re.MULTILINE)
    uvm = re.search(r"^\s*(\d+) nvidia-uvm$", node.run("cat /proc/devices"), re.MULTILINE)
    assert rootfs and uvm
    node.write_config(HAND_MADE.format(rootfs=rootfs[1], unprivileged=unprivileged, uvm=uvm[1]))
    node.run(f"pct start {VMID}")
    node.inside(BY_HAND)

    foreign = node.converge()
    assert foreign.rc == 2 and "made by somebody else" in foreign.message and "adopt: true" in foreign.message, foreign.output
    stopped = node.refused("raw lxc lines", "python3 launch_server.py", "restart: true", adopt=True)
    assert "secret-of-a-person" not in stopped.output
    ends = re.search(rf"'(pct exec {VMID} -- kill (\d+))' on", stopped.message)
    assert ends, stopped.message
    assert "launch_server.py" in node.inside(f"cat /proc/{ends[2]}/cmdline")

    foretold = node.converge("--check", adopt=True, restart=True)
    assert "ends what holds its GPUs now" in foretold.notes, foretold.output
    node.run(ends[1])
    node.inside(f"for n in $(seq 100); do test -e /proc/{ends[2]} || exit 0; sleep 0.1; done; exit 1")

    taken = node.as_foretold(adopt=True, restart=True)
    assert "Remove the raw line" in taken.diff and "lxc.mount.entry" in taken.diff
    config = node.config()
    assert "hwaddr=BC:24:11:AA:BB:CC" in config and rootfs[1] in config
    assert ("unprivileged: 1" in config) == bool(unprivileged)
    assert "nvidia" not in "".join(line for line in config.splitlines() if line.startswith("lxc.")) and "lxc.environment: KEPT=1" in config
    assert "secret-of-a-person" not in taken.output
    assert "handle = os.open" in node.inside("cat /root/sglang/launch_server.py")
    assert node.inside("stat -c '%F %a' /dev/nvidia0").strip() == "character special file 666"
    remove(node)


def test_a_restart_happens_only_when_it_is_needed_and_allowed(container: World) -> None:
    before = container.init_pid()
    wanted = {"features": {"nesting": True, "fuse": True}}
    told = container.as_foretold(rc=2, **wanted)
    assert "needs a restart so that features take effect" in told.message and "gpu_container__restart: true" in told.message
    assert container.init_pid() == before
    done = container.as_foretold(restart=True, **wanted)
    assert [sentence.split()[0] for sentence in done.plan] == ["Stop", "Start"] and "to apply features" in done.plan[0]
    assert container.init_pid() != before and "fuse=1" in container.config()


# --- what stops with cause and remedy --------------------------------------------------------------------------------------------------


@everything
def test_a_template_whose_checksum_is_wrong(node: World) -> None:
    name = TEMPLATE.replace("12.12-1", "12.98-1")
    remove(node)
    offer_template(node, name, checksum="0" * 128)
    node.failed_at(f"Download template {name}", f"download of {name}", "checksum mismatch", template=name)


@everything
def test_a_lock_in_the_configuration_is_never_retried(container: World) -> None:
    container.run(f"pct set {VMID} --lock backup")
    tasks = container.run("wc -l < /var/log/pve/tasks/index 2>/dev/null || true")
    container.refused("CT is locked (backup)", f"pct unlock {VMID}", memory_mib=640)
    as_declared = container.converge()
    assert (as_declared.rc, as_declared.plan) == (0, [])
    assert container.run("wc -l < /var/log/pve/tasks/index 2>/dev/null || true") == tasks
    container.run(f"pct unlock {VMID}")


@everything
def test_a_configuration_that_is_busy_for_a_while_is_waited_for(container: World) -> None:
    """Proxmox gives up after 10 s; the lock is held a little longer."""
    foretold = container.foretold(memory_mib=640)
    lock = f"/run/lock/lxc/pve-config-{VMID}.lock"
    holder = subprocess.Popen([SANDBOX, "ssh", container.name, "--", f"flock {lock} sh -c 'echo held; exec sleep 14'"], stdout=subprocess.PIPE, text=True)
    assert holder.stdout and holder.stdout.readline().strip() == "held"
    begun = time.monotonic()
    done = container.converge(memory_mib=640)
    assert done.rc == 0 and done.plan == foretold.plan == [f"Set memory of container {VMID}"], done.output
    assert time.monotonic() - begun > 9
    assert holder.wait(60) == 0
    assert "memory: 640" in container.config()


@everything
def test_a_container_on_another_node_is_an_answer(node: World) -> None:
    remove(node)
    node.run("mkdir -p /etc/pve/nodes/pve7/lxc")
    moved = "arch: amd64\nhostname: states\nmp0: /tank/models,mp=/models\nostype: debian\nrootfs: local:1\ntags: kpro-llm\n"
    node.run(f"printf '%s' '{moved}' > /etc/pve/nodes/pve7/lxc/{VMID}.conf")
    try:
        stopped = node.refused(f"Container {VMID} lives on pve7", f"pct migrate {VMID}", "mp0 (/tank/models) is a local bind mount")
        assert stopped.result["changed"] is False and stopped.result["node"] == "pve7"
    finally:
        node.run("rm -r /etc/pve/nodes/pve7")


@everything
def test_a_gpu_that_somebody_else_has(container: World) -> None:
    own = re.search(r"^dev0: /dev/nvidia(\d)", container.config(), re.MULTILINE)
    assert own
    other = next(gpu for gpu in container.gpus if gpu["minor"] != int(own[1]))
    container.run("mkdir -p /etc/pve/qemu-server")
    container.run(f"printf 'name: desktop\\nhostpci0: {other['bus_id']}\\n' > /etc/pve/qemu-server/150.conf")
    try:
        container.refused(other["uuid"], "VM 150 (desktop) by hostpci0", gpus=[other["uuid"]])
        container.refused("2 GPUs for the container", "the node has 1 to give", gpus=2)
    finally:
        container.run("rm /etc/pve/qemu-server/150.conf")


@everything
def test_a_device_node_that_is_missing(container: World) -> None:
    container.run("mv /dev/nvidia-uvm-tools /dev/aside")
    try:
        # A check does not know whether the node phase would make it.
        foretold = container.converge("--check", memory_mib=640)
        assert foretold.rc == 0 and "/dev/nvidia-uvm-tools: dev3 passes it" in foretold.notes, foretold.output
        before = container.state()
        stopped = container.converge(memory_mib=640)
        assert stopped.rc == 2 and "no such device node" in stopped.message and "nvidia-modprobe" in stopped.message, stopped.output
        assert container.state() == before
    finally:
        container.run("mv /dev/aside /dev/nvidia-uvm-tools")


@everything
def test_a_gpu_that_is_gone(container: World) -> None:
    own = re.search(r"^dev0: /dev/nvidia(\d)", container.config(), re.MULTILINE)
    assert own
    gone = next(gpu for gpu in container.gpus if gpu["minor"] == int(own[1]))
    left = [gpu for gpu in container.gpus if gpu is not gone]
    container.refused(gone["uuid"], left[0]["uuid"], gpus=[gone["uuid"]], node_gpus=left)
    container.refused("2 GPUs for the container", "the node has 1 to give", gpus=2, node_gpus=left)
    # Any one will do: it gets the other.
    done = container.as_foretold(restart=True, node_gpus=left)
    assert done.result["devices"][0] == f"/dev/nvidia{left[0]['minor']}"
    assert container.inside(f"stat -c '%F %a' /dev/nvidia{left[0]['minor']}").strip() == "character special file 666"
    assert container.inside(f"test -e /dev/nvidia{gone['minor']} && echo there || true") == ""


@everything
def test_a_foreign_container_is_never_removed(node: World) -> None:
    remove(node)
    node.run(f"pct create {VMID} local:vztmpl/{TEMPLATE} --rootfs local-zfs:1 --unprivileged 1 --hostname foreign")
    node.refused("not ours", f"pct destroy {VMID}", state="absent", adopt=True)
    remove(node)


# --- what is repaired ------------------------------------------------------------------------------------------------------------------


@everything
def test_a_stopped_container_is_started(container: World) -> None:
    container.run(f"pct stop {VMID}")
    assert container.as_foretold().plan == [f"Start container {VMID}"]


@everything
def test_numbers_of_a_device_that_moved(container: World) -> None:
    """nvidia-uvm has another major after each boot, and may get one when the driver is loaded again under a running container."""
    numbers = "stat -c %t:%T /dev/nvidia-uvm"
    before = container.run(numbers)
    container.reboot()
    container.run(LOAD_DRIVER)
    assert container.as_foretold().plan == [f"Start container {VMID}"]
    assert container.inside(numbers) == container.run(numbers) != before

    container.run("mv /dev/nvidia-uvm /dev/aside; mknod -m 666 /dev/nvidia-uvm c 77 0")
    try:
        told = container.as_foretold(rc=2)
        assert "/dev/nvidia-uvm is" in told.message and "inside the container, 77:0 on" in told.message and "restart: true" in told.message
        assert [sentence.split()[0] for sentence in container.as_foretold(restart=True).plan] == ["Stop", "Start"]
        assert container.inside(numbers).strip() == "4d:0"
    finally:
        container.run("mv /dev/aside /dev/nvidia-uvm")


@everything
def test_what_was_edited_by_hand_is_put_right_and_nothing_else(container: World) -> None:
    before = container.init_pid()
    mac = re.search(r"hwaddr=([0-9A-F:]+)", container.config())
    assert mac
    container.run(
        f"pct set {VMID} --memory 700 --cores 2 --hostname other --tags 'Prod;kpro-llm' --nameserver 9.9.9.9 --onboot 1"
        f" && pct set {VMID} --net0 name=eth0,bridge=vmbr0,hwaddr={mac[1].lower()},ip=10.77.0.211/24,gw=10.77.0.1"
    )
    done = container.as_foretold()
    keys = {sentence.split()[1] for sentence in done.plan}
    assert keys == {"memory", "cores", "hostname", "nameserver", "onboot", "net0"}, done.plan
    assert container.init_pid() == before
    assert mac[1].lower() in container.config().lower() and "tags: kpro-llm;prod" in container.config()
    # Another spelling of the same is no difference.
    spelled = container.config().replace("tags: kpro-llm;prod", "tags: prod;kpro-llm").replace("onboot: 0", "onboot: no")
    container.write_config(spelled.replace("mp=/srv/models", "mp=/srv/models/"))
    assert container.converge().plan == []


@everything
def test_keys_that_nobody_declared_stay(container: World) -> None:
    container.run(f"pct set {VMID} --cpuunits 300 --startup order=9 --timezone host --description 'made by Erika'")
    foreign = "lxc.cap.drop: mac_admin"
    container.add_raw(foreign)
    done = container.as_foretold(memory_mib=640)
    assert done.plan == [f"Set memory of container {VMID}"]
    config = container.config()
    for line in ("cpuunits: 300", "startup: order=9", "timezone: host", "#made by Erika", foreign):
        assert line in config, config


@everything
def test_raw_lines_are_declared_key_by_key(container: World) -> None:
    container.add_raw("lxc.prlimit.nofile: 1024", "lxc.environment: KEPT=1")
    wanted = {"raw_lines": ["lxc.prlimit.nofile: 4096"]}
    container.refused("raw lxc lines", "restart: true", **wanted)
    done = container.as_foretold(restart=True, **wanted)
    assert done.plan[0] == f"Stop container {VMID} to apply raw lines"
    assert "lxc.prlimit.nofile: 4096" in container.config() and "1024" not in container.config() and "KEPT=1" in container.config()
    assert "4096" in container.run(f"grep 'Max open files' /proc/{container.init_pid()}/limits")


@everything
def test_a_second_gpu_comes_as_the_release_can(container: World) -> None:
    """Proxmox VE 9 gives a running container a device at once, 8 at its next start."""
    before = container.init_pid()
    if container.pve >= 9:
        container.as_foretold(gpus=2)
        assert container.init_pid() == before
    else:
        told = container.as_foretold(rc=2, gpus=2)
        assert "needs a restart" in told.message, told.output
        container.as_foretold(gpus=2, restart=True)
        assert container.init_pid() != before
    assert container.inside("stat -c '%F %a' /dev/nvidia1").strip() == "character special file 666"


@everything
@pytest.mark.parametrize("unprivileged", [True, False])
def test_the_privilege_level_is_the_declared_one_on_every_release(node: World, unprivileged: bool) -> None:
    remove(node)
    made = node.as_foretold(unprivileged=unprivileged, state="present")
    assert ("unprivileged: 1" in node.config()) == unprivileged and made.result["running"] is False
    node.refused("can't change that afterwards", unprivileged=not unprivileged, state="present")
    remove(node)


@everything
def test_a_start_that_warns_is_a_success(node: World) -> None:
    remove(node)
    node.as_foretold(features={"nesting": False}, state="present")
    assert node.as_foretold(features={"nesting": False}).plan == [f"Start container {VMID}"]
    ended = node.run(f"pvesh get /nodes/localhost/tasks --vmid {VMID} --typefilter vzstart --output-format json")
    assert json.loads(ended)[0]["status"].startswith("WARNINGS"), ended
    remove(node)


SLOW = "/usr/local/sbin/zstd"
KILL = "for pid in $(pgrep -f 'pvesh create /nodes/[^ ]*/lxc '); do kill -KILL $pid; done"


@pytest.fixture
def slow_unpack(node: World) -> Iterator[World]:
    """The node, on which a template takes a while to unpack."""
    remove(node)
    node.run(f"printf '#!/bin/sh\\nsleep 15\\nexec /usr/bin/zstd \"$@\"\\n' > {SLOW} && chmod +x {SLOW}")
    yield node
    node.run(f"rm -f {SLOW}")


@everything
def test_a_creation_outlasts_its_run_and_is_waited_for_by_the_next(slow_unpack: World) -> None:
    """At its limit the run kills nothing: pvesh lives in a scope of its own, and its worker with it."""
    node = slow_unpack
    assert [sentence.split()[0] for sentence in node.foretold().plan][-2:] == ["Create", "Start"]
    first = node.converge(task_timeout_s=3)
    assert first.rc == 2 and "no end after 3 s" in first.message and "still runs and was not touched" in first.message, first.output
    assert "gpu_container__task_timeout_s" in first.message
    assert node.run("systemctl list-units --type=scope --no-legend 'run-*'").strip(), "it is in no session"
    assert node.run(f"flock -n /var/lib/kpro-llm/pve/create-{VMID}/alive true; echo $?").strip() == "1", "whoever waits for it waits for this lock"
    during = node.foretold()
    assert len(during.plan) == 1 and "is being created" in during.plan[0], during.output
    second = node.converge()
    assert second.rc == 0 and second.plan == [f"Start container {VMID}"], second.output
    assert node.converge().plan == []


@everything
def test_a_killed_creation_is_removed_with_its_volume_and_made_anew(slow_unpack: World) -> None:
    node = slow_unpack
    first = node.converge(task_timeout_s=3)
    assert first.rc == 2 and "still runs" in first.message, first.output
    node.run(f"{KILL}; until [ \"$(pvesh get /nodes/localhost/tasks --source active --output-format json)\" = '[]' ]; do sleep 0.3; done")
    assert node.config().strip() == "lock: create" and f"/var/lib/lxc/{VMID}/rootfs" in node.run("cat /proc/mounts")
    node.run(f"rm -f {SLOW}")
    volume = f"local-zfs:subvol-{VMID}-disk-0"
    foretold = node.foretold()
    assert foretold.plan[0].startswith("Remove what a creation") and volume in foretold.plan[0], foretold.output
    done = node.converge()
    assert done.rc == 0 and done.plan == foretold.plan, done.output
    assert node.run(f"ls -d /rpool/data/subvol-{VMID}-disk-*").split() == [f"/rpool/data/subvol-{VMID}-disk-0"]
    assert node.converge().plan == []
    remove(node)


@everything
def test_a_killed_creation_that_nobody_wrote_down_is_named_with_commands_that_work(slow_unpack: World) -> None:
    node = slow_unpack
    node.converge(task_timeout_s=3)
    node.run(f"{KILL}; until [ \"$(pvesh get /nodes/localhost/tasks --source active --output-format json)\" = '[]' ]; do sleep 0.3; done")
    node.run(f"rm -rf {SLOW} /var/lib/kpro-llm/pve")
    refused = node.refused("no task works on it", "pct unlock", "--destroy-unreferenced-disks 1")
    assert "adopt" not in refused.message
    for command in re.findall(r"'(umount [^']*|pct [^']*)'", refused.message):
        node.run(command)
    assert node.converge().rc == 0
    remove(node)


@everything
def test_states_and_removal(container: World) -> None:
    assert container.as_foretold(state="stopped").plan == [f"Stop container {VMID} as declared"]
    assert container.as_foretold(state="absent").plan[-1] == f"Remove container {VMID} with its volumes"
    assert container.run("test -d /srv/models && echo kept").strip() == "kept"


# --- over https ------------------------------------------------------------------------------------------------------------------------


@everything
def test_over_https_with_a_token_and_with_a_password(node: World, tmp_path: Path) -> None:
    """Real proxmoxer on this machine, a real container on the node: what only root@pam may is refused to a token up front."""
    remove(node)
    logins = {"passwords": {"root@pam": "a-password"}, "tokens": {"root@pam!deploy": {"secret": "a-secret", "privsep": 0}}}
    node.run(f"mkdir -p /srv/models; printf '%s' '{json.dumps(logins)}' > /etc/kpro-standin/api.json; systemctl start pveproxy")
    node.run("for n in $(seq 100); do test -s /etc/pve/pve-root-ca.pem && ss -ltn | grep -q :8006 && exit 0; sleep 0.1; done; exit 1")
    certificate = tmp_path / "ca.pem"
    certificate.write_text(node.run("cat /etc/pve/pve-root-ca.pem"), encoding="ascii")
    token = {"api_token_id": "deploy", "api_token_secret": "a-secret"}
    wanted = {
        "template": TEMPLATE,
        "storage": "local-zfs",
        "rootfs_gib": 2,
        "memory_mib": 512,
        "network": {"bridge": "vmbr0", "ip": "10.77.0.210/24", "gw": "10.77.0.1"},
        "features": {"nesting": True},
    }
    gpu = {"gpus": 1, "node_gpus": node.gpus}
    before = node.state()
    refused = node.over_https(certificate, **token, **wanted, **gpu)
    assert refused["failed"] and "dev0" in refused["msg"] and "root@pam" in refused["msg"] and "a-secret" not in json.dumps(refused), refused
    assert node.state() == before
    made = node.over_https(certificate, **token, **wanted)
    assert not made["failed"] and made["running"] and made["changed"], made
    assert node.over_https(certificate, **token, **wanted)["changed"] is False
    given = node.over_https(certificate, api_password="a-password", restart=True, **wanted, **gpu)
    assert not given["failed"] and given["devices"] == DEVICES, given
    assert node.inside("stat -c '%F %a' /dev/nvidia0").strip() == "character special file 666"
    # The way through pvesh comes to the same end.
    assert node.converge("--check", mounts=[], hostname="", cores=1).rc == 0
    remove(node)
