# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tasks of Proxmox that outlast their run, and ones that are killed at several points: the next run completes or names what to do."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import threading
import time
import typing as t

import pytest

from ansible_collections.kpro.llm.tests.unit.plugins.modules.lxc_node import TEMPLATE, LxcNode
from ansible_collections.kpro.llm.tests.unit.plugins.modules.test_lxc_container import OURS

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes and gives folders away")
# A task that a test ends itself takes this long otherwise.
LONG_S = 100
# A run that asks nothing for so long waits.
CALM_S = 2.0
# One that asks more often than it looks at first asks how far the task is.
MANY_CALLS = 12
RECORDS = "var/lib/kpro-llm/pve"
VOLUME = "local-zfs:subvol-129-disk-0"


def eventually(look: t.Callable[[], t.Any], limit_s: float = 20.0) -> t.Any:
    """Wait until something is true, and return it."""
    end = time.monotonic() + limit_s
    while not (found := look()):
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def ending_once_seen(node: LxcNode, end: t.Callable[[], object], at_least: int = 0) -> t.Iterator[None]:
    """Let a task of the node end while a run waits for it: after so many calls it asks nothing more, or again and again."""
    node.forget_calls()
    over = threading.Event()

    def let_end() -> None:
        asked, since = 0, time.monotonic()
        while not over.wait(0.1) and asked < MANY_CALLS and (asked < at_least or time.monotonic() - since < CALM_S):
            if len(node.calls()) != asked:
                asked, since = len(node.calls()), time.monotonic()
        end()

    thread = threading.Thread(target=let_end)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def half_made(node: LxcNode) -> bool:
    """Tell whether the container is no more than its lock."""
    return node.config_path().exists() and node.config().strip() == "lock: create"


def volumes(node: LxcNode, vmid: int = 129) -> list[str]:
    return sorted(path.name for path in (node.root / "rpool/data").glob(f"subvol-{vmid}-disk-*"))


def record(node: LxcNode, name: str = "create-129") -> dict[str, t.Any]:
    return dict(json.loads((node.root / RECORDS / name / "record.json").read_text(encoding="utf-8")))


def cut(node: LxcNode, *words: str, check: t.Callable[[], t.Any] = lambda: True, **options: t.Any) -> dict[str, t.Any]:
    """Run a deployment that waits too short a time, kill its pvesh when the check is true, and wait until its worker is gone."""
    first = node.deploy(task_timeout_s=1, **options)
    assert first["failed"] and "still runs" in first["msg"], first
    eventually(check)
    assert node.kill_calls(*words)
    node.faults()
    eventually(lambda: not active(node))
    return first


def active(node: LxcNode) -> list[t.Any]:
    rows = json.loads(node.pct(f"pvesh get /nodes/{node.name}/tasks --source active --output-format json").stdout)
    return list(rows)


# --- waited for --------------------------------------------------------------------------------------------------------


def test_a_creation_that_outlasts_its_run_is_not_touched_shown_and_waited_for(node: LxcNode) -> None:
    node.faults(slow_unpack_s=LONG_S)
    first = node.deploy(task_timeout_s=4)
    assert first["failed"] and "still runs and was not touched" in first["msg"] and "gpu_container__task_timeout_s" in first["msg"], first
    assert " raise timeout_s" not in first["msg"] and "UPID:" in first["msg"]
    noted = record(node)
    assert (noted["vmid"], noted["node"], noted["kind"]) == (129, node.name, "create") and noted["boot_id"] and noted["upid"] in first["msg"]
    assert (node.root / RECORDS).stat().st_mode & 0o777 == 0o700 and (node.root / RECORDS / "create-129").stat().st_mode & 0o777 == 0o700
    node.forget_calls()
    foretold = node.deploy(check=True)
    assert not foretold.get("failed") and len(foretold["plan"]) == 1 and "is being created" in foretold["plan"][0], foretold
    assert "made by somebody else" not in json.dumps(foretold) and node.writes() == []
    with ending_once_seen(node, node.faults):
        second = node.deploy()
    assert not second.get("failed") and second["plan"] == ["Start container 129"] and node.is_running(), second
    assert node.deploy()["plan"] == []


