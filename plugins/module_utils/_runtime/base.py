# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prerequisites of an environment: certificate authorities, packages, a user."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import typing as t

from .._apt.openpgp import fingerprints
from .._apt.repository import Repository
from .._core.changes import Change
from .._core.errors import KproError

AUTHORITIES = "/usr/local/share/ca-certificates"
AUTHORITY_PREFIX = "kpro-llm-"
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"


@dataclasses.dataclass(frozen=True)
class Account:
    """A system user, as wanted or as found."""

    name: str
    home: str
    shell: str


@dataclasses.dataclass(frozen=True)
class BaseWanted:
    """``authorities``: PEM text by file name, without folder and prefix."""

    authorities: t.Mapping[str, str]
    packages: tuple[str, ...]
    repositories: tuple[Repository, ...] = ()
    account: Account | None = None


@dataclasses.dataclass(frozen=True)
class BasePresent:
    """The observed system.

    :param authorities: text by file name of those with our prefix.
    :param bundle: text of the certificate bundle that programs read.
    :param installed: names of the packages that dpkg has installed.
    :param files: text by path of the repositories' files that are there.
    """

    authorities: t.Mapping[str, str]
    bundle: str
    installed: frozenset[str]
    files: t.Mapping[str, str]
    account: Account | None = None


def installed_packages(status: str) -> frozenset[str]:
    """Return the names of installed packages from the text of dpkg's status file."""
    names = set()
    for paragraph in status.split("\n\n"):
        if "\nStatus: install ok installed\n" in f"\n{paragraph}\n":
            name = re.match(r"Package: (\S+)", paragraph.lstrip())
            if name:
                names.add(name[1])
    return frozenset(names)


def certificates(text: str, what: str) -> list[str]:
    """Return the bodies of the certificates in a PEM text, without line breaks.

    :raises KproError: the text holds no certificate.
    """
    found = re.findall(r"-----BEGIN (?:TRUSTED )?CERTIFICATE-----\s*([A-Za-z0-9+/=\s]+?)\s*-----END", text)
    if not found:
        raise KproError(what, "it holds no PEM certificate", "Give files that begin with -----BEGIN CERTIFICATE-----")
    return ["".join(body.split()) for body in found]


def plan_base(present: BasePresent, wanted: BaseWanted) -> list[Change]:
    """Return the changes, in the order in which they have to be made."""
    return [*_authority_changes(present, wanted), *_repository_changes(present, wanted), *_package_changes(present, wanted), *_account_changes(present, wanted)]


def _authority_changes(present: BasePresent, wanted: BaseWanted) -> list[Change]:
    changes = []
    for name, text in sorted(wanted.authorities.items()):
        old = present.authorities.get(name)
        if old != text:
            changes.append(Change(f"Write the certificate authority {name}", _digest(old), _digest(text), ("authority", name, text)))
    for name in sorted(set(present.authorities) - set(wanted.authorities)):
        changes.append(Change(f"Remove the certificate authority {name}", _digest(present.authorities[name]), None, ("authority", name, None)))
    bundle = "".join(present.bundle.split())
    missing = [name for name, text in sorted(wanted.authorities.items()) if any(body not in bundle for body in certificates(text, name))]
    if changes or missing:
        changes.append(Change("Rebuild the certificate bundle", f"without {', '.join(missing)}" if missing else "stale", "complete", ("bundle",)))
    return changes


def _repository_changes(present: BasePresent, wanted: BaseWanted) -> list[Change]:
    changes = []
    for repository in wanted.repositories:
        key = present.files.get(repository.key_path)
        # Exactly this key: apt would trust every key in the file.
        if key is None or fingerprints(key) != [repository.key_fingerprint]:
            changes.append(
                Change(
                    f"Fetch the key of the repository {repository.name}",
                    " ".join(fingerprints(key)) if key else None,
                    repository.key_fingerprint,
                    ("key", repository),
                )
            )
        old = present.files.get(repository.sources_path)
        if old != repository.sources_text:
            changes.append(Change(f"Add the repository {repository.name}", old, repository.uri, ("sources", repository)))
    return changes


def _package_changes(present: BasePresent, wanted: BaseWanted) -> list[Change]:
    missing = [name for name in dict.fromkeys(wanted.packages) if name not in present.installed]
    return [Change(f"Install {' '.join(missing)}", None, "installed", ("packages", tuple(missing)))] if missing else []


def _account_changes(present: BasePresent, wanted: BaseWanted) -> list[Change]:
    if wanted.account is None or wanted.account == present.account:
        return []
    verb = "Change" if present.account else "Create"
    old = f"{present.account.home} {present.account.shell}" if present.account else None
    return [
        Change(
            f"{verb} the user {wanted.account.name}", old, f"{wanted.account.home} {wanted.account.shell}", ("account", wanted.account, bool(present.account))
        )
    ]


def _digest(text: str | None) -> str | None:
    return None if text is None else f"SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"
