#!/usr/bin/python3
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""STAND-IN for the kernel's side of an NVIDIA driver: modules, /proc/driver/nvidia, /proc/devices, the PCI tree.

No module is ever loaded. What a kernel would show is kept in files below RUN and bound over /proc and /sys of the node.
Choices (which GPUs, which faults) are read from CONFIG each time. Called under the names modprobe, rmmod, modinfo, lsmod and dkms
it answers for nvidia* and nouveau and leaves everything else to the real program. As mokutil it is the firmware of Secure Boot.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import typing as t

CONFIG = pathlib.Path("/etc/kpro-standin/gpu.json")
STATE = pathlib.Path("/var/lib/kpro-standin/gpu")
RUN = pathlib.Path("/run/kpro-standin")
PROC = RUN / "proc"
OURS = ("nvidia", "nvidia_modeset", "nvidia_drm", "nvidia_uvm", "nvidia_peermem", "nouveau")
NEEDS = {"nvidia_modeset": ["nvidia"], "nvidia_drm": ["nvidia_modeset"], "nvidia_uvm": ["nvidia"], "nvidia_peermem": ["nvidia"]}
MOK = "/var/lib/dkms/mok.pub"
UVM_MAJORS = (511, 509, 510)
TOPOLOGY = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}


def config() -> dict[str, t.Any]:
    return json.loads(CONFIG.read_text())


def load(path: pathlib.Path, default: t.Any) -> t.Any:
    return json.loads(path.read_text()) if path.exists() else default


