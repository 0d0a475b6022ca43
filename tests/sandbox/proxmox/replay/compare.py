# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recorded answer against ours: what varies is masked on both sides as the recording's ``normalise`` list says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

PATTERNS = {
    "mac": r"(?i)\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b",
    # Made from the hardware address; the recordings do not mask it everywhere.
    "link_local": r"\bfe80::[0-9a-f:]+",
    "upid": r"UPID:[^:\s]+:[0-9A-F]{8}:[0-9A-F]{8,9}:[0-9A-F]{8}:",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "sha1": r"\b[0-9a-f]{40}\b",
    # A time pattern would bite into addresses: whole addresses go first.
    "time": r"(?i)\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b|\b\d{1,2}:\d{2}(?::\d{2})?\b",
    "bytes_rate": r"Total bytes read: .*",
    "ssh_fingerprint": r"(?:Creating SSH host key|done: SHA256).*",
    "listing_time": r"\b[A-Z][a-z]{2} [ \d]\d \d{2}:\d{2}\b",
    "line_number": r"(?:attach\.c: \w+: \d+|line \d+)",
}
# Lines of a task's text that come from mkfs and tar; the stand-in makes no file system.
FOREIGN = re.compile(r"(?:Formatting |Creating filesystem|Filesystem UUID|Superblock backups|\t\d+|kpro stand-in: )")
MASK = "<masked>"


def _walk(holder: Any, path: list[str], change: Callable[[Any], Any]) -> None:
    """Replace what ``path`` names (``a.b[].c``) by ``change`` of it, wherever it exists."""
    head, *rest = path
    many = head.endswith("[]")
    key = head.removesuffix("[]")
    if isinstance(holder, list):
        for item in holder:
            _walk(item, path, change)
        return
    if not isinstance(holder, dict) or key not in holder:
        return
    if many and rest:
        for item in holder[key] or []:
            _walk(item, rest, change)
    elif rest:
        _walk(holder[key], rest, change)
    else:
        holder[key] = change(holder[key])


def _sub(pattern: str) -> Callable[[Any], Any]:
    compiled = re.compile(pattern)

    def change(value: Any) -> Any:
        if isinstance(value, str):
            return compiled.sub(MASK, value)
        if isinstance(value, dict):
            return {key: change(item) for key, item in value.items()}
        return [change(item) for item in value] if isinstance(value, list) else value

    return change


def _unordered(value: Any) -> Any:
    return sorted(value, key=lambda item: json.dumps(item, sort_keys=True)) if isinstance(value, list) else value


RULES: dict[str, Callable[[Any], Any]] = {
    "nonzero_only": lambda value: "nonzero" if value else value,
    "unordered": _unordered,
    "unordered_list": lambda value: ",".join(sorted(value.split(","))) if isinstance(value, str) else value,
    **{name: _sub(pattern) for name, pattern in PATTERNS.items()},
}


def masked(answer: dict[str, Any], normalise: list[str]) -> dict[str, Any]:
    """Return a copy of an answer with all that varies replaced."""
    whole: dict[str, Any] = {"response": json.loads(json.dumps(answer))}
    for entry in normalise:
        path, _tilde, rule = entry.partition("~")
        if not path.startswith("response"):
            continue
        if rule == "host_specific":
            _last_line_only(whole)
            continue
        if rule in ("other_rows_allowed", "other_ids_allowed"):
            continue  # compared by ``rows`` below
        change = RULES[rule] if rule else (lambda _value: MASK)
        _walk(whole, path.split("."), change)
    result: dict[str, Any] = RULES["link_local"](whole["response"])
    if isinstance(result.get("stdout"), str):
        # "ls -l" is no call of Proxmox; the recordings do not mask its times.
        result["stdout"] = re.sub(PATTERNS["listing_time"], MASK, result["stdout"])
    return result


def _last_line_only(whole: dict[str, Any]) -> None:
    """Of a task's log only the result is common to all hosts."""
    body = whole["response"].get("body")
    if isinstance(body, dict) and isinstance(body.get("data"), list) and body["data"]:
        body["data"] = [{"t": body["data"][-1]["t"]}]
        body.pop("total", None)


def _text(value: Any) -> Any:
    """Return command output comparable: JSON as data, without the lines of programs that the stand-in doesn't run."""
    if not isinstance(value, str):
        return value
    try:
        data = json.loads(value)
    except ValueError:
        lines = [line for line in value.split("\n") if not FOREIGN.match(line)]
        keys = sorted(line for line in lines if line == MASK)
        return [line for line in lines if line != MASK], len(keys)
    return _unordered(data) if isinstance(data, list) and data and isinstance(data[0], dict) and "key" in data[0] else data


def _rows_of_guests(answer: dict[str, Any]) -> Any:
    """Return a body; a list of guests in the order of their numbers, without the one that only the recording had."""
    body = answer.get("body")
    rows = body.get("data") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(rows, list):
        return body
    if not all(isinstance(row, dict) and row.keys() & {"volid", "cpus"} for row in rows):
        return body
    return {**body, "data": sorted((row for row in rows if row.get("vmid") != 101), key=lambda row: str(row.get("vmid")))}


def _rows(value: str) -> set[str]:
    return {" ".join(line.split()) for line in value.splitlines() if line.strip()}


def differences(recorded: dict[str, Any], ours: dict[str, Any], normalise: list[str]) -> list[str]:
    """Return one sentence for each part of the answer that is not the recorded one."""
    want, have = masked(recorded, normalise), masked(ours, normalise)
    found = []
    subset = any(entry.endswith(("other_rows_allowed", "other_ids_allowed")) for entry in normalise)
    for part in ("http_status", "rc", "exists", "content"):
        if part in want and want[part] != have.get(part):
            found.append(f"{part}: recorded {want[part]!r}, ours {have.get(part)!r}")
    if want.get("body_text"):
        found.append(f"body: recorded text {_short(want['body_text'])}, ours {_short(have.get('body'))}")
    elif "body" in want and want["body"] is not None and _rows_of_guests(want) != _rows_of_guests(have):
        found.append(f"body: recorded {_short(want['body'])}, ours {_short(have.get('body'))}")
    for part in ("stdout", "stderr"):
        if want.get(part) is None:
            continue
        if subset and part == "stdout":
            missing = _rows(want[part]) - _rows(have.get(part) or "")
            known = {row for row in missing if not _is_foreign_row(row)}
            if known:
                found.append(f"stdout: rows {sorted(known)} are missing in {have.get(part)!r}")
        elif _text(want[part]) != _text(have.get(part)):
            found.append(f"{part}: recorded {_short(want[part])}, ours {_short(have.get(part))}")
    for part in ("stdout_b64", "stderr_b64"):
        if part in want and want[part] != have.get(part):
            found.append(f"{part}: recorded {_short(want[part])}, ours {_short(have.get(part))}")
    return found


def _is_foreign_row(row: str) -> bool:
    """Tell whether a row is about the container that stood on the recording node beside the fixtures, or its disk."""
    return row.startswith(("101", "local:101", "local dir"))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return repr(text if len(text) < 1500 else text[:1500] + "...")
