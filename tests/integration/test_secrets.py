# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""No secret of a whole deployment is in a command line, journal, log, diff, fact or left file; and a secret that is planted there is found.

On lane cu13 with the light engine, a stand-in. Hub (which asks for a token), Proxmox and GPUs are stand-ins, too.
"""

from __future__ import annotations

import json
import os
import secrets as random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import light_deployment as light
import prepared_nodes
import two_nodes
from secret_search import ArgvSampler, in_folder, in_text, in_texts, in_tree, spellings
from two_nodes import OLD, VMID, LinkedNode, Pair

pytestmark = pytest.mark.skipif("KPRO_TEST_EVERYTHING" not in os.environ, reason="bin/test --all")
NAME = f"secrets{os.environ.get('PYTEST_XDIST_WORKER', '')}"
MODEL = "kpro/tiny-qwen3_5"
WORDS = "/dev/shm/words"
HUB_CONTROL = "/etc/kpro-standin/hub.json"
# Where a key has to be, for the service; nobody else may read it.
KEPT = ("/etc/kpro-llm/api_key", "/etc/kpro-llm/sglang.yaml", "/etc/kpro-llm/sglang.env")
# The last configuration that answered has its options, the engine's keys included.
KEPT_BELOW = ("/var/lib/kpro-llm/",)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A node with nothing on it but what it is installed with."""
    try:
        node = two_nodes.up(NAME, OLD, two_nodes.OLD_KIND, "--suite", "bookworm")
        prepared_nodes.content()
        light.publish(node)
        yield Pair("", node, node, tmp_path_factory.mktemp("secrets"))
    finally:
        subprocess.run([two_nodes.SANDBOX, "down", NAME], check=True)


def test_no_secret_of_a_deployment_is_anywhere_but_where_it_has_to_be(pair: Pair) -> None:
    node = pair.old
    given = {name: f"kpro{random.token_hex(16)}" for name in ("hub token", "become password", "login password", "admin key", "environment token")}
    node.run(f"cat > {HUB_CONTROL}", stdin=json.dumps({"tokens": {given["hub token"]: [MODEL]}, "gated": [MODEL], "rules": []}))
    first = deploy(pair, given, "first")
    generated = {**given, "generated key": node.inside("cat /etc/kpro-llm/api_key").strip()}
    assert_nowhere(pair, first, generated)

    own = {**generated, "given key": f"kpro{random.token_hex(16)}"}
    second = deploy(pair, own, "second", sglang_server__api_key=own["given key"])
    assert node.inside("cat /etc/kpro-llm/api_key").strip() == own["given key"]
    assert_nowhere(pair, second, own)


def test_a_planted_secret_is_found(pair: Pair) -> None:
    node = pair.old
    secret = {"planted": f"kpro{random.token_hex(16)}"}
    word = secret["planted"]
    with ArgvSampler() as sampler:
        node.run(f"sh -c 'sleep 0.3; true' {word}")
    assert in_texts((("a command line", line) for line in sampler.seen), secret)
    node.run(f"logger -t planted {word}; echo {word} > /tmp/planted; mkdir -p /etc/kpro-llm; printf %s {word} | base64 > /etc/kpro-llm/planted")
    assert any("journal" in sentence for sentence in in_journals(node, secret))
    assert {line.split()[-1] for line in on_disk(node, secret)} >= {"/tmp/planted", "/etc/kpro-llm/planted"}
    for spelling in spellings(word):
        assert in_text("a text", f"before {spelling} after", secret)
    node.run("rm /tmp/planted /etc/kpro-llm/planted")


