# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import random
import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._gpu import claims
from ansible_collections.kpro.llm.plugins.module_utils._pve.gpus import Gpu

A = Gpu("GPU-aaaa1111-0000", 1, "0000:41:00.0", index=0)
B = Gpu("GPU-bbbb2222-0000", 0, "0000:61:00.0", index=1)
C = Gpu("GPU-cccc3333-0000", 2, "0001:61:00.0", index=2)
CARDS = {"a": A, "b": B, "c": C}
MAPPINGS = claims.pci_mappings(
    "one\n\tdescription a card, or two\n\tmap id=10de:2230,iommugroup=30,node=kpro5,path=0000:41:00.0,subsystem-id=10de:1459\n"
    "\tmap id=10de:2230,node=kpro6,path=0000:61:00.0\n"
    "\nboth\n\tmdev 0\n\tmap node=kpro5,path=0000:41:00.0;0000:41:00.1\n\tmap node=kpro5,path=61:00.0\n"
    "far\n\tmap node=kpro6,path=0000:61:00.0\nbroken\n\tmap node=kpro5,path=;;nonsense\n\tmap\n",
    "kpro5",
)
HOOK = "lxc.hook.mount: /usr/share/lxc/hooks/nvidia\n"
SHARED = "dev0: /dev/nvidiactl\ndev1: /dev/nvidia-uvm\n"


def read(kind: str, text: str, files: t.Mapping[str, tuple[str, ...]] | None = None) -> claims.Guest:
    return claims.read_guest(300, kind, text, MAPPINGS, lambda path: (files or {}).get(path, ()))


def certain(guest: claims.Guest) -> str:
    return "".join(name for name, card in CARDS.items() if (claim := guest.claim_on(card)) and claim.certain)


