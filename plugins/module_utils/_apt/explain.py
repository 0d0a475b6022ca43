# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why apt could not install what is needed, in one sentence, and what to do about it.

The cause decides, not a word anywhere in the text: apt calls each source that it could not fetch "not signed".
"""

from __future__ import annotations

import dataclasses
import re
import typing as t
import urllib.parse

_WIDTH = 600
_TOLD = 3
_FETCH = re.compile(r"^[EW]: Failed to fetch (?P<uri>\S+)\s+(?P<words>.*)$", re.MULTILINE)
_NO_RELEASE = re.compile(r"^[EW]: The repository '(?P<uri>\S+) (?P<suite>\S+) Release' (?:does not have|no longer has) a Release file", re.MULTILINE)
_DATED = re.compile(r"^[EW]: Release file for (?P<uri>\S+) is (?P<kind>expired|not valid yet) \(invalid (?:since|for another) (?P<span>[^)]+)\)", re.MULTILINE)
_SIGNATURE = re.compile(
    r"(?:GPG error|OpenPGP signature verification failed): (?P<uri>\S+) (?P<suite>\S+) \S+: "
    r"(?:Sub-process \S+ returned an error code \(\d+\), error message is: )?(?P<words>.*)$",
    re.MULTILINE,
)
_IS_SIGNATURE = re.compile(
    r"NO_PUBKEY|EXPKEYSIG|REVKEYSIG|BADSIG|Sub-process \S*sqv|signatures couldn't be verified|signatures were invalid|not bound|at least one invalid signature"
)
_LOCK = re.compile(r"^(?:E: |Waiting for cache lock: )(?:Could not get lock (?P<path>\S+?)\.?(?: |$)|Unable to (?:lock|acquire)[^\n]*)", re.MULTILINE)
_HOLDER = re.compile(r"held by process (?P<pid>\d+)(?: \((?P<name>[^)]*)\))?")
_MALFORMED = re.compile(r"^E: (?P<words>(?:Malformed (?:entry|line|stanza)|Type '.*' is not known on)[^\n]*?(?P<file>/\S+)[^\n]*)$", re.MULTILINE)
_UNMET = re.compile(r"^ ?(?P<words>\S+ : (?:(?:Pre-?)?Depends|Conflicts|Breaks|Recommends): .*)$", re.MULTILINE)
_MISSING = re.compile(
    r"^E: (?:Unable to locate package (?P<name>\S+)|Package '(?P<other>[^']+)' has no installation candidate"
    r"|Version '[^']*' for '(?P<third>[^']+)' was not found)",
    re.MULTILINE,
)
_FULL = re.compile(r"No space left on device|You don't have enough free space in (?P<path>\S+?)[.]?$|Disk quota exceeded", re.MULTILINE)
_PACKAGE_FAILED = re.compile(r"dpkg: error processing (?:package|archive) (?P<name>\S+) \([^)]*\):\n\s*(?P<words>.*)")
_STATUS = re.compile(r"(?P<code>[1-5]\d\d)  ?(?P<words>\S.*?)(?: \[IP: [^\]]*\])?$")
_PROXMOX = ("proxmox", "pve", "ceph")


# Name and password in an address are nobody's to read.
_LOGIN = re.compile(r"//[^/@\s]+@")


@dataclasses.dataclass(frozen=True)
class SourceFailure:
    """A source of packages that apt could not use.

    :param uri: its address, without the file that was asked for.
    :param kind: "login", "missing", "refused", "network", "name", "tls", "signature", "expired", "early", "space", "other".
    :param words: what apt says about it.
    :param file: the file that names the source, if that is known.
    """

    uri: str
    kind: str
    words: str
    file: str = ""

    @property
    def sentence(self) -> str:
        """Source and status."""
        return _LOGIN.sub("//", f"{self.uri}{f' ({self.file})' if self.file else ''}: {self.words}")

    @property
    def enterprise(self) -> bool:
        """Say whether it is one that Proxmox gives to its subscribers only."""
        parts = urllib.parse.urlsplit(self.uri)
        text = f"{parts.path} {self.file}".lower()
        return (
            (parts.hostname or "").startswith("enterprise.proxmox.")
            or "enterprise" in text
            or re.search(r"/(?:pve|ceph[\w-]*|pbs)(?:/|\s|$)|/ceph\.", text) is not None
        )


@dataclasses.dataclass(frozen=True)
class AptProblem:
    """``kind`` for programs, the telling line, and what to do."""

    kind: str
    reason: str
    remedy: str


def source_failures(output: str, files: t.Mapping[str, str] | None = None) -> list[SourceFailure]:
    """Return the sources that an update could not use, each once.

    :param files: the file that names a source, by address.
    """
    found: dict[str, SourceFailure] = {}

    def note(uri: str, kind: str, words: str) -> None:
        address = _source_of(uri)
        known = next((name for name in sorted(files or {}, key=len, reverse=True) if address.startswith(name.rstrip("/"))), "")
        found.setdefault(known or address, SourceFailure(known or address, kind, words, (files or {}).get(known, "")))

    for match in _SIGNATURE.finditer(output):
        note(match["uri"], "signature", match["words"].strip())
    for match in _DATED.finditer(output):
        kind = "expired" if match["kind"] == "expired" else "early"
        note(match["uri"], kind, f"its Release file is {match['kind']} ({match['span']})")
    for match in _FETCH.finditer(output):
        if not match["uri"].endswith(".deb"):
            note(match["uri"], *_judged(match["words"]))
    for match in _NO_RELEASE.finditer(output):
        note(match["uri"], "missing", f"it has no {match['suite']} (404 or empty)")
    return list(found.values())


def source_uris(text: str) -> list[str]:
    """Return the addresses that a file of sources names, in either format; what is switched off is left out."""
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        fields = re.findall(r"^(?P<name>[A-Za-z-]+):[ \t]*(?P<value>.*(?:\n[ \t]+.*)*)", paragraph, re.MULTILINE)
        values = {name.lower(): value for name, value in fields}
        if values.get("enabled", "yes").strip().lower() not in ("no", "false", "0", "off", "without", "disable"):
            found += values.get("uris", "").split()
    found += [match[1] for match in re.finditer(r"^\s*deb(?:-src)?\s+(?:\[[^\]]*\]\s+)?(\S+)", text, re.MULTILINE)]
    return list(dict.fromkeys(found))


def explain(output: str, update: str = "", files: t.Mapping[str, str] | None = None, packages: t.Sequence[str] = ()) -> AptProblem:
    """Return why packages could not be installed.

    :param output: what the installation said; ``update``: what the update before it said, as it may have failed in part.
    :param files: the file that names a source, by address.
    :param packages: those that were asked for.
    """
    both = f"{update}\n{output}"
    for judge in (_interrupted, _locked, _malformed, _full):
        if problem := judge(both):
            return problem
    failures = source_failures(both, files)
    if match := _PACKAGE_FAILED.search(output):
        return _package_failed(output, match)
    if "Held packages were changed" in output:
        return _held(output)
    if unmet := [match["words"].strip() for match in _UNMET.finditer(output)]:
        return _unmet(unmet, failures)
    if missing := list(_MISSING.finditer(output)):
        return _not_offered(missing, failures)
    fetch = next((match for match in _FETCH.finditer(output) if match["uri"].endswith(".deb")), None)
    if fetch:
        return _not_fetched(fetch)
    if failures:
        return AptProblem("sources", _bounded("; ".join(each.sentence for each in failures[:_TOLD])), _ways_out(failures, any_proxmox(packages)))
    lines = re.findall(r"^(?:E: |dpkg: error|dpkg: unrecoverable).*$", both, re.MULTILINE) or [line for line in both.splitlines() if line.strip()][-_TOLD:]
    return AptProblem("other", _bounded(" / ".join(line.strip() for line in lines[-_TOLD:]) or "it failed without a message"), "")


def is_locked(output: str) -> bool:
    """Say whether apt gave up because another program holds one of its locks: waiting may help."""
    return _LOCK.search(output) is not None


def any_proxmox(packages: t.Iterable[str]) -> bool:
    """Say whether one of the packages comes from Proxmox."""
    return any(name.startswith(("proxmox-", "pve-")) for name in packages)


def _judged(words: str) -> tuple[str, str]:
    """Return the kind of a failed fetch, and its words without the address that answered."""
    status = _STATUS.match(words.strip())
    if status:
        code = status["code"]
        kind = {"401": "login", "402": "login", "403": "refused", "404": "missing", "407": "proxy", "410": "missing"}.get(code, "other")
        return kind, f"{code} {status['words']}"
    plain = re.sub(r" \[IP: [^\]]*\]$", "", words.strip())
    kinds = (
        (_IS_SIGNATURE.pattern, "signature"),
        (r"No space left|quota exceeded", "space"),
        (r"Could not resolve|Temporary failure resolving|Something wicked happened resolving|No address associated", "name"),
        (r"[Cc]ertificate|handshake|SSL|TLS|OCSP", "tls"),
        (r"[Cc]ould not connect|Unable to connect|Cannot initiate|timed out|Connection (?:failed|reset|timed)|unreachable|No route", "network"),
        (r"Hash Sum mismatch|unexpected size|File has unexpected", "changing"),
    )
    return next((kind for pattern, kind in kinds if re.search(pattern, plain)), "other"), plain


def _source_of(uri: str) -> str:
    """Return the address of a source out of the address of one of its files."""
    return re.sub(r"/(?:dists/.*|\./[^/]*|(?:In)?Release(?:\.gpg)?|Packages[^/]*)$", "", uri).rstrip("/")


def _interrupted(text: str) -> AptProblem | None:
    if "dpkg was interrupted" not in text and "--configure -a" not in text:
        return None
    return AptProblem("interrupted", "dpkg was interrupted earlier and left packages half done", "Run dpkg --configure -a there, then run again")


def _locked(text: str) -> AptProblem | None:
    match = _LOCK.search(text)
    if not match:
        return None
    holder = _HOLDER.search(text)
    path = next((each["path"] for each in _LOCK.finditer(text) if each["path"]), "")
    named = "another program"
    if holder:
        named = f"process {holder['pid']} ({holder['name']})" if holder["name"] else f"process {holder['pid']}"
    also = ": those are the automatic upgrades" if holder and "unattended" in (holder["name"] or "") else ""
    wait = f"Wait until {named} has ended{also}" if holder else "Look who it is (fuser -v /var/lib/dpkg/lock-frontend /var/lib/apt/lists/lock)"
    return AptProblem("locked", f"{named} holds the lock{f' {path}' if path else ''} of apt", f"{wait}, then run again")


def _malformed(text: str) -> AptProblem | None:
    match = _MALFORMED.search(text)
    if not match:
        return None
    return AptProblem(
        "malformed", _bounded(match["words"]), f"Correct {match['file'].rstrip('.,')}, or move it out of the way; until then apt can do nothing at all"
    )


def _full(text: str) -> AptProblem | None:
    match = _FULL.search(text)
    if not match:
        return None
    line = next(line for line in text.splitlines() if match[0].splitlines()[0] in line).strip()
    where = match["path"] or "the file system of /var (apt-get clean frees what was downloaded)"
    return AptProblem("space", _bounded(re.sub(r"^[EW]: ", "", line)), f"Free space on {where}, then run again")


def _package_failed(output: str, match: re.Match[str]) -> AptProblem:
    before = [line.strip() for line in output[: match.start()].splitlines() if line.strip()][-1:]
    said = f" ({before[0]})" if before and not before[0].startswith(("Setting up", "Unpacking", "Preparing")) else ""
    remedy = f"Mend {match['name']} first (dpkg --configure {match['name']} shows what fails), then run again"
    return AptProblem("package", _bounded(f"{match['name']}: {match['words'].strip()}{said}"), remedy)


def _held(output: str) -> AptProblem:
    match = re.search(r"The following held packages will be changed:\n(?P<names>(?: .*\n)+)", output)
    names = " ".join(match["names"].split()) if match else ""
    return AptProblem(
        "held", f"the packages {names or 'on hold'} are held, and would have to change", f"Look why (apt-mark showhold), then apt-mark unhold {names}".rstrip()
    )


def _unmet(lines: t.Sequence[str], failures: t.Sequence[SourceFailure]) -> AptProblem:
    reason = f"its packages do not fit together: {'; '.join(dict.fromkeys(lines[:_TOLD]))}"
    if failures:
        return AptProblem(
            "unmet", _bounded(f"{reason}. These sources failed: {'; '.join(each.sentence for each in failures[:_TOLD])}"), _ways_out(failures, False)
        )
    remedy = (
        "Finish the system's upgrade (apt-get dist-upgrade; are all sources of one release?), and look for held packages (apt-mark showhold), then run again"
    )
    return AptProblem("unmet", _bounded(reason), remedy)


def _not_offered(missing: t.Sequence[re.Match[str]], failures: t.Sequence[SourceFailure]) -> AptProblem:
    names = [next(name for name in match.groups() if name) for match in missing]
    lines = list(dict.fromkeys(match[0] for match in missing))
    reason = f"{'; '.join(lines[:_TOLD])}{f' and {len(lines) - _TOLD} more' if len(lines) > _TOLD else ''}"
    if failures:
        failed = "; ".join(each.sentence for each in failures[:_TOLD])
        return AptProblem("not_offered", _bounded(f"{reason}. These sources failed: {failed}"), _ways_out(failures, any_proxmox(names)))
    remedy = "Enable the sources that have it, and check network and name server, then run again"
    if any_proxmox(names):
        remedy = "Enable a Proxmox package repository (pve-no-subscription or enterprise)"
    return AptProblem("not_offered", _bounded(reason), remedy)


def _not_fetched(match: re.Match[str]) -> AptProblem:
    kind, words = _judged(match["words"])
    remedy = _REMEDIES.get(kind, _REMEDIES["network"])
    if kind == "missing":
        remedy = "The lists are older than the mirror, or the mirror is not complete: run again, or choose another mirror"
    return AptProblem(f"fetch_{kind}", _bounded(f"{match['uri']}: {words}"), remedy)


_REMEDIES: t.Mapping[str, str] = {
    "login": "Correct the login of that source (/etc/apt/auth.conf.d), or switch the source off (Enabled: no)",
    "refused": "The server refuses this machine: look at its proxy and address, or switch the source off (Enabled: no)",
    "proxy": "The proxy asks for a login: correct Acquire::http::Proxy of apt",
    "missing": "Correct the address or the suite of that source (does the mirror still have this release?), or switch it off (Enabled: no)",
    "name": "Correct the name server (/etc/resolv.conf) or the source's address, then run again",
    "network": "Check network, gateway and proxy of the machine (curl -I that address), then run again",
    "tls": "Trust the server's certificate authority (a company's proxy has one of its own), or correct clock or address, then run again",
    "signature": "The source is signed by a key that it does not name: take the key from its owner (Signed-By), or switch it off (Enabled: no)",
    "expired": "Set the clock (timedatectl) if it is wrong; otherwise the mirror is stale: choose another one",
    "early": "Set the clock (timedatectl): it is behind",
    "space": "Free space on the file system of /var, then run again",
    "changing": "The mirror is just changing, or a proxy keeps old files: run again later",
    "other": "Correct that source, or switch it off (Enabled: no), then run again",
}
ENTERPRISE = (
    "It is for subscribers: disable it (Enabled: no in pve-enterprise.sources and ceph.sources), or enter a subscription key; "
    "without a subscription, enable pve-no-subscription"
)


def _ways_out(failures: t.Sequence[SourceFailure], needs_proxmox: bool) -> str:
    """Return a remedy for each kind of failure; a source of Proxmox that asks for a login wants a subscription."""
    remedies = []
    for each in failures:
        subscription = each.kind in ("login", "refused") and (each.enterprise or (needs_proxmox and each.kind == "login"))
        remedies.append(ENTERPRISE if subscription else _REMEDIES.get(each.kind, _REMEDIES["other"]))
    return ". ".join(dict.fromkeys(remedies[:_TOLD]))


def _bounded(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _WIDTH else f"{plain[:_WIDTH]} ..."
