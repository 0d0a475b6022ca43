# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._linux.system_folders import check_source, system_folder

_REFUSED = """
/ // /. /etc /etc/ //etc /etc/. /etc/pve /etc/pve/nodes /etc/ssh /root /root/ /root/.ssh /root/.ssh/keys /usr /usr/local /usr/share/models
/bin /lib64 /boot /boot/efi /dev /dev/shm /proc /proc/1/root /sys /run /run/user/0 /var /var/lib /var/lib/ /var/lib/lxc
/var/lib/lxc/130/rootfs /var/lib/pve-cluster /var/lib/vz /var/lib/vz/images /var/lib/vz/images/130 /var/log /var/tmp /var/lib/kpro-llm /home
/home/alice /home/alice/.ssh /tmp /opt /srv /mnt /mnt/pve /rpool /rpool/data /rpool/data/subvol-130-disk-0 /tank/base-130-disk-0
/mnt/pve/nfs/images/130/vm-130-disk-0.raw
"""
REFUSED = _REFUSED.split()
_ALLOWED = """
/srv/models /srv/models/ /srv//models /mnt/models /mnt/pve/nas /mnt/pve/nas/models /home/alice/models /root/models /rpool/models /tank
/tank/models /opt/models /var/lib/models /var/lib/vz/models /media/disk /data /etcetera /usrdata /rootfs
"""
ALLOWED = _ALLOWED.split()


@pytest.mark.parametrize("path", REFUSED)
def test_a_system_folder_is_known_in_every_spelling(path: str) -> None:
    assert system_folder(path)
    with pytest.raises(KproError, match="Nothing was changed"):
        check_source("mount source", path)


@pytest.mark.parametrize("path", ALLOWED)
def test_a_folder_of_ones_own_is_not_taken_for_one(path: str) -> None:
    assert system_folder(path) == ""
    check_source("mount source", path, path)


@pytest.mark.parametrize("path", ["/srv/..", "/srv/../etc", "/srv/models/../../root", "/.."])
def test_a_way_back_is_refused(path: str) -> None:
    with pytest.raises(KproError, match=r"'\.\.'"):
        check_source("mount source", path)


def test_a_link_is_judged_by_where_it_leads() -> None:
    with pytest.raises(KproError, match="leads to /etc/pve, which is in the system's folder /etc"):
        check_source("mount source '/srv/models'", "/srv/models", "/etc/pve")
