# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPU stand-in by itself: its package behaves as the vendor's does, nvidia-smi says what the real one says."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
VERSION = "580.173.02"
NAME = f"NVIDIA-Linux-x86_64-{VERSION}.run"
pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("cc"), reason="needs root (device nodes) and a C compiler (the libraries)")

# Recorded from Debian's nvidia-smi 535 and 550 without a driver, and without the library.
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.\n"
NO_LIBRARY = "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system."


@pytest.fixture(scope="module")
def userland(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The part of the stand-in that goes into the package, with the libraries compiled to look at this folder."""
    folder = tmp_path_factory.mktemp("userland")
    for path in (HERE / "userland").iterdir():
        shutil.copy(path, folder)
    for name, major, minor in (("nvidia0", 195, 0), ("nvidia1", 195, 1), ("nvidiactl", 195, 255)):
        os.mknod(folder / name, 0o020666, os.makedev(major, minor))
    for name, soname in (("nvml", "libnvidia-ml.so.1"), ("cuda", "libcuda.so.1")):
        flags = ["-std=c11", "-O1", "-fPIC", "-shared", "-ffreestanding", "-fno-stack-protector", "-fvisibility=hidden", f"-Wl,-soname,{soname}"]
        defines = [f'-DSTATE="{folder}/state"', f'-DDEV="{folder}"']
        subprocess.run(["cc", *flags, *defines, "-o", folder / f"{name}.so", folder / f"{name}.c"], check=True)
    return folder


@pytest.fixture(scope="module")
def package(userland: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    subprocess.run([sys.executable, HERE / "build-run", userland, VERSION, folder], check=True)
    return folder / NAME


def call(package: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", package, *options], capture_output=True, text=True, check=False, cwd=package.parent)


def test_the_bytes_depend_on_the_version_only(userland: Path, package: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, HERE / "build-run", userland, VERSION, tmp_path], check=True)
    assert (tmp_path / NAME).read_bytes() == package.read_bytes()
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    assert (package.parent / f"{NAME}.sha256sum").read_text() == f"{digest}  {NAME}\n"


def test_options_that_change_nothing(package: Path) -> None:
    assert VERSION in call(package, "--version").stdout
    assert "STAND-IN" in package.read_text(errors="replace")
    assert call(package, "--check").returncode == 0
    assert "--kernel-module-type=TYPE" in call(package, "--advanced-options").stdout
    listed = call(package, "--list").stdout.split()
    assert {"libcuda.so", "libnvidia-ml.so", "nvidia-smi", "nvidia-modprobe", "nvidia-installer", "nvidia-uninstall", "nvidia-persistenced"} == set(listed)


def test_unknown_option_is_refused_with_the_installers_words(package: Path) -> None:
    done = call(package, "--silent", "--no-such-option")
    assert (done.returncode, done.stdout) == (1, "")
    assert "ERROR: Invalid commandline, please run `./nvidia-installer --help` for usage information." in done.stderr


def test_every_option_the_collection_uses_is_known(package: Path) -> None:
    used = ["--silent", "--no-x-check", "--no-install-compat32-libs", "--no-opengl-files", "--dkms", "--kernel-module-type=open", "--disable-nouveau",
            "--no-kernel-modules", "--no-nouveau-check", "--no-nvidia-modprobe"]  # fmt: skip
    assert call(package, *used, "--version").returncode == 0


def test_damaged_package_is_noticed(package: Path, tmp_path: Path) -> None:
    damaged = tmp_path / NAME
    damaged.write_bytes(package.read_bytes()[:-1] + b"x")
    assert "Error in check sums" in call(damaged, "--silent").stderr


def test_libraries_carry_their_version(package: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    assert call(package, "--extract-only", "--target", str(target)).returncode == 0
    for name in ("libcuda.so", "libnvidia-ml.so"):
        data = (target / name).read_bytes()
        assert VERSION.encode() + b"\0" in data and b"@@KPRO" not in data
    smi = (target / "nvidia-smi").read_text()
    assert "STAND-IN" in smi


@pytest.fixture
def smi(package: Path, userland: Path) -> Iterator[types.SimpleNamespace]:
    """nvidia-smi over the package's library, with the state of a kernel that has the driver loaded."""
    libraries = userland / "lib"
    shutil.rmtree(libraries, ignore_errors=True)
    libraries.mkdir()
    call(package, "--extract-only", "--target", str(libraries))
    (libraries / "libnvidia-ml.so").rename(libraries / "libnvidia-ml.so.1")
    kernel = kernel_module()
    choices = HERE / "kernel" / "gpu.json"
    kernel.CONFIG = choices
    kernel.STATE = userland / "kernel"
    (userland / "state").write_text(kernel.state_text({"nvidia": {"version": VERSION, "flavour": "open"}}))

    def run(*options: str, path: Path = libraries) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "LD_LIBRARY_PATH": str(path)}
        return subprocess.run([sys.executable, libraries / "nvidia-smi", *options], env=env, capture_output=True, text=True, check=False)

    yield types.SimpleNamespace(run=run, state=userland / "state", empty=userland / "empty")


