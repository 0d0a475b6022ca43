#!/usr/bin/python
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: lxc_container
short_description: Bring an LXC container of Proxmox VE to its declared state, GPUs included
version_added: 1.0.0
author: kpro (@kpro)
description:
  - Creates, changes, starts, stops and removes one container on a node of Proxmox VE 8 or 9, and passes NVIDIA GPUs to it.
  - Every declared key is compared with the stored configuration as Proxmox understands it (sorted tags, merged property
    strings, defaults spelled out or not), pending changes counted, so that a container that is as declared is not touched.
    What is not declared stays as it is.
  - Changes go out in one call that only succeeds on the configuration that was read. After any refusal the configuration is
    read again, because Proxmox may have written a change that it then answers with an error.
  - A container of this collection carries the tag V(kpro-llm). Another one with the same id is never touched, unless
    O(adopt=true) takes it over. In that case its privilege level, volumes and MAC addresses stay, and its raw C(lxc.*) lines for NVIDIA
    devices are replaced by C(dev[n]) entries.
  - Runs on the node, as root, and speaks to Proxmox through C(pvesh). Nothing has to be installed there.
  - No task of Proxmox is ended by the end of a run, of its connection or of its limit. Before each one a record is written on the node, below
    C(/var/lib/kpro-llm/pve). The next run waits for what still runs, and removes what a creation, removal or download left that was cut
    off, if the record shows that it was ours. Otherwise it names the commands and touches nothing.
  - A removal takes the volumes that the configuration names. Others that carry the id stay, and are named.
  - With O(api_host) it speaks to Proxmox over https instead, from wherever it runs, and needs C(proxmoxer) and C(requests) there.
    What only the node itself can do is refused with the reason then (folders, raw lines, locks, the index of templates), and what is not
    visible from there is not checked (device nodes, other guests' GPUs, the guest's systemd).
extends_documentation_fragment:
  - kpro.llm.attributes