def doubtful(guest: claims.Guest) -> str:
    return "".join(name for name, card in CARDS.items() if (claim := guest.claim_on(card)) and not claim.certain)


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ("hostpci0: 0000:41:00,pcie=1,x-vga=1\n", "a"),
        ("hostpci0: 0000:41:00.0\n", "a"),
        ("hostpci0: 41:00.0,pcie=1\n", "a"),
        ("hostpci0: host=00000000:61:00.0,rombar=0\n", "b"),
        ("hostpci3: 0001:61:00\n", "c"),
        ("hostpci0: 41:00.0;41:00.1,pcie=1\n", "a"),
        ("hostpci0: 41:00.1\n", "a"),
        ("hostpci0: host=41:00;0000:61:00.0\n", "ab"),
        ("hostpci0: 41:00\nhostpci1: pcie=1,host=61:00\n", "ab"),
        ("hostpci0: mapping=one,pcie=1\n", "a"),
        ("hostpci0: pcie=1,mapping=both\n", "ab"),
        ("hostpci0: mapping=far\n", ""),
        ("hostpci0: mapping=gone\nhostpci1: mapping=broken\n", ""),
        ("hostpci0: 41:00,mdev=nvidia-63\n", "a"),
        ("onboot: 0\nhostpci0: 41:00\n", "a"),
        ("template: 1\nhostpci0: 41:00\n", ""),
        ("args: -device vfio-pci,host=41:00.0,multifunction=on -smbios type=2\n", "a"),
        ("args: -device 'vfio-pci,sysfsdev=/sys/bus/pci/devices/0000:61:00.0'\n", "b"),
        ("cores: 2\n[before]\nhostpci0: 41:00\n", ""),
        ("hostpci0: 41:00\n[PENDING]\nhostpci0: 61:00\n", "ab"),
        ("[PENDING]\nhostpci1: mapping=one\ndelete: hostpci0\n[before]\nhostpci2: 61:00\n", "a"),
        ("hostpci0: nonsense;;41:0,=\nhostpci1:\nhostpci: 41:00\n#hostpci0: 41:00\n", ""),
        ("description: hostpci0: 41:00\n", ""),
    ],
)
def test_what_a_vm_claims(text: str, cards: str) -> None:
    assert certain(read("VM", f"name: win\n{text}")) == cards


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ("dev0: /dev/nvidia1,mode=0666\n", "a"),
        ("dev0: mode=0666,path=/dev/nvidia0\ndev1: /dev/nvidia2\n", "bc"),
        ("dev0: /dev//nvidia1\n", "a"),
        ("dev0: /dev/char/195:1\n", "a"),
        ("dev7: /dev/nvidia99999999999999999999\ndev8: /dev/nvidia\ndev9: \n", ""),
        (SHARED, ""),
        ("mp0: /dev/nvidia1,mp=/dev/nvidia1\n", "a"),
        ("mp0: /dev,mp=/host-dev\n", "abc"),
        ("template: 1\ndev0: /dev/nvidia1\n", ""),
        ("[pve:pending]\ndev0: /dev/nvidia1\n[old]\ndev0: /dev/nvidia0\n", "a"),
        ("lxc.mount.entry: /dev/nvidia1 dev/nvidia1 none bind,optional,create=file\n", "a"),
        ("lxc.mount.entry = /dev/nvidia1\tdev/nvidia1\tnone bind 0 0\n", "a"),
        ("lxc.mount.entry: /dev/nvidia1 dev/nvidia1 none bind\nlxc.cgroup2.devices.allow: c 195:* rwm\n", "a"),
        ("lxc.mount.entry: /dev dev none rbind\n", "abc"),
        ("lxc.mount.entry: /dev/nvidiactl dev/nvidiactl none bind\n", ""),
        ("lxc.mount.entry: \nlxc.mount.entry: /dev/nvidia1\nlxc.mount.entry: # /dev/nvidia1 x\n", ""),
        ("lxc.cgroup2.devices.allow: c 195:* rwm\n", "abc"),
        ("lxc.cgroup2.devices.allow: c 195:1 rw\n", "a"),
        ("lxc.cgroup2.devices.allow: c 195:0-1 rw\n", "ab"),
        ("lxc.cgroup.devices.allow: c 190-200:2 rwm\n", "c"),
        ("lxc.cgroup2.devices.allow: c 195:* m\n", ""),
        ("lxc.cgroup2.devices.allow: b 195:* rwm\nlxc.cgroup2.devices.allow: c 509:* rwm\n", ""),
        ("lxc.cgroup2.devices.allow: c 195:* rwm\nlxc.cgroup2.devices.deny: c 195:1 rwm\n", "bc"),
        ("lxc.cgroup2.devices.allow: c 195:* rwm\nlxc.cgroup2.devices.allow:\n", ""),
        (f"{SHARED}lxc.cgroup2.devices.allow: c *:* rwm\n", "abc"),
        (f"{SHARED}lxc.cgroup2.devices.allow: a\nunprivileged: 1\n", "abc"),
        (f"lxc.cgroup2.devices.allow: c {'9' * 5000}:* rwm\nlxc.cgroup2.devices.allow: c 195:{'9' * 5000} rwm\n", ""),
        (f"{HOOK}lxc.environment: NVIDIA_VISIBLE_DEVICES=all\n", "abc"),
        (f"{HOOK}lxc.environment.runtime: NVIDIA_VISIBLE_DEVICES=all\n", "abc"),
        (f"{HOOK}lxc.environment.hooks = NVIDIA_VISIBLE_DEVICES = all\n", "abc"),
        (f"{HOOK}env: A=1\0NVIDIA_VISIBLE_DEVICES=1\n", "b"),
        (f"{HOOK}lxc.environment: NVIDIA_VISIBLE_DEVICES=0,2\n", "ac"),
        (f"{HOOK}lxc.environment: NVIDIA_VISIBLE_DEVICES=GPU-bbbb2222-0000\n", "b"),
        (f"{HOOK}lxc.environment: NVIDIA_VISIBLE_DEVICES=gpu-BBBB\n", "b"),
        (f"{HOOK}lxc.environment: NVIDIA_VISIBLE_DEVICES=MIG-GPU-aaaa1111-0000/1/0\n", "a"),
        (f"{HOOK}lxc.environment: NVIDIA_VISIBLE_DEVICES=1:0\n", "b"),
        (f"{HOOK}lxc.environment: NVIDIA_VISIBLE_DEVICES=0000:61:00.0\n", "b"),
        (f"{HOOK}lxc.environment: NVIDIA_VISIBLE_DEVICES=none\n", ""),
        (f"{HOOK}lxc.environment: NVIDIA_VISIBLE_DEVICES=void\n", ""),
        (f"{HOOK}lxc.environment: NVIDIA_VISIBLE_DEVICES=\n", ""),
        (f"{HOOK}lxc.environment: NVIDIA_VISIBLE_DEVICES\n", ""),
        (f"{HOOK}lxc.environment: NVIDIA_VISIBLE_DEVICES=all\nlxc.environment: NVIDIA_VISIBLE_DEVICES=0\n", "a"),
        (HOOK, ""),
        (f"{HOOK}lxc.environment: CUDA_VERSION=12.0\n", "abc"),
        (f"{HOOK}lxc.environment: CUDA_VERSION=12.0\nlxc.environment: NVIDIA_REQUIRE_CUDA=cuda>=12\n", ""),
        ("lxc.hook.pre-mount: /root/nvidia-hook.sh\nlxc.environment: NVIDIA_VISIBLE_DEVICES=1\n", "b"),
        ("lxc.hook.autodev: /usr/bin/nvidia-container-runtime-hook prestart\nlxc.environment: NVIDIA_VISIBLE_DEVICES=all\n", "abc"),
        ("lxc.hook.post-stop: /root/nvidia-reset.sh\nlxc.environment: NVIDIA_VISIBLE_DEVICES=all\n", ""),
        ("[old]\nlxc.mount.entry: /dev/nvidia1 dev/nvidia1 none bind\n", ""),
        ("#lxc.mount.entry: /dev/nvidia1 dev/nvidia1 none bind\n", ""),
    ],
)
def test_what_a_container_claims(text: str, cards: str) -> None:
    assert certain(read("container", f"hostname: other\n{text}")) == cards


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ("lxc.cgroup2.devices.allow: c *:* rwm\n", "abc"),
        ("lxc.cgroup2.devices.allow: a\n", "abc"),
        ("lxc.cgroup2.devices.allow: a\nunprivileged: 1\n", ""),
        ("lxc.cgroup2.devices.allow: c *:* m\n", ""),
        (f"{HOOK}lxc.environment: NVIDIA_VISIBLE_DEVICES=MIG-1b2c3d4e-0000\n", "abc"),
        ("lxc.environment: NVIDIA_VISIBLE_DEVICES=1\n", "b"),
        ("lxc.hook.autodev: /root/nvidia-nodes.sh\n", "abc"),
    ],
)
def test_what_only_allows_a_gpu_is_no_certain_claim(text: str, cards: str) -> None:
    guest = read("container", text)
    assert (doubtful(guest), certain(guest)) == (cards, "")


