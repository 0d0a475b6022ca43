# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._pve import property as prop


def test_a_merge_keeps_what_is_not_declared() -> None:
    stored = "name=eth0,bridge=vmbr0,firewall=1,gw=10.0.0.1,hwaddr=BC:24:11:00:00:31,ip=10.0.0.9/24,type=veth"
    merged = prop.merged(stored, {"ip": "dhcp", "gw": None}, prop.NET)
    assert merged == "name=eth0,bridge=vmbr0,firewall=1,hwaddr=BC:24:11:00:00:31,ip=dhcp,type=veth"


def test_a_merge_that_changes_nothing_gives_the_stored_text_back() -> None:
    stored = "mode=0666,path=/dev/nvidia0"
    assert prop.merged(stored, {"path": "/dev/nvidia0", "mode": "0666"}, prop.DEVICE) is stored


def test_the_order_is_that_of_proxmox() -> None:
    parts = {"ip": "192.0.2.5/24", "name": "eth0", "type": "veth", "bridge": "vmbr0", "hwaddr": "BC:24:11:AA:BB:CC"}
    assert prop.render(parts, prop.NET) == "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:AA:BB:CC,ip=192.0.2.5/24,type=veth"
    assert prop.render({"ro": "1", "mp": "/srv/models", "volume": "/srv"}, prop.MOUNT) == "/srv,mp=/srv/models,ro=1"


@pytest.mark.parametrize("text", ["/dev/nvidia0,/dev/nvidiactl", "/srv,ro=1,ro=0"])
def test_a_key_given_twice_is_refused(text: str) -> None:
    with pytest.raises(KproError, match="given twice"):
        prop.parse(text, prop.DEVICE if "dev" in text else prop.MOUNT)


def test_a_stray_separator_means_nothing() -> None:
    assert prop.canonical("/tank/models,,mp=/models", prop.MOUNT) == prop.canonical("/tank/models,mp=/models", prop.MOUNT)
