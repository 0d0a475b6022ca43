# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The observed container and node, before a plan is made."""

from __future__ import annotations

import dataclasses
import typing as t

from .._gpu.claims import Guest
from .._linux.mount_table import Mount
from .._pve.config import Config
from .._pve.gpu_processes import GpuProcess
from .._pve.gpus import Gpu
from .._pve.idmap import FileState
from .._pve.remnant import Remnant
from .._pve.stores import Rows


@dataclasses.dataclass(frozen=True)
class Present:
    """A container that is on this node.

    :param config: its configuration as it will be after the next start (pending changes counted).
    :param active: its configuration as it runs now.
    :param pid: process id of its init on the node, 0 if it does not run or that is not known.
    """

    config: Config
    active: Config
    running: bool = False
    lock: str = ""
    name: str = ""
    pid: int = 0


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """A guest of the cluster with the wanted id that is not a container on this node.

    :param obstacles: to its migration to this node, one sentence each.
    """

    vmid: int
    kind: str
    node: str
    name: str = ""
    running: bool = False
    obstacles: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Work:
    """A task that works on the container now, begun by an earlier run or by somebody else.

    :param words: what it does, for example ``creation of container 129``.
    :param upid: its name, empty while it has none.
    """

    words: str
    upid: str = ""


@dataclasses.dataclass(frozen=True)
class Facts:
    """One observation; what could not or need not be looked at is None.

    :param present: the container, if it is on this node.
    :param elsewhere: the guest with its id, if it is not.
    :param work: what works on the container now; what it will be is known after that only.
    :param remnant: what is left of a creation or removal that was cut off; ``present`` is None then.
    :param login: who asks, if lists may be filtered by what they may see; empty for root@pam.
    :param gpus: the node's GPUs; None if they are not known yet (check mode before the driver is installed).
    :param cards: what the PCI bus shows, for foreseeing where the GPUs are not known yet.
    :param guests: the guests of the node, the container itself included.
    :param paths: what is at the paths that matter (device nodes, sources of mounts).
    :param inside: what is at the passed device nodes' paths in the running container.
    :param mounts: what the node has mounted; ``mounts_inside``: what the running container sees.
    :param sources: sources of mounts without links, by source.
    :param holders: processes of the container that have a GPU open.
    :param majors: character device majors and their drivers.
    :param granted: ranges of the node's ids that root may map, by kind.
    :param bridges: whether the declared bridges exist.
    :param storages: storages of the node (only if a container is to be made).
    :param stored: templates on the template storage (likewise).
    :param offered: templates that Proxmox offers for download (only if the wanted one is missing).
    :param index_failure: why Proxmox's index of templates could not be fetched, empty if it was not tried or could be.
    :param download: the name of a task that fetches the wanted template now.
    """

    node: str
    pve_major: int = 9
    present: Present | None = None
    elsewhere: Elsewhere | None = None
    work: Work | None = None
    remnant: Remnant | None = None
    login: str = ""
    gpus: tuple[Gpu, ...] | None = None
    cards: tuple[Gpu, ...] = ()
    guests: tuple[Guest, ...] = ()
    paths: t.Mapping[str, FileState] | None = None
    inside: t.Mapping[str, FileState] = dataclasses.field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    mounts_inside: tuple[Mount, ...] = ()
    sources: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    holders: tuple[GpuProcess, ...] = ()
    majors: t.Mapping[int, str] = dataclasses.field(default_factory=dict)
    granted: t.Mapping[str, tuple[tuple[int, int], ...]] | None = None
    bridges: t.Mapping[str, bool] = dataclasses.field(default_factory=dict)
    storages: Rows = ()
    stored: Rows = ()
    offered: Rows = ()
    index_failure: str = ""
    download: Work | None = None