def test_what_a_file_includes_counts() -> None:
    files = {
        "/etc/lxc/gpu.conf": (f"  {HOOK.replace(':', ' =', 1)}lxc.include = /etc/lxc/more\nlxc.include = /etc/lxc/gpu.conf\n",),
        "/etc/lxc/more": ("# a folder\nlxc.environment = NVIDIA_VISIBLE_DEVICES=1\n", "lxc.prlimit.memlock = 1\n"),
        "/etc/lxc/fstab": ("# mounts\n/dev/nvidia1 dev/nvidia1 none bind 0 0\nnonsense\n",),
    }
    assert certain(read("container", "lxc.include: /etc/lxc/gpu.conf\n", files)) == "b"
    assert certain(read("container", "lxc.mount.fstab: /etc/lxc/fstab\n", files)) == "a"
    assert certain(read("container", "lxc.include: /etc/lxc/gone.conf\n", files)) == ""
    everywhere = {claims.COMMON_INCLUDE: (HOOK,)}
    assert certain(read("container", "lxc.environment: NVIDIA_VISIBLE_DEVICES=all\n", everywhere)) == "abc"
    endless = {f"/{number}": (f"lxc.include = /{number + 1}\n",) for number in range(5000)}
    assert certain(read("container", "lxc.include: /0\n", endless)) == ""


