# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._container.migrate import Place, Wish, marked, migration_plan
from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._pve.config import Config

KEYS = {
    "tags": "kpro-llm",
    "mp0": "/srv/models,mp=/srv/models",
    "mp1": "local-zfs:subvol-129-disk-1,mp=/data,size=8G",
    "mp2": "/tank/shared,mp=/shared,shared=1",
    "dev0": "path=/dev/nvidia0,mode=0666",
}


def place(node: str = "kpro6", **changes: object) -> Place:
    values = {"running": True, "lock": "", "managed_by_ha": False, "config": Config(KEYS), **changes}
    return Place(node, **values)  # type: ignore[arg-type]  # the values of a test


def test_a_running_container_is_shut_down_marked_moved_and_unmarked() -> None:
    changes = migration_plan(Wish(129, "kpro5"), place())
    assert [change.action[0] for change in changes] == ["shutdown", "mark", "migrate", "unmark"]
    assert changes[1].action[1] == {"mp0": "/srv/models,mp=/srv/models,shared=1"}
    assert changes[3].action[1] == {"mp0": "/srv/models,mp=/srv/models"}


def test_nothing_is_taken_out_of_the_configuration() -> None:
    for change in migration_plan(Wish(129, "kpro5"), place()):
        assert "dev0" not in str(change.action) and "mp1" not in str(change.action)


def test_a_container_that_is_there_is_left_alone() -> None:
    assert migration_plan(Wish(129, "kpro5"), place("kpro5")) == []


def test_a_stopped_container_without_folders_is_only_moved() -> None:
    config = Config({"tags": "kpro-llm"})
    assert [change.action[0] for change in migration_plan(Wish(129, "kpro5"), place(running=False, config=config))] == ["migrate"]


def test_the_mark_of_an_interrupted_move_comes_off() -> None:
    config = Config({"mp0": "/srv/models,mp=/srv/models,shared=1"})
    assert marked(config, shared=False) == {"mp0": "/srv/models,mp=/srv/models"}
    assert marked(config, shared=True) == {}


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"lock": "backup"}, ["locked (backup)", "pct unlock"]),
        ({"managed_by_ha": True}, ["HA manager", "ha-manager migrate ct:129 kpro5"]),
        ({"config": Config({})}, ["not ours", "gpu_container__adopt"]),
    ],
)
def test_what_must_not_be_moved_is_refused_with_the_remedy(changes: dict[str, object], words: list[str]) -> None:
    with pytest.raises(KproError) as refused:
        migration_plan(Wish(129, "kpro5"), place(**changes))
    assert all(word in refused.value.sentence for word in words)
