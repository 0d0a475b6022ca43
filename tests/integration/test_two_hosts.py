# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two deployments, one of which breaks in each phase, in each way: the other is untouched (before the first change) or finishes (after it).

On one node and on a node each, with the light engine, a stand-in. Both serve before each case.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import typing as t
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import two_hosts
from two_hosts import OTHER, QWEN, Deployments

pytestmark = pytest.mark.sandbox
everything = pytest.mark.skipif("KPRO_TEST_EVERYTHING" not in os.environ, reason="bin/test --all")
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
NEWER = {"gpu_node__driver_version": "580.178.04", "gpu_node__replace_driver": True}
PHASES = ("container", "runtime", "model", "service", "verify")
# The reason is ours; a variable that is missing in an inventory is not.
LOST_REASON = re.compile(r"'(?!nothing')[\w.]+' is undefined|has no attribute '|The task includes an option with an undefined variable")


def from_phase(phase: str, broken: object, sound: object) -> str:
    """Return a value that turns bad when a phase begins, as a machine does that goes down in between."""
    began = f"(kpro_llm__run | default({{}}))['phases'] | default([]) | selectattr('name', 'equalto', '{phase}') | list | length > 0"
    return f"{{{{ {broken} if {began} else {sound} }}}}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run did.

    :param rc: exit code of ansible-playbook.
    :param text: all that was printed.
    """

    rc: int
    text: str

    def table(self, host: str) -> list[str]:
        """Return the rows of the preflight's table about a host."""
        return re.findall(rf"^  {host} +(\S.*(?:OK|note|will fix|needs you)  .*)$", self.text, re.MULTILINE)

    def answered(self, vmid: int) -> bool:
        """Tell whether the summary of a deployment was printed, with its answer."""
        return any(f"{vmid} at " in page and "answered '" in page for page in re.findall(r"^  preflight +[\d.]+ s.*?^  total", self.text, re.M | re.S))


def deploy(made: Deployments, *arguments: str, more: t.Mapping[str, t.Mapping[str, object]] | None = None, **everywhere: object) -> Outcome:
    made.write(more, everywhere)
    done = made.playbook("deploy_qwen", *arguments)
    text = done.stdout + done.stderr
    assert not LOST_REASON.search(text), text[-8000:]
    return Outcome(done.returncode, text)


def running(made: Deployments, name: str) -> str:
    """Return which start of the engine runs, and where the container's first process is: others after any restart."""
    vmid = two_hosts.VMIDS[name]
    return made.nodes[name].run(
        f"lxc-info -n {vmid} -pH; lxc-attach -n {vmid} --clear-env -- systemctl show --property InvocationID,ActiveState kpro-sglang.service"
    )


def node_state(made: Deployments) -> list[str]:
    """Return what a dead preflight must leave as it is."""
    state = "cat /proc/driver/nvidia/version /etc/pve/nodes/*/lxc/*.conf; ls /etc/systemd/system /etc/modprobe.d; dpkg-query -W; stat -c '%n %y' /srv/*/*"
    return [node.run(state) for node in made.machines()]


def ends_before_any_change(made: Deployments, *arguments: str, more: t.Mapping[str, t.Mapping[str, object]], words: str, **everywhere: object) -> Outcome:
    """See that a run ends with a table of both, with a driver waiting to be replaced, and that neither node nor engine notices."""
    before = [running(made, name) for name in made.nodes], node_state(made)
    values = {node.host: dict(NEWER) for node in made.machines()}
    for name, own in more.items():
        values[name] = {**values.get(name, {}), **own}
    ended = deploy(made, *arguments, more=values, **everywhere)
    assert ended.rc == 2, ended.text[-6000:]
    assert any(re.search(rf"needs you  .*{words}", row) for row in ended.table(OTHER)), ended.text[-6000:]
    assert ended.table(QWEN), ended.text[-6000:]
    assert "Nothing was changed" in ended.text
    assert "PLAY [Node]" not in ended.text
    assert ([running(made, name) for name in made.nodes], node_state(made)) == before
    return ended


