# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._container.facts import Work
from ansible_collections.kpro.llm.plugins.module_utils._container.migrate import Left, MoveOptions, Whereabouts, marked, migration_plan, still_marked
from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._pve.config import Config

KEYS = {
    "tags": "kpro-llm",
    "mp0": "/srv/models,mp=/srv/models",
    "mp1": "local-zfs:subvol-129-disk-1,mp=/data,size=8G",
    "mp2": "/tank/shared,mp=/shared,shared=1",
    "dev0": "path=/dev/nvidia0,mode=0666",
}


def place(node: str = "kpro6", **changes: object) -> Whereabouts:
    values = {"running": True, "lock": "", "managed_by_ha": False, "config": Config(KEYS), **changes}
    return Whereabouts(node, **values)  # type: ignore[arg-type]  # the values of a test


def test_a_running_container_is_shut_down_marked_moved_and_unmarked() -> None:
    changes = migration_plan(MoveOptions(129, "kpro5"), place())
    assert [change.action[0] for change in changes] == ["shutdown", "mark", "migrate", "unmark"]
    assert changes[1].action[1] == {"mp0": "/srv/models,mp=/srv/models,shared=1"}
    assert changes[3].action[1] == {"mp0": "/srv/models,mp=/srv/models"}


def test_nothing_is_taken_out_of_the_configuration() -> None:
    for change in migration_plan(MoveOptions(129, "kpro5"), place()):
        assert "dev0" not in str(change.action) and "mp1" not in str(change.action)


def test_a_container_that_is_there_is_left_alone() -> None:
    assert migration_plan(MoveOptions(129, "kpro5"), place("kpro5")) == []


def test_a_stopped_container_without_folders_is_only_moved() -> None:
    config = Config({"tags": "kpro-llm"})
    assert [change.action[0] for change in migration_plan(MoveOptions(129, "kpro5"), place(running=False, config=config))] == ["migrate"]


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
        migration_plan(MoveOptions(129, "kpro5"), place(**changes))
    assert all(word in refused.value.sentence for word in words)


# --- a move that runs, and one that was cut off ------------------------------------------------------------------------

MARKED = Config({**KEYS, "mp0": "/srv/models,mp=/srv/models,shared=1"})
MARKS = {"mp0": "/srv/models,mp=/srv/models"}
COPY = "local-zfs:subvol-129-disk-0"


def test_a_move_that_runs_is_waited_for() -> None:
    changes = migration_plan(MoveOptions(129, "kpro5"), place(lock="migrate", work=Work("migration of container 129", "UPID:x")))
    assert [change.action[0] for change in changes] == ["wait"] and "UPID:x" in changes[0].sentence


def test_what_our_own_move_left_is_taken_off_and_the_move_is_made() -> None:
    left = Left("kpro6", True, MARKS, (COPY,))
    changes = migration_plan(MoveOptions(129, "kpro5"), place(lock="migrate", running=False, config=MARKED), left)
    assert [change.action[0] for change in changes] == ["unlock", "sweep", "migrate", "unmark"]
    assert changes[3].action[1] == MARKS, "as it was before the first move, not as that one left it"


def test_a_move_that_was_cut_off_after_it_was_over_is_completed_on_the_target() -> None:
    changes = migration_plan(MoveOptions(129, "kpro5"), place("kpro5", lock="migrate", config=MARKED), Left("kpro5", True, MARKS))
    assert [change.action[0] for change in changes] == ["unlock", "unmark"]


@pytest.mark.parametrize(("left", "words"), [(Left("kpro5"), ["no record"]), (Left("kpro5", True, {}, (COPY,)), ["can't take it off", f"'pvesm free {COPY}'"])])
def test_a_lock_that_can_not_be_taken_off_from_here_is_named_with_the_commands(left: Left, words: list[str]) -> None:
    with pytest.raises(KproError) as refused:
        migration_plan(MoveOptions(129, "kpro5"), place(lock="migrate"), left)
    assert all(word in refused.value.sentence for word in ["On kpro6: 'pct unlock 129'", *words])


def test_a_mark_that_a_person_set_or_changed_meanwhile_stays() -> None:
    assert still_marked(MARKED, MARKS) == MARKS
    assert still_marked(Config({"mp0": "/srv/other,mp=/srv/models,shared=1"}), MARKS) == {}
    assert still_marked(Config({}), MARKS) == {}
