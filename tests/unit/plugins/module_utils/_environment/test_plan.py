# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import json

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._environment.plan import (
    Environment,
    Present,
    User,
    Wanted,
    differences,
    package_diff,
    plan,
    prunable,
    target_path,
)
from ansible_collections.kpro.llm.plugins.module_utils._environment.source_package import KeptWheel, SourcePackage
from ansible_collections.kpro.llm.plugins.module_utils._environment.steps import Counters, Status, job, progress_line, unit_name

HASH = "--hash=sha256:" + "a" * 64
LOCK = f"sglang==0.5.23 {HASH}\ntorch==2.13.0+cpu {HASH}\n"
ROOT = "/opt/kpro-llm/sglang"
WANTED = Wanted(
    root=ROOT,
    lock=LOCK,
    uv_lock=f"uv==0.13.9 {HASH}\n",
    package="sglang",
    package_version="0.5.23",
    python="3.11",
    size_mib=2300,
    files=70_000,
    user=User("sglang", 999, 998),
)
ENVIRONMENT = Environment(f"{ROOT}/envs/{WANTED.key}", True, "3.11.2", WANTED.pins, 100.0, WANTED.key)
FRESH = Present(free_mib=50_000, free_files=1_000_000)
SAME = dataclasses.replace(FRESH, current=ENVIRONMENT, uv_installed=True, package_version="0.5.23")


def other(name: str, built_at: float, complete: bool = True) -> Environment:
    return Environment(f"{ROOT}/envs/{name}", complete, "3.11.2", {}, built_at, name)


def test_an_environment_that_equals_the_lock_needs_nothing() -> None:
    assert plan(SAME, WANTED) == []


def test_a_fresh_system_gets_uv_and_an_environment() -> None:
    changes = plan(FRESH, WANTED)
    assert [change.sentence for change in changes] == [
        f"Install uv 0.13.9 in {ROOT}/tools/uv-0.13.9",
        f"Build {WANTED.key} from 2 locked packages: there is none",
    ]
    assert package_diff(FRESH, WANTED) == {"before": "", "after": "sglang==0.5.23\ntorch==2.13.0+cpu\n"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"complete": False}, "never finished"),
        ({"python": ""}, "interpreter does not run"),
        ({"python": "3.12.1"}, "made for Python 3.12.1"),
        ({"packages": {"sglang": "0.5.9"}}, "1 to add, 1 to change"),
        ({"packages": {**WANTED.pins, "stray": "1"}}, "1 to remove"),
        ({"packages": {**WANTED.pins, "torch": "2.13.0"}}, "1 to change"),
        ({"key": "another"}, "another lock file"),
    ],
)
def test_each_difference_leads_to_a_build_that_says_why(change: dict, reason: str) -> None:
    present = dataclasses.replace(SAME, current=dataclasses.replace(ENVIRONMENT, **change))
    (build,) = plan(present, WANTED)
    assert reason in build.sentence


SOURCE = SourcePackage(
    "flash-attn", "2.8.3", f"flash-attn==2.8.3 {HASH}\n", f"{ROOT}/wheelhouse", ("flash_attn",), tags={"torch": "2.14.1"}, build=True, size_mib=3000
)
WITH_SOURCE = dataclasses.replace(WANTED, source=SOURCE)


def test_a_package_from_source_is_a_package_of_the_environment() -> None:
    assert WITH_SOURCE.pins == {**WANTED.pins, "flash-attn": "2.8.3"}
    assert WITH_SOURCE.key != WANTED.key
    assert [change.sentence for change in plan(SAME, WITH_SOURCE)] == [
        f"Build {WITH_SOURCE.key} from 3 locked packages: 1 to add",
        "Build flash-attn 2.8.3 from source for torch 2.14.1 and keep the wheel",
    ]


def test_a_kept_wheel_is_installed_and_nothing_is_compiled() -> None:
    kept = dataclasses.replace(SAME, wheel=KeptWheel(f"{SOURCE.wheel_folder}/flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl", "ab"))
    assert "Install flash-attn 2.8.3 from the kept wheel for torch 2.14.1" in [change.sentence for change in plan(kept, WITH_SOURCE)]
    phases = [step["phase"] for step in job(kept, WITH_SOURCE, {}, 0.0)["steps"]]
    assert phases == ["venv", "packages", "extension", "extension", "import", "check"]


def test_the_source_s_own_code_never_runs_as_root_nor_with_the_settings_of_the_index() -> None:
    wanted = dataclasses.replace(WITH_SOURCE, index_url="https://me:secret@index.example.org/simple")
    steps = job(SAME, wanted, {}, 0.0)["steps"]
    assert [step["phase"] for step in steps] == ["venv", "packages", *["source"] * 4, "compile", "keep", "extension", "extension", "import", "check"]
    for step in steps:
        if "pip" in step.get("argv", []) and {"download", "wheel"} & set(step["argv"]):
            assert step["user"] == {"uid": 999, "gid": 998}
    compile_ = next(step for step in steps if step["phase"] == "compile")
    assert compile_["clean"] and "secret" not in json.dumps(compile_) and "--no-index" in compile_["argv"]