def only_other_stops(made: Deployments, phase: str, bad: t.Mapping[str, object], *, node: t.Mapping[str, object] | None = None, words: str = "") -> Outcome:
    """See that ``other`` stops in a phase, and that ``qwen`` is finished with a change of its own."""
    before = running(made, QWEN)
    more: dict[str, t.Mapping[str, object]] = {OTHER: bad, QWEN: {"sglang_server__environment": _changed(made)}}
    if node:
        more[made.nodes[OTHER].host] = node
    ended = deploy(made, more=more)
    assert ended.rc != 0, ended.text[-6000:]
    assert ended.answered(two_hosts.VMIDS[QWEN]), ended.text[-6000:]
    assert running(made, QWEN) != before, "its change was made"
    assert made.serves(QWEN)
    assert ended.table(QWEN) and ended.table(OTHER)
    last = ended.text[ended.text.rindex("PLAY [Report]") :]
    assert re.search(rf"^  {OTHER} (?:stopped|was lost) in the phase {phase}: .*{words}", last, re.MULTILINE), last
    assert f"  {QWEN}: nothing stopped it" in last
    return ended


def _changed(made: Deployments) -> dict[str, str]:
    """Return an environment of the engine that no run before had."""
    variables = made.variables(QWEN)["sglang_server__environment"]
    assert isinstance(variables, dict)
    return {**variables, "KPRO_CASE": os.urandom(4).hex()}


def settle(made: Deployments) -> None:
    """Bring both to what the inventory says without a test's changes, so that a run after it changes nothing."""
    ended = deploy(made)
    assert ended.rc == 0, ended.text[-6000:]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployments]:
    """Both on one node."""
    hosts = {QWEN: "kpro5", OTHER: "kpro5"}
    try:
        yield two_hosts.start(f"hosts-one{WORKER}", tmp_path_factory.mktemp("together"), hosts=hosts)
    finally:
        two_hosts.stop(f"hosts-one{WORKER}", hosts.values())


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployments]:
    """A node each."""
    hosts = {QWEN: "kpro5", OTHER: "kpro6"}
    try:
        yield two_hosts.start(f"hosts-two{WORKER}", tmp_path_factory.mktemp("apart"), hosts=hosts)
    finally:
        two_hosts.stop(f"hosts-two{WORKER}", hosts.values())


BEFORE = {
    "container unreachable": ({"ansible_port": 9}, "(refused|reach)"),
    "no such model": ({"hf_model__repository": "kpro/nothing", "hf_model__lock_file": ""}, "kpro/nothing"),
    "bad value": ({"sglang_server__port": "many"}, "many"),
    "bad value of the container": ({"gpu_container__cores": "many"}, "many"),
    "undefined options": ({"sglang_server__options": "{{ nothing }}"}, "'nothing' is undefined"),
    "undefined id": ({"gpu_container__vmid": "{{ nothing }}"}, "'nothing' is undefined"),
    "undefined node": ({"pct_node": "{{ nothing }}"}, "'nothing' is undefined"),
    "no node of that name": ({"pct_node": "kpro99"}, "kpro99"),
    "undefined way": ({"ansible_port": "{{ nothing }}"}, "'nothing' is undefined"),
    "a list for a number": ({"gpu_container__memory_mib": [1]}, "gpu_container__memory_mib"),
    "undefined, where a default stands by": ({"sglang_server__drain_timeout_s": "{{ nothing }}"}, "'nothing' is undefined"),
}
SAMPLE = ("container unreachable",)


@pytest.mark.parametrize("case", [pytest.param(case, marks=[] if case in SAMPLE else everything) for case in BEFORE])
def test_on_one_node_a_dead_preflight_is_a_row_and_ends_the_run(together: Deployments, case: str) -> None:
    bad, words = BEFORE[case]
    ends_before_any_change(together, more={OTHER: bad}, words=words)


