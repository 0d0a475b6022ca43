# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._gpu import secure_boot


@pytest.mark.parametrize(
    ("text", "on"),
    [("SecureBoot enabled\n", True), ("SecureBoot disabled\n", False), ("EFI variables are not supported on this system\n", None), ("", None)],
)
def test_state(text: str, on: bool | None) -> None:
    assert secure_boot.state_of(text) is on


@pytest.mark.parametrize(
    ("text", "enrolled", "pending"),
    [
        ("/var/lib/dkms/mok.pub is already enrolled\n", True, False),
        ("/var/lib/dkms/mok.pub is not enrolled\n", False, False),
        ("/var/lib/dkms/mok.pub is already in the enrollment request\n", False, True),
        ("Failed to open file\n", None, False),
    ],
)
def test_key(text: str, enrolled: bool | None, pending: bool) -> None:
    assert (secure_boot.enrolled_of(text), secure_boot.pending_of(text)) == (enrolled, pending)


def test_certificate_of_dkms() -> None:
    assert secure_boot.certificate_of(["# mok_certificate=/no\n"]) == "/var/lib/dkms/mok.pub"
    assert secure_boot.certificate_of(["", 'mok_certificate="/etc/keys/mok.der"\n']) == "/etc/keys/mok.der"


def test_steps_in_their_order() -> None:
    steps = secure_boot.enrolment_steps(secure_boot.SecureBoot(True))
    assert ["openssl" in steps[0], "mokutil --import" in steps[1], "console" in steps[2], steps[3].startswith("then run again")] == [True] * 4
    assert secure_boot.enrolment_steps(secure_boot.SecureBoot(True, exists=True))[0].startswith("On the node: mokutil --import")
