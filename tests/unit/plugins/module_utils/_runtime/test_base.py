# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._runtime.base import (
    Account,
    BasePresent,
    BaseWanted,
    Repository,
    certificates,
    installed_packages,
    plan_base,
)

KEY = (Path(__file__).parents[1] / "fixtures/key-debian-bookworm-stable.asc").read_text()
PEM = "-----BEGIN CERTIFICATE-----\nMIIB\nAAAA\n-----END CERTIFICATE-----\n"
REPOSITORY = Repository("cuda", "https://example.org/debian12/", "https://example.org/key.pub", "4D64FEC119C2029067D6E791F8D2585B8783D481")
ACCOUNT = Account("sglang", "/var/lib/kpro-llm/home", "/usr/sbin/nologin")
WANTED = BaseWanted({"company.crt": PEM}, ("ca-certificates", "python3-venv"), (REPOSITORY,), ACCOUNT)
SAME = BasePresent(
    {"company.crt": PEM},
    "# bundle\n-----BEGIN CERTIFICATE-----\nMIIBAA\nAA\n-----END CERTIFICATE-----\n",
    frozenset({"ca-certificates", "python3-venv", "bash"}),
    {REPOSITORY.key_path: KEY, REPOSITORY.sources_path: REPOSITORY.sources_text},
    ACCOUNT,
)
# Captured from a container: a removed package keeps a paragraph, a multi-arch one names its architecture on its own line.
STATUS = """\
Package: ca-certificates
Status: install ok installed
Priority: standard
Architecture: all
Description: Common CA certificates
 Status: install ok installed

Package: nano
Status: deinstall ok config-files
Architecture: amd64

Package: libc6
Status: install ok installed
Multi-Arch: same

Package: half
Status: install ok half-configured
"""


def sentences(present: BasePresent, wanted: BaseWanted = WANTED) -> list[str]:
    return [change.sentence for change in plan_base(present, wanted)]


def test_a_system_that_has_everything_needs_nothing() -> None:
    assert sentences(SAME) == []


def test_a_bare_system_gets_everything_in_the_order_that_works() -> None:
    assert sentences(BasePresent({}, "", frozenset(), {})) == [
        "Write the certificate authority company.crt",
        "Rebuild the certificate bundle",
        "Fetch the key of the repository cuda",
        "Add the repository cuda",
        "Install ca-certificates python3-venv",
        "Create the user sglang",
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"authorities": {"company.crt": "old"}}, ["Write the certificate authority company.crt", "Rebuild the certificate bundle"]),
        ({"authorities": {"company.crt": PEM, "gone.crt": PEM}}, ["Remove the certificate authority gone.crt", "Rebuild the certificate bundle"]),
        ({"bundle": "# somebody rebuilt it without ours\n"}, ["Rebuild the certificate bundle"]),
        ({"installed": frozenset({"ca-certificates"})}, ["Install python3-venv"]),
        ({"files": {REPOSITORY.key_path: KEY}}, ["Add the repository cuda"]),
        ({"files": {REPOSITORY.key_path: "html", REPOSITORY.sources_path: REPOSITORY.sources_text}}, ["Fetch the key of the repository cuda"]),
        ({"account": Account("sglang", "/home/sglang", "/bin/bash")}, ["Change the user sglang"]),
        ({"account": None}, ["Create the user sglang"]),
    ],
)
def test_each_difference_is_mended_alone(change: dict, expected: list[str]) -> None:
    assert sentences(dataclasses.replace(SAME, **change)) == expected


def test_a_key_file_with_a_second_key_is_replaced() -> None:
    other = (Path(__file__).parents[1] / "fixtures/key-debian-bullseye-stable.asc").read_text()
    present = dataclasses.replace(SAME, files={**SAME.files, REPOSITORY.key_path: KEY + other})
    assert sentences(present) == ["Fetch the key of the repository cuda"]


def test_nothing_asked_for_is_nothing_done() -> None:
    assert plan_base(BasePresent({}, "", frozenset(), {}), BaseWanted({}, ())) == []


def test_only_packages_that_are_wholly_installed_count() -> None:
    assert installed_packages(STATUS) == {"ca-certificates", "libc6"}


def test_the_bodies_of_all_certificates_in_a_file_are_found() -> None:
    assert certificates(PEM + "comment\n" + PEM.replace("MIIB", "MIIC"), "x.crt") == ["MIIBAAAA", "MIICAAAA"]
    with pytest.raises(KproError, match=r"x\.crt: it holds no PEM certificate"):
        certificates("-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n", "x.crt")
