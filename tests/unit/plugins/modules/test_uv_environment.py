# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module, its real worker and real environments, with stand-ins of systemd-run, systemctl and uv."""

from __future__ import annotations

import base64
import hashlib
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import threading
import time
import typing as t
import zipfile
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._environment.ensure import ARGUMENTS
from ansible_collections.kpro.llm.plugins.module_utils._job import long_job_edge as _long_job
from ansible_collections.kpro.llm.plugins.modules import uv_environment

STANDINS = Path(__file__).parent / "standins"
SYSTEM_PYTHON = Path("/usr/bin/python3")

pytestmark = pytest.mark.skipif(not SYSTEM_PYTHON.exists(), reason="the module runs on Debian's /usr/bin/python3")


def record_line(path: str, text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(text)}\n"


class World:
    """A root folder, a folder of wheels, and the stand-ins on PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = folder / "sglang"
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        self.state = folder / "state"
        self.state.mkdir()
        programs = folder / "programs"
        programs.mkdir()
        for source in (STANDINS / "systemd-run", STANDINS / "systemctl"):
            shutil.copy(source, programs)
        monkeypatch.setattr(_long_job, "RUN_DIRECTORY", str(folder / "run"))
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        monkeypatch.setenv("STANDIN_STATE", str(self.state))
        uv = self.root / "tools/uv-0.13.9/bin/uv"
        uv.parent.mkdir(parents=True)
        shutil.copy(STANDINS / "uv/uv", uv)
        self.locked: dict[str, str] = {}
        said = subprocess.run([SYSTEM_PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True, check=True)
        self.python = said.stdout.strip()

    def lock(self, name: str, version: str) -> None:
        """Make a wheel and lock it."""
        info = f"{name}-{version}.dist-info"
        path = self.wheels / f"{name}-{version}-py3-none-any.whl"
        files = {
            f"{name}/__init__.py": f"VERSION = {version!r}\n",
            f"{name}/core.so": "kernel" * 100,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        }
        with zipfile.ZipFile(path, "w") as wheel:
            for inner, text in files.items():
                wheel.writestr(inner, text)
            wheel.writestr(f"{info}/RECORD", "".join(record_line(inner, text) for inner, text in files.items()) + f"{info}/RECORD,,\n")
        self.locked[name] = f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"

    def run(self, check: bool = False, **options: t.Any) -> dict[str, t.Any]:
        params = {name: spec.get("default") for name, spec in ARGUMENTS.items()}
        params |= {
            "root": str(self.root),
            "lock": "".join(self.locked.values()),
            "uv_lock": f"uv==0.13.9 --hash=sha256:{'0' * 64}\n",
            "package": "engine",
            "package_version": self.locked[options.get("package", "engine")].split()[0].split("==")[1],
            "python": self.python,
            "find_links": [str(self.wheels)],
            "poll_s": 30.0,
        }
        return uv_environment.main({**params, **options}, check)

    @property
    def environments(self) -> list[str]:
        folder = self.root / "envs"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    @property
    def starts(self) -> int:
        log = self.state / "argv.jsonl"
        return sum("--quiet" in line for line in log.read_text().splitlines()) if log.exists() else 0

    def worker_pid(self) -> int:
        return int(next(self.state.glob("*/pid")).read_text())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> t.Iterator[World]:
    made = World(tmp_path, monkeypatch)
    made.lock("engine", "1.0")
    made.lock("library", "2.0")
    yield made
    (made.wheels / "hold").unlink(missing_ok=True)


def hold(world: World) -> dict[str, t.Any]:
    """Start a build that waits in the step of the packages."""
    (world.wheels / "hold").touch()
    first = world.run(poll_s=0.1)
    until = time.monotonic() + 60
    while "packages fetched" not in world.run(poll_s=0.1)["progress"]:
        assert time.monotonic() < until
    return first


def test_an_environment_is_built_and_then_recognised(world: World) -> None:
    first = world.run()
    assert first["changed"] and first["finished"] and first["package_version"] == "1.0"
    assert Path(first["link"]).resolve() == Path(first["venv"])
    answer = subprocess.run([first["python"], "-c", "import engine; print(engine.VERSION)"], capture_output=True, text=True, check=True)
    assert answer.stdout == "1.0\n"
    began = time.monotonic()
    second = world.run()
    assert time.monotonic() - began < 1.0
    assert not second["changed"] and second["plan"] == [] and second["venv"] == first["venv"]
    assert world.starts == 1


def test_check_mode_touches_nothing_and_tells_packages(world: World) -> None:
    result = world.run(check=True)
    assert result["changed"] and result["finished"] and result["venv"].startswith(str(world.root / "envs"))
    assert result["diff"][1]["after"] == "engine==1.0\nlibrary==2.0\n"
    assert world.environments == [] and world.starts == 0


def test_a_new_lock_is_built_beside_and_the_old_environment_stays(world: World) -> None:
    old = world.run()["venv"]
    world.lock("library", "2.1")
    diff = world.run(check=True)["diff"][1]
    assert (diff["before"], diff["after"]) == ("library==2.0\n", "library==2.1\n")
    new = world.run()["venv"]
    assert new != old and Path(old, "bin/python").exists()
    world.lock("library", "2.2")
    newest = world.run()["venv"]
    assert world.environments == sorted(Path(path).name for path in (new, newest))


def test_an_environment_that_a_process_runs_from_is_not_removed(world: World) -> None:
    old = world.run()
    with subprocess.Popen([old["python"], "-c", "import time; time.sleep(60)"]) as server:
        try:
            for version in ("2.1", "2.2"):
                world.lock("library", version)
                world.run()
            assert Path(old["venv"]).exists()
        finally:
            server.kill()
    world.lock("library", "2.3")
    world.run()
    assert not Path(old["venv"]).exists()


def test_a_roll_back_is_a_switch_of_the_link(world: World) -> None:
    old = world.run()["venv"]
    before = dict(world.locked)
    world.lock("library", "2.1")
    new = world.run()["venv"]
    world.locked = before
    (world.wheels / "fail").write_text("nothing may be installed")
    back = world.run()
    assert back["venv"] == old and "in force again: 1 to change" in back["plan"][0]
    assert not world.run()["changed"]
    assert Path(new).exists()


def test_a_kept_environment_that_fails_its_check_is_built_anew_by_the_next_run(world: World) -> None:
    old = Path(world.run()["venv"])
    before = dict(world.locked)
    world.lock("library", "2.1")
    world.run()
    world.locked = before
    silently(site_of(old) / "engine-1.0.dist-info/METADATA", b"Name: engin0")
    with pytest.raises(KproError, match=r"read all files failed|verify failed: damaged: engine \(.*METADATA was changed"):
        world.run()
    assert world.run()["changed"]
    assert not world.run()["changed"]


def test_uv_alone_is_installed_again_without_a_new_environment(world: World) -> None:
    first = world.run()["venv"]
    (world.root / "tools/uv-0.13.9/bin/uv").unlink()
    result = world.run(check=True)
    assert result["plan"] == [f"Install uv 0.13.9 in {world.root}/tools/uv-0.13.9"] and result["venv"] == first


def test_cached_wheels_that_no_environment_shares_go_with_the_environments(world: World) -> None:
    kept = Path(world.run()["venv"])
    archive = world.root / "cache/archive-v0"
    for name in ("shared", "alone"):
        (archive / name / "package").mkdir(parents=True)
        (archive / name / "package/data").write_text(name)
    for version in ("2.1", "2.2"):
        world.lock("library", version)
        kept = Path(world.run()["venv"])
        (kept / "data").unlink(missing_ok=True)
        (kept / "data").hardlink_to(archive / "shared/package/data")
        assert (archive / "alone").exists() == (version == "2.1")
    assert (archive / "shared/package/data").exists()


@pytest.mark.parametrize("damage", ["package removed", "stray package", "interpreter gone", "marker gone", "link gone"])
def test_a_damaged_environment_is_built_anew(world: World, damage: str) -> None:
    first = Path(world.run()["venv"])
    site = next(first.glob("lib/python3.*/site-packages"))
    if damage == "package removed":
        shutil.rmtree(site / "library-2.0.dist-info")
    elif damage == "stray package":
        (site / "stray-1.dist-info").mkdir()
    elif damage == "interpreter gone":
        (first / "bin/python").unlink()
    elif damage == "marker gone":
        (first / "kpro-environment.json").unlink()
    else:
        (world.root / "venv").unlink()
    assert world.run()["changed"]
    assert not world.run()["changed"]
    second = Path(world.root / "venv").resolve()
    assert (second == first) == (damage in ("marker gone", "link gone"))


def test_a_wheel_with_other_bytes_is_refused_and_the_environment_in_force_stays(world: World) -> None:
    first = world.run()["venv"]
    world.lock("library", "2.1")
    (world.wheels / "library-2.1-py3-none-any.whl").write_bytes(b"not what was locked")
    with pytest.raises(KproError, match=r"packages failed: .*Hash mismatch for `library`") as failure:
        world.run()
    assert "not touched" in failure.value.remedy
    assert (world.root / "venv").resolve() == Path(first)
    world.lock("library", "2.1")
    assert world.run()["changed"]


def test_an_environment_with_another_version_than_asserted_is_never_put_in_force(world: World) -> None:
    wheel = world.wheels / "engine-1.0-py3-none-any.whl"
    world.lock("engine", "0.9")
    renamed = (world.wheels / "engine-0.9-py3-none-any.whl").read_bytes()
    wheel.write_bytes(renamed)
    world.locked["engine"] = f"engine==1.0 --hash=sha256:{hashlib.sha256(renamed).hexdigest()}\n"
    with pytest.raises(KproError, match=r"check failed: .*AssertionError: 0\.9"):
        world.run()
    assert not (world.root / "venv").exists()


def test_a_long_build_reports_progress_and_a_later_call_attaches(world: World) -> None:
    first = hold(world)
    assert first["changed"] and not first["finished"] and first["started"]
    again = world.run(poll_s=0.1)
    assert not again["finished"] and "download and unpack packages, 0 of 2 packages fetched" in again["progress"]
    threading.Timer(0.3, (world.wheels / "hold").unlink).start()
    began = time.monotonic()
    last = world.run(poll_s=30)
    assert time.monotonic() - began < 10
    assert last["changed"] and last["finished"] and world.starts == 1


def test_a_killed_builder_is_told_and_the_next_run_completes(world: World) -> None:
    hold(world)
    threading.Timer(1.5, os.kill, (world.worker_pid(), signal.SIGKILL)).start()
    with pytest.raises(KproError, match=r"ended without a result .*9"):
        world.run(poll_s=20)
    (world.wheels / "hold").unlink()
    assert world.run()["changed"]
    assert not world.run()["changed"]


def test_a_stopped_builder_says_so(world: World) -> None:
    hold(world)
    threading.Timer(1.5, os.kill, (world.worker_pid(), signal.SIGTERM)).start()
    threading.Timer(2.0, (world.wheels / "hold").unlink).start()  # systemd would end the whole group
    with pytest.raises(KproError, match=r"packages failed: it was stopped \(SIGTERM\)"):
        world.run(poll_s=20)
    assert world.run()["changed"]


def test_two_runs_at_once_share_one_build(world: World) -> None:
    found: list[dict[str, t.Any]] = []
    hold(world)
    runs = [threading.Thread(target=lambda: found.append(world.run(poll_s=30))) for _unused in range(2)]
    for run in runs:
        run.start()
    time.sleep(0.5)
    (world.wheels / "hold").unlink()
    for run in runs:
        run.join()
    assert [one["finished"] for one in found] == [True, True] and found[0]["venv"] == found[1]["venv"]
    assert world.starts == 1


def test_another_environment_is_not_started_while_one_is_built(world: World) -> None:
    hold(world)
    world.lock("library", "2.1")
    with pytest.raises(KproError, match=r"it is building .*/envs/engine-1\.0"):
        world.run()


def test_no_space_is_told_before_anything_is_written(world: World) -> None:
    with pytest.raises(KproError, match=r"MiB are free and .* MiB are needed"):
        world.run(size_mib=1 << 40)
    assert world.environments == [] and world.starts == 0


def test_a_user_that_is_not_there_is_told_before_anything_is_written(world: World) -> None:
    with pytest.raises(KproError, match="user nobody-of-that-name: there is no such user"):
        world.run(user="nobody-of-that-name")
    assert world.starts == 0
    assert world.run(user="nobody-of-that-name", check=True)["changed"]


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")
def test_what_the_service_user_cannot_run_is_built_anew_until_it_can(world: World) -> None:
    user = pwd.getpwnam("nobody").pw_name
    for folder in (world.root, *world.root.parents):
        if str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    first = world.run(user=user)
    assert not world.run(user=user)["changed"]
    Path(first["venv"]).chmod(0o700)
    assert "user nobody cannot run engine from it" in world.run(user=user, check=True)["plan"][0]
    assert world.run(user=user)["changed"]


def test_addresses_that_can_hold_a_password_are_readable_by_root_alone(world: World) -> None:
    world.run(index_url="https://me:s3cr3t-of-the-index@index.example.org/simple")
    with_secret = [path for path in world.root.rglob("*") if path.is_file() and b"s3cr3t-of-the-index" in path.read_bytes()]
    assert with_secret == []
    jobs = [path for path in (world.root.parent / "run").rglob("*") if path.is_file() and b"s3cr3t-of-the-index" in path.read_bytes()]
    assert [path.name for path in jobs] == ["job.json"]
    assert stat.S_IMODE(jobs[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(jobs[0].parent.stat().st_mode) == 0o700


# --- damage ------------------------------------------------------------------------------------------------------------------------------


def site_of(environment: str | Path) -> Path:
    return next(Path(environment).glob("lib/python3.*/site-packages"))


def silently(path: Path, data: bytes) -> None:
    """Change the content, as a disk that loses bits does: size and time stay."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def sound(environment: str | Path) -> bool:
    """Say whether the environment has the engine's bytes as the wheel has them."""
    site = site_of(environment)
    return (site / "engine/core.so").read_text() == "kernel" * 100 and (site / "engine-1.0.dist-info/RECORD").is_file()