def test_the_space_of_a_build_from_source_is_counted() -> None:
    short = dataclasses.replace(SAME, free_mib=4000)
    with pytest.raises(KproError, match=r"4000 MiB are free and 5812 MiB are needed .*3000 for the build of flash-attn"):
        plan(short, WITH_SOURCE)
    assert plan(dataclasses.replace(short, wheel=KeptWheel("x.whl")), WITH_SOURCE)


def test_an_environment_that_the_service_user_cannot_run_is_rebuilt() -> None:
    assert differences(dataclasses.replace(SAME, usable=False, package_version=""), WANTED) == ["user sglang cannot run sglang from it"]
    assert differences(dataclasses.replace(SAME, package_version="0.5.9"), WANTED) == ["sglang says it is 0.5.9"]


def test_a_complete_environment_is_never_built_over() -> None:
    drifted = dataclasses.replace(SAME, current=dataclasses.replace(ENVIRONMENT, packages={}))
    assert target_path(drifted, WANTED) == f"{ENVIRONMENT.path}.2"
    twice = dataclasses.replace(drifted, others=(dataclasses.replace(ENVIRONMENT, path=f"{ENVIRONMENT.path}.2", packages={}),))
    assert target_path(twice, WANTED) == f"{ENVIRONMENT.path}.3"


def test_an_unfinished_environment_is_built_again_in_its_place() -> None:
    unfinished = dataclasses.replace(FRESH, others=(dataclasses.replace(ENVIRONMENT, complete=False),))
    assert target_path(unfinished, WANTED) == ENVIRONMENT.path
    assert prunable(unfinished, WANTED) == []


def test_an_environment_kept_from_before_is_put_in_force_again() -> None:
    present = dataclasses.replace(FRESH, current=other("newer", 200.0), others=(ENVIRONMENT,), uv_installed=True)
    (change,) = plan(present, WANTED)
    assert change.sentence == f"Put {WANTED.key} in force again: 2 to add" and change.after == ENVIRONMENT.path
    order = job(present, WANTED, {}, 0.0)
    assert [step["phase"] for step in order["steps"]] == ["check"]
    assert (order["finish"]["target"], order["finish"]["prune"]) == (ENVIRONMENT.path, [])


@pytest.mark.parametrize(("keep", "removed"), [(0, ["a", "b", "now"]), (1, ["a", "b"]), (2, ["a"]), (9, [])])
def test_the_latest_environments_stay_for_a_roll_back(keep: int, removed: list[str]) -> None:
    present = dataclasses.replace(FRESH, current=other("now", 3.0), others=(other("a", 1.0), other("b", 2.0)))
    assert prunable(present, dataclasses.replace(WANTED, keep=keep)) == [f"{ROOT}/envs/{name}" for name in removed]


def test_an_unfinished_environment_of_another_lock_is_removed_whatever_is_kept() -> None:
    present = dataclasses.replace(SAME, others=(other("left", 9.0, complete=False),))
    assert prunable(present, dataclasses.replace(WANTED, keep=5, lock=f"sglang==0.5.23 {HASH}\n")) == [f"{ROOT}/envs/left"]


@pytest.mark.parametrize(
    ("present", "says"),
    [
        (dataclasses.replace(FRESH, free_mib=2811), "2811 MiB are free and 2812 MiB are needed"),
        (dataclasses.replace(FRESH, free_files=69_999), "69999 inodes are free and 70000 are needed"),
    ],
)
def test_a_build_that_would_fill_the_disk_is_refused_before_anything_changes(present: Present, says: str) -> None:
    with pytest.raises(KproError, match=says):
        plan(present, WANTED)


def test_space_is_not_judged_where_it_is_enough_or_unknown() -> None:
    assert plan(dataclasses.replace(FRESH, free_mib=2812, free_files=70_000), WANTED)
    assert plan(dataclasses.replace(FRESH, free_files=0), WANTED)  # a file system without a limit of inodes
    assert plan(dataclasses.replace(SAME, free_mib=0, free_files=0), WANTED) == []  # nothing to build


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"package_version": "0.5.9"}, "it pins sglang 0.5.23"),
        ({"package": "vllm"}, "it does not name vllm"),
        ({"uv_lock": f"pip==1 {HASH}\n"}, "it does not name uv"),
    ],
)
def test_options_that_contradict_each_other_are_refused(change: dict, says: str) -> None:
    with pytest.raises(KproError, match=says):
        plan(FRESH, dataclasses.replace(WANTED, **change))


def test_a_folder_where_the_link_belongs_is_left_alone() -> None:
    with pytest.raises(KproError, match="not a link of ours"):
        plan(dataclasses.replace(FRESH, link_is_foreign=True), WANTED)


def test_an_address_with_a_password_never_stands_in_an_argument_vector() -> None:
    secret = "https://me:secret@index.example.org/simple"
    order = job(FRESH, dataclasses.replace(WANTED, index_url=secret), {"HTTPS_PROXY": "http://me:secret@proxy"}, 0.0)
    assert not any("secret" in word for step in order["steps"] for word in step["argv"])
    assert order["env"]["UV_DEFAULT_INDEX"] == order["env"]["PIP_INDEX_URL"] == secret
    assert order["env"]["HTTPS_PROXY"] == "http://me:secret@proxy"


