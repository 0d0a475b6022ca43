# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Growing a container's volume: only the number in the configuration, volumes are plain folders here."""

from __future__ import annotations

import re

from . import normalise, storage, store
from .errors import ApiError, failed
from .locks import config_lock
from .node import Node
from .routes import Request, route
from .tasks import Outcome, Task

FACTORS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


def size_bytes(text: str) -> int:
    """Return a size such as 16G or 1280M in bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text)
    return int(float(match[1]) * FACTORS[match[2]]) if match else 0


@route("PUT", "/nodes/{node}/lxc/{vmid}/resize")
def resize(request: Request) -> Outcome:
    """Grow a volume to a size, or by one with a plus sign before it; a smaller one is refused at once."""
    vmid, disk, asked = request["vmid"], request["disk"], request["size"]
    config = store.load(request.node, vmid)
    store.check_lock(config)
    if (digest := request.get("digest")) and digest != config.digest:
        raise failed("detected modified configuration - file changed by other user? Try again.")
    if disk not in config.current.values:
        raise ApiError(500, "format error", {"volume": "property is missing and it is not optional"})
    parts = normalise.parts_of(disk, config.current.values[disk])
    now = size_bytes(parts.get("size", "0"))
    wanted = now + size_bytes(asked[1:]) if asked.startswith("+") else size_bytes(asked)
    if wanted < now:
        raise failed("unable to shrink disk size")

    def work(task: Task, node: Node) -> None:
        with config_lock(node, vmid):
            fresh = store.load(node, vmid)
            found = normalise.parts_of(disk, fresh.current.values[disk])
            found["size"] = storage.size_text(wanted)
            fresh.current.values[disk] = normalise.print_mount(found)
            store.save(node, vmid, fresh)
            task.log("Image resized.")
            task.log("kpro stand-in: the volume is a plain folder, no file system is grown")

    return request.task("resize", work)