def replaced_by_link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


DAMAGES: dict[str, tuple[str, t.Callable[[Path], t.Any], str]] = {
    "truncated": ("engine/core.so", lambda path: os.truncate(path, 7), r"engine \(\S+/core.so has 7 of 600 bytes\)"),
    "empty": ("engine/core.so", lambda path: os.truncate(path, 0), r"core.so is empty"),
    "changed": ("engine/core.so", lambda path: path.write_text("KERNEL" * 100), r"core.so was changed"),
    "missing": ("engine/core.so", lambda path: path.unlink(), r"core.so is missing"),
    "link": ("engine/core.so", replaced_by_link, r"core.so is a link in place of a file"),
    "package gone": ("engine", shutil.rmtree, r"engine \(.*__init__.py is missing|engine is missing"),
    "dist-info gone": ("engine-1.0.dist-info", shutil.rmtree, r"engine \(.*engine-1.0.dist-info.* is missing"),
    "interpreter gone": ("../../../bin/python", lambda path: path.unlink(), r"the interpreter \(bin/python is missing\)"),
}


@pytest.mark.parametrize(("inner", "damage", "words"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_environment_is_named_and_built_anew_from_good_bytes(world: World, inner: str, damage: t.Callable[[Path], t.Any], words: str) -> None:
    old = world.run()["venv"]
    damage(site_of(old) / inner)
    foreseen = world.run(check=True)
    assert foreseen["changed"] and re.search(words, foreseen["plan"][0]), foreseen["plan"]
    done = world.run()
    assert done["changed"] and done["venv"] != old and sound(done["venv"])
    assert not world.run()["changed"] and not world.run(verify="all")["changed"]


def test_what_only_the_content_tells_is_found_on_request(world: World) -> None:
    old = world.run()["venv"]
    silently(site_of(old) / "engine/core.so", b"KERNEL")
    assert not world.run()["changed"]
    done = world.run(verify="all")
    assert "engine (" in done["plan"][0] and "core.so was changed" in done["plan"][0]
    assert done["venv"] != old and sound(done["venv"])


def test_damage_in_uv_s_cache_alone_is_met_when_the_next_environment_is_built(world: World) -> None:
    world.run()
    silently(world.root / "cache/archive-v0/engine-1.0/engine/core.so", b"KERNEL")
    shutil.rmtree(world.root / "cache/archive-v0/library-2.0/library-2.0.dist-info")
    world.lock("other", "1.0")
    # uv itself refuses the one, the package's record tells the other: both are fetched again in one run.
    done = world.run()
    assert done["changed"] and sound(done["venv"]) and not world.run()["changed"]
    assert re.search(r"other files of library than the lock names.*\n.*other files of engine than the lock names", "\n".join(done["warnings"])), done[
        "warnings"
    ]


def test_a_wheel_whose_record_is_wrong_from_the_beginning_is_no_damage(world: World) -> None:
    path = world.wheels / "engine-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path) as wheel:
        files = {name: wheel.read(name).decode() for name in wheel.namelist()}
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in {**files, "engine/core.so": "another kernel"}.items():
            wheel.writestr(name, text)
    world.locked["engine"] = f"engine==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"
    first = world.run()
    assert (site_of(first["venv"]) / "engine/core.so").read_text() == "another kernel"
    assert not world.run()["changed"] and not world.run(verify="all")["changed"]


def test_damage_without_a_way_to_good_bytes_leaves_what_is_in_force(world: World) -> None:
    old = world.run()["venv"]
    (site_of(old) / "engine/core.so").write_text("KERNEL")
    (world.wheels / "engine-1.0-py3-none-any.whl").rename(world.wheels.parent / "kept.whl")
    with pytest.raises(KproError, match="engine was not found in the package registry") as failure:
        world.run()
    assert "not touched" in failure.value.remedy and Path(world.root, "venv").resolve() == Path(old)
    (world.wheels.parent / "kept.whl").rename(world.wheels / "engine-1.0-py3-none-any.whl")
    assert sound(world.run()["venv"])


def test_a_damaged_environment_that_serves_is_left_alone_while_another_is_built(world: World) -> None:
    old = world.run()
    with subprocess.Popen([old["python"], "-c", "import time; time.sleep(60)"]) as server:
        try:
            os.truncate(site_of(old["venv"]) / "engine/core.so", 0)
            new = world.run()
            assert server.poll() is None and Path(old["python"]).exists() and new["venv"] != old["venv"]
        finally:
            server.kill()
    # It is damaged: it is kept for no roll-back.
    world.lock("library", "2.1")
    world.run()
    assert Path(old["venv"]).name not in world.environments


def test_a_new_environment_can_be_asked_for_once(world: World) -> None:
    old = world.run()["venv"]
    (world.wheels / "hold").touch()
    first = world.run(rebuild=True, poll_s=0.1)
    assert first["changed"] and "a new one was asked for" in first["plan"][0] and not first["finished"]
    threading.Timer(0.5, (world.wheels / "hold").unlink).start()
    # The same question is put again and again until the build has ended; that must not begin another one.
    done = world.run(rebuild=True, poll_s=30)
    assert done["finished"] and done["venv"] != old and world.starts == 2
    assert not world.run()["changed"]


def test_a_damaged_uv_is_installed_again(world: World) -> None:
    uv = world.root / "tools/uv-0.13.9"
    world.run()
    info = uv / "lib/python3.11/site-packages/uv-0.13.9.dist-info"
    info.mkdir(parents=True)
    text = (uv / "bin/uv").read_text()
    assert text.isascii()
    (info / "RECORD").write_text(record_line("../../../bin/uv", text).replace(str(len(text)), str(len(text.encode()))))
    world.lock("library", "2.1")
    assert "Install uv" not in world.run(check=True)["plan"][0]
    silently(uv / "bin/uv", b"#!/bin/sh")
    assert "Install uv 0.13.9" in world.run(check=True)["plan"][0]