def kernel_module() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("standin_kernel", HERE / "kernel" / "kernel.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_smi_lists(smi: types.SimpleNamespace) -> None:
    lines = smi.run("-L").stdout.splitlines()
    assert lines[0] == "GPU 0: NVIDIA RTX A6000 (UUID: GPU-5a4d1c0e-7b6f-4f43-9d2a-3c1e8f60a641)"
    assert len(lines) == 2


def test_smi_queries(smi: types.SimpleNamespace) -> None:
    done = smi.run("--query-gpu=index,pci.bus_id,memory.total,compute_cap,driver_version", "--format=csv")
    assert done.stdout.splitlines() == [
        "index, pci.bus_id, memory.total [MiB], compute_cap, driver_version",
        "0, 00000000:41:00.0, 49140 MiB, 8.6, 580.173.02",
        "1, 00000000:61:00.0, 49140 MiB, 8.6, 580.173.02",
    ]
    assert smi.run("--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "1").stdout == "0\n"
    assert smi.run("--query-gpu=no.such.field", "--format=csv").returncode == 2


def test_smi_without_driver_and_without_library(smi: types.SimpleNamespace) -> None:
    smi.state.unlink()
    done = smi.run("-L")
    assert (done.returncode, done.stdout) == (9, NO_DRIVER)
    done = smi.run("-L", path=smi.empty)
    assert done.returncode == 12 and done.stdout.startswith(NO_LIBRARY)


def test_smi_of_another_version(smi: types.SimpleNamespace) -> None:
    smi.state.write_text(smi.state.read_text().replace(f"driver={VERSION}", "driver=580.178.04"))
    done = smi.run("-L")
    assert done.returncode == 18 and done.stdout.startswith("Failed to initialize NVML: Driver/library version mismatch\n")


def test_kernel_texts_have_the_drivers_form() -> None:
    kernel = kernel_module()
    assert kernel.version_text({"version": VERSION, "flavour": "open"}).startswith(
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build"
    )
    assert "NVIDIA UNIX x86_64 Kernel Module  550.54.14" in kernel.version_text({"version": "550.54.14", "flavour": "proprietary"})
    assert len({kernel.UVM_MAJORS[boots % len(kernel.UVM_MAJORS)] for boots in (1, 2)}) == 2


# --- NVIDIA's package repository, vfio ids, the firmware ------------------------------------------------------------------------------


def test_repository_is_signed_the_same_each_time(userland: Path, tmp_path: Path) -> None:
    for name in ("one", "other"):
        subprocess.run([sys.executable, HERE / "build-repository", userland, tmp_path / name, VERSION], check=True)
    files = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "other").iterdir()}
    # Sequoia's and GnuPG's verifiers are apt's; one of them is on every Debian.
    certificate = files["kpro-standin.pub"].decode()
    raw = tmp_path / "key.gpg"
    raw.write_bytes(base64.b64decode("".join(certificate.partition("\n\n")[2].partition("\n=")[0].split())))
    verifier = shutil.which("gpgv") or shutil.which("sqv")
    assert verifier
    inline = ["--message"] if verifier.endswith("sqv") else []
    done = subprocess.run([verifier, "--keyring", raw, *inline, tmp_path / "one" / "InRelease"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    changed = tmp_path / "InRelease"
    changed.write_bytes(files["InRelease"].replace(b"kpro stand-in", b"somebody else"))
    assert subprocess.run([verifier, "--keyring", raw, *inline, changed], capture_output=True, check=False).returncode != 0


def test_packages_of_the_repository_have_the_real_ones_names_and_say_what_they_are(userland: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, HERE / "build-repository", userland, tmp_path, VERSION], check=True)
    index = (tmp_path / "Packages").read_text()
    # The names that the collection installs are those of NVIDIA's installation guide.
    assert {"nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-kernel-dkms", f"nvidia-driver-pinning-{VERSION}", "libcuda1"} <= set(
        re.findall(r"^Package: (.*)$", index, re.MULTILINE)
    )
    assert index.count("STAND-IN") == index.count("Package: ")
    listed = subprocess.run(["dpkg-deb", "-c", tmp_path / f"libcuda1_{VERSION}-1_amd64.deb"], capture_output=True, text=True, check=True).stdout
    assert f"libcuda.so.1 -> libcuda.so.{VERSION}" in listed


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The stand-in of the kernel over folders of this test."""
    found = kernel_module()
    found.CONFIG, found.STATE, found.RUN = tmp_path / "gpu.json", tmp_path / "state", tmp_path / "run"
    shutil.copy(HERE / "kernel" / "gpu.json", found.CONFIG)
    return found


def choose(kernel: types.ModuleType, **choices: object) -> None:
    kernel.CONFIG.write_text(json.dumps({**json.loads(kernel.CONFIG.read_text()), **choices}))


def test_ids_given_to_vfio_take_the_gpus(kernel: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = kernel.config()["gpus"][0]
    assert kernel.pci_pair(gpu) == "10de:2230"
    monkeypatch.setattr(kernel, "modprobe_texts", lambda: "options vfio-pci ids=10DE:2230,10de:1aef disable_vga=1\n")
    assert kernel.pci_pair(gpu) in kernel.vfio_ids()
    kernel.store(kernel.RUN / "vfio.json", [gpu["bus_id"]])
    assert kernel.binding(gpu, {"nvidia": {}}) == "vfio-pci"


def test_mokutil_says_what_the_real_one_says(kernel: types.ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    key = tmp_path / "mok.pub"
    key.write_text("certificate")

    def said(*argv: str) -> str:
        kernel.mokutil(list(argv))
        return capsys.readouterr().out.strip()

    assert said("--sb-state") == "SecureBoot disabled"
    choose(kernel, secure_boot=True)
    assert said("--sb-state") == "SecureBoot enabled"
    assert said("--test-key", str(key)) == f"{key} is not enrolled"
    said("--import", str(key))
    assert said("--test-key", str(key)) == f"{key} is already in the enrollment request"
    kernel.at_the_console()
    assert said("--test-key", str(key)) == f"{key} is not enrolled", "nobody was at the console"
    said("--import", str(key))
    choose(kernel, mok_console=True)
    kernel.at_the_console()
    assert said("--test-key", str(key)) == f"{key} is already enrolled"
