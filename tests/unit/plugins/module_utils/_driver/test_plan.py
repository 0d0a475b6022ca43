# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._driver import files
from ansible_collections.kpro.llm.plugins.module_utils._driver.model import Present, Unit, Wanted
from ansible_collections.kpro.llm.plugins.module_utils._driver.plan import node_plan, userland_plan
from ansible_collections.kpro.llm.plugins.module_utils._driver.steps import installer_argv, node_steps, spelled, userland_steps
from ansible_collections.kpro.llm.plugins.module_utils._gpu.model import GpuContainer, PciGpu
from ansible_collections.kpro.llm.plugins.module_utils._gpu.raw_lines import MountLine
from ansible_collections.kpro.llm.plugins.module_utils._gpu.secure_boot import SecureBoot
from ansible_collections.kpro.llm.plugins.module_utils._gpu.text import DkmsEntry, DriverVersion
from ansible_collections.kpro.llm.tests.unit.plugins.module_utils.driver_cases import (
    CONTAINER,
    DRIVER,
    ENGINE,
    FRESH,
    FROM_REPOSITORY,
    GOOD,
    GOOD_FROM_REPOSITORY,
    KERNEL,
    NEXT_KERNEL,
    OLDER,
    REPOSITORY,
    USERLAND,
    VERSION,
    WANTED,
    but,
    device,
)

REPLACE = dataclasses.replace(WANTED, replace=True)
OLD = but(
    GOOD,
    loaded=DriverVersion(OLDER, "open"),
    on_disk=DriverVersion(OLDER, "open"),
    nvml_library=OLDER,
    cuda_library=OLDER,
    dkms=(DkmsEntry(OLDER, KERNEL, "installed"),),
)


def actions(wanted: Wanted, present: Present) -> list[tuple[t.Any, ...]]:
    return [change.action[:2] for change in node_plan(wanted, present).changes]


def argvs(wanted: Wanted, present: Present) -> list[tuple[str, ...]]:
    return [step.argv or (step.kind,) for step in node_steps(wanted, present, node_plan(wanted, present).long_actions)]


def test_nothing_to_do() -> None:
    plan = node_plan(WANTED, GOOD)
    assert (plan.changes, plan.reboot) == ((), "")


def test_fresh_node() -> None:
    """What may fail for reasons of the node comes first, when nothing else is changed yet."""
    assert actions(WANTED, FRESH) == [
        ("packages", ("dkms", "gcc", f"proxmox-headers-{KERNEL}")),
        ("install", "open"),
        ("file", files.PREFERENCES),
        ("file", files.MODPROBE),
        ("initramfs",),
        ("load",),
        ("file", files.MODULES_LOAD),
        ("file", files.KERNEL_HOOK),
        ("file", f"/etc/systemd/system/{files.NODES_UNIT}"),
        ("file", files.SYSUSERS),
        ("file", f"/etc/systemd/system/{files.PERSISTENCE_UNIT}"),
        ("unit", files.NODES_UNIT),
        ("unit", files.PERSISTENCE_UNIT),
    ]


