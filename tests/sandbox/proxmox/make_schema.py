#!/usr/bin/env python3
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trim a dump of Proxmox's API schema to what the stand-in answers: ``make_schema.py DUMP > data/schema.json``.

The dump is the method registry of Proxmox VE 9.2 as JSON (``paths``: path -> method -> parameters). Texts for humans
are dropped, everything that decides whether a parameter is accepted is kept.
"""

from __future__ import annotations

import json
import sys
from typing import Any

PATHS = [
    "/version",
    "/nodes",
    "/nodes/{node}/version",
    "/nodes/{node}/status",
    "/nodes/{node}/storage",
    "/nodes/{node}/storage/{storage}/status",
    "/nodes/{node}/storage/{storage}/content",
    "/nodes/{node}/storage/{storage}/content/{volume}",
    "/nodes/{node}/aplinfo",
    "/nodes/{node}/hardware/pci",
    "/nodes/{node}/lxc",
    "/nodes/{node}/lxc/{vmid}",
    "/nodes/{node}/lxc/{vmid}/config",
    "/nodes/{node}/lxc/{vmid}/pending",
    "/nodes/{node}/lxc/{vmid}/interfaces",
    "/nodes/{node}/lxc/{vmid}/migrate",
    "/nodes/{node}/lxc/{vmid}/resize",
    "/nodes/{node}/lxc/{vmid}/status",
    "/nodes/{node}/lxc/{vmid}/status/current",
    "/nodes/{node}/lxc/{vmid}/status/start",
    "/nodes/{node}/lxc/{vmid}/status/stop",
    "/nodes/{node}/lxc/{vmid}/status/shutdown",
    "/nodes/{node}/lxc/{vmid}/status/reboot",
    "/nodes/{node}/startall",
    "/nodes/{node}/stopall",
    "/nodes/{node}/tasks",
    "/nodes/{node}/tasks/{upid}",
    "/nodes/{node}/tasks/{upid}/status",
    "/nodes/{node}/tasks/{upid}/log",
    "/cluster/nextid",
    "/cluster/resources",
    "/cluster/status",
    "/storage",
    "/storage/{storage}",
    "/access/permissions",
]

KEEP = (
    "type", "optional", "default", "format", "pattern", "enum", "minimum", "maximum", "minLength", "maxLength",
    "requires", "default_key", "alias", "keyAlias", "items", "properties", "additionalProperties", "typetext",
)  # fmt: skip

NODE = {"type": "string", "format": "pve-node"}
VMID = {"type": "integer", "format": "pve-vmid", "minimum": 100, "maximum": 999999999}
# The dump holds no virtual machine paths; these two are asked only to find a GPU that a machine claims by hostpci. Nor has it
# vzdump, of which only what the stand-in does is declared.
EXTRA = {
    "/nodes/{node}/vzdump": {
        "POST": {
            "properties": {
                "node": {**NODE, "optional": 1},
                "vmid": {"type": "string", "format": "pve-vmid-list", "optional": 1},
                "storage": {"type": "string", "format": "pve-storage-id", "optional": 1},
                "mode": {"type": "string", "enum": ["snapshot", "suspend", "stop"], "optional": 1, "default": "snapshot"},
                "compress": {"type": "string", "enum": ["0", "1", "gzip", "lzo", "zstd"], "optional": 1, "default": "0"},
            }
        }
    },
    "/nodes/{node}/qemu": {"GET": {"properties": {"node": NODE, "full": {"type": "boolean", "optional": 1}}}},
    "/nodes/{node}/qemu/{vmid}/config": {"GET": {"properties": {"node": NODE, "vmid": VMID, "current": {"type": "boolean", "optional": 1, "default": 0}}}},
}


def trim(spec: Any) -> Any:
    """Return a parameter's specification without texts; nested property-string formats are trimmed alike."""
    if not isinstance(spec, dict):
        return spec
    kept: dict[str, Any] = {}
    for key in KEEP:
        if key not in spec:
            continue
        value = spec[key]
        if key in ("format", "properties") and isinstance(value, dict):
            value = {name: trim(inner) for name, inner in value.items()}
        elif key == "items":
            value = trim(value)
        kept[key] = value
    return kept


def main() -> None:
    """Write the trimmed schema to standard output."""
    with open(sys.argv[1], encoding="utf-8") as dump:
        source = json.load(dump)
    paths: dict[str, Any] = {}
    for path in PATHS:
        paths[path] = {
            method: {"properties": {name: trim(spec) for name, spec in entry["parameters"]["properties"].items()}}
            for method, entry in source["paths"][path].items()
        }
    paths.update(EXTRA)
    meta = {"of": source["_meta"]["source"], "pve-manager": source["_meta"]["pve-manager"]}
    json.dump({"_meta": meta, "paths": paths}, sys.stdout, separators=(",", ":"), sort_keys=True)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
