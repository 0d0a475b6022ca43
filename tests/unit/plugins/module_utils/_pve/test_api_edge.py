# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pathlib
import stat
import sys

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._linux.command_edge import Command
from ansible_collections.kpro.llm.plugins.module_utils._pve import answers as text
from ansible_collections.kpro.llm.plugins.module_utils._pve import calls_edge as _pve_calls
from ansible_collections.kpro.llm.plugins.module_utils._pve.api_edge import PveError, Pvesh, PveTimeout
from ansible_collections.kpro.llm.plugins.module_utils._pve.calls_edge import Calls
from ansible_collections.kpro.llm.plugins.module_utils._pve.tasks_edge import Tasks
from ansible_collections.kpro.llm.tests.unit.plugins.module_utils.pve_recordings import FIXTURES, pvesh_steps, step

# Answers each call as the real program did; a call that was not recorded is a failure of the test.
REPLAY = """#!{python}
import json, sys
for line in open("{recordings}", encoding="utf-8"):
    item = json.loads(line)
    if item["transport"] == "pvesh" and item["request"]["argv"][1:] == sys.argv[1:] and item["scenario"] in {scenarios!r}:
        sys.stdout.write(item["response"]["stdout"])
        sys.stderr.write(item["response"]["stderr"])
        sys.exit(item["response"]["rc"])
sys.exit("not recorded: " + " ".join(sys.argv[1:]))
"""


