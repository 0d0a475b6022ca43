# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the files of the service."""

from __future__ import annotations

import typing as t

from .._linux.state_file_edge import UnusableFile, read_state
from .._linux.systemd_edge import Systemd
from .._linux.text_file_edge import TextFile, read_text_file, set_owner_and_mode, write_text_file
from .plan import ServiceFile, ServicePresent


def read_service_files(paths: t.Mapping[str, str]) -> dict[str, ServiceFile]:
    """Return the files that are there, by role."""
    files = {}
    for role, path in paths.items():
        found = read_text_file(path)
        if found is not None:
            files[role] = ServiceFile(role, path, found.text, found.mode, found.owner, found.group)
    return files


def read_start_note(path: str) -> tuple[str, str]:
    """Return digest and invocation id that the gate noted at the last start; empty texts without a readable note.

    The service's user can write there.
    """
    try:
        note = read_state(path)
    except UnusableFile:
        note = {}
    return str(note.get("digest", "")), str(note.get("invocation_id", ""))


def observe_service(paths: t.Mapping[str, str], started_path: str, systemd: Systemd) -> ServicePresent:
    """Return what is there of the service."""
    digest, invocation_id = read_start_note(started_path)
    return ServicePresent(read_service_files(paths), systemd.state(), digest, invocation_id)


def put_service_file(file: ServiceFile, *, whole: bool) -> None:
    """Write a file, or (``whole`` false) only give it its owner and mode."""
    text_file = TextFile(file.path, file.text or "", file.mode, file.owner, file.group)
    if whole:
        write_text_file(text_file)
    else:
        set_owner_and_mode(text_file)
