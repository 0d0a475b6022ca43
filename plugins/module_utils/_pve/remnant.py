# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The remains of an interrupted creation or removal of a container, and their owner. Pure.

A creation writes ``lock: create`` first and everything else last; a removal writes ``lock: destroyed`` last but one. In between
there is nothing in the configuration that tells whose the container was to be, so only the record of the call can.
"""

from __future__ import annotations

import dataclasses
import time
import typing as t

from .._core.errors import KproError
from .call_record import Record
from .config import Config

# Lock of a half-made (or half-removed) container -> the work that leaves it, and the type of its task.
WORKS = {"create": ("create", "vzcreate"), "destroyed": ("destroy", "vzdestroy")}
MAKES_OR_REMOVES = frozenset({"vzcreate", "vzrestore", "vzdestroy", "vzclone", "vzmigrate"})
CLOCK_S = 2.0


@dataclasses.dataclass(frozen=True)
class Remnant:
    """The remains of a container.

    :param volumes: its volumes: ours to remove if it is ours, else all of the id.
    :param mounts: where its root file system is still mounted on the node, the innermost first.
    :param began_s: when the work that left it was begun, as our record says; 0 if it is not ours.
    :param doubt: why it is not taken for ours; empty if it is.
    """

    vmid: int
    node: str
    lock: str
    volumes: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    began_s: float = 0.0
    doubt: str = ""

    @property
    def ours(self) -> bool:
        """True if the record of one of our calls shows that it was left by it."""
        return not self.doubt

    @property
    def sentence(self) -> str:
        """The removal, as a step of a plan."""
        noun = "creation" if self.lock == "create" else "removal"
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.began_s))
        return f"Remove what a {noun} of container {self.vmid} left that was cut off (begun by us {began}): {', '.join(['its lock', *self.volumes])}"


def is_half(config: Config, lock: str) -> bool:
    """Tell whether a configuration is no more than the mark of a creation or removal."""
    return lock in WORKS and set(config.keys) <= {"lock"} and not config.raw


def doubt_of(record: Record | None, vmid: int, node: str, lock: str, history: t.Sequence[t.Mapping[str, t.Any]], written_s: float) -> str:
    """Return why a remnant is not proven to be ours; empty if it is.

    :param history: the guest's tasks on this node, those that run too.
    :param written_s: when the configuration was written last, seconds since the epoch.
    """
    kind, task = WORKS[lock]
    noun = "creation" if kind == "create" else "removal"
    if record is None or record.kind != kind or record.vmid != vmid or record.node != node or record.ended:
        return f"this node has no record of a {noun} that we began and that did not end"
    if written_s < record.began_s - CLOCK_S:
        return f"it is older than the {noun} that we have a record of"
    later = [row for row in history if row.get("type") in MAKES_OR_REMOVES and int(row.get("starttime") or 0) >= int(record.began_s)]
    if record.upid:
        others = [row for row in later if row.get("upid") != record.upid]
    else:
        # Cut off before the name of its task was known: the one that began then, if any.
        others = [row for row in later if row.get("type") != task or row.get("user") != "root@pam"] or later[1:]
    if others:
        return f"task {others[0].get('upid')} worked on this id after the {noun} that we have a record of"
    return ""


def volumes_left(record: Record, volumes: t.Sequence[str]) -> tuple[str, ...]:
    """Return which of an id's present volumes the recorded work made, or was to remove."""
    before = record.details.get("volumes", ())
    made = record.kind == "create"
    return tuple(volume for volume in volumes if (volume in before) != made)


def refusal(remnant: Remnant) -> KproError:
    """Return the error about a remnant that is not proven to be ours, with the commands that remove it."""
    noun = "creation" if remnant.lock == "create" else "removal"
    found = f"this also removes {', '.join(remnant.volumes)}, so look at them first" if remnant.volumes else "there are no volumes of this id"
    steps = [*(f"'umount {place}'" for place in remnant.mounts), f"'pct unlock {remnant.vmid}'"]
    return KproError(
        f"container {remnant.vmid} on {remnant.node}",
        f"a {noun} was cut off: the configuration says no more than 'lock: {remnant.lock}', and no task works on it; it is left alone, because {remnant.doubt}",
        f"If nobody needs it, on {remnant.node}: {', '.join(steps)}, then "
        f"'pct destroy {remnant.vmid} --purge 1 --destroy-unreferenced-disks 1' ({found}); then run again",
    )
