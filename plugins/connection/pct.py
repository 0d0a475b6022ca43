# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: pct
author: kpro (@kpro)
short_description: Run tasks in a Proxmox VE container through OpenSSH to its node
version_added: 1.0.0
description:
  - Connects to the Proxmox VE node with the C(ssh) plugin of ansible-core and enters the container there, by C(lxc-attach)
    or by C(pct exec). The container needs neither an SSH server nor an address.
  - A pipelined module is one round trip. Files travel on standard input and output; nothing is staged on the node.
  - Every command is run by C(/bin/sh -c) inside the container, quoted as a whole, so that redirections, C(;) and C(&&) of
    M(ansible.builtin.raw) never act on the node.
  - A container that is stopped, absent or on another node is reported as unreachable, with what to do.
notes:
  - All options of the installed P(ansible.builtin.ssh#connection) plugin apply to the way to the node, and connections to
    the node and to its containers share one ControlPersist socket.
extends_documentation_fragment:
  - kpro.llm.pct_ssh_options
options:
  vmid:
    description: ID of the container.
    type: string
    required: true
    vars:
      - name: pct_vmid
  node:
    description: Name of the node for messages; how it is reached is the affair of the SSH options.
    type: string
    vars:
      - name: pct_node
  entry:
    description:
      - The program that enters the container.
      - V(lxc-attach) takes some 10 ms; V(pct) loads Proxmox's own tool first, which takes half a second and more for each task.
    type: string
    choices: [lxc-attach, pct]
    default: lxc-attach
    vars:
      - name: pct_entry
    env:
      - name: KPRO_LLM_PCT_ENTRY
  lxc_path:
    description: Folder of LXC's containers on the node, if it is not LXC's default.
    type: string
    vars:
      - name: pct_lxc_path
  container_user:
    description: User inside the container that runs the commands; root if not set. C(runuser) of the container is used.
    type: string
    vars:
      - name: pct_container_user
  node_privilege:
    description:
      - How the node's user gets to be root, which entering a container needs.
      - V(auto) takes C(sudo) unless O(remote_user) is unset or V(root). It is C(sudo -n), or with a password C(sudo) as the
        become plugin of ansible-core runs it.
      - C(become) to root of the container's host is about the node, too, and its method is used for it; inside the container the
        commands run as root already. C(become) to another user happens inside the container.
    type: string
    choices: [auto, root, sudo]
    default: auto
    vars:
      - name: pct_node_privilege
  node_become_password:
    description:
      - Password with which the node's user gets to be root by C(sudo). It travels on standard input only.
      - The password of C(become) counts, too, so that one that is set for all hosts is enough.
    type: string
    vars:
      - name: ansible_become_pass
      - name: ansible_become_password
      - name: pct_node_become_password
"""

import os
import secrets
import shlex

from ansible.errors import AnsibleConnectionFailure, AnsibleError, AnsibleFileNotFound
from ansible.module_utils.common.text.converters import to_bytes, to_text
from ansible.plugins.become import BecomeBase
from ansible.plugins.connection.ssh import Connection as SSHConnection
from ansible.plugins.loader import become_loader
from ansible.utils.display import Display

from ..module_utils._core.shown_text import one_line
from ..plugin_utils import _pct_command as pct

# Pieces bound the memory that a file of any size takes on the controller; a smaller file is one round trip.
PIECE_BYTES = 64 * 1024 * 1024

display = Display()


class _InContainer:
    """The task's become plugin as core sees it: inside the container nobody needs to become root, who is there already."""

    def __init__(self, plugin: BecomeBase) -> None:
        self.of_task = plugin

    def __getattr__(self, name):
        return getattr(self.of_task, name)

    @property
    def to_root(self) -> bool:
        return (self.of_task.get_option("become_user") or "root") == "root"

    def build_become_command(self, cmd, shell):
        return cmd if self.to_root else self.of_task.build_become_command(cmd, shell)


class Connection(SSHConnection):
    """ssh to the node, then into the container."""

    transport = "kpro.llm.pct"
    become: BecomeBase | _InContainer | None

    def set_become_plugin(self, plugin):
        """Take the task's become plugin, or none."""
        super().set_become_plugin(_InContainer(plugin) if plugin else plugin)

    def exec_command(self, cmd, in_data=None, sudoable=True):
        """Run ``cmd`` by the container's shell; exit codes 0 to 255 and both streams are the command's own."""
        entry = self._entry()
        if in_data is None and pct.holds_the_session(to_text(cmd)):
            raise AnsibleError(pct.background_sentence(entry.vmid))
        mark = f"kpro.llm.pct {secrets.token_hex(8)} ended with 255"
        display.vvv(f"container {entry.vmid}: {to_text(cmd)}", host=self._node_name())
        script = pct.entry_script(entry, to_text(cmd, errors="surrogate_or_strict"), mark)
        rc, stdout, stderr = self._as_root_of_node(entry, script, in_data, sudoable)
        as_root = pct.got_root(stderr, mark)
        rc, stderr = pct.true_answer(rc, stderr, mark)
        evidence = pct.entry_failed(entry, rc, stderr, as_root)
        if evidence:
            raise AnsibleConnectionFailure(self._why_unreachable(entry, evidence))
        broken = pct.quoting_sentence(entry.vmid, rc, stderr)
        if broken:
            display.warning(broken)
        return rc, stdout, stderr

    def put_file(self, in_path, out_path):
        """Copy a file of the controller into the container, in pieces that a retry of the connection may repeat."""
        self._refuse_relative(out_path)
        target = shlex.quote(out_path)
        try:
            self._tell_size(os.path.getsize(to_bytes(in_path, errors="surrogate_or_strict")))
            with open(to_bytes(in_path, errors="surrogate_or_strict"), "rb") as source:
                offset = 0
                while True:
                    piece = source.read(PIECE_BYTES)
                    if piece:
                        write = f"truncate -s {offset} {target} && cat >> {target}" if offset else f"cat > {target}"
                        self._transfer(write, in_path, out_path, piece)
                    elif not offset:
                        self._transfer(f": > {target}", in_path, out_path)
                    offset += len(piece)
                    if len(piece) < PIECE_BYTES:
                        return
        except FileNotFoundError as error:
            raise AnsibleFileNotFound(f"file or module does not exist: {to_text(in_path)}") from error

    def fetch_file(self, in_path, out_path):
        """Copy a file of the container to the controller, in pieces."""
        self._refuse_relative(in_path)
        source = shlex.quote(in_path)
        with open(to_bytes(out_path, errors="surrogate_or_strict"), "wb") as target:
            offset = 0
            while True:
                read = f"tail -c +{offset + 1} < {source} | head -c {PIECE_BYTES}" if offset else f"head -c {PIECE_BYTES} < {source}"
                piece = self._transfer(read, in_path, out_path)
                target.write(piece)
                offset += len(piece)
                if len(piece) < PIECE_BYTES:
                    return

    def _refuse_relative(self, path: str) -> None:
        problem = pct.path_problem(self._entry().vmid, path)
        if problem:
            raise AnsibleError(f"failed to transfer a file: {problem}")

    def _tell_size(self, size_bytes: int) -> None:
        if size_bytes > PIECE_BYTES:
            pieces = -(-size_bytes // PIECE_BYTES)
            display.v(
                f"Sends {size_bytes / 1e9:.1f} GB in {pieces} pieces on standard input, at the speed of ssh; 'pct push' would end with 0 if it failed",
                host=self._node_name(),
            )

    def _transfer(self, command: str, in_path: str, out_path: str, data: bytes | None = None) -> bytes:
        rc, stdout, stderr = self.exec_command(command, in_data=data, sudoable=False)
        if rc != 0:
            raise AnsibleError(f"failed to transfer {to_text(in_path)} to {to_text(out_path)}: {one_line(to_text(stderr).strip())}")
        return stdout

    def _entry(self) -> pct.Entry:
        privilege = self.get_option("node_privilege")
        user = self._login()
        return pct.Entry(
            vmid=str(self.get_option("vmid")),
            program=self.get_option("entry"),
            lxc_path=self.get_option("lxc_path") or "",
            user=self.get_option("container_user") or "",
            sudo=privilege == "sudo" or (privilege == "auto" and user != "root"),
        )

    def _node_name(self) -> str:
        return self.get_option("node") or self.get_option("host")

    def _as_root_of_node(self, entry: pct.Entry, script: str, in_data: bytes | None, sudoable: bool = False) -> tuple[int, bytes, bytes]:
        """Run a script on the node itself as root. A password reaches sudo by core's own machinery: on standard input, after its prompt."""
        way = self._become_of_node() if entry.sudo else None
        if not way:
            return super().exec_command(pct.on_node(entry, script), in_data=in_data, sudoable=sudoable)
        command = way.build_become_command(shlex.join(["/bin/sh", "-c", script]), self._shell)
        of_task = self.become
        self.become = way
        try:
            return super().exec_command(command, in_data=in_data, sudoable=True)
        except AnsibleConnectionFailure:
            raise
        except AnsibleError as error:  # core's word for a password that is wrong or missing
            evidence = to_text(error.message).strip()
            sentence = pct.no_root_sentence(entry.vmid, self._node_name(), self._login(), evidence, bool(way.get_option("become_pass")))
            raise AnsibleConnectionFailure(sentence) from error
        finally:
            self.become = of_task

    def _become_of_node(self) -> BecomeBase | None:
        """Return what makes the login root on the node, if that is more than ``sudo -n``."""
        if isinstance(self.become, _InContainer) and self.become.to_root:
            return self.become.of_task
        password = self.get_option("node_become_password")
        if not password:
            return None
        way = become_loader.get("ansible.builtin.sudo")
        way.set_options(direct={"become_user": "root", "become_pass": password})
        return way

    def _login(self) -> str:
        return self.get_option("remote_user") or "root"

    def _why_unreachable(self, entry: pct.Entry, evidence: str) -> str:
        if pct.refused_root(entry, evidence):
            password = bool(self.get_option("node_become_password"))
            return pct.no_root_sentence(entry.vmid, self._node_name(), self._login(), evidence, password)
        rc, stdout, _stderr = self._as_root_of_node(entry, pct.where_is(entry.vmid), None)
        kind, found_on = pct.location(entry.vmid, to_text(stdout)) if rc == 0 else ("unknown", "")
        return pct.unreachable_sentence(entry.vmid, self._node_name(), kind, found_on, evidence)
