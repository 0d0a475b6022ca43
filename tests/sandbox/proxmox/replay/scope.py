# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of the recordings is replayed where, and by name what is not, each with its reason."""

from __future__ import annotations

from typing import Any

ON_NODE, INLINE, OVER_HTTPS = "on a node", "without containers", "through the https front"
# Kinds replayed without containers: a driver that only remembers who runs, a temporary folder as the node's root.
KINDS = {
    INLINE: ("config", "config-running", "locks", "pvesh", "info", "protocol", "create", "lifecycle"),
    OVER_HTTPS: ("access", "proxmoxer"),
    ON_NODE: ("fixture", "create", "config", "config-running", "lifecycle", "exec", "pushpull", "pvesh", "locks", "info"),
}

NO_FRONT = "logins are replayed through the https front"
NOT_CALLED = "the collection calls nothing of it"
LEFT_OUT: dict[str, str] = {
    "proxmoxer-local": "a Python client over pvesh; its answers are those of the pvesh scenarios",
    "storage-upload": f"{NOT_CALLED} (multipart upload)",
    "storage-download-url": f"{NOT_CALLED} (templates come by aplinfo)",
    "protocol-task-stop": f"{NOT_CALLED} (stopping a task, shutdown of a guest that ignores it)",
}
# Replayed without containers only.
LEFT_OUT_ON_NODE: dict[str, str] = {
    "lock-flock-held": "waits 10 s six times for a lock; the same code is replayed without containers",
    "create-start-while-creating": "a start waits 10 s for the creation, which a busy machine exceeds; replayed without containers",
    "running-hotplug-error-refuses-all": "the refusals are those of the recording environment; a sandbox node does hotplug",
}

NEEDS_CONTAINER = "needs a running container; replayed on a node"
NO_RUNTIME = "what LXC refuses can't be known without it; replayed on a node"
ORPHAN = "the recording environment left this task RUNNING for good, which its notes forbid to imitate"
HISTORY = "counts all tasks of the recording node's past"
NO_MKFS = "counts or shows lines of mkfs; a volume of the stand-in is a folder"
USAGE = "the usage text lists only the commands that the stand-in has"
OTHER_TEMPLATE = "size or time of the recording's template file"
ORDER = "shows what an earlier scenario had left on the recording node"

# Scenario -> steps -> reason: played, and held to be different (a step that became equal fails the test).
DIFFERENT: dict[str, dict[str, dict[tuple[int, ...], str]]] = {
    "both": {
        "create-bind-missing": {(6,): ORDER},
        "create-start-separate-task": {(4, 5, 6): ORPHAN},
        "create-start-separate-task-fails": {(4,): ORPHAN},
        "life-rest-cycle": {(26, 27, 28): f"{NOT_CALLED} (resume)"},
        "life-interfaces": {(5, 6, 7, 8, 9): f"{NOT_CALLED} (feature, rrddata, firewall, snapshot)"},
        "life-token-cycle": {(12,): HISTORY},
        "life-snapshot-clone-resize-misc": {
            (2, 3, 4, 5): f"{NOT_CALLED} (snapshots)",
            (11, 12): f"{NOT_CALLED} (pct resize; the API's resize is replayed)",
            (14, 15, 16, 17, 18, 19, 20): f"{NOT_CALLED} (clones)",
            (24, 25, 26, 27, 28, 29): f"{NOT_CALLED} (rescan, df, fsck, mount)",
        },
        "pvesh-get": {(19,): OTHER_TEMPLATE, (20, 21, 23): f"{NOT_CALLED} (pvesh ls and usage, bare tables)"},
        "info-version-nodes": {(5, 6, 7, 9): f"{NOT_CALLED} (index, time, network, options)"},
        "info-cli-tools": {(10, 18, 19, 20, 23): USAGE},
    },
    INLINE: {
        "create-pct": {(1,): "the template in memory has no SSH server, hence no key lines"},
        "pvesh-create-delete": {(1,): "the template in memory has no SSH server, hence no key lines"},
        "life-raw-mount-missing-source": {(11, 12, 13): NO_RUNTIME},
        "life-interfaces": {(1, 4): NEEDS_CONTAINER},
        "protocol-paths": {(6, 7): f"{NOT_CALLED} (index)", (12, 13): f"{NOT_CALLED} (the form for browsers)"},
        "protocol-params": {(10,): "a raw HTTP body"},
        "protocol-tasks": {(1, 2, 3, 8): HISTORY, (7,): f"{NOT_CALLED} (stopping a task)"},
        "protocol-task-log-paging": {(4, 5, 6): NO_MKFS, (10, 11): f"{NOT_CALLED} (stopping a task, index)"},
    },
    OVER_HTTPS: {
        "access-login": {(1, 2, 9): "the answer also lists what the web interface may show (cap), which no client here reads"},
        "access-token-privsep": {(16,): ORDER},
    },
    ON_NODE: {
        "info-storage": {(11, 12, 16): OTHER_TEMPLATE},
        "info-cli-tools": {(3, 4, 12): OTHER_TEMPLATE},
    },
}


ADMINISTRATION = "users, tokens, roles and ACLs are made by the administrator, not by the collection"
NO_ROLE = "rights of a user without any role; the collection logs in as root@pam or with a token"
# Steps that are not played over https, because the stand-in's logins come from a file and know no roles.
NOT_OVER_HTTPS: dict[str, dict[tuple[int, ...], str]] = {
    "access-permission-403": {(1, 17, 27, 28): ADMINISTRATION, (*range(3, 17), 24, 26): NO_ROLE},
    "access-token-privsep": {(1, 2, 26, 27): ADMINISTRATION},
}


def different(scenario: str, lane: str) -> dict[int, str]:
    """Return the steps of a scenario whose answer is known to differ, with the reason."""
    found = {}
    for part in ("both", lane):
        for steps, reason in DIFFERENT[part].get(scenario, {}).items():
            found.update(dict.fromkeys(steps, reason))
    return found


def is_left_out(scenario: str, lane: str) -> bool:
    """Tell whether a scenario is not replayed in a lane."""
    return scenario in LEFT_OUT or (lane == ON_NODE and scenario in LEFT_OUT_ON_NODE)


def skipped(steps: list[dict[str, Any]], lane: str) -> dict[int, str]:
    """Return the steps that are not played in a lane, with the reason."""
    found: dict[int, str] = {}
    if lane == OVER_HTTPS:
        for numbers, reason in NOT_OVER_HTTPS.get(steps[0]["scenario"], {}).items():
            found.update(dict.fromkeys(numbers, reason))
        return found
    for step in steps:
        argv, path = step["request"].get("argv") or [], step["request"].get("path") or ""
        if lane == INLINE and argv[:1] == ["pct"] and argv[1:2] and argv[1] in ("exec", "push", "pull"):
            found[step["step"]] = NEEDS_CONTAINER
        elif "/access/" in path:
            found[step["step"]] = NO_FRONT
        elif step["response"].get("body") is None and step["response"].get("body_text") is not None:
            found[step["step"]] = "an answer of the HTTP server itself, not of the API"
    return found