def test_the_job_passes_on_what_concerns_uv_and_nothing_else() -> None:
    ambient = {"UV_HTTP_TIMEOUT": "9", "UV_CONCURRENT_DOWNLOADS": "2", "no_proxy": "x", "LD_PRELOAD": "evil.so", "PYTHONDONTWRITEBYTECODE": "1"}
    env = job(FRESH, dataclasses.replace(WANTED, environment={"UV_HTTP_TIMEOUT": "60"}), ambient, 0.0)["env"]
    assert (env["UV_HTTP_TIMEOUT"], env["UV_CONCURRENT_DOWNLOADS"], env["no_proxy"]) == ("60", "2", "x")
    assert not {"LD_PRELOAD", "PYTHONDONTWRITEBYTECODE"} & env.keys()


def test_the_steps_install_by_hash_and_end_as_the_service_user() -> None:
    order = job(FRESH, dataclasses.replace(WANTED, find_links=("/srv/wheels",)), {}, 0.0)
    phases = [step["phase"] for step in order["steps"]]
    assert phases == ["uv", "uv", "venv", "packages", "check"]
    sync = order["steps"][3]["argv"]
    assert "--require-hashes" in sync and "--only-binary=:all:" in sync
    assert sync[sync.index("--find-links") + 1] == "/srv/wheels"
    assert order["steps"][-1]["user"] == {"uid": 999, "gid": 998}
    assert job(SAME, WANTED, {}, 0.0)["steps"] == []
    assert [step["phase"] for step in job(dataclasses.replace(SAME, uv_installed=False), WANTED, {}, 0.0)["steps"]] == ["uv", "uv"]


def test_offline_asks_no_index() -> None:
    order = job(FRESH, dataclasses.replace(WANTED, offline=True, find_links=("/srv/wheels",)), {}, 0.0)
    assert "--no-index" in next(step["argv"] for step in order["steps"] if step["phase"] == "packages")
    assert order["env"]["PIP_NO_INDEX"] == "1"


def test_a_managed_python_comes_from_uv_and_a_distributions_from_its_path() -> None:
    def interpreter(managed: bool) -> tuple[str, str]:
        order = job(dataclasses.replace(FRESH, uv_installed=True), dataclasses.replace(WANTED, managed=managed), {}, 0.0)
        argv = order["steps"][0]["argv"]
        return argv[argv.index("--python") + 1], order["env"]["UV_PYTHON_PREFERENCE"]

    assert interpreter(managed=True) == ("3.11", "only-managed")
    assert interpreter(managed=False) == ("/usr/bin/python3.11", "only-system")


def test_one_root_has_one_unit() -> None:
    assert unit_name(ROOT) == unit_name(ROOT) != unit_name("/opt/other")


ORDER = {"target": f"{ROOT}/envs/sglang-0.5.23-cp311-0a", "packages": 88, "size_mib": 2300}


@pytest.mark.parametrize(
    ("status", "counters", "line"),
    [
        (Status("", 0, 0.0, 0), Counters(), "Build sglang-0.5.23-cp311-0a: start, 0 s so far"),
        (Status("venv", 0, 0.0, 0), Counters(elapsed_s=1.4), "Build sglang-0.5.23-cp311-0a: make the environment, 1 s so far"),
        (
            Status("packages", 0, 0.0, 10),
            Counters(cached=51, written_mib=805, elapsed_s=7.0),
            "Build sglang-0.5.23-cp311-0a: download and unpack packages, 41 of 88 packages fetched, "
            "805 of at most 2300 MiB (35 %), 115 MiB/s, at most 13 s left, 7 s so far",
        ),
        (
            Status("packages", 0, 0.0, 88),
            Counters(cached=88, written_mib=0, elapsed_s=0.0),
            "Build sglang-0.5.23-cp311-0a: download and unpack packages, 0 of 88 packages fetched, 0 of at most 2300 MiB (0 %), 0 s so far",
        ),
        (
            Status("packages", 0, 0.0, 0),
            Counters(cached=90, written_mib=2400, elapsed_s=9.0),
            "Build sglang-0.5.23-cp311-0a: download and unpack packages, 88 of 88 packages fetched, 2400 MiB, 9 s so far",
        ),
        (
            Status("packages", 0, 0.0, 0),
            Counters(installed=88, sources=16212, compiled=3631, elapsed_s=10.0),
            "Build sglang-0.5.23-cp311-0a: compile bytecode, 3631 of 16212 files (22 %), 10 s so far",
        ),
        (
            Status("compile", 0, 0.0, 0, done=18, of=73),
            Counters(elapsed_s=600.0),
            "Build sglang-0.5.23-cp311-0a: compile, 18 of 73 steps (24 %), about 31 min left, 600 s so far",
        ),
    ],
)
def test_progress_tells_what_how_far_and_how_long_still(status: Status, counters: Counters, line: str) -> None:
    assert progress_line(ORDER, status, counters) == line