@pytest.fixture
def program(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "pvesh"


def _make(path: pathlib.Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def replay(program: pathlib.Path) -> Pvesh:
    scenarios = ("pvesh-get", "pvesh-get-errors", "pvesh-create-delete", "life-interfaces", "lock-flock-held")
    _make(program, REPLAY.format(python=sys.executable, recordings=FIXTURES / "pve_exchanges.jsonl", scenarios=scenarios))
    return make_pvesh(program)


def make_pvesh(program: pathlib.Path, **options: float) -> Pvesh:
    """Return the way through the program, with its records beside it."""
    command = Command()
    return Pvesh(command, calls=Calls(command, str(program.with_name("records"))), **options)  # type: ignore[arg-type]  # the limits are numbers


def test_a_read_gives_the_data(replay: Pvesh) -> None:
    assert replay.get("/version") == {"release": "9.2", "repoid": "14a22df300000", "version": "9.2.11"}
    assert replay.get("/cluster/nextid") == "100"
    assert replay.get("/nodes/pve1/lxc/910/config")["memory"] == 512


def test_reads_side_by_side_keep_their_order_and_their_refusals(replay: Pvesh) -> None:
    paths = [("/version", {}), ("/nodes/pve1/lxc/999/config", {}), ("/nodes/pve1/lxc/910/status/current", {})]
    version, absent, status = replay.get_all(paths)
    assert version["version"] == "9.2.11"
    assert isinstance(absent, PveError) and text.is_missing(absent.reason)
    assert status["status"] == "stopped"


def test_a_refused_read_has_the_reason_without_usage_lines(replay: Pvesh) -> None:
    with pytest.raises(PveError, match=r"vmid: VM 910 already exists") as caught:
        replay.get("/cluster/nextid", {"vmid": 910})
    assert "api_path" not in caught.value.reason


def test_a_busy_lock_is_told_apart(replay: Pvesh) -> None:
    with pytest.raises(PveError) as caught:
        replay.put("/nodes/pve1/lxc/911/config", {"memory": 600})
    assert text.is_lock_timeout(caught.value.reason)
    assert caught.value.reason.startswith("can't lock file '/run/lock/lxc/pve-config-911.lock'")


def test_the_task_name_is_found_below_its_output_even_if_the_task_failed(replay: Pvesh) -> None:
    good = {"vmid": 960, "ostemplate": "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst", "unprivileged": 1, "rootfs": "local:1"}
    upid = replay.task("create", "/nodes/pve1/lxc", {**good, "features": "nesting=1"}, 5.0)
    assert upid == "UPID:pve1:00003329:00084897:6B0C5695:vzcreate:960:root@pam:"
    failed = {"vmid": 961, "ostemplate": "local:vztmpl/nosuch.tar.zst", "unprivileged": 1, "rootfs": "local:1"}
    assert replay.task("create", "/nodes/pve1/lxc", failed, 5.0).endswith(":vzcreate:961:root@pam:")


def test_a_task_that_was_not_started_is_an_error(replay: Pvesh) -> None:
    with pytest.raises(PveError, match="CT 960 already exists on node 'pve1'"):
        replay.task("create", "/nodes/pve1/lxc", {"vmid": 960, "ostemplate": "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst"}, 5.0)


def test_every_recorded_refusal_has_a_reason() -> None:
    refused = [item for item in pvesh_steps() if item["response"]["rc"] != 0 and len(item["request"]["argv"]) > 3]
    assert len(refused) > 10
    for item in refused:
        reason = text.message_of(item["response"]["stderr"])
        assert reason and "<api_path>" not in reason, item


# A start whose task fails, as recorded: exit code 0, the reason only in the task's state and log.
FAILING_START = """#!{python}
import json, sys
path = sys.argv[2]
upid = "UPID:pve1:000033F7:00084EA2:6B0C56A4:vzstart:911:root@pam:"
if path.endswith("/status/start"):
    print("__lxc_start: 2039 Failed to initialize container \\"911\\"\\n" + json.dumps(upid))
    print("startup for container '911' failed", file=sys.stderr)
elif path.endswith("/status"):
    print(json.dumps({{"status": "stopped", "exitstatus": "startup for container '911' failed", "upid": upid}}))
else:
    print(json.dumps([{{"n": 1, "t": "Script exited with status 2"}}, {{"n": 2, "t": "TASK ERROR: startup for container '911' failed"}}]))
"""


def test_a_failed_task_is_an_error_with_the_end_of_its_log(program: pathlib.Path) -> None:
    _make(program, FAILING_START.format(python=sys.executable))
    with pytest.raises(PveError) as caught:
        Tasks(make_pvesh(program), "pve1", 5.0).run("start of container 911", "/nodes/pve1/lxc/911/status/start", {})
    assert caught.value.reason == "startup for container '911' failed"
    assert "Script exited with status 2" in caught.value.remedy and "UPID:pve1:000033F7" in caught.value.remedy


def test_warnings_are_a_success() -> None:
    upid = text.find_upid(step("pvesh-tasks", 1)["response"]["stdout"])
    assert text.TaskEnd(upid, "WARNINGS: 1").good
    assert not text.TaskEnd(upid, "startup for container '911' failed").good
    assert text.upid_node(upid) == "pve1"


SLOW_ONCE = """#!/bin/sh
if [ -e "{seen}" ]; then echo '[]'; else touch "{seen}"; exec sleep 5; fi
"""


def test_a_read_that_takes_too_long_is_repeated_within_the_deadline(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """LLMX-071: the limit of one read is not the deadline of the task."""
    _make(program, SLOW_ONCE.format(seen=tmp_path / "seen"))
    notes: list[str] = []
    api = Pvesh(Command(), read_timeout_s=0.5, deadline_s=600, note=notes.append)
    assert api.get("/cluster/resources", {"type": "vm"}) == []
    assert len(notes) == 1 and "0.5 s" in notes[0] and "600 s" in notes[0] and "attempt 2 of 5" in notes[0]


def test_a_write_is_never_repeated_blindly(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    _make(program, f'#!/bin/sh\necho call >> "{tmp_path}/calls"\nexec sleep 5\n')
    with pytest.raises(PveTimeout):
        make_pvesh(program, read_timeout_s=0.5).put("/nodes/pve1/lxc/911/config", {"memory": 600})
    assert (tmp_path / "calls").read_text(encoding="utf-8") == "call\n"


# --- calls that outlive their caller -----------------------------------------------------------------------------------

SLOW_TASK = """#!/bin/sh
[ "$1" = get ] && {{ echo '[]'; exit 0; }}
echo $$ >> "{folder}/started"
sleep 1.5
echo '"UPID:pve1:000033F7:00084EA2:6B0C56A4:vzstart:911:root@pam:"'
"""
START = ("create", "/nodes/pve1/lxc/911/status/start", {})


def test_a_task_goes_on_at_its_limit_and_the_next_caller_waits_for_the_same(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    _make(program, SLOW_TASK.format(folder=tmp_path))
    with pytest.raises(PveTimeout):
        make_pvesh(program).task(*START, 0.3)
    assert make_pvesh(program).task(*START, 20.0).endswith(":vzstart:911:root@pam:")
    assert len((tmp_path / "started").read_text(encoding="ascii").split()) == 1


def test_a_call_that_is_killed_is_no_answer(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    _make(program, "#!/bin/sh\nkill -KILL $$\n")
    with pytest.raises(PveError, match="ended before it answered"):
        make_pvesh(program).task(*START, 20.0)


def test_words_of_a_call_are_never_read_by_a_shell(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    _make(program, f'#!/bin/sh\nprintf "%s\\n" "$@" > "{tmp_path}/words"\n')
    text_of_a_person = "a $(touch x) `id` %h ${HOME} \"'; rm -rf /tmp/none"
    make_pvesh(program).put("/nodes/pve1/lxc/911/config", {"description": text_of_a_person})
    assert text_of_a_person in (tmp_path / "words").read_text(encoding="utf-8").splitlines()


def test_a_change_waits_for_another_one_and_is_then_made(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    _make(program, f'#!/bin/sh\nsleep 1\necho "$4" >> "{tmp_path}/order"\n')
    with pytest.raises(PveTimeout):
        make_pvesh(program, read_timeout_s=0.3).put("/nodes/pve1/lxc/911/config", {"memory": 1})
    make_pvesh(program).put("/nodes/pve1/lxc/911/config", {"memory": 2})
    assert (tmp_path / "order").read_text(encoding="ascii").split() == ["1", "2"]


def test_a_record_is_private_whole_and_of_this_boot(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    _make(program, SLOW_TASK.format(folder=tmp_path))
    api = make_pvesh(program)
    api.task(*START, 20.0, {"volumes": ["a"]})
    record = api.calls.record("start-911")
    assert record is not None and (record.vmid, record.node, record.kind) == (911, "pve1", "start")
    assert record.details["volumes"] == ["a"] and not record.ended
    folder = tmp_path / "records"
    assert [oct(path.stat().st_mode & 0o777) for path in (folder, folder / "start-911", folder / "start-911/record.json")] == ["0o700", "0o700", "0o600"]
    (folder / "start-911/record.json").write_text('{"name": "start-911", "vmid"', encoding="utf-8")
    assert api.calls.record("start-911") is None and api.calls.running(911) == []


# --- texts -------------------------------------------------------------------------------------------------------------


def test_warnings_before_bad_parameters_are_not_the_reason() -> None:
    stderr = (
        "unable to open file '/var/lib/pve-manager/apl-info/x' - No such file or directory\n400 Parameter verification failed.\ntemplate: no such template\n"
    )
    assert text.message_of(f"{stderr}pvesh create <api_path> --template <string>\n") == "template: no such template"


@pytest.mark.parametrize("verb", ["get", "set"])
def test_a_configuration_that_can_not_be_read_is_one_sentence_with_a_remedy(program: pathlib.Path, verb: str) -> None:
    lines = [f"ipcc_send_rec[{number}] failed: Connection refused" for number in (1, 2, 3)]
    said = "\\n".join([*lines, "Unable to load access control list: Connection refused"])
    _make(program, f'#!/bin/sh\nprintf "{said}\\n" >&2\nexit 111\n')
    api = make_pvesh(program)
    with pytest.raises(PveError) as caught:
        api.get("/version") if verb == "get" else api.put("/nodes/pve1/lxc/911/config", {"memory": 600})
    assert "ipcc_send_rec" not in caught.value.sentence and "Connection refused" in caught.value.reason
    assert "systemctl status pve-cluster" in caught.value.remedy


def test_no_quorum_has_a_remedy() -> None:
    assert "pvecm status" in text.condition_of("cluster not ready - no quorum?")[1]
    assert text.condition_of("CT 911 already running") == ("", "")


def test_a_log_repeats_nothing_and_is_bounded() -> None:
    reason = "startup for container '911' failed"
    told = text.short_log(["a cause", "", reason, "a cause", f"TASK ERROR: {reason}", "\x1b[31mred" + "x" * 5000], reason)
    assert told.startswith("a cause | ?[31mred") and reason not in told and len(told) < 400
    assert len(text.short_reason("tar: " * 2000)) < 500


def test_a_log_of_a_start_shows_the_cause_and_not_its_echoes() -> None:
    cause = 'mount_entry: 2217 No such file or directory - Failed to mount "/dev/nosuch0" on "/dev/nosuch0"'
    echoes = [
        "lxc_setup: 3923 Failed to setup mount entries",
        'do_start: 1273 Failed to setup container "950"',
        "sync_wait: 34 An error occurred in another process (expected sequence number 3)",
        'wait_on_daemonized_start: 837 Received container state "ABORTING" instead of "RUNNING"',
        "lxc_start_main: 307 The container failed to start",
        "lxc_start_main: 310 To get more details, run the container in foreground mode",
        "lxc_start_main: 312 Additional information can be obtained by setting the --logfile and --logpriority options",
        '__lxc_start: 2119 Failed to spawn container "950"',
    ]
    reason = "startup for container '950' failed"
    assert text.short_log([cause, *echoes, f"TASK ERROR: {reason}"], reason) == cause
    assert "lxc_start_main" in text.short_log(echoes, reason)


@pytest.mark.parametrize(
    ("scope", "pvesh_does"),
    [
        ("#!/bin/sh\nexit 1\n", "true"),  # no scope can be made
        ('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n', "true"),
        ('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n', "kill -KILL $PPID"),  # ended in the middle of it
    ],
)
def test_a_call_is_made_exactly_once_with_and_without_a_scope(
    program: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, scope: str, pvesh_does: str
) -> None:
    monkeypatch.setattr(_pve_calls, "SYSTEMD", str(tmp_path))
    _make(program.with_name("systemd-run"), scope)
    _make(program, f'#!/bin/sh\necho "$@" >> "{tmp_path}/calls"\n{pvesh_does}\n')
    api = make_pvesh(program)
    if "kill" in pvesh_does:
        with pytest.raises(PveError, match="ended before it answered"):
            api.put("/nodes/pve1/lxc/911/config", {"description": "a $b 'c'"})
    else:
        api.put("/nodes/pve1/lxc/911/config", {"description": "a $b 'c'"})
    assert (tmp_path / "calls").read_text(encoding="utf-8").splitlines() == ["set /nodes/pve1/lxc/911/config --description a $b 'c' --output-format json"]
