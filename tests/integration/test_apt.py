# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node as it is installed: real apt against sources that refuse, are malformed, locked or half configured."""

from __future__ import annotations

import json
import os
import re
import subprocess
import typing as t
from collections.abc import Iterator

import pytest

import lanes
from conftest import ROOT, SANDBOX, Node

pytestmark = pytest.mark.sandbox

# STAND-IN of a server: it answers each request with the status that the address begins with.
SERVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_error(int(self.path.split("/")[1]))
    def log_message(self, *_arguments):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8199), Handler).serve_forever()
"""
ENTERPRISE = "Types: deb\\nURIs: http://127.0.0.1:8199/401/debian/pve\\nSuites: {suite}\\nComponents: pve-enterprise\\n"
CEPH = "Types: deb\\nURIs: http://127.0.0.1:8199/401/debian/ceph-squid\\nSuites: {suite}\\nComponents: enterprise\\n"
OURS = "/etc/apt/sources.list.d/kpro-standin.sources"


class Machine:
    """The node, and the modules that ask its apt."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.suite = node.run(". /etc/os-release; echo $VERSION_CODENAME").strip()
        self.kernel = node.run("uname -r").strip()
        self._ansible = lanes.environment(lanes.available()[-1], "dev") / "bin" / "ansible"

    def source(self, name: str, text: str) -> None:
        self.node.run(f"printf '{text.format(suite=self.suite)}' > /etc/apt/sources.list.d/{name}")

    def module(self, name: str, **options: t.Any) -> dict[str, t.Any]:
        argv = [self._ansible, "node", "-i", self.node.inventory, "-m", f"kpro.llm.{name}", "-a", json.dumps(options)]
        env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_FORCE_COLOR": "0"}
        shown = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, cwd="/").stdout
        found = re.search(r"^node \| (\w+)!? => (\{.*?^\})", shown, re.MULTILINE | re.DOTALL)
        assert found, shown
        return {**json.loads(found[2]), "failed": found[1] == "FAILED"}

    def foreseen(self, *packages: str) -> dict[str, t.Any]:
        return dict(self.module("gpu_info", packages=list(packages))["apt"])

    def state(self) -> str:
        """Return what a look must not change."""
        return self.node.run("cd /; find var/lib/apt/lists var/lib/dpkg var/cache/apt/archives -type f ! -name '*lock*' | sort | xargs sha256sum; ls /tmp")


@pytest.fixture(scope="module")
def machine(node: Node) -> Iterator[Machine]:
    subprocess.run([SANDBOX, "ssh", node.name, "--", "cat > /srv/standin_status.py"], input=SERVER, text=True, check=True)
    node.run("systemd-run --quiet --unit=kpro-test-status.service /usr/bin/python3 /srv/standin_status.py; mkdir -p /root/away")
    node.run("for f in /etc/apt/sources.list.d/*.sources; do :; done; cp -a /etc/apt/sources.list* /root/away/")
    yield Machine(node)


@pytest.fixture(autouse=True)
def as_installed(machine: Machine) -> Iterator[None]:
    """Enterprise sources that answer 401, one source of our own, and empty lists; nothing of Debian's, so that no network is needed."""
    machine.node.run(
        f"rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/*; cp /root/away/sources.list.d/{OURS.rpartition('/')[2]} {OURS}"
    )
    machine.source("pve-enterprise.sources", ENTERPRISE)
    machine.source("ceph.sources", CEPH)
    machine.node.run("apt-get -qq purge -y proxmox-default-headers 'proxmox-headers-*' >/dev/null 2>&1 || true")
    yield
    machine.node.run("rm -rf /etc/apt/sources.list.d/*; cp -a /root/away/. /etc/apt/; apt-get -qq update")


def test_what_is_needed_comes_although_the_enterprise_sources_refuse(machine: Machine) -> None:
    before = machine.state()
    assert machine.foreseen("proxmox-default-headers")["problem"] == ""
    assert machine.state() == before, "a look has changed the node"
    done = machine.module("runtime_base", packages=["proxmox-default-headers"])
    assert not done["failed"] and done["changed"], done


def test_without_any_source_that_has_it_the_refusing_ones_are_named_with_both_ways_out(machine: Machine) -> None:
    machine.node.run(f"rm {OURS}")
    before = machine.state()
    foreseen = machine.foreseen("proxmox-default-headers")
    assert machine.state() == before
    done = machine.module("runtime_base", packages=["proxmox-default-headers"])
    assert done["failed"]
    for text in (f"{foreseen['problem']}. {foreseen['remedy']}", done["msg"]):
        for words in (
            "http://127.0.0.1:8199/401/debian/pve (pve-enterprise.sources): 401 Unauthorized",
            "(ceph.sources): 401",
            "subscription key",
            "pve-no-subscription",
        ):
            assert words in text, text
        assert "signed" not in text and "fingerprint" not in text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bad.sources", "Types: deb\\nURIs http://x\\nSuites: a\\n"),
        ("bad.list", "dbe http://x/ {suite} main\\n"),
        ("bad.list", "deb [arch=amd64 http://x {suite} main\\n"),
    ],
)
def test_a_malformed_source_is_named(machine: Machine, name: str, text: str) -> None:
    machine.source(name, text)
    foreseen = machine.foreseen("proxmox-default-headers")
    assert f"/etc/apt/sources.list.d/{name}" in foreseen["problem"] and f"Correct /etc/apt/sources.list.d/{name}" in foreseen["remedy"]


def test_an_interrupted_dpkg_is_told(machine: Machine) -> None:
    machine.node.run("mkdir -p /var/lib/dpkg/updates; printf 'Package: x\\nStatus: install ok half-configured\\n' > /var/lib/dpkg/updates/0001")
    try:
        done = machine.module("runtime_base", packages=["proxmox-default-headers"])
    finally:
        machine.node.run("rm -f /var/lib/dpkg/updates/0001")
    assert done["failed"] and "dpkg was interrupted" in done["msg"] and "dpkg --configure -a" in done["msg"], done


def test_a_lock_that_is_held_for_a_while_is_waited_for(machine: Machine) -> None:
    locks = "'/var/lib/dpkg/lock-frontend', '/var/lib/apt/lists/lock'"
    hold = f"import fcntl, time; held = [open(path, 'w') for path in ({locks})]; [fcntl.lockf(file, 2) for file in held]; time.sleep(12)"
    machine.node.run(f'systemd-run --quiet --unit=kpro-test-lock.service /usr/bin/python3 -c "{hold}"; sleep 1')
    done = machine.module("runtime_base", packages=["proxmox-default-headers"])
    assert not done["failed"] and done["changed"], done