options:
  vmid:
    description: Id of the container in the cluster.
    type: int
    required: true
  state:
    description:
      - V(present) makes or changes the container and leaves it running or stopped as it is.
      - V(started) and V(stopped) also start it or shut it down. V(started) waits until its systemd answers.
      - V(absent) shuts it down and removes it with its volumes, if it is ours.
    type: str
    choices: [present, started, stopped, absent]
    default: started
  hostname:
    description: Host name. The guest itself sees a change after its next start.
    type: str
  template:
    description:
      - Template for a new container, as file name on O(template_storage) or as volume id.
      - A missing one is downloaded by Proxmox, which verifies its checksum.
      - The node's index of templates is fetched if it never was, in check mode too, so that an unknown name is refused at once.
    type: str
  template_storage:
    description: Storage of the template, if O(template) is a file name.
    type: str
    default: local
  storage:
    description: Storage of the root file system of a new container. An existing one is never moved.
    type: str
  rootfs_gib:
    description: Size of the root file system in GiB. It is grown, never shrunk.
    type: int
  unprivileged:
    description: Privilege level of a new container. It can't be changed afterwards.
    type: bool
    default: true
  cores:
    description: Number of CPU cores.
    type: int
  memory_mib:
    description: Memory limit in MiB. The page cache counts in it.
    type: int
  swap_mib:
    description: Swap limit in MiB.
    type: int
  onboot:
    description: Whether the container starts with the node.
    type: bool
  startup:
    description: Order and delays at the node's start, for example V(order=2,up=30).
    type: str
  description:
    description: Notes of the container.
    type: str
  tags:
    description: Tags, besides V(kpro-llm). Others are removed. Without this option other tags stay.
    type: list
    elements: str
  features:
    description: Features such as C(nesting) and C(keyctl), and whether they are on. Others stay as they are.
    type: dict
  network:
    description: The first network interface (C(net0)). Parts that are not given stay as they are, the MAC address too.
    type: dict
    suboptions:
      bridge:
        description: Bridge of the node.
        type: str
      name:
        description: Name inside the container (V(eth0) for a new one).
        type: str
      ip:
        description: IPv4 address with prefix length, V(dhcp) or V(manual). The gateway belongs to it and goes when it is not given.
        type: str
      gw:
        description: IPv4 gateway.
        type: str
      ip6:
        description: IPv6 address with prefix length, V(auto), V(dhcp) or V(manual).
        type: str
      gw6:
        description: IPv6 gateway.
        type: str
      hwaddr:
        description: MAC address. Without it the stored one is kept, or Proxmox makes one up.
        type: str
      tag:
        description: VLAN.
        type: int
      mtu:
        description: Largest packet size.
        type: int
      firewall:
        description: Whether the firewall of Proxmox works on this interface.
        type: bool
      nameserver:
        description: Name servers, separated by blanks. Without it those of the node are used.
        type: str
      searchdomain:
        description: Search domains.
        type: str
  mounts:
    description:
      - Folders of the node and volumes inside the container, told apart by their targets.
      - A folder that is missing on the node is made, owned by the container's root.
      - A system folder (V(/), C(/etc), C(/var/lib), somebody's home and the like), a folder that holds one, and a link to one are refused.
      - Folders that are not listed are no longer mounted; volumes always stay. Without this option all mounts stay.
    type: list
    elements: dict
    suboptions:
      source:
        description: Absolute path on the node, a volume id, or V(STORAGE:GIB) to allocate a volume if there is none at the target.
        type: str
        required: true
      target:
        description: Absolute path inside the container.
        type: str
        required: true
      read_only:
        description: Whether it is mounted read-only.
        type: bool
        default: false
      shared:
        description: Whether the same content is on every node, so that the container may migrate. Without it the mark stays as it is.
        type: bool
      backup:
        description: Whether a volume is part of backups.
        type: bool
  gpus:
    description:
      - GPUs of the container. V(all), a number, or a list of UUIDs, bus ids and indexes in order of the bus ids.
      - A number takes GPUs that the container has already, then ones that no other guest has. A guest has a GPU by C(dev[n]), by a mount,
        a device rule or an NVIDIA hook in raw lines, or by C(hostpci), literally or by a resource mapping; also while it is off.
      - NVIDIA devices of the container that are not needed for them are taken away. Without this option devices stay as they are.
    type: raw
  node_gpus:
    description:
      - GPUs of the node, as RV(kpro.llm.gpu_info#module:gpus) reports them, with C(uuid), C(minor), C(bus_id) and C(name).
      - Without it O(gpus) has no effect yet (a check mode run on a node without a driver).
    type: list
    elements: dict
  node_cards:
    description:
      - NVIDIA's cards on the node's PCI bus, as RV(kpro.llm.gpu_info#module:pci) reports them.
      - For a check mode run before there is a driver, without O(node_gpus). What is asked for is checked against them.
    type: list
    elements: dict
    default: []
  neighbours:
    description:
      - The other containers of the same deployment on this node, and what each asks for. The GPUs are given out among all of them.
        Lists come first, then what containers have already, then numbers in order of the ids.
      - Whichever container the module treats, the answer is the same. One that can't be given what it asks for is refused, with the
        names of those that have it.
    type: list
    elements: dict
    default: []
    suboptions:
      vmid:
        description: Id of the container.
        type: int
        required: true
      name:
        description: Its name in messages.
        type: str
        default: ""
      gpus:
        description: What it asks for, as O(gpus).
        type: raw
      share_gpus:
        description: Whether it consents to GPUs that others have too.
        type: bool
        default: false
      in_run:
        description: Whether this run treats it too, so that it gives up GPUs that it no longer asks for.
        type: bool
        default: true
  share_gpus:
    description:
      - Whether a GPU may be given to this container that another guest has too. Of two containers of O(neighbours) both have to consent.
    type: bool
    default: false
  device_mode:
    description: Permissions of the GPU's device nodes inside the container, so that a service user may open them.
    type: str
    default: "0666"
  devices:
    description: Further device nodes. Others that are not NVIDIA's are taken away. Without this option they stay.
    type: list
    elements: dict
    suboptions:
      path:
        description: Path of the device node on the node.
        type: str
        required: true
      mode:
        description: Permissions inside the container.
        type: str
      uid:
        description: Owner inside the container.
        type: int
      gid:
        description: Group inside the container.
        type: int
  options:
    description:
      - Further plain keys of the configuration with their values, for example C(cpulimit), C(timezone) or C(protection).
    type: dict
    default: {}
  raw_lines:
    description:
      - Raw C(lxc.*) lines of the configuration file, for what Proxmox has no key for.
      - Of each key that is named here these lines are all that it has, others of it are removed. Lines of other keys stay,
        except NVIDIA ones if O(gpus) is given.
      - Proxmox's API has no way for them. They are written into the file on the node, under Proxmox's own lock and only while the
        container is down, so that a running one has to be restarted (O(restart)). Over https they are refused.
      - Keys that Proxmox would drop, and lines for NVIDIA devices, are refused.
    type: list
    elements: str
    default: []
  adopt:
    description: Whether a container with this id that is not ours may be taken over.
    type: bool
    default: false
  restart:
    description:
      - Whether the container may be shut down and started again if a change needs it, or if it refuses a change while it runs.
    type: bool
    default: false
  require_devices:
    description: Whether the device nodes have to be there now. A check mode run before the driver is loaded says no.
    type: bool
    default: true
  task_timeout_s:
    description: Longest wait for one task of Proxmox, in seconds. Nothing is ended then. The task goes on, and the next run waits for it.
    type: int
    default: 600
  shutdown_timeout_s:
    description: Time for the guest to shut down, in seconds. It is never killed.
    type: int
    default: 180
  ready_timeout_s:
    description: Longest wait for the systemd of a running container, in seconds.
    type: int
    default: 120
  node:
    description: Name of the node as Proxmox knows it. Without it the node on which the module runs.
    type: str
  api_host:
    description: Address of Proxmox's API. Without it the API is spoken on the node through C(pvesh).
    type: str
  api_port:
    description: Port of the API.
    type: int
    default: 8006
  api_user:
    description: User of the API with its realm.
    type: str
    default: root@pam
  api_password:
    description: Password of O(api_user), for a ticket. Device nodes, folders of the node and most features need that of V(root@pam).
    type: str
  api_token_id:
    description: Name of a token of O(api_user), in place of a password. It may not set what only V(root@pam) may.
    type: str
  api_token_secret:
    description: Secret of the token.
    type: str
  api_ca_file:
    description: Certificate of the authority that signed the API's certificate, for example a copy of C(/etc/pve/pve-root-ca.pem).
    type: path
  api_timeout_s:
    description: Longest wait for one answer of the API, in seconds. Reads are repeated within O(task_timeout_s).
    type: int
    default: 30
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
seealso:
  - module: kpro.llm.gpu_info
"""

EXAMPLES = r"""
- name: Run a container with two GPUs
  kpro.llm.lxc_container:
    vmid: 129
    hostname: qwen
    template: debian-12-standard_12.12-1_amd64.tar.zst
    storage: local-zfs
    rootfs_gib: 64
    cores: 16
    memory_mib: 98304
    swap_mib: 0
    features:
      nesting: true
    network:
      bridge: vmbr0
      ip: dhcp
    mounts:
      - source: /srv/models
        target: /srv/models
    gpus: 2
    node_gpus: "{{ gpu_node__result['gpus'] }}"
    onboot: true

- name: Take over a container that was made by hand
  kpro.llm.lxc_container:
    vmid: 129
    gpus: [GPU-11111111-2222-3333-4444-555555555555]
    node_gpus: "{{ gpu_node__result['gpus'] }}"
    adopt: true
    restart: true

- name: Lift a limit that Proxmox has no key for
  kpro.llm.lxc_container:
    vmid: 129
    raw_lines:
      - "lxc.prlimit.memlock: unlimited"
    restart: true

- name: Remove the container
  kpro.llm.lxc_container:
    vmid: 129
    state: absent
"""

RETURN = r"""
plan:
  description: What was done, or would be done in check mode, one sentence for each change.
  returned: success
  type: list
  elements: str
  sample:
    - Make the folder /srv/models on the node for the container's root (100000:100000)
    - Create container 129 from debian-12-standard_12.12-1_amd64.tar.zst on local-zfs (64 GiB)
    - Start container 129
notes:
  description: What a person should know although nothing had to be done about it.
  returned: success
  type: list
  elements: str
  sample: ["Container 129 lives on kpro6, the play says kpro5; nothing was done there. Name kpro6 as its node, or migrate it first"]
vmid:
  description: Id of the container.
  returned: success
  type: int
  sample: 129
node:
  description: Node on which the container is, or would be made.
  returned: success
  type: str
  sample: kpro5
exists:
  description: Whether the container exists anywhere in the cluster.
  returned: success
  type: bool
  sample: true
here:
  description: Whether the container is on the node on which the module ran.
  returned: success
  type: bool
  sample: true
running:
  description: Whether the container runs.
  returned: success
  type: bool
  sample: true
hostname:
  description: Host name in the configuration.
  returned: success
  type: str
  sample: qwen
unprivileged:
  description: Whether the container is unprivileged.
  returned: success
  type: bool
  sample: true
address:
  description: IPv4 address, configured or as found on the running container's first interface. Empty if it has none.
  returned: success
  type: str
  sample: 10.77.0.129
devices:
  description: Device nodes that the container's configuration passes.
  returned: success
  type: list
  elements: str
  sample: [/dev/nvidia0, /dev/nvidiactl, /dev/nvidia-uvm, /dev/nvidia-uvm-tools]
gpus:
  description: The container's GPUs, the chosen entries of O(node_gpus).
  returned: success
  type: list
  elements: dict
  sample: [{uuid: GPU-11111111-2222-3333-4444-555555555555, minor: 0, bus_id: "0000:01:00.0", name: NVIDIA RTX A6000}]
restart_needed:
  description: Whether changes wait for a restart that O(restart) does not allow.
  returned: success
  type: bool
  sample: false
waiting:
  description: The keys that wait for it.
  returned: success
  type: list
  elements: str
  sample: []
"""

import typing as t

from ..module_utils._container.converge import LxcContainer, Waits
from ..module_utils._container.options import argument_spec, declared_from
from ..module_utils._core.errors import KproError
from ..module_utils._core.module import run_module
from ..module_utils._linux.command_edge import Command
from ..module_utils._pve.api_edge import PveApi, Pvesh
from ..module_utils._pve.calls_edge import FOLDER, Calls
from ..module_utils._pve.gpus import read_cards, read_gpus
from ..module_utils._pve.host_edge import Host
from ..module_utils._pve.https_edge import Login, PveHttps


def main_lxc_container(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Bring the container to its declared state, on the node or over the network."""
    notes: list[str] = []
    deadline_s = float(params["task_timeout_s"])
    rows = params["node_gpus"]
    gpus = None if rows is None else read_gpus(rows)
    cards = read_cards(params["node_cards"])
    waits = Waits(deadline_s, params["shutdown_timeout_s"], float(params["ready_timeout_s"]))
    declared = declared_from(params)
    if params["api_host"]:
        if not params["node"]:
            raise KproError("option 'node'", "it is needed with api_host", "Name the node as Proxmox knows it")
        far: PveApi = PveHttps(Login.of(params), deadline_s=deadline_s, note=notes.append)
        container = LxcContainer(declared, params["node"], far, gpus, waits=waits, cards=cards)
    else:
        host = Host()
        if not host.is_root:
            raise KproError("pvesh", "the module does not run as root", "Use a root login on the node, or become")
        command = Command()
        calls = Calls(command, host.path_of(FOLDER))
        near = Pvesh(command, deadline_s=deadline_s, note=notes.append, calls=calls)
        container = LxcContainer(declared, params["node"] or host.node, near, gpus, host, command, waits, cards, calls)
    result = container.converge(check_mode, notes)
    chosen = {gpu["uuid"] for gpu in result["gpus"]}
    return {**result, "gpus": [row for row in rows or () if row["uuid"] in chosen]}


def main() -> None:
    """Run the module."""
    run_module(main_lxc_container, argument_spec())


if __name__ == "__main__":
    main()