class Traces:
    """What a run left on the controller."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.argv: list[str] = []
        self.output = ""


def deploy(pair: Pair, known: Mapping[str, str], name: str, **variables: object) -> Traces:
    """Deploy with everything said that Ansible can say, and keep it."""
    folder = pair.folder / name
    traces = Traces(folder / "traces")
    traces.folder.mkdir(parents=True)
    keys = {"hf_model__token": known["hub token"], "sglang_server__admin_api_key": known["admin key"]}
    more = {**keys, "sglang_server__environment": environment(folder, known), **variables}
    pair.write_inventory(OLD, (), **light.variables(folder, **more))
    inventory = json.loads(pair.inventory.read_text(encoding="utf-8"))
    # The node lets a key in; the passwords are there as in a vaulted inventory whose node needs them.
    inventory["all"]["vars"] |= {"ansible_become_password": known["become password"], "ansible_password": known["login password"]}
    pair.inventory.write_text(json.dumps(inventory), encoding="utf-8")
    settings = {
        "ANSIBLE_LOG_PATH": str(traces.folder / "ansible.log"),
        "ANSIBLE_CACHE_PLUGIN": "jsonfile",
        "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(traces.folder / "facts"),
        "ANSIBLE_LOCAL_TEMP": str(traces.folder / "temp"),
        "ANSIBLE_KEEP_REMOTE_FILES": "0",
    }
    argv = pair.ansible("ansible-playbook", "kpro.llm.deploy_qwen", "-vvv", "--diff")
    with ArgvSampler() as sampler:
        done = subprocess.run(argv, env={**pair.environment, **settings}, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    traces.output = done.stdout + done.stderr
    traces.argv = list(sampler.seen)
    assert any("sglang" in line for line in traces.argv), "the engine's processes are seen from here"
    assert known["admin key"] in pair.old.inside("cat /etc/kpro-llm/sglang.yaml")
    return traces


def environment(folder: Path, known: Mapping[str, str]) -> dict[str, object]:
    usual = light.variables(folder)["sglang_server__environment"]
    assert isinstance(usual, dict)
    return {**usual, "HF_TOKEN": known["environment token"]}


def assert_nowhere(pair: Pair, traces: Traces, known: Mapping[str, str]) -> None:
    found = in_texts((("a command line", line) for line in traces.argv), known)
    found += in_text("the output of -vvv --diff", traces.output, known)
    found += in_folder(traces.folder, known)
    found += in_journals(pair.old, known)
    found += [line for line in on_disk(pair.old, known) if not is_kept(line)]
    assert found == [], "\n".join(found)


def in_journals(node: LinkedNode, known: Mapping[str, str]) -> list[str]:
    texts = [("the node's journal", node.run("journalctl --no-pager --all --output=json"))]
    if node.run(f"pct status {VMID} 2>/dev/null || true").strip() == "status: running":
        texts.append(("the container's journal", node.inside("journalctl --no-pager --all --output=json")))
    return in_texts(texts, known)


def on_disk(node: LinkedNode, known: Mapping[str, str]) -> list[str]:
    """Return what files of node and container hold a secret; the container's files lie below its storage."""
    node.run(f"cat > {WORDS}", stdin="\n".join(spelling for secret in known.values() for spelling in spellings(secret)) + "\n")
    trees = "/ /tmp /run /dev/shm /rpool"
    found = in_tree(node.run, trees, known, skip=("/proc", "/sys", WORDS, HUB_CONTROL, "/srv/kpro-standin", "*/var/log/journal", "/run/log/journal"))
    node.run(f"rm {WORDS}")
    pid = node.run(f"lxc-info -n {VMID} -p -H 2>/dev/null || true").strip()
    if pid:
        node.run(f"cat > {WORDS}", stdin="\n".join(spelling for secret in known.values() for spelling in spellings(secret)) + "\n")
        inside = f"/proc/{pid}/root"
        memory = in_tree(node.run, f"{inside}/run {inside}/tmp {inside}/dev/shm", known)
        node.run(f"rm {WORDS}")
        found += memory
    return found


def is_kept(line: str) -> bool:
    """Whether a hit is a file that has to hold the secret, and that others can't read."""
    mode, _what, path = line.split(" ")[0], line.split(" ")[1], line.rsplit(" ", 1)[1]
    private = int(mode.partition(":")[0], 8) & 0o007 == 0
    return private and (path.endswith(KEPT) or any(folder in path for folder in KEPT_BELOW))


def test_the_sampler_sees_what_lives_for_a_moment() -> None:
    with ArgvSampler() as sampler:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(0.05)", "kpro-short-lived"], check=True)
        time.sleep(0.01)
    assert any("kpro-short-lived" in line for line in sampler.seen)
