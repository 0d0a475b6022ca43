# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The meaning of Proxmox's answers: error texts, task names, exit states.

Exit codes and HTTP states carry no class (everything domain-like is 500, the CLI leaks errno), so the text decides;
all texts are from recorded exchanges.
"""

from __future__ import annotations

import dataclasses
import re

UPID = re.compile(r"UPID:(?P<node>[^:\s]+):[0-9A-F]{8}:[0-9A-F]{8,9}:[0-9A-F]{8}:(?P<type>[^:\s]+):(?P<id>[^:\s]*):(?P<user>[^:\s]+):")
LOCKED = re.compile(r"CT is locked \((?P<lock>[\w-]+)\)")
BAD_PARAMETERS = "400 Parameter verification failed."
LOG_LINES, LINE_CHARS, REASON_CHARS = 6, 160, 400
# LXC names a cause once; each function and process above it then says that something below it failed.
ECHO = re.compile(
    r"(?:lxc_setup|do_start|sync_wait|wait_on_daemonized_start|lxc_start_main|lxc_init|__lxc_start|lxc_spawn|lxc_start): \d+ "
    r"(?:An error occurred in another process|Received container state|The container failed to start|To get more details"
    r"|Additional information|Failed to (?:setup (?:container|mount entries)|spawn container|initialize container))"
)
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


def upid_process(upid: str) -> int:
    """Return the process that runs a task, 0 if the text names none."""
    match = UPID.match(upid)
    return int(upid.split(":")[2], 16) if match else 0


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
    if BAD_PARAMETERS in kept:
        # Warnings precede it (an index that was never fetched); the parameters follow it.
        kept = kept[kept.index(BAD_PARAMETERS) + 1 :] or kept
    return "; ".join(dict.fromkeys(kept))


def condition_of(reason: str) -> tuple[str, str]:
    """Return a sentence and a remedy if a refusal is about the state of the whole node or cluster, else two empty texts."""
    if re.search(r"ipcc_send_rec\[\d+\] failed|Unable to load access control list", reason):
        told = reason.rpartition("failed: ")[2] if "failed: " in reason else reason
        return (
            f"the file system of the configuration, /etc/pve, does not answer ({told.partition(';')[0]})",
            "On the node: 'systemctl status pve-cluster' tells why pmxcfs is down, 'systemctl restart pve-cluster' starts it anew; then run again",
        )
    if "no quorum" in reason:
        return reason, "Most nodes of the cluster have to be up and see each other before anything can change ('pvecm status' on the node)"
    return "", ""


def short_log(lines: list[str], reason: str) -> str:
    """Return the end of a task's log in one bounded line, without what the reason says already; empty if nothing is left."""
    said = {reason, f"TASK ERROR: {reason}"}
    kept = [line.strip() for line in lines if line.strip() and line.strip() not in said and not line.startswith("TASK ")]
    kept = [line for line in kept if line not in reason]
    kept = [line for line in kept if not ECHO.match(line)] or kept
    shown = [line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}..." for line in kept[-LOG_LINES:]]
    return plain(" | ".join(dict.fromkeys(shown)))


def short_reason(reason: str) -> str:
    """Return a task's error as one bounded line: the end of a long one tells more than its middle."""
    one = plain("; ".join(part.strip() for part in reason.splitlines() if part.strip()))
    return one if len(one) <= REASON_CHARS else f"{one[: REASON_CHARS // 2]} ... {one[-REASON_CHARS // 2 :]}"


def plain(text: str) -> str:
    """Return a text without control characters, as it may be printed."""
    return "".join(char if char.isprintable() else "?" for char in text.replace("\t", " "))
