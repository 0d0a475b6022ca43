# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-in for Proxmox VE's container stack, for the sandbox of ``kpro.llm``: no part of it is Proxmox's.

One core behind ``pct``, ``pvesh``, ``pvesm``, ``pveam`` and ``pveversion``. It keeps containers in Proxmox's own file
format and runs them with Debian's LXC. What it answers follows recorded exchanges; see README.md.
"""
