# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of the recordings is replayed where, and by name what is not, each with its reason."""

from __future__ import annotations

from typing import Any

# Kinds replayed without containers: a driver that only remembers who runs, a temporary folder as the node's root.
CONFIGURATION = ("config", "config-running", "locks", "pvesh", "info", "protocol", "create", "lifecycle")
# Kinds replayed with real LXC on a sandbox node.
REAL = ("fixture", "create", "config", "config-running", "lifecycle", "exec", "pushpull", "pvesh", "locks", "info",
        "protocol")  # fmt: skip

NO_FRONT = "HTTP server, logins and API tokens: the https front is not part of the stand-in yet"
NOT_CALLED = "the collection calls nothing of it"
LEFT_OUT: dict[str, str] = {
    "access-login": NO_FRONT,
    "access-unauth": NO_FRONT,
    "access-permission-403": NO_FRONT,
    "access-token-privsep": NO_FRONT,
    "proxmoxer-https-ticket": NO_FRONT,
    "proxmoxer-local": "a Python client over pvesh; its answers are those of the pvesh scenarios",
    "storage-upload": NOT_CALLED + " (multipart upload)",
    "storage-download-url": NOT_CALLED + " (templates come by aplinfo)",
    "protocol-task-stop": NOT_CALLED + " (stopping a task, shutdown of a guest that ignores it)",
    "life-snapshot-clone-resize-misc": NOT_CALLED + " (snapshots, clones, resize, migrate, fsck, mount)",
}
# Replayed without containers only.
LEFT_OUT_ON_NODE: dict[str, str] = {
    "lock-flock-held": "waits 10 s six times for a lock; the same code is replayed without containers",
    "running-hotplug-error-refuses-all": "the refusals are those of the recording environment; a sandbox node does hotplug",
}

ON_NODE, INLINE = "on a node", "without containers"
NEEDS_CONTAINER = "needs a running container; replayed on a node"


def skipped(steps: list[dict[str, Any]], lane: str) -> dict[int, str]:
    """Return the steps that are not played in a lane, with the reason."""
    found = {}
    for step in steps:
        argv, path = step["request"].get("argv") or [], step["request"].get("path") or ""
        if lane == INLINE and argv[:1] == ["pct"] and argv[1:2] and argv[1] in ("exec", "push", "pull"):
            found[step["step"]] = NEEDS_CONTAINER
        elif "/access/" in path:
            found[step["step"]] = NO_FRONT
        elif step["response"].get("body") is None and step["response"].get("body_text") is not None:
            found[step["step"]] = "an answer of the HTTP server itself, not of the API"
    return found
