# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks at a container and its node. PRIVATE: for use in kpro.llm only."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.kpro.llm.plugins.module_utils import _lxc_checks as checks
from ansible_collections.kpro.llm.plugins.module_utils import _lxc_moving as moving
from ansible_collections.kpro.llm.plugins.module_utils import _pve_config as cfg
from ansible_collections.kpro.llm.plugins.module_utils import _pve_gpus as gpu_rules
from ansible_collections.kpro.llm.plugins.module_utils import _pve_property as prop
from ansible_collections.kpro.llm.plugins.module_utils import _pve_stores as stores
from ansible_collections.kpro.llm.plugins.module_utils import _pve_text as text
from ansible_collections.kpro.llm.plugins.module_utils._command import Command
from ansible_collections.kpro.llm.plugins.module_utils._errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._lxc_declared import Declared
from ansible_collections.kpro.llm.plugins.module_utils._lxc_facts import Elsewhere, Facts, Present
from ansible_collections.kpro.llm.plugins.module_utils._pve_api import PveApi, PveError, good
from ansible_collections.kpro.llm.plugins.module_utils._pve_host import Host
from ansible_collections.kpro.llm.plugins.module_utils._pve_raw import read_majors

OLDEST_PVE = 8  # dev[n] came with 8.1
INDEX_TIMEOUT_S = 120.0