@everything
@pytest.mark.parametrize("case", BEFORE)
def test_on_two_nodes_a_dead_preflight_is_a_row_and_ends_the_run(apart: Deployments, case: str) -> None:
    bad, words = BEFORE[case]
    ends_before_any_change(apart, more={OTHER: bad}, words=words)


@everything
@pytest.mark.parametrize("node", [{"ansible_port": 9}, {"ansible_python_interpreter": "/nowhere"}, {"gpu_node__driver_version": "{{ nothing }}"}], ids=str)
def test_a_node_that_can_not_be_looked_at_is_a_row_and_ends_the_run(apart: Deployments, node: dict[str, object]) -> None:
    words = {"ansible_port": "kpro6 can't be reached", "ansible_python_interpreter": "nowhere"}.get(next(iter(node)), "'nothing' is undefined")
    ended = ends_before_any_change(apart, more={"kpro6": node}, words=words)
    assert not [row for row in ended.table(QWEN) if "needs you" in row]


@everything
@pytest.mark.parametrize(
    "arguments", [("--skip-tags", "preflight"), ("--start-at-task", "Keep the driver and its device nodes"), ("--limit", "kpro5")], ids=str
)
def test_nothing_is_changed_without_a_preflight(together: Deployments, arguments: tuple[str, ...]) -> None:
    before = [running(together, name) for name in together.nodes], node_state(together)
    ended = deploy(together, *arguments, more={"kpro5": dict(NEWER)})
    assert ended.rc != 0, ended.text[-3000:]
    assert re.search("Nothing was changed: (no preflight was made in this run|this phase was entered without its beginning)", ended.text), ended.text[-3000:]
    assert ([running(together, name) for name in together.nodes], node_state(together)) == before


def breaks(made: Deployments, phase: str) -> dict[str, dict[str, object]]:
    """Return the ways in which a phase of ``other`` can break, by kind."""
    port, gpu = made.nodes[OTHER].port, made.gpu(OTHER)
    module: dict[str, tuple[str, str, str]] = {
        "container": ("gpu_container__gpus", "['GPU-00000000-dead-beef-0000-000000000000']", f"['{gpu}']"),
        "runtime": ("sglang_runtime__lock", "'/nowhere/lock.txt'", f"'{made.folder}/light.txt'"),
        "model": ("hf_model__repository", "'kpro/nothing'", "'kpro/tiny-qwen3_5'"),
        "service": ("sglang_server__unit_template", "'nowhere.j2'", "'kpro-sglang.service.j2'"),
        "verify": ("sglang_server__answer_pattern", "'Nobody says this'", "'Hello from the tiny test model'"),
    }
    undefined: dict[str, tuple[str, str]] = {
        "container": ("gpu_container__hostname", f"'{OTHER}'"),
        "runtime": ("sglang_runtime__user", "'sglang'"),
        "model": ("hf_model__endpoint", "'http://10.77.0.1:8090'"),
        "service": ("sglang_server__question", "'Who are you?'"),
        "verify": ("sglang_server__answer_pattern", "'Hello from the tiny test model'"),
    }
    way = {"ansible_port": from_phase(phase, 9, port)}
    name, broken, sound = module[phase]
    other, right = undefined[phase]
    return {
        "unreachable": way,
        "module": {name: from_phase(phase, broken, sound)},
        "undefined": {other: from_phase(phase, "nothing", right)},
    }


@pytest.mark.parametrize("kind", ["unreachable", "module", "undefined"])
@pytest.mark.parametrize("phase", PHASES)
def test_on_one_node_a_failure_stops_its_own_deployment_only(together: Deployments, phase: str, kind: str) -> None:
    if "KPRO_TEST_EVERYTHING" not in os.environ and (phase, kind) != ("runtime", "module"):
        pytest.skip("bin/test --all")
    if (phase, kind) == ("container", "unreachable"):
        pytest.skip("the container's phase goes through the node")
    only_other_stops(together, phase, breaks(together, phase)[kind])


