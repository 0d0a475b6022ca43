# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._pve import config as cfg
from ansible_collections.kpro.llm.tests.unit.plugins.module_utils.pve_recordings import scenario, step, writes

WRITTEN_AT_ONCE = ["config-scalars", "config-tags", "config-startup-onboot", "config-mp", "config-dev"]
WRITTEN_AT_ONCE += ["config-dev-properties", "config-net"]


def _settings(parameters: dict[str, str]) -> dict[str, str | None]:
    gone = {key: None for key in parameters.get("delete", "").split(",") if key}
    return {key: value for key, value in parameters.items() if key not in ("delete", "digest", "revert")} | gone


@pytest.mark.parametrize("name", WRITTEN_AT_ONCE)
def test_what_proxmox_stores_for_a_value_is_never_taken_for_a_difference(name: str) -> None:
    compared = 0
    for _before, parameters, after in writes(name):
        stored = cfg.read_config_file(after)
        for setting in cfg.differences(stored, _settings(parameters)):
            # Only what Proxmox makes up itself may differ: a MAC address, or the name of a volume that it allocates.
            assert "hwaddr" not in str(setting.after) if setting.key.startswith("net") else "local:1," in str(setting.after), setting
        compared += 1
    assert compared >= 7


@pytest.mark.parametrize("name", WRITTEN_AT_ONCE)
def test_a_change_that_proxmox_wrote_was_a_difference_before(name: str) -> None:
    for before, parameters, after in writes(name):
        old, new = (cfg.read_config_file(text) for text in (before, after))
        settings = _settings(parameters)
        changed = {key for key in settings if not cfg.same(key, old.keys.get(key), new.keys.get(key))}
        assert changed == {setting.key for setting in cfg.differences(old, settings)} or "net0" in settings or "local:1" in str(settings)


def test_a_description_comes_back_as_the_same() -> None:
    asked: str | None = None
    compared = 0
    for item in scenario("config-description"):
        request = item["request"]
        if request.get("method") == "PUT" and item["response"]["http_status"] == 200:
            asked = request["params"].get("description")
        elif request.get("method") == "GET" and asked is not None:
            stored = cfg.read_config(item["response"]["body"]["data"])
            assert cfg.differences(stored, {"description": asked}) == []
            assert cfg.differences(stored, {"description": f"{asked}."}) != []
            compared += 1
    assert compared >= 10


@pytest.mark.parametrize(
    ("key", "left", "right"),
    [
        ("tags", "b,a;a c", "a;b;c"),
        ("tags", "GPU;gpu", "gpu"),
        ("tags", None, ""),
        ("description", "line1\nline2", "line1\nline2\n"),
        ("description", None, ""),
        ("onboot", None, "0"),
        ("onboot", "yes", "1"),
        ("memory", "0512", "512"),
        ("memory", None, "512"),
        ("swap", None, "0"),
        ("cpulimit", "2", "2.00"),
        ("cpulimit", "0", None),
        ("startup", "3", "order=3"),
        ("startup", "down=10,up=5,order=2", "order=2,up=5,down=10"),
        ("features", "nesting=1,keyctl=0", "nesting=1"),
        ("features", "keyctl=1,nesting=1", "nesting=1,keyctl=1"),
        ("net0", "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:AA:BB:CC,ip=dhcp", "ip=dhcp,hwaddr=bc:24:11:aa:bb:cc,bridge=vmbr0,name=eth0,type=veth"),
        ("mp0", "ro=1,mp=/srv/models/,volume=/srv", "/srv/,mp=/srv/models,ro=1,backup=0"),
        ("dev0", "gid=0,/dev/nvidia0,mode=0660", "path=/dev//nvidia0,deny-write=off"),
        ("nameserver", "192.0.2.53  192.0.2.54", "192.0.2.53 192.0.2.54"),
    ],
)
def test_values_that_mean_the_same(key: str, left: str | None, right: str | None) -> None:
    assert cfg.same(key, left, right)