class Observer:
    """Observes one container on one node.

    :param host: the node's files; None if this process is not on the node.
    :param gpus: the node's GPUs as ``gpu_info`` reported them; None if they are not known yet.
    :param command: runs programs on the node; None if this process is not there.
    """

    def __init__(self, api: PveApi, node: str, host: Host | None, gpus: tuple[gpu_rules.Gpu, ...] | None, command: Command | None = None) -> None:
        self._api = api
        self._node = node
        self._host = host
        self._gpus = gpus
        self._command = command
        self._pve_major = 0

    def facts(self, declared: Declared) -> Facts:
        """Return everything that a plan for this container depends on; three or four reads, side by side, if nothing is to be made.

        :raises PveError: if Proxmox refuses a read.
        """
        present = self.present(declared.vmid)
        facts = Facts(self._node, self._pve_major, present, gpus=self._gpus)
        if present is None:
            facts = dataclasses.replace(facts, elsewhere=self.elsewhere(declared.vmid))
            if facts.elsewhere is None and declared.state != "absent":
                facts = self._with_stores(declared, facts)
        return self._with_files(declared, facts) if self._host and declared.state != "absent" else facts

    def check_permissions(self) -> None:
        """Stop if the login is an API token that may do nothing; Proxmox answers it with empty lists, not with an error.

        :raises KproError: with the command that grants what is needed.
        """
        user = self._api.user
        if "!" in user and not self._api.get("/access/permissions"):
            raise KproError(
                f"token {user}",
                "it is valid but has no permissions of its own (privilege separation is on)",
                f"On the node: pveum acl modify / --tokens '{user}' --roles PVEAdmin, or the same for its container, node and storages",
            )

    def present(self, vmid: int) -> Present | None:
        """Return the container if it is on this node.

        :raises PveError: if Proxmox refuses a read for another reason than its absence.
        """
        base = f"/nodes/{self._node}/lxc/{vmid}"
        version: list[tuple[str, dict[str, t.Any]]] = [] if self._pve_major else [("/version", {})]
        reads = [(f"{base}/config", {}), (f"{base}/config", {"current": 1}), (f"{base}/status/current", {}), *version]
        answers = self._api.get_all(reads)
        if version:
            release = str(good(answers.pop()).get("version", "0"))
            self._pve_major = int(release.partition(".")[0])
            if self._pve_major < OLDEST_PVE:
                raise KproError(f"node {self._node}", f"it has Proxmox VE {release}, needed is {OLDEST_PVE}", "Upgrade the node")
        if any(isinstance(answer, PveError) and text.is_missing(answer.reason) for answer in answers):
            return None
        config, active, status = (good(answer) for answer in answers)
        return Present(
            cfg.read_config(config),
            cfg.read_config(active),
            running=status.get("status") == "running",
            lock=str(status.get("lock") or ""),
            name=str(status.get("name") or ""),
            pid=int(status.get("pid") or 0),
        )

    def address(self, vmid: int, config: cfg.Config) -> str:
        """Return the IPv4 address that a running container has on its first interface, empty if it has none yet."""
        name = prop.parse(config.keys.get("net0", ""), prop.NET).get("name", "eth0")
        rows = self._api.get(f"/nodes/{self._node}/lxc/{vmid}/interfaces") or []
        return next((str(row["inet"]).partition("/")[0] for row in rows if row.get("name") == name and row.get("inet")), "")

    def elsewhere(self, vmid: int) -> Elsewhere | None:
        """Return the guest with this id if it is not a container on this node."""
        rows = self._api.get("/cluster/resources", {"type": "vm"}) or []
        row = next((row for row in rows if int(row.get("vmid", 0)) == vmid), None)
        if row is None or (row.get("type") == "lxc" and row.get("node") == self._node):
            return None
        running = row.get("status") == "running"
        kind, node = str(row.get("type")), str(row.get("node"))
        return Elsewhere(vmid, kind, node, str(row.get("name") or ""), running, self._obstacles(vmid, node) if kind == "lxc" else ())

    def _obstacles(self, vmid: int, node: str) -> tuple[str, ...]:
        if self._host is None:
            return ()
        config = cfg.read_config_file(self._host.guest_file(node, vmid))
        return tuple(moving.obstacles(config, self._node, {path: self._host.look(path) for path in moving.passed_paths(config)}))

    def _with_stores(self, declared: Declared, facts: Facts) -> Facts:
        facts = dataclasses.replace(facts, storages=self._api.get(f"/nodes/{self._node}/storage") or ())
        volume = stores.template_volume(declared.template, declared.template_storage)
        name = volume.split(":")[0]
        if not declared.template or not any(row.get("storage") == name for row in facts.storages):
            return facts
        stored = self._api.get(f"/nodes/{self._node}/storage/{name}/content", {"content": "vztmpl"}) or ()
        here = any(row.get("volid") == volume for row in stored)
        return dataclasses.replace(facts, stored=stored, offered=() if here else self.offered())

    def offered(self) -> stores.Rows:
        """Return the templates that Proxmox offers for download; empty if its index can't be had.

        An index that was never fetched is fetched, in check mode too: it is a cache that the node fetches daily by itself, nobody
        declares it, and without it a plan could not tell a template that will come from one that does not exist.
        """
        rows = self._api.get(f"/nodes/{self._node}/aplinfo") or ()
        if rows or self._command is None:
            return rows
        self._command.run(["pveam", "update"], timeout_s=INDEX_TIMEOUT_S)  # ends with 0 whether it could fetch or not
        return self._api.get(f"/nodes/{self._node}/aplinfo") or ()

    def _with_files(self, declared: Declared, facts: Facts) -> Facts:
        if self._host is None:
            raise TypeError("an observer without a host has no files to look at")
        config = facts.present.config if facts.present else cfg.Config({})
        paths = {gpu_rules.device_path(value) for value in config.numbered("dev").values()}
        passed = {gpu_rules.device_path(value) for value in facts.present.active.numbered("dev").values()} if facts.present else set()
        pid = facts.present.pid if facts.present else 0
        if declared.gpus is not None:
            paths |= set(gpu_rules.nodes_for(facts.gpus or ()))
        paths |= {extra["path"] for extra in declared.devices or ()}
        sources = {mount.source for mount in declared.mounts or () if mount.is_bind}
        mounted = {parts["volume"] for parts in checks.binds(facts.present.active)} if facts.present and pid else set()
        bridge = (declared.network or {}).get("bridge") or ""
        return dataclasses.replace(
            facts,
            guests=self._guests(declared.vmid) if declared.gpus is not None else (),
            paths={
                **{path: self._host.look(path) for path in paths},
                **{path: self._host.look_at_source(path) for path in sources},
            },
            granted=self._host.granted_ids(),
            inside={path: self._host.look_inside(pid, path) for path in passed} if pid else {},
            mounts=self._host.mounts() if mounted else (),
            mounts_inside=self._host.mounts(pid) if mounted else (),
            sources={source: self._host.without_links(source) for source in mounted},
            holders=self._host.gpu_processes(declared.vmid) if facts.present and facts.present.running and declared.gpus is not None else (),
            majors=read_majors(self._host.majors_text()),
            bridges={bridge: self._host.has_bridge(bridge)} if bridge else {},
        )

    def _guests(self, own: int) -> tuple[gpu_rules.Guest, ...]:
        if self._host is None:
            raise TypeError("an observer without a host has no files to look at")
        found = []
        for folder, kind in (("lxc", "container"), ("qemu-server", "VM")):
            for vmid, content in self._host.guest_files(folder).items():
                config = cfg.read_config_file(content)
                if vmid != own and config.keys.get("template") != "1":
                    found.append(gpu_rules.guest_of(vmid, kind, config))
        return tuple(found)
