# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What apt of Debian 12 and 13 really said (fixtures/apt, the mirror renamed), and what a person is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._apt.explain import SourceFailure, explain, source_failures, source_uris

FIXTURES = Path(__file__).parents[1] / "fixtures" / "apt"
SUITES = ("bookworm", "trixie")


def said(suite: str, case: str) -> str:
    """Return what apt of a suite said in a case."""
    text = (FIXTURES / f"{suite}.txt").read_text()
    found = re.search(rf"^=== {re.escape(case)}\n(.*?)(?=^=== |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, case
    return found[1]


@pytest.mark.parametrize("suite", SUITES)
def test_a_node_without_subscription_is_told_the_source_its_status_and_both_ways_out(suite: str) -> None:
    files = {"http://127.0.0.1:8199/401/debian/pve": "pve-enterprise.sources", "http://127.0.0.1:8199/401/debian/ceph-squid": "ceph.sources"}
    problem = explain(said(suite, "401 install missing"), said(suite, "401 update"), files, ["proxmox-headers-9.9.9-pve"])
    assert problem.kind == "not_offered"
    for words in ("proxmox-headers-9.9.9-pve", "http://127.0.0.1:8199/401/debian/pve (pve-enterprise.sources): 401 Unauthorized", "(ceph.sources): 401"):
        assert words in problem.reason
    for words in ("pve-enterprise.sources and ceph.sources", "subscription key", "enable pve-no-subscription"):
        assert words in problem.remedy
    assert "signed" not in problem.reason + problem.remedy and "gpu_node__" not in problem.remedy


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize(
    ("case", "kind", "words", "remedy"),
    [
        ("403 update", "refused", "403 Forbidden", "Enabled: no"),
        ("404 update", "missing", "it has no", "suite"),
        ("no suite", "missing", "it has no no-such-suite", "suite"),
        ("407 update", "proxy", "407 Proxy Authentication Required", "proxy"),
        ("500 update", "other", "500 Internal Server Error", "Correct that source"),
        ("dns", "name", "Could not resolve 'no-such-host.invalid'", "name server"),
        ("refused", "network", "connect", "network"),
        ("tls", "tls", "", "certificate authority"),
        ("expired", "expired", "is expired (691d", "clock"),
        ("future (clock)", "early", "not valid yet", "Set the clock"),
        ("no keyring", "signature", "", "Signed-By"),
        ("wrong key", "signature", "6ED0E7B82643E131", "Signed-By"),
        ("no space lists", "space", "No space left on device", "Free space"),
    ],
)
def test_each_failure_of_a_source_has_its_kind_and_its_remedy(suite: str, case: str, kind: str, words: str, remedy: str) -> None:
    failures = source_failures(said(suite, case))
    assert failures and {each.kind for each in failures} == {kind}, failures
    assert all(words in each.words for each in failures)
    problem = explain("E: Unable to locate package dkms\n", said(suite, case), packages=["dkms"])
    assert remedy in problem.remedy, problem
    # The addresses of these captures end in "/pve", so that a refusal may be for want of a subscription; nothing else is.
    assert ("subscription" in problem.remedy) == (case == "403 update")


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize(
    ("case", "kind", "reason", "remedy"),
    [
        (
            "deb822 malformed",
            "malformed",
            "Malformed entry 1 in sources file /etc/apt/sources.list.d/bad.sources (URI)",
            "Correct /etc/apt/sources.list.d/bad.sources,",
        ),
        ("deb822 no suite", "malformed", "(Suite)", "bad.sources"),
        ("deb822 no component", "malformed", "(Component)", "bad.sources"),
        ("deb822 bad type", "malformed", "Type 'foo' is not known on stanza 1", "Correct /etc/apt/sources.list.d/bad.sources,"),
        ("one-line malformed", "malformed", "list file /etc/apt/sources.list.d/bad.list", "Correct /etc/apt/sources.list.d/bad.list,"),
        ("one-line type", "malformed", "Type 'dbe' is not known on line 1", "bad.list"),
        ("one-line option", "malformed", "([option] not assignment)", "bad.list"),
        ("unmet missing", "unmet", "needs-missing : Depends: no-such-thing (>= 2) but it is not installable", "dist-upgrade"),
        ("unmet newer", "unmet", "needs-newer : Depends: coreutils (>= 99)", "one release"),
        ("clash essential", "unmet", "clash : Conflicts: coreutils", "apt-mark showhold"),
        ("postinst fails", "package", "post-installation script subprocess returned error exit status 3 (depmod: something broke)", "dpkg --configure failing"),
        ("after: next install", "package", "failing: ", "dpkg --configure failing"),
        ("hold", "held", "the packages fine are held", "apt-mark unhold fine"),
        ("interrupted", "interrupted", "dpkg was interrupted", "dpkg --configure -a"),
        ("lock frontend", "locked", r"process ", "Wait until process"),
        ("lock lists", "locked", "/var/lib/apt/lists/lock", "Wait until process"),
        ("no space archives", "space", "No space left on device", "Free space"),
        ("no candidate", "not_offered", "Package 'linux-headers' has no installation candidate", "Enable the sources"),
        ("locate", "not_offered", "Unable to locate package proxmox-headers-6.2.16-3-pve; E: Unable to locate package dkms-not", "pve-no-subscription"),
        ("deb refused", "fetch_network", "libncurses6", "network"),
        ("read only", "other", "Read-only file system", ""),
    ],
)
def test_each_failure_of_an_installation_keeps_the_telling_line(suite: str, case: str, kind: str, reason: str, remedy: str) -> None:
    problem = explain(said(suite, case))
    assert problem.kind == kind and reason in problem.reason and remedy in problem.remedy, problem
    assert len(problem.reason) < 620 and "\n" not in problem.reason


def test_the_holder_of_a_lock_is_named_as_either_apt_says_it() -> None:
    text = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4711 (unattended-upgr)\nE: Unable to acquire the dpkg frontend lock"
    problem = explain(text)
    assert problem.reason == "process 4711 (unattended-upgr) holds the lock /var/lib/dpkg/lock-frontend of apt"
    assert problem.remedy.startswith("Wait until process 4711 (unattended-upgr) has ended: those are the automatic upgrades")


def test_the_free_space_that_apt_itself_counts() -> None:
    problem = explain("E: You don't have enough free space in /var/cache/apt/archives/.\n")
    assert problem.kind == "space" and "Free space on /var/cache/apt/archives/" in problem.remedy


def test_a_login_that_another_source_asks_for_is_no_matter_of_a_subscription() -> None:
    update = "E: Failed to fetch https://apt.example.org/tools/dists/stable/InRelease  401  Unauthorized [IP: 192.0.2.1 443]\n"
    problem = explain("E: Unable to locate package our-tool\n", update, packages=["our-tool"])
    assert "https://apt.example.org/tools: 401 Unauthorized" in problem.reason and "auth.conf.d" in problem.remedy and "subscri" not in problem.remedy


def test_sources_of_both_formats_are_read_and_what_is_off_is_left_out() -> None:
    deb822 = (
        "Types: deb\nURIs: http://a/x\n http://b/y/\nSuites: s\n\n"
        "# note\nEnabled: no\nTypes: deb\nURIs: http://off/\nSuites: s\n\nEnabled: yes\nURIs: http://c\n"
    )
    assert source_uris(deb822) == ["http://a/x", "http://b/y/", "http://c"]
    assert source_uris("# deb http://off s\ndeb [signed-by=/x arch=amd64] http://a s main\ndeb-src http://b s\n") == ["http://a", "http://b"]


@pytest.mark.parametrize("text", ["", "\n", "E: \n", "\x00\x1b[0m", "E: Failed to fetch\n", "(" * 5000])
def test_odd_texts_are_survived(text: str) -> None:
    assert explain(text, text).reason


def test_a_login_in_the_address_of_a_source_is_not_shown() -> None:
    failure = SourceFailure("https://someone:hidden@mirror.example/debian", "refused", "401 for https://someone:hidden@mirror.example/x")
    assert "hidden" not in failure.sentence and "https://mirror.example/debian" in failure.sentence
