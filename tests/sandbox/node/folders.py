# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where everything of the sandbox lies: one folder, given by ``KPRO_SANDBOX_DIR``."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
PARTS_SOURCE = SOURCE.parent
DEFAULT_BASE = "/var/lib/kpro-sandbox"


class SandboxError(Exception):
    """One sentence for the user: what is wrong and what to do."""


@dataclass(frozen=True)
class NodeFolder:
    """The state of one node. ``record`` is written by the command, ``runtime`` by the running node itself."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def record(self) -> Path:
        return self.path / "node.json"

    @property
    def runtime(self) -> Path:
        return self.path / "runtime.json"

    @property
    def upper(self) -> Path:
        return self.path / "up"

    @property
    def work(self) -> Path:
        return self.path / "work"

    @property
    def data(self) -> Path:
        """A folder that is not on an overlay, for the sandbox folder of a sandbox in a pristine machine."""
        return self.path / "data"

    @property
    def root(self) -> Path:
        return self.path / "root"

    @property
    def extra(self) -> Path:
        """Files that a new disk gets before its first boot (``up --file``), as they lie on the node."""
        return self.path / "files"

    @property
    def extra_given(self) -> Path:
        """There when the disk has them."""
        return self.path / "files.given"

    @property
    def keys(self) -> Path:
        return self.path / "ssh"

    @property
    def console(self) -> Path:
        return self.path / "console.log"

    @property
    def supervisor_log(self) -> Path:
        return self.path / "supervisor.log"


@dataclass(frozen=True)
class LinkFolder:
    """The state of one link between nodes; ``runtime`` is written by the process that holds it."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def runtime(self) -> Path:
        return self.path / "runtime.json"

    @property
    def socket(self) -> Path:
        return self.path / "link.sock"

    @property
    def log(self) -> Path:
        return self.path / "link.log"

    @property
    def cluster(self) -> Path:
        """What the nodes of a cluster share: the folder that each of them has as /etc/pve/nodes."""
        return self.path / "nodes"

    @property
    def keys(self) -> Path:
        """The key with which the nodes of a cluster log in to each other."""
        return self.path / "ssh"


@dataclass(frozen=True)
class Folders:
    """The sandbox folder and what lies in it."""

    base: Path

    @classmethod
    def from_environment(cls) -> Folders:
        return cls(Path(os.environ.get("KPRO_SANDBOX_DIR") or DEFAULT_BASE).absolute())

    @property
    def mark(self) -> str:
        """Tells this sandbox folder from others in names that the whole machine shares."""
        return hashlib.sha256(str(self.base).encode()).hexdigest()[:8]

    @property
    def cache(self) -> Path:
        return self.base / "cache"

    @property
    def images(self) -> Path:
        return self.cache / "image"

    @property
    def parts(self) -> Path:
        return self.cache / "parts"

    @property
    def templates(self) -> Path:
        return self.cache / "template"

    @property
    def layers(self) -> Path:
        return self.cache / "layer"

    @property
    def building(self) -> Path:
        return self.cache / "building"

    @property
    def locks(self) -> Path:
        return self.base / "locks"

    @property
    def cache_locks(self) -> Path:
        """Beside what they guard: several sandbox folders may share one cache."""
        return self.cache / "locks"

    @property
    def state(self) -> Path:
        return self.base / "state"

    @property
    def ssh(self) -> Path:
        return self.base / "ssh"

    @property
    def links(self) -> Path:
        return self.base / "links"

    def node(self, name: str) -> NodeFolder:
        return NodeFolder(self.state / name)

    def link(self, name: str) -> LinkFolder:
        return LinkFolder(self.links / name)

    def make(self) -> None:
        """Make the folders; only root may look into those with keys and node disks."""
        self.base.mkdir(parents=True, exist_ok=True)
        for path in (self.images, self.parts, self.templates, self.layers, self.building, self.cache_locks, self.locks):
            path.mkdir(parents=True, exist_ok=True)
        for path in (self.state, self.ssh, self.links):
            path.mkdir(mode=0o700, exist_ok=True)