def test_a_creation_that_somebody_else_began_is_waited_for_and_judged_by_its_tag(node: LxcNode) -> None:
    node.faults(slow_unpack_s=LONG_S)
    line = f"pvesh create /nodes/{node.name}/lxc --vmid 129 --ostemplate local:vztmpl/{TEMPLATE} --rootfs local-zfs:2 --hostname pihole"
    node.pct(f"setsid {line} >/dev/null 2>&1 &")
    eventually(lambda: half_made(node))
    foretold = node.deploy(check=True)
    assert "is being created" in foretold["plan"][0], foretold
    with ending_once_seen(node, node.faults):
        judged = node.deploy()
    assert judged["failed"] and "made by somebody else" in judged["msg"] and "pihole" in judged["msg"], judged


def test_a_shutdown_that_outlasts_its_run_is_shown_and_waited_for(node: LxcNode) -> None:
    node.deploy()
    node.faults(slow_shutdown_s=LONG_S)
    first = node.deploy(state="stopped", task_timeout_s=1)
    assert first["failed"] and "still runs" in first["msg"], first
    foretold = node.deploy(check=True, state="stopped")
    assert "shutdown of container 129" in foretold["plan"][0], foretold
    with ending_once_seen(node, node.faults):
        second = node.deploy(state="stopped")
    assert not second.get("failed") and second["plan"] == [] and not node.is_running(), second


def test_two_runs_at_once_make_one_container(node: LxcNode, tmp_path: pathlib.Path) -> None:
    node.faults(slow_unpack_s=2)
    (node.root / "srv/models").mkdir()
    os.chown(node.root / "srv/models", 100000, 100000)
    child = os.fork()
    if child == 0:
        result: dict[str, t.Any] = {"failed": True}
        try:
            result = node.deploy()
        finally:
            (tmp_path / "other").write_text(json.dumps(result), encoding="utf-8")
            os._exit(0)
    mine = node.deploy()
    os.waitpid(child, 0)
    other = json.loads((tmp_path / "other").read_text(encoding="utf-8"))
    assert not mine.get("failed") and not other.get("failed"), (mine, other)
    assert node.is_running() and volumes(node) == ["subvol-129-disk-0"]
    assert len([argv for argv in node.calls("create") if argv[1].endswith("/lxc")]) == 1


# --- cut off: the record is ours ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
def test_a_killed_creation_is_removed_and_made_anew(node: LxcNode, named: bool) -> None:
    node.faults(slow_unpack_s=LONG_S)
    cut(node, "create", check=lambda: half_made(node))
    assert record(node)["upid"]
    if not named:
        # The run itself was killed before it knew the task's name.
        node.file(f"{RECORDS}/create-129/record.json", json.dumps({**record(node), "upid": ""}))
    assert half_made(node) and volumes(node) == ["subvol-129-disk-0"], "what the real code leaves"
    node.forget_calls()
    foretold = node.deploy(check=True)
    assert foretold["plan"][0].startswith("Remove what a creation of container 129 left") and VOLUME in foretold["plan"][0], foretold
    assert [sentence.split()[0] for sentence in foretold["plan"][-2:]] == ["Create", "Start"] and node.writes() == []
    done = node.deploy()
    assert not done.get("failed") and done["plan"] == foretold["plan"] and node.is_running(), done
    assert volumes(node) == ["subvol-129-disk-0"] and node.deploy()["plan"] == []


def test_a_killed_creation_is_only_removed_if_the_container_shall_be_absent(node: LxcNode) -> None:
    node.faults(slow_unpack_s=LONG_S)
    cut(node, "create", check=lambda: half_made(node))
    done = node.deploy(state="absent")
    assert not done.get("failed") and len(done["plan"]) == 1 and not node.config_path().exists() and volumes(node) == [], done
    assert node.deploy(state="absent")["plan"] == []


def test_a_volume_that_carried_the_id_before_stays(node: LxcNode) -> None:
    node.file("rpool/data/subvol-129-disk-0/data", "of somebody else")
    node.faults(slow_unpack_s=LONG_S)
    cut(node, "create", check=lambda: half_made(node))
    assert volumes(node) == ["subvol-129-disk-0", "subvol-129-disk-1"]
    done = node.deploy()
    assert not done.get("failed"), done
    assert (node.root / "rpool/data/subvol-129-disk-0/data").read_text(encoding="utf-8") == "of somebody else"
    assert "subvol-129-disk-1" in node.config() and volumes(node) == ["subvol-129-disk-0", "subvol-129-disk-1"]


