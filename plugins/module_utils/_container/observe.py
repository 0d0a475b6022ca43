# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks at a container and its node."""

from __future__ import annotations

import dataclasses
import typing as t

from .._core.errors import KproError
from .._gpu.claims import KINDS, Guest, guest_of, pci_mappings, read_guest
from .._gpu.guest_files_edge import is_being_made, read_included
from .._linux.command_edge import Command
from .._pve import answers as text
from .._pve import config as cfg
from .._pve import gpus as gpu_rules
from .._pve import property as prop
from .._pve import stores
from .._pve.api_edge import PveApi, PveError, good
from .._pve.call_record import work_of
from .._pve.host_edge import Host
from .._pve.raw import read_majors
from .._pve.remnant import WORKS, Remnant, doubt_of, is_half, volumes_left
from .._pve.reservations_edge import Reservations
from .._pve.rights import ROOT
from .._pve.tasks_edge import Tasks
from . import checks
from . import migration_obstacles as moving
from .declared import Declared
from .facts import Elsewhere, Facts, Present, Work

OLDEST_PVE = 8  # dev[n] came with 8.1
INDEX_TIMEOUT_S = 120.0
PVEAM_LOG = "/var/log/pveam.log"
# Locks under which a container is not what it will be, and the work that holds them.
BUSY_LOCKS = {"create": "creation", "destroyed": "removal", "migrate": "migration"}


def volumes_of(api: PveApi, node: str, vmid: int, with_shared: bool = True) -> tuple[str, ...]:
    """Return the volumes that carry a container's id on the storages of a node.

    :param with_shared: whether storages that other nodes have too are looked at.
    :raises PveError: if a storage that is there can't be looked at.
    """
    rows = api.get(f"/nodes/{node}/storage") or ()
    names = [str(row["storage"]) for row in rows if stores.may_hold_volumes(row) and (with_shared or not int(row.get("shared") or 0))]
    answers = api.get_all([(f"/nodes/{node}/storage/{name}/content", {"vmid": vmid}) for name in names])
    found = (row for answer in answers for row in good(answer) or () if row.get("content") in ("rootdir", "images"))
    return tuple(sorted({str(row["volid"]) for row in found}))


