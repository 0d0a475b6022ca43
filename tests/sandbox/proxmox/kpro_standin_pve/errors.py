# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors as Proxmox's API gives them: an HTTP status, a sentence, and for bad parameters a map."""

from __future__ import annotations


class ApiError(Exception):
    """One failed call.

    ``status`` is the HTTP status (domain errors are 500 in Proxmox, never 404); ``errors`` maps parameters to texts.
    """

    def __init__(self, status: int, message: str, errors: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.errors = errors or {}

    def cli_text(self) -> str:
        """Return what a command line prints on standard error, without the usage line."""
        text = f"{self.status} {self.message}\n" if self.status in (400, 501) else f"{self.message}\n"
        return text + "".join(f"{name}: {reason}\n" for name, reason in sorted(self.errors.items()))


def bad_parameters(errors: dict[str, str]) -> ApiError:
    """Return the 400 that names every bad parameter at once."""
    return ApiError(400, "Parameter verification failed.", errors)


def failed(message: str) -> ApiError:
    """Return the 500 of an ordinary refusal ("CT 101 already running")."""
    return ApiError(500, message)


def forbidden(reason: str) -> ApiError:
    """Return the 403 with Proxmox's bracketed reason."""
    return ApiError(403, f"Permission check failed ({reason})")