def test_a_creation_that_was_killed_after_its_files_were_there_is_completed(node: LxcNode) -> None:
    node.faults(has_ssh=True)
    node.file("etc/kpro-standin/pve.json", '{"key_s": 3}')
    # As Proxmox: the configuration is written whole before the host keys are made, without a lock.
    cut(node, "create", check=lambda: "tags: kpro-llm" in node.config())
    assert "lock" not in node.config()
    node.file("etc/kpro-standin/pve.json", "{}")
    done = node.deploy()
    assert not done.get("failed") and node.is_running(), done
    assert any("cut off after its files were unpacked" in note and "pct exec 129 -- ssh-keygen -A" in note for note in done["notes"]), done["notes"]
    again = node.deploy()
    assert again["plan"] == [] and not any("cut off" in note for note in again["notes"])


def test_a_reboot_in_between_changes_nothing_about_whose_it_is(node: LxcNode) -> None:
    node.faults(slow_unpack_s=LONG_S)
    cut(node, "create", check=lambda: half_made(node))
    noted = record(node)
    node.file(f"{RECORDS}/create-129/record.json", json.dumps({**noted, "boot_id": "an-earlier-boot"}))
    done = node.deploy()
    assert not done.get("failed") and node.is_running() and volumes(node) == ["subvol-129-disk-0"], done


def test_a_removal_that_was_killed_is_finished(node: LxcNode) -> None:
    node.deploy(state="stopped")
    began = record(node)["began_s"]
    eventually(lambda: time.time() > began + 2)
    node.file("rpool/data/subvol-129-disk-7/data", "of somebody else")
    node.file("etc/kpro-standin/pve.json", '{"free_s": 4}')
    first = node.deploy(state="absent", task_timeout_s=1)
    assert first["failed"] and "still runs" in first["msg"], first
    assert "removal of container 129" in node.deploy(check=True, state="absent")["plan"][0]
    assert node.kill_calls("delete")
    eventually(lambda: not active(node))
    # Cut between the last volume and the configuration: the mark of the id is all that is left.
    assert node.config().strip() == "lock: destroyed"
    node.file("etc/kpro-standin/pve.json", "{}")
    foretold = node.deploy(check=True, state="absent")
    assert "Remove what a removal of container 129 left" in foretold["plan"][0] and "disk-7" not in foretold["plan"][0], foretold
    done = node.deploy(state="absent")
    assert not done.get("failed") and not node.config_path().exists() and volumes(node) == ["subvol-129-disk-7"], done


# --- cut off: nothing shows that it is ours ----------------------------------------------------------------------------


def refused_with_commands(node: LxcNode, **options: t.Any) -> list[str]:
    """Run, which must end in an error that names commands; return them."""
    node.forget_calls()
    result = node.deploy(**options)
    assert result.get("failed") and "no task works on it" in result["msg"], result
    assert "adopt" not in result["msg"] and node.writes() == [] and node.deploy(check=True, **options)["msg"] == result["msg"]
    return re.findall(r"'(p[a-z]+ [^']*)'", result["msg"].partition("If nobody needs it")[2])


def test_a_half_made_container_without_a_record_is_named_with_commands_that_work(node: LxcNode) -> None:
    node.faults(slow_unpack_s=LONG_S)
    cut(node, "create", check=lambda: half_made(node))
    (node.root / RECORDS / "create-129/record.json").unlink()
    commands = refused_with_commands(node)
    assert refused_with_commands(node, adopt=True) == commands == refused_with_commands(node, state="absent")
    assert [command.split()[1] for command in commands] == ["unlock", "destroy"]
    for command in commands:
        done = node.pct(command)
        assert done.returncode == 0, (command, done)
    assert not node.config_path().exists() and volumes(node) == []
    assert node.deploy()["running"]