def store(path: pathlib.Path, value: t.Any) -> None:
    """Written in place, not renamed: bind mounts follow the inode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def kernel() -> str:
    return os.uname().release


def loaded() -> dict[str, t.Any]:
    return load(RUN / "loaded.json", {})


def on_disk(release: str) -> dict[str, str] | None:
    return load(STATE / "modules.json", {}).get(release)


# --- what the kernel shows -------------------------------------------------------------------------------------------------------------


def version_text(driver: dict[str, str]) -> str:
    if driver["flavour"] == "open":
        name = f"NVIDIA UNIX Open Kernel Module for x86_64  {driver['version']}  Release Build  (kpro-standin@sandbox)"
    else:
        name = f"NVIDIA UNIX x86_64 Kernel Module  {driver['version']}"
    return f"NVRM version: {name}  Thu Jan  1 00:00:00 UTC 1970\nGCC version:  gcc version 0 (kpro stand-in, no module)\n"


def information_text(gpu: dict[str, t.Any], index: int, driver: dict[str, str]) -> str:
    rows = [
        ("Model: \t", gpu["name"]), ("IRQ:   \t", "126"), ("GPU UUID: \t", gpu["uuid"]), ("Video BIOS: \t", "??.??.??.??.??"),
        ("Bus Type: \t", "PCIe"), ("DMA Size: \t", "47 bits"), ("DMA Mask: \t", "0x7fffffffffff"), ("Bus Location: \t", gpu["bus_id"]),
        ("Device Minor: \t", gpu.get("minor", index)), ("GPU Firmware: \t", driver["version"] if driver["flavour"] == "open" else "N/A"),
        ("GPU Excluded:\t", "No"),
    ]  # fmt: skip
    return "".join(f"{key} {value}\n" for key, value in rows)


def state_text(modules: dict[str, t.Any]) -> str:
    """The state that the stand-in libraries read, "key=value" lines: C can parse it without help."""
    choices, driver = config(), modules["nvidia"]
    lines = {"driver": driver["version"], "flavour": driver["flavour"], "cuda": choices.get("cuda", 13000), "count": len(choices["gpus"]),
             "persistence": int(modules.get("persistence", False)), "p2p": choices.get("p2p", "ok"), "nvlinks": choices.get("nvlinks", 0),
             "topology_level": TOPOLOGY[choices.get("topology", "NODE")]}  # fmt: skip
    if "nvidia_uvm" in modules:
        lines["uvm_major"] = uvm_major()
    lines.update({key: choices[key] for key in ("nvml_error", "cuda_error") if key in choices})
    for index, gpu in enumerate(choices["gpus"]):
        row = {key: value for key, value in gpu.items() if key != "processes"}
        row.setdefault("minor", index)
        processes = [*gpu.get("processes", []), *held_on(gpu["uuid"])]
        row["processes"] = len(processes)
        row["used_mib"] = gpu.get("used_mib", 0) + sum(process["mib"] for process in processes)
        for number, process in enumerate(processes):
            row[f"process{number}.pid"], row[f"process{number}.mib"] = process["pid"], process["mib"]
        row["power_limit_mw"] = modules.get("power_limit_mw", {}).get(gpu["uuid"], gpu.get("power_limit_mw", 300000))
        lines.update({f"gpu{index}.{key}": int(value) if isinstance(value, bool) else value for key, value in row.items()})
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def held_on(uuid: str) -> list[dict[str, int]]:
    """Programs that hold memory of a GPU through memory.py."""
    return [{"pid": row["pid"], "mib": row["mib"][uuid]} for row in load(RUN / "held.json", []) if row["mib"].get(uuid)]


def show_held(held: list[dict[str, t.Any]]) -> None:
    """Note who holds memory and show it to the libraries."""
    store(RUN / "held.json", held)
    modules, place = loaded(), PROC / "driver" / "nvidia" / "kpro-standin"
    if "nvidia" in modules and place.exists():
        store_at_once(place, state_text(modules))


def store_at_once(path: pathlib.Path, text: str) -> None:
    """Write in place, in one step and never shorter, so that a reader never meets half a file."""
    size = path.stat().st_size if path.exists() else 0
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.pwrite(handle, text.ljust(size, "\n").encode(), 0)
    os.close(handle)


def uvm_major() -> int:
    return UVM_MAJORS[load(STATE / "boots.json", 0) % len(UVM_MAJORS)]


def refresh() -> None:
    """Bring /proc/driver/nvidia, /proc/devices and the PCI tree in line with what is loaded."""
    modules, folder = loaded(), PROC / "driver" / "nvidia"
    if "nvidia" in modules:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "version").write_text(version_text(modules["nvidia"]))
        (folder / "params").write_text("ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n")
        for index, gpu in enumerate(config()["gpus"]):
            place = folder / "gpus" / gpu["bus_id"]
            if binding(gpu, modules) != "nvidia" or gpu.get("lost"):
                remove_tree(place)
                continue
            place.mkdir(parents=True, exist_ok=True)
            (place / "information").write_text(information_text(gpu, index, modules["nvidia"]))
        store_at_once(folder / "kpro-standin", state_text(modules))
    else:
        remove_tree(folder)
    (PROC / "devices").write_text(devices_text(modules))
    refresh_pci(modules)


def devices_text(modules: dict[str, t.Any]) -> str:
    head, _unused, blocks = (RUN / "devices.real").read_text().partition("\nBlock devices:")
    lines = head.splitlines()
    if "nvidia" in modules:
        lines += ["195 nvidia", "195 nvidiactl"]
    if "nvidia_modeset" in modules:
        lines.append("195 nvidia-modeset")
    if "nvidia_uvm" in modules:
        lines.append(f"{uvm_major():3d} nvidia-uvm")
    rows = sorted(lines[1:], key=lambda line: int(line.split()[0]) if line.strip() else 10**6)
    return "\n".join([lines[0], *[row for row in rows if row.strip()]]) + "\n\nBlock devices:" + blocks


def remove_tree(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for child in path.iterdir():
            remove_tree(child)
        path.rmdir()
    elif path.exists() or path.is_symlink():
        path.unlink()


# --- the PCI tree ----------------------------------------------------------------------------------------------------------------------


def vfio_ids() -> set[str]:
    """The vendor:device pairs that vfio-pci is told to take, by modprobe.d or on the kernel command line."""
    values = re.findall(r"^options\s+vfio[-_]pci\s.*?ids=(\S+)", modprobe_texts(), re.MULTILINE)
    values += re.findall(r"\bvfio[-_]pci\.ids=(\S+)", pathlib.Path("/proc/cmdline").read_text())
    return {":".join(word.split(":")[:2]).lower() for value in values for word in value.split(",")}


def binding(gpu: dict[str, t.Any], modules: dict[str, t.Any]) -> str | None:
    if gpu.get("binding") == "vfio-pci" or gpu["bus_id"] in load(RUN / "vfio.json", []):
        return "vfio-pci"
    if "nouveau" in modules:
        return "nouveau"
    return "nvidia" if "nvidia" in modules else None


def refresh_pci(modules: dict[str, t.Any]) -> None:
    tree = RUN / "pci"
    if not tree.is_dir():
        return
    for gpu in config()["gpus"]:
        place = tree / gpu["bus_id"]
        if gpu.get("lost"):
            remove_tree(place)
            continue
        place.mkdir(exist_ok=True)
        pci_id = int(gpu.get("pci_id", "0x223010de"), 16)
        for name, value in (("vendor", f"0x{pci_id & 0xFFFF:04x}"), ("device", f"0x{pci_id >> 16:04x}"), ("class", "0x030200")):
            (place / name).write_text(value + "\n")
        driver = binding(gpu, modules)
        link = place / "driver"
        if link.is_symlink():
            link.unlink()
        if driver:
            link.symlink_to(f"../../../../bus/pci/drivers/{driver}")


def boot() -> None:
    """What a kernel and its initramfs have done before the first unit runs."""
    boots = load(STATE / "boots.json", 0)
    store(STATE / "boots.json", boots + 1)
    (PROC / "driver").mkdir(parents=True, exist_ok=True)
    (RUN / "devices.real").write_text(pathlib.Path("/proc/devices").read_text())
    (PROC / "devices").write_text((RUN / "devices.real").read_text())
    tree, real = RUN / "pci", pathlib.Path("/sys/bus/pci/devices")
    tree.mkdir(exist_ok=True)
    if real.is_dir():
        for entry in real.iterdir():
            (tree / entry.name).symlink_to(os.readlink(entry))
        bind(tree, real)
    bind(PROC / "driver", pathlib.Path("/proc/driver"))
    bind(PROC / "devices", pathlib.Path("/proc/devices"))
    words = pathlib.Path("/proc/cmdline").read_text().strip()
    (PROC / "cmdline").write_text(f"{words} {config().get('cmdline', '')}".strip() + "\n")
    bind(PROC / "cmdline", pathlib.Path("/proc/cmdline"))
    taken = vfio_ids()
    store(RUN / "vfio.json", [gpu["bus_id"] for gpu in config()["gpus"] if pci_pair(gpu) in taken])
    at_the_console()
    store(RUN / "loaded.json", {})
    if config().get("nouveau") and not blacklisted("nouveau"):
        store(RUN / "loaded.json", {"nouveau": {}})
    refresh()


def pci_pair(gpu: dict[str, t.Any]) -> str:
    pci_id = int(gpu.get("pci_id", "0x223010de"), 16)
    return f"{pci_id & 0xFFFF:04x}:{pci_id >> 16:04x}"


def bind(source: pathlib.Path, target: pathlib.Path) -> None:
    subprocess.run(["mount", "--bind", str(source), str(target)], check=True)


def modprobe_texts() -> str:
    folders = [pathlib.Path("/etc/modprobe.d"), pathlib.Path("/usr/lib/modprobe.d"), pathlib.Path("/lib/modprobe.d")]
    return "\n".join(path.read_text() for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.conf")))


def blacklisted(name: str) -> bool:
    spelled = name.replace("_", "[-_]")
    return re.search(rf"^\s*blacklist\s+{spelled}\s*$", modprobe_texts(), re.MULTILINE) is not None


def modules_load() -> int:
    """systemd-modules-load: names in modules-load.d, blacklist obeyed; a name that fails makes the unit fail."""
    rc = 0
    for folder in ("/usr/lib/modules-load.d", "/run/modules-load.d", "/etc/modules-load.d"):
        for path in sorted(pathlib.Path(folder).glob("*.conf")) if pathlib.Path(folder).is_dir() else []:
            for line in path.read_text().splitlines():
                name = line.strip().replace("-", "_")
                if name in OURS and not blacklisted(name):
                    rc |= insert(name, quiet=False)
    return rc


# --- modprobe, rmmod, modinfo, lsmod ---------------------------------------------------------------------------------------------------


def insert(name: str, quiet: bool) -> int:
    modules = loaded()
    if name in modules:
        return 0
    driver = on_disk(kernel())
    if name != "nouveau" and driver is None:
        return fail(f"modprobe: FATAL: Module {name.replace('_', '-') if '_' in name else name} not found in directory /lib/modules/{kernel()}", quiet)
    for need in NEEDS.get(name, []):
        if insert(need, quiet):
            return 1
    modules = loaded()
    if name == "nvidia":
        if config().get("secure_boot") and not config().get("module_signed") and MOK not in mok_state()["enrolled"]:
            return fail("modprobe: ERROR: could not insert 'nvidia': Key was rejected by service", quiet)
        if not any(binding(gpu, {**modules, "nvidia": {}}) == "nvidia" and not gpu.get("lost") for gpu in config()["gpus"]):
            return fail("modprobe: ERROR: could not insert 'nvidia': No such device", quiet)
        modules["nvidia"] = driver
    else:
        modules[name] = {}
    store(RUN / "loaded.json", modules)
    refresh()
    return 0


def users(name: str, modules: dict[str, t.Any]) -> bool:
    if any(name in NEEDS.get(other, []) for other in modules):
        return True
    if name not in ("nvidia", "nvidia_uvm"):
        return False
    if any(gpu.get("processes") or held_on(gpu["uuid"]) for gpu in config()["gpus"]):
        return True
    pid_file = pathlib.Path("/run/nvidia-persistenced/nvidia-persistenced.pid")
    return name == "nvidia" and pid_file.exists() and pathlib.Path(f"/proc/{pid_file.read_text().strip()}").exists()


def withdraw(name: str, program: str, quiet: bool) -> int:
    modules = loaded()
    if name not in modules:
        return 0 if program == "modprobe" else fail(f"rmmod: ERROR: Module {name} is not currently loaded", quiet)
    if users(name, modules):
        text = f"modprobe: FATAL: Module {name} is in use." if program == "modprobe" else f"rmmod: ERROR: Module {name} is in use"
        return fail(text, quiet)
    del modules[name]
    if name == "nvidia":
        modules.pop("persistence", None)
    store(RUN / "loaded.json", modules)
    refresh()
    return 0


def fail(text: str, quiet: bool = False) -> int:
    if not quiet:
        print(text, file=sys.stderr)
    return 1


def modprobe(argv: list[str]) -> int:
    flags, names = [word for word in argv if word.startswith("-")], [word for word in argv if not word.startswith("-")]
    ours = [name.replace("-", "_") for name in names]
    if not ours or not all(name in OURS for name in ours[: None if "-a" in flags or "-r" in flags or "--remove" in flags else 1]):
        return real("modprobe", argv)
    quiet = "-q" in flags or "--quiet" in flags
    if "-r" in flags or "--remove" in flags:
        return max(withdraw(name, "modprobe", quiet) for name in ours)
    if "-n" in flags or "--dry-run" in flags:
        return 0 if on_disk(kernel()) or ours[0] == "nouveau" else insert(ours[0], quiet)
    return max(insert(name, quiet) for name in (ours if "-a" in flags else ours[:1]))


def rmmod(argv: list[str]) -> int:
    names = [word.replace("-", "_") for word in argv if not word.startswith("-")]
    if not names or not all(name in OURS for name in names):
        return real("rmmod", argv)
    return max(withdraw(name, "rmmod", False) for name in names)


def modinfo(argv: list[str]) -> int:
    field, release, names, words = None, kernel(), [], iter(argv)
    for word in words:
        if word in ("-F", "--field"):
            field = next(words)
        elif word in ("-k", "--set-version"):
            release = next(words)
        elif word == "-n":
            field = "filename"
        else:
            names.append(word.replace("-", "_"))
    if len(names) != 1 or names[0] not in OURS:
        return real("modinfo", argv)
    driver = on_disk(release)
    if driver is None or names[0] == "nouveau":
        return fail(f"modinfo: ERROR: Module {names[0]} not found.")
    values = {"filename": f"/lib/modules/{release}/updates/dkms/{names[0].replace('_', '-')}.ko",
              "version": driver["version"], "license": "Dual MIT/GPL" if driver["flavour"] == "open" else "NVIDIA"}  # fmt: skip
    if field:
        print(values.get(field, ""))
    else:
        print("".join(f"{key + ':':<16}{value}\n" for key, value in values.items()), end="")
    return 0


def lsmod(argv: list[str]) -> int:
    done = subprocess.run(["/usr/bin/kmod", "list", *argv], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() if done.returncode == 0 and done.stdout else ["Module                  Size  Used by"]
    modules = loaded()
    for name in [name for name in OURS if name in modules]:
        by = [other for other in modules if name in NEEDS.get(other, [])]
        lines.append(f"{name:<20} {1024 * 1024:>8} {len(by):>2}{' ' + ','.join(by) if by else ''}")
    print("\n".join(lines))
    return 0


def real(name: str, argv: list[str]) -> int:
    os.execv("/usr/bin/kmod", [name, *argv])


# --- mokutil: the firmware of Secure Boot ----------------------------------------------------------------------------------------------


def mok_state() -> dict[str, list[str]]:
    return {"enrolled": [], "pending": [], **load(STATE / "mok.json", {})}


def at_the_console() -> None:
    """At boot: a person confirms the pending keys, if the choice mok_console says that one is there; else the request lapses."""
    state = mok_state()
    if state["pending"]:
        store(STATE / "mok.json", {"enrolled": [*state["enrolled"], *(state["pending"] if config().get("mok_console") else [])], "pending": []})


def mokutil(argv: list[str]) -> int:
    state = mok_state()
    match argv:
        case ["--sb-state"]:
            print("SecureBoot enabled" if config().get("secure_boot") else "SecureBoot disabled")
        case ["--test-key", path]:
            words = {"enrolled": "is already enrolled", "pending": "is already in the enrollment request"}
            found = next((key for key in words if path in state[key]), None)
            print(f"{path} {words[found] if found else 'is not enrolled'}")
            return 1 if found else 0
        case ["--import", path]:
            if not pathlib.Path(path).exists():
                return fail(f"Failed to get file status, {path}")
            store(STATE / "mok.json", {**state, "pending": sorted({*state["pending"], path})})
        case _:
            return fail("usage of this stand-in: mokutil --sb-state | --test-key FILE | --import FILE")
    return 0


# --- dkms ------------------------------------------------------------------------------------------------------------------------------


def dkms(argv: list[str]) -> int:
    action, options = (argv[0] if argv and not argv[0].startswith("-") else ""), dkms_options(argv[1:])
    name, version = options.get("m", ""), options.get("v", "")
    if name not in ("", "nvidia") or action not in ("add", "build", "install", "remove", "status", "autoinstall") or (action != "status" and name == ""
                                                                                                                      and action != "autoinstall"):  # fmt: skip
        return real_dkms(argv)
    table = load(STATE / "dkms.json", {})
    if action == "status":
        if name == "" and pathlib.Path("/usr/sbin/dkms").exists():
            done = subprocess.run(["/usr/sbin/dkms", *argv], capture_output=True, text=True, check=False)
            print("".join(line + "\n" for line in done.stdout.splitlines() if not line.startswith("nvidia/")), end="")
        return dkms_status(table, version, options.get("k", ""))
    if action == "add":
        table.setdefault(version, {})
        store(STATE / "dkms.json", table)
        source = pathlib.Path(f"/var/lib/dkms/nvidia/{version}/source")
        source.parent.mkdir(parents=True, exist_ok=True)
        if not source.is_symlink():
            source.symlink_to(f"/usr/src/nvidia-{version}")
        print(f"Creating symlink /var/lib/dkms/nvidia/{version}/source -> /usr/src/nvidia-{version}")
        return 0
    if action == "remove":
        if version not in table:
            return fail(f"Error! There are no instances of module: nvidia\n{version} located in the DKMS tree.") + 2
        forget(version)
        del table[version]
        store(STATE / "dkms.json", table)
        remove_tree(pathlib.Path(f"/var/lib/dkms/nvidia/{version}"))
        if not table:
            remove_tree(pathlib.Path("/var/lib/dkms/nvidia"))
        return 0
    if action == "autoinstall":
        return max([dkms_build(table, each, options.get("k", kernel()), "installed") for each in table] or [0])
    if version not in table:
        return fail(f"Error! Could not find module source directory.\nDirectory: /usr/src/nvidia-{version} does not exist.") + 1
    return dkms_build(table, version, options.get("k", kernel()), "built" if action == "build" else "installed")


def dkms_options(words: list[str]) -> dict[str, str]:
    found, rest = {}, iter(words)
    for word in rest:
        if word in ("-m", "-v", "-k", "-a"):
            found[word[1]] = next(rest, "")
        elif "/" in word and not word.startswith("-"):
            found["m"], _unused, found["v"] = word.partition("/")
        elif not word.startswith("-"):
            found.setdefault("m", word)
    if "/" in found.get("m", ""):
        found["m"], _unused, found["v"] = found["m"].partition("/")
    return found


def dkms_status(table: dict[str, t.Any], version: str, release: str) -> int:
    for each, kernels in sorted(table.items()):
        if version in ("", each):
            for name, state in sorted(kernels.items()):
                if release in ("", name):
                    print(f"nvidia/{each}, {name}, x86_64: {state}")
            if not kernels and not release:
                print(f"nvidia/{each}: added")
    return 0


def dkms_build(table: dict[str, t.Any], version: str, release: str, goal: str) -> int:
    if table[version].get(release) == "installed":
        return 0
    if not pathlib.Path(f"/lib/modules/{release}/build").exists():
        build = f"/lib/modules/{release}/build"
        hint = f"Please install the linux-headers-{release} package or use the --kernelsourcedir option to tell DKMS where it's located."
        return fail(f"Error! Your kernel headers for kernel {release} cannot be found at {build} or /lib/modules/{release}/source.\n{hint}") + 20
    log = pathlib.Path(f"/var/lib/dkms/nvidia/{version}/build/make.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    if config().get("dkms_error"):
        log.write_text(f"DKMS make.log for nvidia-{version} for kernel {release} (x86_64)\n{config()['dkms_error']}\n")
        return fail(f"Error! Bad return status for module build on kernel: {release} (x86_64)\nConsult {log} for more information.") + 9
    log.write_text(f"DKMS make.log for nvidia-{version} for kernel {release} (x86_64)\nSTAND-IN: nothing was compiled\n")
    if config().get("secure_boot") and not pathlib.Path(MOK).exists():
        pathlib.Path(MOK).write_text("STAND-IN for the certificate that DKMS makes at its first build\n")
    table[version][release] = goal
    store(STATE / "dkms.json", table)
    if goal == "installed":
        record(version, pathlib.Path(f"/usr/src/nvidia-{version}/kpro-standin-flavour").read_text().strip(), release)
    return 0


def record(version: str, flavour: str, release: str) -> None:
    store(STATE / "modules.json", {**load(STATE / "modules.json", {}), release: {"version": version, "flavour": flavour}})


def forget(version: str) -> None:
    store(STATE / "modules.json", {key: value for key, value in load(STATE / "modules.json", {}).items() if value["version"] != version})


def real_dkms(argv: list[str]) -> int:
    os.execv("/usr/sbin/dkms", ["dkms", *argv])


# --- settings that a driver keeps while it is loaded -----------------------------------------------------------------------------------


def setting(key: str, value: str) -> int:
    """set persistence 0|1; set power_limit_mw.UUID MILLIWATT"""
    modules = loaded()
    if "nvidia" not in modules:
        return fail("kpro-standin: the nvidia module is not loaded")
    name, _unused, uuid = key.partition(".")
    if uuid:
        modules.setdefault(name, {})[uuid] = int(value)
    else:
        modules[name] = bool(int(value))
    store(RUN / "loaded.json", modules)
    refresh()
    return 0


def main(argv: list[str]) -> int:
    program = pathlib.Path(argv[0]).name
    by_name: dict[str, t.Callable[[list[str]], int]] = {
        "modprobe": modprobe,
        "rmmod": rmmod,
        "modinfo": modinfo,
        "lsmod": lsmod,
        "dkms": dkms,
        "mokutil": mokutil,
    }
    if program in by_name:
        return by_name[program](argv[1:])
    match argv[1:]:
        case ["boot"]:
            boot()
        case ["refresh"]:
            refresh()
        case ["modules-load"]:
            return modules_load()
        case ["record", version, flavour, release]:
            record(version, flavour, release)
        case ["set", key, value]:
            return setting(key, value)
        case _:
            return fail("usage: kernel.py boot | refresh | modules-load | record VERSION FLAVOUR KERNEL | set KEY VALUE")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