class Observer:
    """Observes one container on one node.

    :param host: the node's files; None if this process is not on the node.
    :param gpus: the node's GPUs as ``gpu_info`` reported them; None if they are not known yet.
    :param command: runs programs on the node; None if this process is not there.
    :param cards: what the node's PCI bus shows, for foreseeing while the GPUs are not known.
    :param tasks: the node's tasks; without them a half-made container is not told from a foreign one.
    """

    def __init__(
        self,
        api: PveApi,
        node: str,
        host: Host | None,
        gpus: tuple[gpu_rules.Gpu, ...] | None,
        command: Command | None = None,
        cards: tuple[gpu_rules.Gpu, ...] = (),
        tasks: Tasks | None = None,
    ) -> None:
        self._api = api
        self._node = node
        self._host = host
        self._gpus = gpus
        self._command = command
        self._cards = cards
        self._tasks = tasks
        self._pve_major = 0
        self._index_failure = ""

    def facts(self, declared: Declared) -> Facts:
        """Return everything that a plan for this container depends on; three or four reads, side by side, if nothing is to be made.

        :raises PveError: if Proxmox refuses a read.
        """
        present = self.present(declared.vmid)
        login = "" if self._api.user == ROOT else self._api.user
        facts = self._with_work(declared.vmid, Facts(self._node, self._pve_major, present, gpus=self._gpus, cards=self._cards, login=login))
        if facts.present is None:
            if facts.remnant is None:
                facts = dataclasses.replace(facts, elsewhere=self.elsewhere(declared.vmid))
            if facts.elsewhere is None and declared.state != "absent":
                facts = self._with_stores(declared, facts)
        if declared.state == "absent":
            return facts
        return self._with_files(declared, facts) if self._host else self._with_far_guests(declared, facts)

    def _with_work(self, vmid: int, facts: Facts) -> Facts:
        """Add what works on the container, or what is left of it if nothing does any more."""
        if self._tasks is None:
            return facts
        earlier = self._tasks.earlier(vmid)
        if earlier is not None:
            return dataclasses.replace(facts, work=Work(earlier.words, earlier.upid))
        if facts.present is None or facts.present.lock not in BUSY_LOCKS:
            return facts
        upid = self._tasks.running(vmid)
        if upid:
            return dataclasses.replace(facts, work=Work(f"{BUSY_LOCKS[facts.present.lock]} of container {vmid}", upid))
        # It may have come to its end between the two reads.
        present = self.present(vmid)
        remnant = self.remnant(vmid, present)
        return dataclasses.replace(facts, present=None if remnant else present, remnant=remnant)

    def remnant(self, vmid: int, present: Present | None) -> Remnant | None:
        """Return what is left of a container whose creation or removal was cut off, None if it is no such."""
        if present is None or self._tasks is None or not is_half(present.config, present.lock):
            return None
        volumes = self.volumes(vmid)
        record = self._tasks.record(f"{WORKS[present.lock][0]}-{vmid}")
        if self._host is None or self._command is None:
            doubt = "this way to the API sees no records of the node"
            mounts: tuple[str, ...] = ()
        else:
            mounts = tuple(self._host.mounts_below(f"/var/lib/lxc/{vmid}/rootfs"))
            doubt = doubt_of(record, vmid, self._node, present.lock, self._tasks.history(vmid), self._host.config_written_s(vmid))
        if doubt or record is None:
            return Remnant(vmid, self._node, present.lock, volumes, mounts, doubt=doubt)
        return Remnant(vmid, self._node, present.lock, volumes_left(record, volumes), mounts, record.began_s)

    def volumes(self, vmid: int) -> tuple[str, ...]:
        """Return the volumes that carry the container's id on the storages of the node, whether or not a configuration names them.

        :raises PveError: if a storage that is there can't be looked at.
        """
        return volumes_of(self._api, self._node, vmid)

    def check_permissions(self) -> None:
        """Stop if the login may do nothing; Proxmox answers it with empty lists, not with an error.

        :raises KproError: with the commands that grant what is needed.
        """
        login = self._api.user
        if login == ROOT or self._api.get("/access/permissions"):
            return
        user, _mark, token = login.partition("!")
        grant = f"'pveum acl modify / --users {user} --roles PVEAdmin'"
        if not token:
            raise KproError(f"user {login}", "the login is valid but has no permissions", f"On the node: {grant}, or the same for less than /")
        also = f"'pveum acl modify / --tokens '{login}' --roles PVEAdmin'"
        raise KproError(
            f"token {login}",
            "it is valid but has no permissions: with privilege separation it may what both the token and its user may, without it what its user may",
            f"On the node: {also}"
            if user == ROOT
            else f"On the node: {grant}, and if the token has privilege separation also {also}; or the same for less than /",
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
        if facts.login:
            self._check_free(declared.vmid, facts.login)
        facts = dataclasses.replace(facts, storages=self._api.get(f"/nodes/{self._node}/storage") or ())
        volume = stores.template_volume(declared.template, declared.template_storage)
        name = volume.split(":")[0]
        if not declared.template or not any(row.get("storage") == name for row in facts.storages):
            return facts
        stored = self._api.get(f"/nodes/{self._node}/storage/{name}/content", {"content": "vztmpl"}) or ()
        here = any(row.get("volid") == volume for row in stored)
        if here:
            return dataclasses.replace(facts, stored=stored)
        download = self.download(name, stores.template_file(volume))
        return dataclasses.replace(facts, stored=stored, offered=self.offered(), index_failure=self._index_failure, download=download)

    def _check_free(self, vmid: int, login: str) -> None:
        """Stop if the id is taken by a guest that the login may not see; lists of guests are filtered, this answer is not."""
        try:
            self._api.get("/cluster/nextid", {"vmid": vmid})
        except PveError as error:
            if "already exists" not in error.reason:
                raise
            reason = f"it is taken by a guest of the cluster that {login} may not see"
            raise KproError(f"id {vmid}", reason, f"Choose another id, or grant VM.Audit on /vms/{vmid}") from error

    def download(self, storage: str, template: str) -> Work | None:
        """Return what fetches a template to a storage of the node now, whoever began it."""
        if self._tasks is None:
            return None
        call = work_of("create", f"/nodes/{self._node}/aplinfo", {"storage": storage, "template": template})
        if self._tasks.works(call.name):
            record = self._tasks.record(call.name)
            return Work(call.words, record.upid if record else "")
        for upid in self._tasks.active(typefilter="download"):
            if any(template in line for line in self._tasks.log(upid, first=True)):
                return Work(call.words, upid)
        return None

    def has_template(self, storage: str, template: str) -> bool:
        """Tell whether a template is on a storage of the node."""
        rows = self._api.get(f"/nodes/{self._node}/storage/{storage}/content", {"content": "vztmpl"}) or ()
        return any(stores.template_file(str(row.get("volid"))) == template for row in rows)

    def offered(self) -> stores.Rows:
        """Return the templates that Proxmox offers for download; empty if its index can't be had.

        An index that was never fetched is fetched, in check mode too: it is a cache that the node fetches daily by itself, nobody
        declares it, and without it a plan could not tell a template that will come from one that does not exist.
        """
        rows = self._api.get(f"/nodes/{self._node}/aplinfo") or ()
        if rows or self._command is None:
            return rows
        try:
            # It ends with 0 whether it could fetch or not; the reason is in a log of its own.
            answer = self._command.run(["pveam", "update"], timeout_s=INDEX_TIMEOUT_S)
            told = text.message_of(answer.stderr) or text.message_of(answer.stdout)
        except KproError as error:
            told = error.reason
        rows = self._api.get(f"/nodes/{self._node}/aplinfo") or ()
        if not rows:
            reason = self._host.last_line(PVEAM_LOG) if self._host else ""
            self._index_failure = text.plain("; ".join(part for part in (told, f"last line of {PVEAM_LOG}: {reason}" if reason else "") if part))
        return rows

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
            guests=self.guests(declared.vmid) if declared.gpus is not None else (),
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

    def guests(self, own: int) -> tuple[Guest, ...]:
        """Return the node's guests with their claims on GPUs, and what other deployments than that of ``own`` are about to give."""
        if self._host is None:
            raise TypeError("an observer without a host has no files to look at")
        mappings = pci_mappings(self._host.mappings_text(), self._node)
        files = [(vmid, kind, text) for folder, kind in KINDS.items() for vmid, text in self._host.guest_files(folder).items()]
        found = [read_guest(vmid, kind, text, mappings, self._included) for vmid, kind, text in files]
        begun = [vmid for vmid, kind, text in files if kind == "container" and is_being_made(text)]
        return (*found, *Reservations(self._host.root).guests(own, begun))

    def _with_far_guests(self, declared: Declared, facts: Facts) -> Facts:
        """Add the node's guests as far as the login may see them; away from the node the API has to tell."""
        if not declared.gpus or facts.gpus is None:
            return facts
        kinds = [("container", "lxc"), ("VM", "qemu")]
        *lists, mapped = self._api.get_all([*((f"/nodes/{self._node}/{path}", {}) for _kind, path in kinds), ("/cluster/mapping/pci", {})])
        rows = [] if isinstance(mapped, PveError) else mapped or []
        text = "".join(f"{row.get('id')}\n" + "".join(f"\tmap {entry}\n" for entry in row.get("map") or ()) for row in rows)
        ids = [(kind, path, int(row["vmid"])) for (kind, path), rows in zip(kinds, lists, strict=True) if not isinstance(rows, PveError) for row in rows or ()]
        answers = self._api.get_all([(f"/nodes/{self._node}/{path}/{vmid}/config", {}) for _kind, path, vmid in ids])
        mappings = pci_mappings(text, self._node)
        found = []
        for (kind, _path, vmid), answer in zip(ids, answers, strict=True):
            if not isinstance(answer, PveError):
                config = cfg.read_config(answer)
                found.append(guest_of(vmid, kind, config.keys, config.raw, mappings))
        return dataclasses.replace(facts, guests=tuple(found))

    def _included(self, path: str) -> tuple[str, ...]:
        return read_included(self._host.root, path) if self._host else ()
