# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a login may do. The stand-in knows no roles: root may everything; https_front answers for the others."""

from __future__ import annotations

from typing import Any

from .routes import Request, route

PATHS = ("/", "/access", "/nodes", "/pool", "/sdn", "/storage", "/vms")
PRIVILEGES = (
    "Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit", "Permissions.Modify", "SDN.Use", "Sys.Audit",
    "Sys.Modify", "VM.Allocate", "VM.Audit", "VM.Config.CPU", "VM.Config.Disk", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.PowerMgmt",
)  # fmt: skip


@route("GET", "/access/permissions")
def get_permissions(request: Request) -> dict[str, Any]:
    """Return a map of paths to privileges (1: handed on to what is below)."""
    asked = request.get("path")
    return {path: dict.fromkeys(PRIVILEGES, 1) for path in ((asked,) if asked else PATHS)}
