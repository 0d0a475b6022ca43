# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Proxmox's answers mean: error texts, task names, exit states.

Exit codes and HTTP states carry no class (everything domain-like is 500, the CLI leaks errno), so the text decides;
all texts are from recorded exchanges.
"""

from __future__ import annotations

import dataclasses
import re

UPID = re.compile(r"UPID:(?P<node>[^:\s]+):[0-9A-F]{8}:[0-9A-F]{8,9}:[0-9A-F]{8}:(?P<type>[^:\s]+):(?P<id>[^:\s]*):(?P<user>[^:\s]+):")
LOCKED = re.compile(r"CT is locked \((?P<lock>[\w-]+)\)")
NO_DEVICE = re.compile(r"Device (?P<path>\S+) does not exist|(?P<other>/dev/\S+) is not a device")


@dataclasses.dataclass(frozen=True)
class TaskEnd:
    """How a task ended; ``exitstatus`` is empty while it runs."""

    upid: str
    exitstatus: str

    @property
    def running(self) -> bool:
        """True while the task has not ended."""
        return not self.exitstatus

    @property
    def good(self) -> bool:
        """True for ``OK`` and ``WARNINGS: n``: warnings (a guest without nesting) are a success."""
        return self.exitstatus == "OK" or self.exitstatus.startswith("WARNINGS:")


def find_upid(text: str) -> str:
    """Return the last task name in a text, empty if there is none."""
    found = list(UPID.finditer(text))
    return found[-1].group(0) if found else ""


def upid_node(upid: str) -> str:
    """Return the node on which a task runs."""
    match = UPID.match(upid)
    return match["node"] if match else ""


def is_lock_timeout(text: str) -> bool:
    """Tell whether the configuration was busy for longer than Proxmox waits (10 s): worth another try."""
    return "can't lock file" in text and "got timeout" in text


def is_missing(text: str) -> bool:
    """Tell whether the container does not exist on the node that was asked."""
    return bool(re.search(r"Configuration file '\S+' does not exist", text))


def is_changed_elsewhere(text: str) -> bool:
    """Tell whether somebody else changed the configuration since it was read (digest mismatch)."""
    return "detected modified configuration" in text


def is_hotplug_refusal(text: str) -> bool:
    """Tell whether a running container refused a change; nothing was written then."""
    return "unable to hotplug" in text


def lock_name(text: str) -> str:
    """Return the lock that an error text names, empty if it names none."""
    match = LOCKED.search(text)
    return match["lock"] if match else ""


def missing_device(text: str) -> str:
    """Return the device node that an error text misses; the change was written in spite of the error."""
    match = NO_DEVICE.search(text)
    return (match["path"] or match["other"]) if match else ""


def message_of(stderr: str) -> str:
    """Return the reason in what a Proxmox program wrote to standard error, without usage and progress lines."""
    lines = [line.strip() for line in stderr.splitlines()]
    noise = ("trying to acquire lock", "pvesh ", "USAGE:", "OK")
    kept = [line for line in lines if line and not line.startswith(noise)]
    if kept and kept[0] == "400 Parameter verification failed.":
        kept = kept[1:] or kept
    return "; ".join(kept)