@pytest.mark.parametrize(
    ("key", "left", "right"),
    [
        ("cores", None, "2"),
        ("swap", None, "512"),
        ("tags", "a", None),
        ("dev0", "/dev/nvidia0", "/dev/nvidia0,mode=0666"),
        ("mp0", "/srv,mp=/x", "/srv,mp=/x,ro=1"),
        ("mp0", "/srv,mp=/x", "/srv,mp=/x,replicate=0"),
        ("net0", "name=eth0,bridge=vmbr0,ip=dhcp", "name=eth0,bridge=vmbr0,ip=10.0.0.5/24"),
        ("description", "a", "A"),
    ],
)
def test_values_that_differ(key: str, left: str | None, right: str | None) -> None:
    assert not cfg.same(key, left, right)


def test_the_answer_of_a_config_read_keeps_raw_lines_in_order() -> None:
    config = cfg.read_config(step("config-hand-edited-lxc-lines", 2)["response"]["body"]["data"])
    assert config.raw[0] == ("lxc.cgroup2.devices.allow", "c 195:* rwm")
    assert [key for key, _value in config.raw].count("lxc.mount.entry") == 2
    assert config.digest == "acb9db6d74569c8c81decf0245fa178a26f0075d"
    assert "lxc" not in config.keys and "digest" not in config.keys
    assert config.keys["memory"] == "512"


def test_a_file_is_read_without_its_pending_and_snapshot_sections() -> None:
    content = step("config-hand-edited-sections", 1)["request"]["content"]
    assert "[pve:pending]" in content and "memory: 800" in content
    assert cfg.read_config_file(content).keys["memory"] == "512"


def test_file_and_api_agree() -> None:
    content = step("config-hand-edited-lxc-lines", 1)["request"]["content"]
    answer = cfg.read_config(step("config-hand-edited-lxc-lines", 2)["response"]["body"]["data"])
    from_file = cfg.read_config_file(content)
    assert (dict(from_file.keys), from_file.raw) == (dict(answer.keys), answer.raw)


@pytest.mark.parametrize(
    ("key", "running", "after", "pve_major", "late"),
    [
        ("memory", "512", "1024", 9, False),
        ("net0", None, "name=eth0,bridge=vmbr0", 9, False),
        ("features", "nesting=1", "nesting=1,keyctl=1", 9, True),
        ("features", "nesting=1", "nesting=1,keyctl=0", 9, False),
        ("nameserver", None, "192.0.2.1", 9, True),
        ("dev0", None, "/dev/nvidia0", 9, False),
        ("dev0", None, "/dev/nvidia0", 8, True),
        ("dev0", "/dev/nvidia0", "/dev/nvidia0,mode=0666", 9, True),
        ("dev1", "/dev/nvidiactl", None, 9, True),
        ("mp0", None, "/srv,mp=/x", 8, False),
        ("mp0", "/srv,mp=/x", None, 9, True),
        ("mp0", "/srv,mp=/x", "/srv/,mp=/x", 9, False),
    ],
)
def test_what_waits_for_a_restart(key: str, running: str | None, after: str | None, pve_major: int, late: bool) -> None:
    assert cfg.needs_restart(key, running, after, pve_major) is late


def test_what_waits_for_a_restart_is_what_proxmox_put_into_pending() -> None:
    """Recorded on a running container: what a change left in [pve:pending] is what the rule foretells."""
    checked = 0
    for before, parameters, after in writes("running-pending"):
        running = cfg.read_config_file(before).keys
        pending = after.partition("[pve:pending]")[2]
        for key, value in _settings(parameters).items():
            if "revert" in parameters or (key == "tty" and value is None):
                continue
            waits = f"{key}: " in pending or key in pending.partition("delete: ")[2].splitlines()[:1]
            assert cfg.needs_restart(key, running.get(key), value, 9) is waits, (key, value, after)
            checked += 1
    assert checked >= 6
    assert any(item["transport"] == "pct" for item in scenario("running-pending"))
