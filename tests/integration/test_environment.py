# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Environments in a real container with real uv and systemd, and every way in which their building can be disturbed.

The files come from a small server on the node, which can stop in the middle of one. After each disturbance the next run has to complete, and until then the
environment in force has to be the old one, whole.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import tarfile
import tempfile
import time
import typing as t
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lanes
from conftest import ROOT, SANDBOX, VMID, Node

pytestmark = pytest.mark.sandbox
everything = pytest.mark.skipif("KPRO_TEST_EVERYTHING" not in os.environ, reason="bin/test --all disturbs an environment in every way")

HERE = Path(__file__).parent / "environment"
LOCKS = ROOT / "roles/sglang_runtime/files/locks"
FILES = "/srv/kpro-test-wheels"
NVCC = "/srv/kpro-test-nvcc"
ROOT_FOLDER = "/opt/kpro-test"
WHEELHOUSE = "/opt/kpro-test-wheelhouse"
SERVER = "http://10.77.0.1:8191/"
USER = "sglang"
UNIT = "kpro-environment-*.service"


def record_line(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"


def wheel(name: str, version: str, payload: bytes = b"") -> bytes:
    """Return a wheel whose package has a version and, as ballast, a file."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as made:
        made.writestr(f"{module}/__init__.py", f"VERSION = {version!r}\n")
        made.writestr(f"{module}/ballast", payload)
        made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{info}/RECORD", "".join(record_line(path, made.read(path)) for path in made.namelist()) + f"{info}/RECORD,,\n")
    return out.getvalue()


@dataclasses.dataclass
class Run:
    """One run of the module, which may still go on."""

    process: subprocess.Popen[str]
    path: Path
    file: t.IO[str]

    def shown(self) -> str:
        return self.path.read_text()

    def result(self) -> dict[str, t.Any]:
        """Wait for the end; ``failed`` is set in the result if it failed, ``shown`` is what stood at the terminal."""
        self.process.wait(timeout=400)
        found = re.search(r"^container \| (\w+)!? => (\{.*?^\})", self.shown(), re.MULTILINE | re.DOTALL)
        assert found, self.shown()
        # Warnings stand in wrapped lines.
        return {**json.loads(found[2]), "failed": found[1] == "FAILED", "shown": " ".join(self.shown().replace(found[0], "").split())}

    def kill(self) -> None:
        """End it as a lost terminal would: all of its processes here, nothing there."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclasses.dataclass
class World:
    """A container, the node's file server, and a lock that grows by versions."""

    node: Node
    ansible: Path
    root: str = ROOT_FOLDER
    engine: str = ""
    locked: dict[str, str] = dataclasses.field(default_factory=dict)

    # --- the container and the node

    def inside(self, command: str, check: bool = True) -> str:
        argv = [SANDBOX, "ssh", self.node.name, "--", f"lxc-attach -n {VMID} --clear-env -- sh -c {shlex.quote(command)}"]
        return subprocess.run(argv, capture_output=True, text=True, check=check).stdout.strip()

    def send(self, path: str, data: bytes) -> None:
        subprocess.run([SANDBOX, "ssh", self.node.name, "--", f"cat > {path}"], input=data, check=True)

    def wait_for(self, condition: Callable[[], t.Any], what: str, timeout_s: float = 180.0) -> None:
        until = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < until, f"{what} did not come true"
            time.sleep(0.3)

    def held(self) -> bool:
        return bool(self.node.run(f"ls {FILES}/held 2>/dev/null || true").strip())

    def hold(self) -> None:
        self.node.run(f"rm -f {FILES}/held; touch {FILES}/hold")

    def release(self) -> None:
        self.node.run(f"rm -f {FILES}/hold {FILES}/held {FILES}/cut")

    def unit(self) -> str:
        """Return the state of the builder's unit; empty if there is none."""
        words = self.inside(f"systemctl list-units --all --plain --no-legend '{UNIT}'").split()
        return words[2] if words else ""

    # --- packages

    def offer(self, version: str, payload: bytes = b"") -> None:
        """Make the server offer a version of the engine, and lock it."""
        data = wheel("kpro-test-engine", version, payload)
        self.send(f"{FILES}/kpro_test_engine-{version}-py3-none-any.whl", data)
        self.engine = version
        self.locked["kpro-test-engine"] = f"kpro-test-engine=={version} --hash=sha256:{hashlib.sha256(data).hexdigest()}\n"

    # --- the module

    def options(self, **options: t.Any) -> dict[str, t.Any]:
        return {
            "root": self.root,
            "lock": "".join(self.locked.values()),
            "uv_lock": (LOCKS / "uv-0.13.9.txt").read_text(),
            "package": "kpro-test-engine",
            "package_version": self.engine,
            "python": "3.11",
            "find_links": [SERVER],
            "user": USER,
            "poll_s": 3,
            "environment": {"UV_HTTP_TIMEOUT": "300", "UV_HTTP_RETRIES": "1", "PIP_TRUSTED_HOST": "10.77.0.1"},
            **options,
        }

    def start(self, **options: t.Any) -> Run:
        """Begin a run in a process group of its own."""
        argv = [self.ansible, "container", "-i", self.node.inventory, "-m", "kpro.llm.uv_environment", "-a", json.dumps(self.options(**options))]
        env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_FORCE_COLOR": "0"}
        output = tempfile.NamedTemporaryFile(mode="w+")  # noqa: SIM115  # it lives as long as the run
        return Run(subprocess.Popen(argv, env=env, stdout=output, stderr=output, text=True, cwd="/", start_new_session=True), Path(output.name), output)

    def run(self, **options: t.Any) -> dict[str, t.Any]:
        return self.start(**options).result()

    def in_force(self) -> str:
        """Return what the service user gets from the environment in force."""
        code = "import kpro_test_engine as e; print(e.VERSION)"
        return self.inside(f"runuser -u {USER} -- {self.root}/venv/bin/python -c {shlex.quote(code)}", check=False)


@pytest.fixture(scope="module")
def world(node: Node) -> Iterator[World]:
    made = World(node, lanes.environment(lanes.available()[-1], "dev") / "bin" / "ansible")
    made.inside("apt-get install -y -qq python3-venv >/dev/null")
    made.inside(f"id -u {USER} >/dev/null 2>&1 || useradd --system --user-group --no-create-home {USER}")
    certificates = "\n".join(path.read_text() for path in sorted(Path("/usr/local/share/ca-certificates").glob("*.crt")))
    if certificates:
        # A machine behind a proxy of its own authority: the container has to trust it to reach the index.
        made.send("/tmp/kpro-test.crt", certificates.encode())
        node.run(f"cat /tmp/kpro-test.crt | lxc-attach -n {VMID} -- tee /usr/local/share/ca-certificates/kpro-test.crt >/dev/null")
        made.inside("update-ca-certificates >/dev/null 2>&1")
    node.run(f"mkdir -p {FILES}")
    made.send("/srv/wheel_server.py", (HERE / "wheel_server.py").read_bytes())
    serve(made)
    yield made
    node.run("systemctl stop kpro-test-wheels.service")


def serve(world: World) -> None:
    world.node.run(
        f"systemctl reset-failed kpro-test-wheels.service 2>/dev/null; systemctl is-active -q kpro-test-wheels.service ||"
        f" systemd-run --quiet --unit=kpro-test-wheels.service /usr/bin/python3 /srv/wheel_server.py 10.77.0.1 8191 {FILES}"
    )


@pytest.fixture(autouse=True)
def undisturbed(world: World) -> Iterator[None]:
    """Leave no fault behind."""
    yield
    world.release()


_number = iter(range(1, 100))


def large() -> bytes:
    return os.urandom(3 << 20)


def disturbed(world: World, disturb: Callable[[], t.Any], *, ends: bool = True) -> dict[str, t.Any] | None:
    """Begin a build of a new version, disturb it in the middle of a download, and return how the run ended, if it does by itself."""
    before = world.in_force()
    world.offer(f"{next(_number)}.0", large())
    world.hold()
    run = world.start()
    try:
        world.wait_for(world.held, "the download's middle")
        disturb()
        ended = run.result() if ends else None
    finally:
        run.kill()
    assert world.in_force() == before, "half of an environment is in force"
    return ended


def completed(world: World) -> dict[str, t.Any]:
    """Run again, undisturbed: it has to complete, and then nothing may be left to do."""
    world.release()
    done = world.run()
    assert not done["failed"], done
    assert world.in_force() == world.engine
    again = world.run()
    assert not again["changed"] and again["plan"] == [], again
    # Nothing of the disturbed build stays.
    assert world.inside(f"ls -A {world.root}/envs | grep -c part || true") == "0"
    return done


# --- in every run ------------------------------------------------------------------------------------------------------------------------


def test_a_lost_connection_leaves_the_build_running_and_the_next_run_attaches(world: World) -> None:
    world.offer(f"{next(_number)}.0", large())
    world.hold()
    first = world.start()
    world.wait_for(world.held, "the download's middle")
    first.kill()
    assert world.unit() == "active"
    second = world.start()
    world.wait_for(lambda: "download and unpack packages" in second.shown(), "the second run's progress")
    world.release()
    done = second.result()
    assert not done["failed"] and done["changed"], done
    assert world.in_force() == world.engine
    again = world.run()
    assert not again["changed"] and again["venv"] == done["venv"]


def test_after_kill_9_of_the_unit_the_next_run_completes(world: World) -> None:
    # The run that waits fails if it was looking at that moment, and starts the unit again if it was not: both are right.
    disturbed(world, lambda: world.inside(f"systemctl kill --signal=SIGKILL '{UNIT}'"), ends=False)
    completed(world)


def test_damage_in_place_is_named_and_mended_from_good_bytes_with_real_uv(world: World) -> None:
    payload = large()
    world.offer(f"{next(_number)}.0", payload)
    old = world.run()["venv"]
    good = hashlib.sha256(payload).hexdigest()
    ballast = "lib/python3.11/site-packages/kpro_test_engine/ballast"
    # uv shares the file with its cache: what is cut off here is cut off there.
    assert int(world.inside(f"stat -c %h {old}/{ballast}")) > 1
    with_process = f"runuser -u {USER} -- {old}/bin/python -c 'import time; time.sleep(300)'"
    world.inside(f"systemd-run --quiet --unit=kpro-test-serving.service {with_process}")
    try:
        world.inside(f"truncate --size=1000 {old}/{ballast}")
        done = world.run()
        assert not done["failed"] and "kpro-test-engine (" in done["plan"][0] and "ballast has 1000 of 3145728 bytes" in done["plan"][0], done
        assert done["venv"] != old and world.inside(f"sha256sum < {done['venv']}/{ballast}").split()[0] == good
        assert world.inside("systemctl is-active kpro-test-serving.service") == "active", "a serving process was ended"
        assert not world.run()["changed"]
        # Bits that flip without a trace in time or size: read on request, and dropped from the cache as well.
        now = done["venv"]
        flip = f"touch -r {now}/{ballast} /tmp/then; printf X | dd of={now}/{ballast} bs=1 seek=77 conv=notrunc status=none; touch -r /tmp/then {now}/{ballast}"
        world.inside(flip)
        assert not world.run()["changed"]
        mended = world.run(verify="all")
        assert not mended["failed"] and "ballast was changed" in mended["plan"][0], mended
        assert world.inside(f"sha256sum < {mended['venv']}/{ballast}").split()[0] == good
        # Only the cache is damaged: the next environment is read, and the package fetched again.
        cached = f"{world.root}/cache/archive-v0/*/kpro_test_engine/ballast"
        world.inside(f"for file in {cached}; do printf Y | dd of=$file bs=1 seek=9 conv=notrunc status=none; done")
        anew = world.run(rebuild=True)
        assert not anew["failed"] and world.inside(f"sha256sum < {anew['venv']}/{ballast}").split()[0] == good, anew
        assert not world.run()["changed"]
    finally:
        world.inside("systemctl stop kpro-test-serving.service", check=False)


# --- in a run of everything --------------------------------------------------------------------------------------------------------------


@everything
def test_the_container_is_stopped(world: World) -> None:
    def stop() -> None:
        world.node.run(f"pct stop {VMID}")
        world.node.run(
            f"pct start {VMID} && for i in $(seq 100); do lxc-attach -n {VMID} -- systemctl is-system-running >/dev/null 2>&1 && break; sleep 0.2; done"
        )

    disturbed(world, stop, ends=False)
    completed(world)


@everything
def test_the_node_reboots(world: World) -> None:
    boot_id = world.node.run("cat /proc/sys/kernel/random/boot_id")

    def reboot() -> None:
        subprocess.run([SANDBOX, "ssh", world.node.name, "--", "systemctl reboot"], capture_output=True, check=False)

        def back() -> bool:
            argv = [SANDBOX, "ssh", world.node.name, "--", "systemctl is-system-running --wait >/dev/null; cat /proc/sys/kernel/random/boot_id"]
            now = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
            return bool(now.strip()) and now != boot_id

        world.wait_for(back, "the node's return", 300)
        world.node.run(f"pct status {VMID} | grep -q running || pct start {VMID}")
        world.wait_for(lambda: world.inside("systemctl is-system-running --wait", check=False) in ("running", "degraded"), "the container's return")
        serve(world)

    disturbed(world, reboot, ends=False)
    completed(world)


@everything
def test_the_cable_is_cut_during_a_download(world: World) -> None:
    ended = disturbed(world, lambda: world.node.run(f"touch {FILES}/cut; rm -f {FILES}/hold"))
    assert ended and ended["failed"] and "packages failed" in ended["msg"], ended
    completed(world)


@everything
def test_a_wheel_with_wrong_bytes_is_refused(world: World) -> None:
    before = world.in_force()
    world.offer(f"{next(_number)}.0", b"as locked")
    path = f"{FILES}/kpro_test_engine-{world.engine}-py3-none-any.whl"
    world.node.run(f"cp {path} {path}.whole")
    world.send(path, wheel("kpro-test-engine", world.engine, b"not as locked"))
    refused = world.run()
    assert refused["failed"] and "Hash mismatch" in refused["msg"] and world.in_force() == before
    world.node.run(f"mv {path}.whole {path}")
    completed(world)


@everything
def test_a_truncated_wheel_is_refused(world: World) -> None:
    before = world.in_force()
    world.offer(f"{next(_number)}.0", large())
    path = f"{FILES}/kpro_test_engine-{world.engine}-py3-none-any.whl"
    world.node.run(f"cp {path} {path}.whole && truncate --size=-700000 {path}")
    refused = world.run()
    assert refused["failed"] and "packages failed" in refused["msg"] and world.in_force() == before
    world.node.run(f"mv {path}.whole {path}")
    completed(world)


@everything
def test_the_disk_is_full(world: World) -> None:
    small = dataclasses.replace(world, root="/mnt/kpro-small", locked={})
    small.inside(f"mkdir -p {small.root} && mount -t tmpfs -o size=200m,mode=755 tmpfs {small.root} && fallocate -l 70M {small.root}/filler")
    try:
        small.offer(f"{next(_number)}.0")
        assert not small.run()["failed"]
        before = small.in_force()
        small.offer(f"{next(_number)}.0", bytes(100 << 20))
        full = small.run()
        assert full["failed"] and "No space left on device" in full["msg"] and small.in_force() == before, full
        refused = small.run(size_mib=1000)
        assert refused["failed"] and "MiB are needed" in refused["msg"]
        small.inside(f"rm {small.root}/filler")
        completed(small)
    finally:
        small.inside(f"umount {small.root}", check=False)
    world.engine = ""


@everything
def test_two_runs_at_once_share_one_build(world: World) -> None:
    world.offer(f"{next(_number)}.0", large())
    world.hold()
    runs = [world.start() for _unused in range(2)]
    world.wait_for(world.held, "the download's middle")
    world.release()
    results = [run.result() for run in runs]
    assert [result["failed"] for result in results] == [False, False], results
    assert results[0]["venv"] == results[1]["venv"]
    completed(world)


@everything
def test_a_roll_back_takes_the_kept_environment_and_fetches_nothing(world: World) -> None:
    world.offer(f"{next(_number)}.0")
    old = world.run()["venv"]
    before = (world.engine, dict(world.locked))
    world.offer(f"{next(_number)}.0")
    assert world.run()["venv"] != old
    world.engine, world.locked = before[0], before[1]
    world.node.run("systemctl stop kpro-test-wheels.service")
    try:
        back = world.run()
    finally:
        serve(world)
    assert back["venv"] == old and "in force again" in back["plan"][0]
    assert world.in_force() == world.engine


# --- a package that the index has only as source -----------------------------------------------------------------------------------------


def sdist() -> bytes:
    """Return the source archive of the stand-in of flash-attn."""
    out = io.BytesIO()
    files = {
        "setup.py": (HERE / "attention_setup.py").read_bytes(),
        "PKG-INFO": b"Metadata-Version: 2.1\nName: kpro-test-attention\nVersion: 2.8.3\n",
        "kpro_test_attention/__init__.py": b"import pathlib\nKERNELS = len(list(pathlib.Path(__file__).parent.glob('kernel*.o')))\n",
        "kpro_test_attention/cute/__init__.py": b"an old copy of what another package provides\n",
    }
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"kpro_test_attention-2.8.3/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def source_package(data: bytes, **changes: t.Any) -> dict[str, t.Any]:
    tools = "\n".join(line for line in (LOCKS / "flash-attn-2.8.3.post2.txt").read_text().split("\n") if not line.startswith("#"))
    tools = re.sub(r"flash-attn==.*?\n(?=\w)", "", tools, flags=re.DOTALL)
    return {
        "name": "kpro-test-attention",
        "version": "2.8.3",
        "lock": f"kpro-test-attention==2.8.3 --hash=sha256:{hashlib.sha256(data).hexdigest()}\n{tools}",
        "wheelhouse": WHEELHOUSE,
        "imports": ["kpro_test_attention"],
        "omit": ["kpro_test_attention/cute"],
        "tags": {"torch": "2.14.1", "CUDA": "13.0", "Python": "3.11", "sm": "80"},
        "build": True,
        "cuda_home": NVCC,
        "job_memory_mib": 64,
        "variables": {"FLASH_ATTENTION_FORCE_BUILD": "TRUE", "FLASH_ATTN_CUDA_ARCHS": "80", "TORCH_CUDA_ARCH_LIST": "8.6"},
        **changes,
    }


@everything
def test_a_source_becomes_a_kept_wheel_through_a_lost_connection_and_a_killed_compiler_and_is_reused(world: World) -> None:
    data = sdist()
    world.send(f"{FILES}/kpro_test_attention-2.8.3.tar.gz", data)
    world.send("/tmp/nvcc", (HERE / "standin_nvcc").read_bytes())
    world.inside(f"mkdir -p {NVCC}/bin && chmod 777 {NVCC}")
    world.node.run(f"cat /tmp/nvcc | lxc-attach -n {VMID} -- sh -c 'cat > {NVCC}/bin/nvcc && chmod 755 {NVCC}/bin/nvcc'")
    cores = int(world.inside("nproc"))
    # A single compiler that runs out of memory can't be followed by fewer.
    world.inside(f"touch {NVCC}/hold" + (f" {NVCC}/oom" if cores > 1 else ""))
    world.offer(f"{next(_number)}.0")
    package = source_package(data)

    # Off: a warning, and the environment as locked.
    left_out = world.run(source_package={**package, "build": False})
    assert not left_out["failed"] and "there is no wheel for torch 2.14.1" in left_out["shown"], left_out
    assert world.inside(f"ls {WHEELHOUSE} 2>/dev/null || true") == ""

    # On: the connection is lost while the first kernel compiles; the unit goes on, and the next run attaches to it.
    first = world.start(source_package=package)
    world.wait_for(lambda: world.inside(f"ls {NVCC}/held 2>/dev/null || true"), "the compilation's middle", 400)
    first.kill()
    assert world.unit() == "active"
    second = world.start(source_package=package)
    world.wait_for(lambda: ": compile" in second.shown(), "the second run's progress")
    world.inside(f"rm -f {NVCC}/hold")
    done = second.result()
    assert not done["failed"] and done["changed"], done
    # The first compiler was "killed for memory": fewer compilers went on, and that is told.
    calls = world.inside(f"cat {NVCC}/calls").splitlines()
    assert {call.split()[0] for call in calls} == {USER} and all("compute_80" in call for call in calls)
    jobs = [int(call.split()[1].removeprefix("MAX_JOBS=")) for call in calls]
    assert 1 <= jobs[0] <= cores and jobs[1:] == ([jobs[0] // 2] * 3 if cores > 1 else jobs[:1] * 2)
    assert (f"goes on with {jobs[-1]}" in done["shown"]) == (cores > 1), done
    key = "kpro-test-attention-2.8.3+torch2.14.1-CUDA13.0-Python3.11-sm80"
    assert world.inside(f"ls -A {WHEELHOUSE}") == key
    kernels = f"runuser -u {USER} -- {world.root}/venv/bin/python -c 'import kpro_test_attention as a; print(a.KERNELS)'"
    assert world.inside(kernels) == "3"
    assert not world.run(source_package=package)["changed"]

    # Reused: another environment takes the kept wheel, nothing is compiled.
    world.offer(f"{next(_number)}.0")
    reused = world.run(source_package={**package, "build": False})
    assert not reused["failed"] and "from the kept wheel" in " ".join(reused["plan"])
    assert world.inside(kernels) == "3" and len(world.inside(f"cat {NVCC}/calls").splitlines()) == len(calls)

    # A damaged wheel is no wheel: it is refused.
    world.inside(f"truncate --size=-10 {WHEELHOUSE}/{key}/*.whl")
    world.offer(f"{next(_number)}.0")
    damaged = world.run(source_package=package)
    assert damaged["failed"] and "SHA-256" in damaged["msg"]