@everything
@pytest.mark.parametrize("kind", ["unreachable", "module", "undefined"])
@pytest.mark.parametrize("phase", PHASES)
def test_on_two_nodes_a_failure_stops_its_own_deployment_only(apart: Deployments, phase: str, kind: str) -> None:
    if (phase, kind) == ("container", "unreachable"):
        pytest.skip("the container's phase goes through the node")
    only_other_stops(apart, phase, breaks(apart, phase)[kind])


@everything
@pytest.mark.parametrize("kind", ["unreachable", "module", "undefined"])
def test_a_node_that_fails_stops_the_deployments_on_it_only(apart: Deployments, kind: str) -> None:
    node: dict[str, dict[str, object]] = {
        "unreachable": {"ansible_port": from_phase("node", 9, apart.nodes[OTHER].port)},
        "module": {**NEWER, "gpu_node__driver_url": "http://10.77.0.1:8090/files/driver/nothing.run"},
        "undefined": {"gpu_node__packages": from_phase("node", "nothing", "['dkms', 'gcc', 'make', 'libc6-dev', 'proxmox-default-headers']")},
    }
    before = running(apart, OTHER)
    only_other_stops(apart, "node", {}, node=node[kind], words="kpro6")
    assert running(apart, OTHER) == before, "nothing was done to it"


@everything
def test_a_node_that_fails_stops_both_on_it(together: Deployments) -> None:
    before = [running(together, name) for name in together.nodes]
    ended = deploy(together, more={"kpro5": {**NEWER, "gpu_node__driver_url": "http://10.77.0.1:8090/files/driver/nothing.run"}})
    assert ended.rc != 0
    last = ended.text[ended.text.rindex("PLAY [Report]") :]
    for name in together.nodes:
        assert re.search(rf"^  {name} stopped in the phase node: kpro5: ", last, re.MULTILINE), last
    assert [running(together, name) for name in together.nodes] == before


# Phases by themselves, on a deployed node: each looks first, takes what it needs from a look, and changes nothing.


@pytest.mark.parametrize("tags", ["container", "runtime", "model", "service", "verify", "preflight", "container,verify"])
def test_a_phase_works_alone(together: Deployments, tags: str) -> None:
    if "KPRO_TEST_EVERYTHING" not in os.environ and tags != "verify":
        pytest.skip("bin/test --all")
    if "service" in tags:
        settle(together)
    for mode in ((), ("--check",)):
        ended = deploy(together, "--tags", tags, *mode)
        assert ended.rc == 0, ended.text[-6000:]
        assert ended.table(QWEN) and ended.table(OTHER)
        assert "nothing stopped it" not in ended.text
        assert not re.findall(r"changed=[1-9]", ended.text), ended.text[-2000:]
    if "verify" in tags:
        assert all(ended.answered(vmid) for vmid in two_hosts.VMIDS.values())


@everything
@pytest.mark.parametrize("limit", [QWEN, f"{QWEN},kpro5"])
def test_a_limit_works(together: Deployments, limit: str) -> None:
    before = running(together, OTHER)
    ended = deploy(together, "--limit", limit, more={OTHER: {"pct_node": "{{ nothing }}"}, QWEN: {"sglang_server__environment": _changed(together)}})
    assert ended.rc == 0, ended.text[-6000:]
    assert ended.answered(two_hosts.VMIDS[QWEN])
    assert running(together, OTHER) == before