def test_a_record_of_an_earlier_container_of_the_id_proves_nothing(node: LxcNode) -> None:
    """Ours was made and the run died before it could write that down; it was removed, and somebody else's creation was cut off."""
    node.deploy(state="stopped")
    node.file(f"{RECORDS}/create-129/record.json", json.dumps({**record(node), "ended": False}))
    assert node.pct("pct destroy 129").returncode == 0
    node.faults(slow_unpack_s=LONG_S)
    line = f"pvesh create /nodes/{node.name}/lxc --vmid 129 --ostemplate local:vztmpl/{TEMPLATE} --rootfs local-zfs:2 --hostname pihole"
    node.pct(f"setsid {line} >/dev/null 2>&1 &")
    eventually(lambda: half_made(node))
    node.kill_calls("--hostname", "pihole")
    node.faults()
    eventually(lambda: not active(node))
    assert half_made(node)
    assert refused_with_commands(node)
    assert volumes(node) == ["subvol-129-disk-0"]


def test_a_restore_that_was_cut_off_is_nobodys_to_remove(node: LxcNode) -> None:
    node.has(f"{OURS}lock: create\n")
    result = node.deploy()
    assert result["failed"] and "pct config 129" in result["msg"] and "pct unlock 129" in result["msg"] and "adopt" not in result["msg"], result
    assert node.writes() == []


# --- templates ---------------------------------------------------------------------------------------------------------

NAME = "debian-13-standard_13.1-1_amd64.tar.zst"
CACHE = "var/lib/vz/template/cache"


def slow_offer(node: LxcNode, seconds: int) -> None:
    entries = json.loads(node.offers(NAME))
    entries[NAME]["seconds"] = seconds
    node.file("var/lib/pve-manager/apl-info/kpro-standin.json", json.dumps(entries))


def test_a_download_that_outlasts_its_run_goes_on_and_is_waited_for(node: LxcNode) -> None:
    slow_offer(node, LONG_S)
    first = node.deploy(template=NAME, task_timeout_s=1)
    assert first["failed"] and "still runs" in first["msg"], first
    foretold = node.deploy(check=True, template=NAME)
    assert foretold["plan"][0].startswith(f"Wait for the download of template {NAME}"), foretold
    with ending_once_seen(node, lambda: slow_offer(node, 0)):
        done = node.deploy(template=NAME)
    assert not done.get("failed") and node.is_running(), done
    assert not [argv for argv in node.calls("create") if argv[1].endswith("/aplinfo")]
    assert [path.name for path in (node.root / CACHE).iterdir() if "tmp_dwnl" in path.name] == []


def test_a_killed_download_is_swept_away_and_begun_anew(node: LxcNode) -> None:
    slow_offer(node, LONG_S)
    cut(node, "create", template=NAME)
    parts = [path.name for path in (node.root / CACHE).iterdir() if "tmp_dwnl" in path.name]
    assert len(parts) == 1, "what the real code leaves"
    foreign = node.file(f"{CACHE}/{NAME}.tmp_dwnl.999999999", "of somebody else")
    os.utime(foreign, (1, 1))
    slow_offer(node, 0)
    done = node.deploy(template=NAME)
    assert not done.get("failed") and node.is_running(), done
    assert not (node.root / CACHE / parts[0]).exists() and foreign.exists()
    assert any(parts[0] in note and "removed" in note for note in done["notes"])
    assert any("tmp_dwnl.999999999" in note and "rm " in note for note in done["notes"])


def test_a_download_that_somebody_else_began_is_waited_for(node: LxcNode) -> None:
    slow_offer(node, LONG_S)
    node.pct(f"setsid pvesh create /nodes/{node.name}/aplinfo --storage local --template {NAME} >/dev/null 2>&1 &")
    eventually(lambda: active(node))
    with ending_once_seen(node, lambda: slow_offer(node, 0), at_least=1):
        done = node.deploy(template=NAME)
    assert not done.get("failed") and node.is_running(), done
    assert done["plan"][0].startswith(f"Wait for the download of template {NAME}")
    assert not [argv for argv in node.calls("create") if argv[1].endswith("/aplinfo")]


# --- texts -------------------------------------------------------------------------------------------------------------


