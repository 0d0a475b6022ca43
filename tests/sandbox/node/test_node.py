# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sandbox node against its promises. Those marked ``sandbox`` start real nodes and need root."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node import cgroup, content, lifecycle, mirror, publish
from node.files import locked
from node.folders import Folders, SandboxError
from node.record import Runtime, start_ticks

CLI = Path(__file__).resolve().parent.parent / "sandbox"
TEMPLATE = "/var/lib/vz/template/cache/debian-12-standard_12.12-1_amd64.tar.zst"


def run(*arguments: str, check: bool = True, timeout_s: float = 300, **options: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does."""
    done = subprocess.run(
        [str(CLI), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **options},
    )
    assert not check or done.returncode == 0, f"{arguments}: {done.stderr}"
    return done


def on_node(name: str, line: str) -> str:
    return run("ssh", name, "--", line).stdout.strip()


def ours(name: str) -> list[str]:
    """Return the command lines of all processes of a node that the machine sees."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if f"--machine={name}".encode() in words or (name.encode() in words and {b"_launch", b"_supervise"} & set(words)):
                found.append(b" ".join(words).decode())
    return found


def machine_state() -> dict[str, object]:
    """Return what a node must not change: mounts, interfaces, cgroups of nodes, temporary folders."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    point = cgroup.mount_point()
    return {
        "mounts": sorted(line for line in mounts.splitlines() if "kpro-sandbox" in line or "nspawn" in line),
        "interfaces": sorted(os.listdir("/sys/class/net")),
        "cgroups": sorted(path.name for path in point.rglob("*kpro-sandbox-selftest*")),
        "temporary": sorted(path.name for path in Path("/tmp").glob("nspawn-*")),
    }


def eventually(condition: object, timeout_s: float = 20) -> bool:
    assert callable(condition)
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture(scope="module")
def images() -> None:
    """Build the images first, so that the tests below start from the same state on every machine."""
    run("build", timeout_s=1200)


@pytest.fixture
def node(images: None) -> Iterator[str]:
    name = "selftest"
    run("down", name)
    yield name
    run("down", name)


@pytest.fixture
def second(images: None) -> Iterator[str]:
    name = "selftest-two"
    run("down", name)
    yield name
    run("down", name)


# --- pure parts ---

DEB822 = """\
Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security/
Suites: bookworm-security
Components: main
"""


def test_mirror_is_the_machines_own() -> None:
    sources = mirror.parse_sources(
        {
            "/etc/apt/sources.list.d/a.list": "deb [signed-by=/x arch=amd64] https://other.example/apt bookworm stable\n"
            "deb-src http://s.example/debian bookworm main\n",
            "/etc/apt/sources.list.d/debian.sources": DEB822,
        }
    )
    assert mirror.mirror_lines(sources, "bookworm", "trixie") == [
        "deb http://mirror.example/debian trixie main contrib",
        "deb http://mirror.example/debian trixie-updates main contrib",
        "deb http://mirror.example/debian-security trixie-security main contrib",
    ]


def test_mirror_one_line_style_and_override() -> None:
    sources = mirror.parse_sources({"/etc/apt/sources.list": "deb http://m.example/debian bookworm main # note\n"})
    assert mirror.mirror_lines(sources, "bookworm", "bookworm")[0] == "deb http://m.example/debian bookworm main contrib"
    assert mirror.mirror_lines(sources, "bookworm", "trixie", "http://o.example/d") == ["deb http://o.example/d trixie main contrib"]


def test_mirror_of_another_distribution_is_not_used() -> None:
    sources = mirror.parse_sources({"/etc/apt/sources.list": "deb cdrom:[x]/ bookworm main\ndeb http://u.example/ubuntu noble main\n"})
    assert mirror.mirror_lines(sources, "bookworm", "trixie") == []


def test_disabled_source_is_not_used() -> None:
    sources = mirror.parse_sources({"/a.sources": "Enabled: no\n" + DEB822.split("\n\n", maxsplit=1)[0]})
    assert sources == []


def test_content_key_follows_content_names_and_mode(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1", encoding="ascii")
    first = content.content_key([tmp_path])
    (tmp_path / "README.md").write_text("words", encoding="ascii")
    (tmp_path / "test_a.py").write_text("pass", encoding="ascii")
    assert content.content_key([tmp_path]) == first
    (tmp_path / "a").chmod(0o755)
    executable = content.content_key([tmp_path])
    (tmp_path / "a").rename(tmp_path / "b")
    assert len({first, executable, content.content_key([tmp_path]), content.content_key([tmp_path], "x")}) == 4


def test_package_list(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("zstd\n# comment\nlxc  # why\n\n", encoding="ascii")
    assert content.package_list(tmp_path / "a", tmp_path / "missing") == ["lxc", "zstd"]


def test_cgroup_of_a_hybrid_machine() -> None:
    mounts = (
        "30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
        "31 30 0:27 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n"
        "32 30 0:28 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw\n"
    )
    assert cgroup.parse_cgroup2_mount(mounts) == "/sys/fs/cgroup/unified"
    assert cgroup.parse_cgroup2_mount(mounts.splitlines()[0]) == ""
    assert cgroup.parse_own_path("9:name=systemd:/\n1:cpu:/x\n0::/system.slice/a.scope\n") == "/system.slice/a.scope"


def test_listings_agree(tmp_path: Path) -> None:
    (tmp_path / "sub dir").mkdir()
    (tmp_path / "sub dir" / "a b.bin").write_bytes(b"12345")
    os.utime(tmp_path / "sub dir" / "a b.bin", (1000, 1000))
    assert publish.local_listing(tmp_path) == publish.parse_listing("5 1000.2500 sub dir/a b.bin\n")


def test_a_process_counts_only_with_its_start_time() -> None:
    ticks = start_ticks(os.getpid())
    assert ticks
    assert Runtime(cgroup="", pid=os.getpid(), ticks=ticks).alive
    assert not Runtime(cgroup="", pid=os.getpid(), ticks=ticks + 1).alive
    assert not Runtime(cgroup="", pid=os.getpid(), ticks=ticks, boot_id="another boot").alive


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "-a", "a" * 40, "1a"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(SandboxError):
        lifecycle.check_name(name)


# --- the command line without a node ---


@pytest.mark.skipif(os.geteuid() != 0, reason="shows what happens to a user who is not root, and starts as root")
@pytest.mark.parametrize("command", ["up", "down", "reset", "status", "logs"])
def test_without_root_there_is_one_sentence(command: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(CLI), command],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "KPRO_SANDBOX_DIR": str(tmp_path / "none")},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "needs root" in done.stderr
    assert "sudo" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="hides a program in a mount namespace of its own")
def test_missing_packages_are_named(tmp_path: Path) -> None:
    hide = tmp_path / "hidden"
    hide.write_text("", encoding="ascii")
    lines = [f"mount --bind {hide} {shutil.which(program)}" for program in ("slirp4netns", "mmdebstrap") if shutil.which(program)]
    script = "; ".join([*lines, f"exec {shlex.quote(str(CLI))} up selftest-never"])
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-euc", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KPRO_SANDBOX_DIR": str(tmp_path / "none")},
    )
    assert done.returncode == 2
    assert "mmdebstrap slirp4netns" in done.stderr
    assert "apt-get install" in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_node_that_is_not_there(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    empty = str(tmp_path / "sandbox")
    assert "no node nobody" in run("status", "nobody", check=False, KPRO_SANDBOX_DIR=empty).stdout
    assert run("status", "nobody", check=False, KPRO_SANDBOX_DIR=empty).returncode == 3
    assert "there is no node nobody" in run("reset", "nobody", check=False, KPRO_SANDBOX_DIR=empty).stderr
    assert "does not run" in run("ssh", "nobody", "--", "true", check=False, KPRO_SANDBOX_DIR=empty).stderr
    assert run("down", "nobody", KPRO_SANDBOX_DIR=empty).returncode == 0


# --- real nodes ---


@pytest.mark.sandbox
def test_up_twice_reboot_and_down(node: str) -> None:
    before = machine_state()
    run("up", node)
    status = json.loads(run("status", node, "--json").stdout)[0]
    assert status["running"]
    assert on_node(node, "systemctl is-system-running") == "running"
    assert on_node(node, "cat /etc/hostname; hostname").split() == ["pve9", "pve9"]
    supervisors = ours(node)
    assert "runs already" in run("up", node).stderr
    assert ours(node) == supervisors
    assert machine_state()["interfaces"] == before["interfaces"]
    assert machine_state()["mounts"] == before["mounts"]

    boot_id = on_node(node, "cat /proc/sys/kernel/random/boot_id")
    rules = on_node(node, "iptables -t nat -S")
    on_node(node, "echo kept > /root/kept; ip link add leftover type bridge; systemctl reboot")
    assert eventually(lambda: run("ssh", node, "--", "cat /proc/sys/kernel/random/boot_id", check=False).stdout.strip() not in ("", boot_id))
    assert eventually(lambda: on_node(node, "systemctl is-system-running") == "running")
    assert on_node(node, "cat /root/kept; ls /sys/class/net | grep -c leftover || true").split() == ["kept", "0"]
    assert on_node(node, "iptables -t nat -S") == rules
    assert len(on_node(node, "journalctl --list-boots --no-pager -q").splitlines()) == 2

    run("down", node)
    assert ours(node) == []
    assert machine_state() == before
    assert not Folders.from_environment().node(node).path.exists()
    assert node not in run("status").stdout


@pytest.mark.sandbox
def test_host_keys_are_checked(node: str, tmp_path: Path) -> None:
    run("up", node)
    status = json.loads(run("status", node, "--json").stdout)[0]
    base = ["ssh", "-p", str(status["port"]), "-i", status["ssh_key"], "-o", "BatchMode=yes", "-o", "GlobalKnownHostsFile=none"]
    good = [*base, "-o", f"UserKnownHostsFile={status['known_hosts']}", "root@127.0.0.1", "hostname"]
    assert subprocess.run(good, capture_output=True, text=True, check=False).stdout.strip() == "pve9"
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    wrong = tmp_path / "known_hosts"
    kind, key = other.with_suffix(".pub").read_text(encoding="ascii").split()[:2]
    wrong.write_text(f"[127.0.0.1]:{status['port']} {kind} {key}\n", encoding="ascii")
    bad = subprocess.run([*base, "-o", f"UserKnownHostsFile={wrong}", "root@127.0.0.1", "hostname"], capture_output=True, text=True, check=False)
    assert bad.returncode == 255
    assert "Host key verification failed" in bad.stderr


@pytest.mark.sandbox
def test_reset_gives_a_new_disk(node: str) -> None:
    run("up", node)
    on_node(node, "touch /root/old; mkdir -p /srv/many; seq 2000 | (cd /srv/many; xargs touch)")
    machine_id = on_node(node, "cat /etc/machine-id")
    run("reset", node)
    assert on_node(node, "ls /root /srv") == "/root:\n\n/srv:" or "old" not in on_node(node, "ls -A /root")
    assert on_node(node, "cat /etc/machine-id") != machine_id
    assert on_node(node, "systemctl is-system-running") == "running"


@pytest.mark.sandbox
def test_keep_goes_on_with_the_disk(node: str) -> None:
    run("up", node)
    on_node(node, "echo 1 > /root/kept")
    run("down", node, "--keep")
    assert ours(node) == []
    assert run("status", node, check=False).returncode == 3
    run("up", node)
    assert on_node(node, "cat /root/kept") == "1"


@pytest.mark.sandbox
def test_two_nodes_side_by_side(node: str, second: str) -> None:
    run("up", node)
    run("up", second, "--suite", "bookworm", "--hostname", "other", timeout_s=1200)
    first_port, second_port = (json.loads(run("status", name, "--json").stdout)[0]["port"] for name in (node, second))
    assert first_port != second_port
    assert on_node(node, "hostname; . /etc/os-release; echo $VERSION_ID").split() == ["pve9", "13"]
    assert on_node(second, "hostname; . /etc/os-release; echo $VERSION_ID").split() == ["other", "12"]
    assert on_node(second, "systemctl is-system-running") == "running"
    folders = Folders.from_environment()
    groups = {json.loads(folders.node(name).runtime.read_text(encoding="utf-8"))["cgroup"] for name in (node, second)}
    assert len(groups) == 2
    assert "belongs to node" in run("up", "selftest-three", "--port", str(first_port), check=False).stderr
    run("down", "selftest-three")
    run("down", node)
    assert on_node(second, "systemctl is-system-running") == "running"


@pytest.mark.sandbox
def test_forwards(node: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run("up", node, "--forward", f"{port}:8000", check=False)
        assert refused.returncode == 2
        assert f"port {port} of 127.0.0.1 is used by another program" in refused.stderr
        assert ours(node) == []
    run("up", node)
    run("up", node, "--forward", f"{port}:8000")
    on_node(node, "systemd-run -q --unit=web -p WorkingDirectory=/etc python3 -m http.server 8000")

    def fetch() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(b"GET /hostname HTTP/1.0\r\n\r\n")
            return b"pve9" in b"".join(iter(lambda: connection.recv(4096), b""))
        return False

    assert eventually(fetch)


@pytest.mark.sandbox
def test_the_machines_loopback_is_out_of_reach(node: str) -> None:
    run("up", node)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        line = f"timeout 3 bash -c 'exec 3<>/dev/tcp/10.0.2.2/{port}' 2>/dev/null && echo reached || echo refused"
        assert on_node(node, line) == "refused"


def killed_up(name: str, delay_s: float) -> None:
    """Kill a command that starts a node, the given time after it has begun to."""
    process = subprocess.Popen([str(CLI), "up", name], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "starting node" in line:
            break
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.sandbox
@pytest.mark.parametrize("delay_s", [0, 0.1, 0.4, 1.5])
def test_a_killed_up_leaves_nothing(node: str, delay_s: float) -> None:
    before = machine_state()
    killed_up(node, delay_s)
    # The start holds the node's lock until it has ended or knows that it stays: the node is whole or not at all.
    with locked(Folders.from_environment().locks / f"node-{node}", "the killed start"):
        pass
    if ours(node):
        assert run("ssh", node, "--", "systemctl is-system-running", check=False).stdout == "running\n"
    assert {**machine_state(), "cgroups": []} == {**before, "cgroups": []}
    run("down", node)
    assert machine_state() == before


@pytest.mark.sandbox
@pytest.mark.parametrize("delay_s", [0, 0.05, 0.2, 0.7])
def test_an_up_right_after_a_killed_one_starts_the_node(node: str, delay_s: float) -> None:
    before = machine_state()
    killed_up(node, delay_s)
    run("up", node)
    assert on_node(node, "systemctl is-system-running") == "running"
    run("down", node)
    assert machine_state() == before


@pytest.mark.sandbox
@pytest.mark.parametrize("victim", ["unshare", "python", "systemd-nspawn"])
def test_a_killed_node_leaves_nothing(node: str, victim: str) -> None:
    before = machine_state()
    run("up", node)
    runtime = json.loads(Folders.from_environment().node(node).runtime.read_text(encoding="utf-8"))
    parent = int(Path(f"/proc/{runtime['pid']}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
    children = Path(f"/proc/{runtime['pid']}/task/{runtime['pid']}/children").read_text(encoding="ascii").split()
    nspawn = next(int(pid) for pid in children if "nspawn" in Path(f"/proc/{pid}/comm").read_text(encoding="ascii"))
    os.kill({"unshare": parent, "python": runtime["pid"], "systemd-nspawn": nspawn}[victim], signal.SIGKILL)
    assert eventually(lambda: ours(node) == [])
    assert run("status", node, check=False).returncode == 3
    assert machine_state()["mounts"] == before["mounts"]
    assert machine_state()["interfaces"] == before["interfaces"]
    run("up", node)
    assert on_node(node, "systemctl is-system-running") == "running"
    run("down", node)
    assert machine_state() == before


@pytest.mark.sandbox
def test_a_killed_build_leaves_no_process_and_no_mount(tmp_path: Path) -> None:
    before = machine_state()
    environment = {**os.environ, "KPRO_SANDBOX_DIR": str(tmp_path / "sandbox")}
    process = subprocess.Popen([str(CLI), "build"], stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    for line in process.stderr:
        if re.search(r"image trixie: (extracting|installing essential)", line):
            break
    process.kill()
    process.wait()

    def builders() -> list[str]:
        listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        return [line for line in listing.splitlines() if str(tmp_path) in line]

    assert eventually(lambda: not builders())
    assert machine_state() == before
    assert list((tmp_path / "sandbox/cache/image").iterdir()) == []


CONTAINER = """
set -eu
d=/var/lib/lxc/101
mkdir -p $d/rootfs
chmod 755 /var/lib/lxc $d
{unpack}
cat > $d/config <<C
lxc.include = /usr/share/lxc/config/common.conf
{config}
lxc.include = /usr/share/lxc/config/nesting.conf
lxc.uts.name = inner
lxc.rootfs.path = dir:$d/rootfs
lxc.net.0.type = veth
lxc.net.0.link = vmbr0
lxc.net.0.flags = up
lxc.net.0.name = eth0
lxc.apparmor.profile = unconfined
lxc.start.auto = 1
C
printf '%s\\n' 'auto lo' 'iface lo inet loopback' 'auto eth0' 'iface eth0 inet static' ' address 10.77.0.101/24' ' gateway 10.77.0.1' \\
  > $d/rootfs/etc/network/interfaces
cp /etc/resolv.conf $d/rootfs/etc/resolv.conf
lxc-start -n 101
"""
IDMAP = """lxc.include = /usr/share/lxc/config/userns.conf
lxc.idmap = u 0 100000 65536
lxc.idmap = g 0 100000 65536"""
SHIFTED = (
    "chown 100000:100000 $d/rootfs; lxc-usernsexec -m u:0:100000:65536 -m g:0:100000:65536 -- "
    f"tar --zstd -xpf {TEMPLATE} -C $d/rootfs --numeric-owner --exclude=./dev/*"
)


@pytest.mark.sandbox
@pytest.mark.parametrize("suite", os.environ.get("KPRO_TEST_SUITES", "trixie").split(","))
@pytest.mark.parametrize("privileged", [False, True], ids=["unprivileged", "privileged"])
def test_nested_container_runs_systemd(node: str, suite: str, privileged: bool) -> None:
    run("up", node, "--suite", suite, timeout_s=1200)
    unpack = f"tar --zstd -xpf {TEMPLATE} -C $d/rootfs --numeric-owner --exclude=./dev/*" if privileged else SHIFTED
    on_node(node, CONTAINER.format(unpack=unpack, config="" if privileged else IDMAP))

    def inside(line: str) -> str:
        return run("ssh", node, "--", f"lxc-attach -n 101 -- /bin/sh -c {shlex.quote(line)}", check=False).stdout.strip()

    assert eventually(lambda: inside("systemctl is-system-running") == "running", 60), inside("systemctl --failed")
    assert inside("hostname; cat /proc/1/comm; python3 -c 'print(6*7)'").split() == ["inner", "systemd", "42"]
    assert inside("systemctl is-active ssh; head -c 4 /etc/debian_version").split() == ["active", "12.1"]
    assert inside("cat /proc/self/uid_map").split()[1] == ("0" if privileged else "100000")
    # Names are resolved and the node masquerades: the node's own bridge answers at the least.
    assert inside("ping -c1 -W5 -q 10.77.0.1 >/dev/null && ip route show default").startswith("default via 10.77.0.1")
    boot_id = inside("cat /proc/sys/kernel/random/boot_id")
    on_node(node, "systemctl reboot")
    assert eventually(lambda: inside("cat /proc/sys/kernel/random/boot_id") not in ("", boot_id), 60)
    assert eventually(lambda: inside("systemctl is-system-running") == "running", 60)


@pytest.mark.sandbox
def test_layer(node: str, second: str) -> None:
    key = "selftest-layer"
    if run("layer", "has", key, check=False).returncode == 0:
        run("layer", "remove", key)
    run("up", node)
    on_node(node, "apt-get update -qq && apt-get install -qq -y proxmox-default-headers >/dev/null; mkdir /opt/a; echo 1 > /opt/a/b")
    host_key = on_node(node, "cat /etc/ssh/ssh_host_ed25519_key.pub")
    run("layer", "save", node, key)
    assert run("status", node, check=False).returncode == 3
    assert key in run("layer", "list").stdout.split()
    run("up", node, "--layer", key)
    run("up", second, "--layer", key)
    on_node(node, "mv /opt/a /opt/c; rm /opt/c/b")
    for name in (node, second):
        assert on_node(name, "dpkg-query -W -f '${Status}' proxmox-default-headers") == "install ok installed"
    assert on_node(second, "cat /opt/a/b") == "1"
    assert host_key != on_node(second, "cat /etc/ssh/ssh_host_ed25519_key.pub")
    assert on_node(node, "cat /etc/machine-id") != on_node(second, "cat /etc/machine-id")
    assert "in use" in run("layer", "remove", key, check=False).stderr
    run("reset", node)
    assert on_node(node, "cat /opt/a/b") == "1"
    run("down", node)
    run("down", second)
    run("layer", "remove", key)
    assert run("layer", "has", key, check=False).returncode == 1


@pytest.mark.sandbox
def test_publish(node: str, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/a b.whl").write_bytes(bytes(range(256)) * 1000)
    (tmp_path / "wheels/a b.whl").chmod(0o600)
    run("up", node)
    assert run("publish", node, "--files", str(tmp_path)).stdout == "1 files sent\n"
    assert run("publish", node, "--files", str(tmp_path)).stdout == "0 files sent\n"
    assert on_node(node, "stat -c '%s %a %U' '/srv/kpro-standin/files/wheels/a b.whl'") == "256000 644 root"


@pytest.mark.sandbox
def test_an_overlay_folder_is_refused_with_a_sentence(images: None, tmp_path: Path) -> None:
    """As inside Docker, where the root file system is an overlay already."""
    cache = Folders.from_environment().cache
    for name in ("lower", "up", "work", "merged"):
        (tmp_path / name).mkdir()
    script = (
        f"mount -t overlay overlay -o lowerdir={tmp_path}/lower,upperdir={tmp_path}/up,workdir={tmp_path}/work {tmp_path}/merged; "
        f"mkdir {tmp_path}/merged/cache; mount --bind {cache} {tmp_path}/merged/cache; exec {shlex.quote(str(CLI))} up selftest-overlay"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-euc", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KPRO_SANDBOX_DIR": f"{tmp_path}/merged"},
    )
    assert done.returncode == 2
    assert "set KPRO_SANDBOX_DIR to a folder on one" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.sandbox
@pytest.mark.skipif("KPRO_TEST_EVERYTHING" not in os.environ, reason="bin/test --all boots whole machines")
@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_a_node_on_a_machine_as_new(images: None, suite: str) -> None:
    """A Debian with little more than git and python3, systemd as its first process and cgroups v2. Only the cache is ours."""
    name = f"selftest-new-{suite}"
    run("down", name)
    try:
        run("up", name, "--pristine", "--suite", suite, timeout_s=1200)
        sources = subprocess.Popen(["tar", "-C", str(CLI.parent), "-cf", "-", "."], stdout=subprocess.PIPE)
        copy = [str(CLI), "exec", name, "--", "sh", "-c", "mkdir sandbox; tar -C sandbox -xf -"]
        subprocess.run(copy, stdin=sources.stdout, check=True)
        assert sources.wait() == 0

        def new(line: str, check: bool = True) -> subprocess.CompletedProcess[str]:
            return run("exec", name, "--", "sh", "-c", line, check=check, timeout_s=1200)

        refused = new("sandbox/sandbox up", check=False)
        assert refused.returncode == 2
        assert "slirp4netns" in refused.stderr
        assert "--install-missing" in refused.stderr
        folders = Folders.from_environment()
        subprocess.run(["cp", "-al", folders.cache, folders.node(name).data], check=True)
        new("sandbox/sandbox up --install-missing")
        assert new("sandbox/sandbox ssh -- systemctl is-system-running").stdout == "running\n"
        new("sandbox/sandbox ssh -- systemd-run --wait --property=Delegate=yes true")
        assert "kpro-sandbox-sandbox-" in new("systemctl list-units --no-legend 'kpro-sandbox-*'").stdout
        new("sandbox/sandbox down")
        assert new("systemctl list-units --no-legend 'kpro-sandbox-*'; find /sys/fs/cgroup -name 'kpro*'").stdout == ""
        assert new("grep -c kpro-sandbox/state/sandbox /proc/self/mountinfo", check=False).stdout == "0\n"
    finally:
        run("down", name)