def test_a_claim_is_told_by_its_key() -> None:
    guest = read("container", f"hostname: other\n{HOOK}lxc.environment: NVIDIA_VISIBLE_DEVICES=all\n")
    claim = guest.claim_on(A)
    assert claim and (guest.words, claim.key) == ("container 300 (other)", "lxc.hook.mount with NVIDIA_VISIBLE_DEVICES=all")
    pending = read("VM", "name: win\n[PENDING]\nhostpci0: 41:00\n").claim_on(A)
    assert pending and pending.key == "hostpci0 (pending)"


def test_driver_files_of_the_node_are_told_apart_from_other_mounts() -> None:
    lines = [
        "/usr/bin/nvidia-smi usr/bin/nvidia-smi none bind,ro,create=file 0 0",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.580.126 usr/lib/x86_64-linux-gnu/libcuda.so.1 none bind,ro,create=file 0 0",
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.126 usr/lib/libnvidia-ml.so.1 none bind,ro,optional,create=file 0 0",
        "/usr/lib/nvidia/current usr/lib/nvidia/current none bind,ro,create=dir 0 0",
        "/srv/models srv/models none bind 0 0",
        "/usr/local/cuda usr/local/cuda none bind 0 0",
        "/tank/nvidia-videos mnt/nvidia-videos none bind 0 0",
        "/proc/driver/nvidia proc/driver/nvidia none bind 0 0",
    ]
    guest = read("container", "".join(f"lxc.mount.entry: {line}\n" for line in lines))
    assert [mount.source.rpartition("/")[2] for mount in guest.driver_files] == ["nvidia-smi", "libcuda.so.580.126", "libnvidia-ml.so.580.126", "current"]
    assert not guest.claims and not guest.uses_driver


def test_nothing_that_another_owner_writes_ends_the_reading() -> None:
    """Random pieces of such files, 3,000 times."""
    pieces = [
        "hostpci0:",
        "dev0:",
        "lxc.mount.entry:",
        "lxc.cgroup2.devices.allow:",
        "lxc.environment:",
        "lxc.hook.mount:",
        "lxc.include:",
        "args:",
        "\\777",
        "\udcff",
    ]
    pieces += [
        "mapping=",
        "NVIDIA_VISIBLE_DEVICES=",
        "/dev/nvidia",
        "[PENDING]",
        "c",
        "195:",
        "*",
        ";",
        ",",
        "=",
        "41:00",
        "\n",
        "\0",
        "\x0b",
        "²",
        "-",
        "nvidia",
        "  ",
        "GPU-",
        "MIG-",
    ]
    dice = random.Random(11)
    for _unused in range(3000):
        text = "".join(dice.choice(pieces) for _piece in range(dice.randrange(40)))
        for kind in ("container", "VM"):
            guest = read(kind, text)
            assert [guest.claim_on(card) for card in CARDS.values()]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("VM", """args: -device '{"driver":"vfio-pci","host":"0000:61:00.0"}'\n"""),
        ("VM", """args: -device '{"host":"0000:61:00.0","driver":"vfio-pci"}'\n"""),
        ("VM", "args: -device vfio-pci,host=61:00.0,id=x\n"),
        ("container", f"{SHARED}dev2: //dev/nvidia0\n"),
        ("container", "lxc.mount.entry: //dev/nvidia0 dev/nvidia0 none bind 0 0\n"),
    ],
)
def test_unusual_spellings_claim_the_card_all_the_same(kind: str, text: str) -> None:
    assert "b" in certain(read(kind, text))