def test_after_a_refused_hotplug_a_restart_stops_writes_and_starts(node: LxcNode) -> None:
    node.deploy(gpus=0)
    node.faults(no_hotplug=["memory", "dev0"])
    refused = node.deploy(gpus=0, memory_mib=4096)
    assert refused["failed"] and "restart: true" in refused["msg"] and "pct shutdown 129" in refused["msg"] and "memory: 2048" in node.config()
    node.forget_calls()
    done = node.deploy(gpus=1, memory_mib=4096, restart=True)
    assert not done.get("failed") and node.is_running() and "memory: 4096" in node.config() and "dev0: /dev/nvidia0" in node.config(), done
    assert [sentence.split()[0] for sentence in done["plan"][-2:]] == ["Stop", "Start"] and any("refused" in note for note in done["notes"])
    assert [argv[1].rsplit("/", 1)[-1] for argv in node.writes()] == ["config", "shutdown", "config", "start"]
    assert node.deploy(gpus=1, memory_mib=4096)["plan"] == []


def test_a_start_that_fails_names_the_folder_that_is_missing(node: LxcNode) -> None:
    node.deploy(state="stopped")
    node.has(f"{node.config()}mp9: /srv/m146,mp=/m146\n")
    result = node.deploy(mounts=None)
    assert result["failed"] and "mp9 mounts /srv/m146" in result["msg"] and "journalctl" not in result["msg"], result
    assert node.pct(re.findall(r"'(pct set[^']*)'", result["msg"])[0]).returncode == 0
    assert node.deploy(mounts=None)["running"]


def test_a_start_that_fails_for_another_reason_names_the_command_that_shows_it(node: LxcNode) -> None:
    node.deploy(state="stopped")
    node.has(node.config().replace("bridge=vmbr0", "bridge=vmbr7"))
    result = node.deploy(network=None)
    assert result["failed"] and "pct start 129 --debug" in result["msg"] and "journalctl" not in result["msg"], result
    assert result["msg"].count("bridge 'vmbr7' does not exist") == 1, "each thing is told once"


def test_a_feature_that_somebody_else_set_waits_without_failing_the_deployment(node: LxcNode) -> None:
    node.deploy()
    assert node.pct("pct set 129 --features nesting=1,keyctl=1").returncode == 0
    result = node.deploy()
    assert result["changed"] is False and not result["restart_needed"], result
    assert any("features" in note and "next start" in note for note in result["notes"])
    assert node.deploy(features={"nesting": True, "fuse": True})["restart_needed"]


def test_an_index_that_can_not_be_fetched_says_so_with_the_reason(node: LxcNode) -> None:
    result = node.deploy(template="debian-13-standard_13.9-1_amd64.tar.zst")
    assert result["failed"] and "could not fetch it" in result["msg"] and "name resolution" in result["msg"], result
    assert "run 'pveam update'" not in result["msg"]


def test_a_frozen_container_is_named_as_that(node: LxcNode) -> None:
    node.deploy()
    node.program("lxc-attach", "#!/bin/sh\nexec sleep 60\n")
    node.program("lxc-info", "#!/bin/sh\necho FROZEN\n")
    result = node.deploy(ready_timeout_s=1)
    assert result["failed"] and "it is frozen" in result["msg"] and "lxc-unfreeze -n 129" in result["msg"], result


def test_a_device_that_is_there_is_not_said_to_be_missing(node: LxcNode) -> None:
    node.deploy(state="stopped")
    node.faults(start_says="Device /dev/nvidia0 does not exist")
    result = node.deploy()
    assert result["failed"] and "/dev/nvidia0 is there on" in result["msg"], result


def test_a_refusal_has_no_hint_of_a_failed_start(node: LxcNode) -> None:
    node.deploy(state="stopped")
    node.has(f"{node.config()}lock: backup\n")
    result = node.deploy()
    assert result["failed"] and "journalctl" not in result["msg"] and "--debug" not in result["msg"], result


def test_volumes_that_the_configuration_did_not_name_stay_and_are_told(node: LxcNode) -> None:
    node.deploy(state="stopped")
    node.file("rpool/data/subvol-129-disk-7/data", "of somebody else")
    done = node.deploy(state="absent")
    assert not done.get("failed") and volumes(node) == ["subvol-129-disk-7"], done
    command = next(re.findall(r"'(pvesm free [^']*)'", note)[0] for note in done["notes"] if "pvesm free" in note)
    assert node.pct(command).returncode == 0 and volumes(node) == []
