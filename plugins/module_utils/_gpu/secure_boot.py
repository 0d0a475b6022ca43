# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether Secure Boot lets a module in that DKMS has signed."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .._core.errors import KproError

DEFAULT_CERTIFICATE = "/var/lib/dkms/mok.pub"
DEFAULT_KEY = "/var/lib/dkms/mok.key"


@dataclasses.dataclass(frozen=True)
class SecureBoot:
    """Secure Boot, and the key with which DKMS signs.

    :param on: None where the firmware can't be asked (no EFI).
    :param certificate: path of the key's certificate.
    :param exists: the certificate is there; DKMS makes key and certificate at its first build.
    :param enrolled: the firmware knows the certificate; None if that can't be asked.
    :param pending: its enrolment waits for a person at the console of the next boot.
    """

    on: bool | None = None
    certificate: str = DEFAULT_CERTIFICATE
    exists: bool = False
    enrolled: bool | None = None
    pending: bool = False


def state_of(mokutil_text: str) -> bool | None:
    """Return whether ``mokutil --sb-state`` says that Secure Boot is on; None if it says neither."""
    found = re.search(r"^SecureBoot (enabled|disabled)", mokutil_text, re.MULTILINE)
    return found[1] == "enabled" if found else None


def enrolled_of(mokutil_text: str) -> bool | None:
    """Return whether ``mokutil --test-key`` says that a certificate is enrolled; None if it says neither."""
    if re.search(r"is already enrolled", mokutil_text):
        return True
    return False if re.search(r"is not enrolled|is already in the enrollment request", mokutil_text) else None


def pending_of(mokutil_text: str) -> bool:
    """Return whether ``mokutil --test-key`` says that a certificate waits for its enrolment."""
    return "is already in the enrollment request" in mokutil_text


def certificate_of(framework_texts: t.Iterable[str]) -> str:
    """Return the certificate that DKMS's configuration names (``mok_certificate=``), the last one wins."""
    found = [match[1] for text in framework_texts for match in re.finditer(r'^\s*mok_certificate="?([^"\s]+)"?', text, re.MULTILINE)]
    return found[-1] if found else DEFAULT_CERTIFICATE


def check_signing(secure_boot: SecureBoot) -> None:
    """Stop before a module is built that the firmware would reject.

    :raises KproError: with the steps of the enrolment, which needs a person at the console.
    """
    if not secure_boot.on or secure_boot.enrolled:
        return
    certificate = secure_boot.certificate
    what = "Secure Boot"
    if secure_boot.pending:
        remedy = "Reboot the node, choose Enroll MOK at its console and give the one-time password, then run again"
        raise KproError(what, f"it is on, and the enrolment of DKMS's key {certificate} waits for a person at the console", remedy)
    if secure_boot.exists and secure_boot.enrolled is None:
        raise KproError(what, f"it is on, and nothing can tell whether the firmware knows DKMS's key {certificate}", "apt-get install mokutil, then run again")
    reason = f"it is on, and the firmware does not know DKMS's key {certificate}: it would reject the kernel module (Key was rejected by service)"
    raise KproError(what, reason, "; ".join(enrolment_steps(secure_boot)), steps=list(enrolment_steps(secure_boot)))


def enrolment_steps(secure_boot: SecureBoot) -> tuple[str, ...]:
    """Return what a person does to have the key enrolled; the key is made as DKMS itself would make it."""
    certificate = secure_boot.certificate
    make = (
        "On the node: install -d -m 700 /var/lib/dkms; openssl req -new -x509 -nodes -days 36500 -subj '/CN=DKMS module signing key' "
        f"-newkey rsa:2048 -keyout {DEFAULT_KEY} -outform DER -out {certificate}"
    )
    steps = [] if secure_boot.exists else [make]
    steps.append(f"{'On the node: ' if secure_boot.exists else ''}mokutil --import {certificate}, with a one-time password of your choice")
    return (*steps, "reboot the node and, at its console, choose Enroll MOK and give that password", "then run again: DKMS signs the module with this key")