APT = ("apt-get", "install", "--yes", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold")


def test_fresh_node_step_by_step() -> None:
    assert argvs(WANTED, FRESH) == [
        (*APT, "dkms", "gcc", f"proxmox-headers-{KERNEL}"),
        ("download",),
        (
            "sh",
            f"/var/cache/kpro-llm/NVIDIA-Linux-x86_64-{VERSION}.run",
            "--silent",
            "--no-x-check",
            "--no-install-compat32-libs",
            "--no-opengl-files",
            "--dkms",
            "--kernel-module-type=open",
            "--disable-nouveau",
        ),
        ("remove",),
        (files.PREFERENCES, files.preferences_text()),
        (files.MODPROBE, files.modprobe_text()),
        ("update-initramfs", "-u", "-k", "all"),
        ("modprobe", "nvidia"),
        ("modprobe", "nvidia_uvm"),
    ]


def test_fresh_node_from_the_repository() -> None:
    """The repository has to be there, and the version pinned, before its packages are installed."""
    kinds = [(action[0], action[1] if action[0] == "file" else "") for action in actions(FROM_REPOSITORY, FRESH)]
    assert kinds[:8] == [
        ("packages", ""),
        ("key", ""),
        ("file", files.PREFERENCES),
        ("file", "/etc/apt/sources.list.d/kpro-nvidia.sources"),
        ("install", ""),
        ("file", files.MODPROBE),
        ("initramfs", ""),
        ("load", ""),
    ]
    steps = node_steps(FROM_REPOSITORY, FRESH, node_plan(FROM_REPOSITORY, FRESH).long_actions)
    assert [(step.kind, step.argv) for step in steps if step.kind in ("key", "repository", "build")] == [
        ("key", ("kpro-nvidia", REPOSITORY.uri, REPOSITORY.key_url, REPOSITORY.key_fingerprint)),
        ("repository", (VERSION, "open", REPOSITORY.uri)),
        ("build", ("dkms", "install", "-m", "nvidia", "-v", VERSION, "-k", KERNEL)),
    ]


def test_driver_of_the_repository_that_is_as_wanted() -> None:
    assert actions(FROM_REPOSITORY, GOOD_FROM_REPOSITORY) == []
    older = tuple(dataclasses.replace(each, version=f"{OLDER}-1") if each.name == "libcuda1" else each for each in GOOD_FROM_REPOSITORY.packages)
    assert ("install", "open") in actions(FROM_REPOSITORY, but(GOOD_FROM_REPOSITORY, packages=older))
    assert actions(FROM_REPOSITORY, but(GOOD_FROM_REPOSITORY, key=("A" * 40,)))[0][0] == "key"


def test_module_that_a_package_did_not_build_is_built_without_installing_again() -> None:
    present = but(GOOD, on_disk=None, loaded=None, modules=frozenset(), majors={}, dkms=(DkmsEntry(VERSION, "", "added"),), kernels_without_headers=(KERNEL,))
    assert actions(WANTED, present)[:3] == [("packages", (f"proxmox-headers-{KERNEL}",)), ("build", KERNEL), ("load",)]


def test_older_version_of_ours_is_taken_out_of_dkms() -> None:
    old = DkmsEntry(OLDER, KERNEL, "installed")
    present = but(
        GOOD, dkms=(*GOOD.dkms, old, DkmsEntry(OLDER, NEXT_KERNEL, "built"), DkmsEntry("550.54.14", KERNEL, "built")), ours=frozenset({OLDER, VERSION})
    )
    plan = node_plan(WANTED, present)
    assert [change.sentence for change in plan.changes] == [f"Remove driver {OLDER} from DKMS"], "550.54.14 is somebody else's"
    assert [(step.kind, step.argv, step.failure) for step in node_steps(WANTED, present, plan.long_actions)] == [
        ("run", ("dkms", "remove", "-m", "nvidia", "-v", OLDER, "--all"), ""),
        ("source", (f"/usr/src/nvidia-{OLDER}",), ""),
    ]


def test_idle_containers_are_named_before_the_driver_changes_under_them() -> None:
    containers = (
        GpuContainer(129, "qwen", ("/dev/nvidia0",), True),
        GpuContainer(105, "notes", ("/dev/nvidia1",), True),
        GpuContainer(106, "", ("/dev/nvidia1",), False),
    )
    plan = node_plan(REPLACE, but(OLD, containers=containers))
    assert plan.notes[0].startswith("container 129 (qwen), container 105 (notes) run with these GPUs and use none now")
    present = but(GOOD, loaded=DriverVersion(OLDER, "open"), users=(ENGINE,), containers=containers)
    assert node_plan(WANTED, present).notes[0].startswith("container 105 (notes) runs with these GPUs"), "129 is named as a user"
    assert node_plan(WANTED, but(GOOD, containers=containers)).notes == ()


def test_driver_files_in_containers_are_named_before_the_driver_changes() -> None:
    """T2-01: the container can't start once the versioned files are gone, whether it runs now or not."""
    versioned = MountLine(f"/usr/lib/x86_64-linux-gnu/libcuda.so.{OLDER}", "usr/lib/x86_64-linux-gnu/libcuda.so.1", frozenset({"bind", "ro"}))
    plain = MountLine("/usr/bin/nvidia-smi", "usr/bin/nvidia-smi", frozenset({"bind"}))
    optional = MountLine(versioned.source, versioned.target, frozenset({"bind", "optional"}))
    wanted = MountLine(f"/usr/lib/libcuda.so.{VERSION}", "usr/lib/libcuda.so.1")
    containers = tuple(
        GpuContainer(vmid, name, (), False, mounts, False)
        for vmid, name, mounts in (
            (105, "old", (versioned, plain)),
            (106, "smi", (plain,)),
            (107, "opt", (optional,)),
            (108, "new", (wanted,)),
            (109, "none", ()),
        )
    )
    notes = node_plan(REPLACE, but(OLD, containers=containers)).notes
    assert [note.partition(" mounts ")[0] for note in notes] == ["container 105 (old)", "container 106 (smi)", "container 107 (opt)", "container 108 (new)"]
    assert versioned.source in notes[0] and "it can't start then until these lines are taken out" in notes[0]
    assert all("until its next start" in note for note in notes[1:])
    assert node_plan(WANTED, but(GOOD, containers=containers)).notes == ()


@pytest.mark.parametrize(
    ("secure_boot", "words", "remedy"),
    [
        (SecureBoot(True), "does not know DKMS's key /var/lib/dkms/mok.pub", "openssl req -new -x509"),
        (SecureBoot(True, exists=True, enrolled=False), "does not know DKMS's key", "mokutil --import /var/lib/dkms/mok.pub"),
        (SecureBoot(True, exists=True, enrolled=False, pending=True), "waits for a person at the console", "Enroll MOK"),
        (SecureBoot(True, exists=True), "nothing can tell", "apt-get install mokutil"),
    ],
    ids=["no key", "not enrolled", "pending", "no mokutil"],
)
def test_secure_boot_stops_before_anything_changes(secure_boot: SecureBoot, words: str, remedy: str) -> None:
    with pytest.raises(KproError) as caught:
        node_plan(WANTED, but(FRESH, secure_boot=secure_boot))
    assert words in caught.value.reason and remedy in caught.value.remedy


def test_secure_boot_with_an_enrolled_key_and_a_node_that_needs_nothing() -> None:
    assert node_plan(WANTED, but(FRESH, secure_boot=SecureBoot(True, exists=True, enrolled=True))).changes
    assert node_plan(WANTED, but(GOOD, secure_boot=SecureBoot(True))).changes == ()


def test_older_driver_is_swapped_live() -> None:
    assert actions(REPLACE, OLD) == [("install", "open"), ("load",), ("unit", files.PERSISTENCE_UNIT)]
    assert argvs(REPLACE, OLD)[1:3] == [("systemctl", "stop", files.PERSISTENCE_UNIT), ("modprobe", "-r", "nvidia_uvm", "nvidia")]


def test_new_module_on_disk_and_old_one_loaded() -> None:
    present = but(GOOD, loaded=DriverVersion(OLDER, "open"))
    assert actions(WANTED, present) == [("load",), ("unit", files.PERSISTENCE_UNIT)]
    assert argvs(WANTED, present) == [
        ("systemctl", "stop", files.PERSISTENCE_UNIT),
        ("modprobe", "-r", "nvidia_uvm", "nvidia"),
        ("modprobe", "nvidia"),
        ("modprobe", "nvidia_uvm"),
    ]


def test_what_is_missing_of_the_right_driver_is_loaded_beside_it_whoever_uses_that() -> None:
    present = but(GOOD, modules=frozenset({"nvidia"}), users=(ENGINE,))
    assert actions(WANTED, present)[0] == ("load",)
    assert argvs(WANTED, present) == [("modprobe", "nvidia"), ("modprobe", "nvidia_uvm")]
    assert ("unit", files.PERSISTENCE_UNIT) not in actions(WANTED, present), "nobody has stopped it"


def test_old_module_in_use_needs_a_reboot_and_nothing_is_touched() -> None:
    plan = node_plan(WANTED, but(GOOD, loaded=DriverVersion(OLDER, "open"), users=(ENGINE,)))
    assert plan.changes == ()
    assert plan.reboot == f"driver {OLDER} is loaded and used by {ENGINE.words}"


def test_nouveau_loaded_is_kept_off_and_a_reboot_asked_for() -> None:
    gpus = (PciGpu("0000:41:00.0", "0x2230", "nouveau"), PciGpu("0000:61:00.0", "0x2230", "nouveau"))
    plan = node_plan(WANTED, but(FRESH, modules=frozenset({"nouveau"}), pci=gpus))
    assert [change.action[:2] for change in plan.changes] == [("file", files.MODPROBE), ("initramfs",)]
    assert plan.reboot == "nouveau holds 0000:41:00.0, 0000:61:00.0 until the next boot"
    again = node_plan(WANTED, but(FRESH, modules=frozenset({"nouveau"}), pci=gpus, files=GOOD.files))
    assert again.changes == () and again.reboot


def test_module_not_loaded_after_a_boot() -> None:
    present = but(GOOD, loaded=None, modules=frozenset(), majors={}, nodes=(), units={name: Unit(True, False) for name in GOOD.units})
    assert actions(WANTED, present) == [("load",), ("unit", files.NODES_UNIT), ("unit", files.PERSISTENCE_UNIT)]


def test_uvm_alone_not_loaded() -> None:
    present = but(GOOD, modules=frozenset({"nvidia"}), majors={"nvidia": 195})
    assert ("load",) in actions(WANTED, present)


def test_next_kernel_without_a_module() -> None:
    present = but(GOOD, kernels=(KERNEL, NEXT_KERNEL), kernels_without_headers=(NEXT_KERNEL,))
    assert actions(WANTED, present) == [("packages", (f"proxmox-headers-{NEXT_KERNEL}",)), ("build", NEXT_KERNEL)]
    assert argvs(WANTED, present) == [
        ("apt-get", "install", "--yes", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold", f"proxmox-headers-{NEXT_KERNEL}"),
        ("dkms", "install", "-m", "nvidia", "-v", VERSION, "-k", NEXT_KERNEL),
    ]


def test_an_older_kernel_that_nobody_boots_is_left_alone() -> None:
    assert actions(WANTED, but(GOOD, kernels=("6.8.12-11-pve", KERNEL))) == []


def test_installation_brings_the_running_kernel_and_the_next_is_built_after_it() -> None:
    found = actions(WANTED, but(FRESH, kernels=(KERNEL, NEXT_KERNEL)))
    assert found[1:3] == [("install", "open"), ("build", NEXT_KERNEL)]


@pytest.mark.parametrize(
    "nodes",
    [
        GOOD.nodes[1:],
        (*GOOD.nodes[:3], device("/dev/nvidia-uvm", 509, 0), device("/dev/nvidia-uvm-tools", 509, 1)),
        (dataclasses.replace(GOOD.nodes[0], mode="0660"), *GOOD.nodes[1:]),
        (dataclasses.replace(GOOD.nodes[0], kind="file", major=None, minor=None), *GOOD.nodes[1:]),
    ],
    ids=["one missing", "uvm's major moved", "mode", "a file in its place"],
)
def test_wrong_device_nodes_restart_their_unit(nodes: tuple[t.Any, ...]) -> None:
    plan = node_plan(WANTED, but(GOOD, nodes=nodes))
    assert [(change.action, change.before) for change in plan.changes] == [(("unit", files.NODES_UNIT), "enabled, active, device nodes wrong")]


def test_edited_unit_is_written_and_restarted() -> None:
    path = f"/etc/systemd/system/{files.NODES_UNIT}"
    assert actions(WANTED, but(GOOD, files={**GOOD.files, path: "[Unit]\n"})) == [("file", path), ("unit", files.NODES_UNIT)]


def test_disabled_unit_is_enabled() -> None:
    units = {**GOOD.units, files.NODES_UNIT: Unit(False, True)}
    assert actions(WANTED, but(GOOD, units=units)) == [("unit", files.NODES_UNIT)]


@pytest.mark.parametrize("change", [{"nvml_library": OLDER}, {"cuda_library": None}, {"dkms": ()}, {"on_disk": None}])
def test_a_part_that_differs_brings_the_installer(change: dict[str, t.Any]) -> None:
    assert actions(REPLACE, but(GOOD, **change)) == [("install", "open"), ("load",), ("unit", files.PERSISTENCE_UNIT)]


def test_flavour_counts_only_if_it_is_asked_for() -> None:
    present = but(GOOD, loaded=DriverVersion(VERSION, "proprietary"), on_disk=DriverVersion(VERSION, "proprietary"))
    assert actions(WANTED, present) == []
    assert actions(dataclasses.replace(WANTED, flavour="open"), present)[0] == ("install", "open")


def test_power_limit() -> None:
    wanted = dataclasses.replace(WANTED, power_limit_w=250)
    limited = files.node_files((0, 1), True, 250)
    found = node_plan(wanted, but(GOOD, files=limited, power_limits_w={"GPU-1": 250.2, "GPU-2": 300.0}))
    assert [change.action for change in found.changes] == [("power", "GPU-2", 250)]
    assert "--power-limit=250" in limited[f"/etc/systemd/system/{files.PERSISTENCE_UNIT}"]


def test_container_has_nothing_to_do() -> None:
    assert userland_plan(USERLAND, CONTAINER).changes == ()


def test_container_follows_the_node() -> None:
    plan = userland_plan(USERLAND, but(CONTAINER, nvml_library=OLDER, cuda_library=OLDER, files={files.PREFERENCES: None}))
    assert [change.action[:2] for change in plan.changes] == [("file", files.PREFERENCES), ("install",)]
    assert userland_steps(USERLAND)[1].argv[-3:] == ("--no-kernel-modules", "--no-nouveau-check", "--no-nvidia-modprobe")


def test_the_boot_unit_makes_gpu_and_uvm_nodes_in_two_calls_before_guests() -> None:
    text = files.nodes_unit_text((0, 1))
    assert "ExecStart=/usr/bin/nvidia-modprobe -c 0 -c 1 -c 255\nExecStart=/usr/bin/nvidia-modprobe -u -c 0\n" in text
    assert "Before=pve-guests.service" in text


def test_preferences_spare_the_container_toolkit() -> None:
    assert not any("container" in name or name in ("nvidia-*", "libnvidia-*") for name in files.DRIVER_PACKAGES)


def test_driver_of_the_good_state_is_the_wanted_one() -> None:
    assert GOOD.loaded == DRIVER and GOOD.built_for(VERSION, KERNEL) and not GOOD.built_for(VERSION, NEXT_KERNEL)


@pytest.mark.parametrize(
    ("help_text", "node", "container"),
    [
        ("  --kernel-module-type=TYPE\n  --no-kernel-modules\n", "--kernel-module-type=open", "--no-kernel-modules"),
        ("  -m KERNEL-MODULE-BUILD-DIRECTORY, --kernel-module-build-directory\n  --no-kernel-module\n", "-m=kernel-open", "--no-kernel-module"),
        ("", "--kernel-module-type=open", "--no-kernel-modules"),
    ],
    ids=["580", "535", "silent"],
)
def test_options_in_the_words_of_the_package(help_text: str, node: str, container: str) -> None:
    assert node in spelled(installer_argv(WANTED, "open"), help_text)
    assert container in spelled(installer_argv(USERLAND, ""), help_text)