@everything
@pytest.mark.parametrize("tags", ["container", "runtime", "model", "service", "verify"])
def test_a_phase_alone_says_in_one_sentence_what_it_lacks(together: Deployments, tags: str) -> None:
    """The driver is another than asked for, so that each phase lacks the node's."""
    ended = deploy(together, "--tags", tags, more={"kpro5": dict(NEWER)})
    assert ended.rc != 0
    assert re.search(rf"{QWEN} stopped in the phase {tags}: The driver of kpro5 is 580.173.02 and 580.178.04 is asked for, .*add node to --tags", ended.text)


# Become for all hosts, as Proxmox inventories often have it.


@dataclasses.dataclass(frozen=True)
class Person:
    """A login of the node that is not root."""

    name: str
    variables: dict[str, object]


@pytest.fixture(params=["without password", "with password"])
def person(together: Deployments, request: pytest.FixtureRequest) -> Iterator[Person]:
    node = together.nodes[QWEN]
    password = "a secret of the node" if request.param == "with password" else ""
    rule = "admin ALL=(ALL) " + ("ALL" if password else "NOPASSWD: ALL")
    node.run(
        "command -v sudo >/dev/null || { apt-get update -qq && apt-get install -y -qq sudo >/dev/null; }; id admin >/dev/null 2>&1 || useradd -m -s /bin/bash"
        f" admin; install -d -o admin -m 700 ~admin/.ssh; install -o admin -m 600 ~/.ssh/authorized_keys ~admin/.ssh/; echo '{rule}' > /etc/sudoers.d/admin;"
        f" echo 'admin:{password or 'x'}' | chpasswd"
    )
    variables: dict[str, object] = {"ansible_user": "admin", "ansible_become": True, "ansible_become_method": "sudo"}
    yield Person("admin", {**variables, **({"ansible_become_password": password} if password else {})})
    node.run("rm /etc/sudoers.d/admin")


@everything
def test_become_for_all_hosts_works(together: Deployments, person: Person) -> None:
    settle(together)
    ended = deploy(together, **person.variables)
    assert ended.rc == 0, ended.text[-6000:]
    assert not re.findall(r"changed=[1-9]", ended.text), ended.text[-2000:]
    assert all(ended.answered(vmid) for vmid in two_hosts.VMIDS.values())


@everything
def test_a_way_that_needs_a_password_which_nobody_gave_is_a_row(together: Deployments, person: Person) -> None:
    """T2-22 b: the node has its password, the containers' hosts have none; a driver waits to be replaced."""
    if "ansible_become_password" not in person.variables:
        pytest.skip("there is none")
    own = {"ansible_user": "admin", "ansible_become": False}
    known = {**person.variables, **NEWER}
    ended = ends_before_any_change(together, more={"kpro5": known, QWEN: own, OTHER: own}, words="needs root on kpro5, and admin does not get it there")
    assert "Allow admin password-less sudo there, or give the password for sudo to the container's host, too" in ended.text
    wrong = {**own, "pct_node_become_password": "not this one"}
    ended = ends_before_any_change(together, more={"kpro5": known, QWEN: own, OTHER: wrong}, words="Incorrect sudo password")
    assert "not this one" not in ended.text


def test_the_password_is_in_no_argument(together: Deployments, person: Person) -> None:
    """Watched on node and controller while tasks enter the container."""
    if "KPRO_TEST_EVERYTHING" not in os.environ or "ansible_become_password" not in person.variables:
        pytest.skip("bin/test --all, with a password")
    together.write(None, person.variables)
    node = together.nodes[QWEN]
    watch = 'for i in $(seq 150); do cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\\0" " "; sleep 0.1; done'
    with subprocess.Popen([two_hosts.SANDBOX, "ssh", node.name, "--", watch], stdout=subprocess.PIPE, text=True) as seen:
        done = together.playbook("deploy_qwen", "--tags", "verify", "-vvv")
        text = seen.communicate()[0]
    assert done.returncode == 0, done.stdout[-3000:]
    assert "lxc-attach" in text
    secret = str(person.variables["ansible_become_password"])
    assert secret not in text and secret not in done.stdout + done.stderr
