# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one exception of the collection."""

from __future__ import annotations

import typing as t


class KproError(Exception):
    """A failure that a person has to act on.

    Raised in the pure and edge rings and turned into ``fail_json`` once, in :mod:`_module`.

    :param what: the thing that failed, by name ("container 129 on kpro5").
    :param reason: why, with the numbers that decided.
    :param remedy: what to do about it; empty if nothing can be advised.
    :param details: values for programs (returned as ``details`` of the failed task).
    """

    def __init__(self, what: str, reason: str, remedy: str = "", **details: t.Any) -> None:
        self.what = what
        self.reason = reason
        self.remedy = remedy
        self.details = details
        super().__init__(self.sentence)

    @property
    def sentence(self) -> str:
        """Thing, reason and remedy as one line of text."""
        text = f"{self.what}: {self.reason.rstrip('.')}."
        return f"{text} {self.remedy.rstrip('.')}." if self.remedy else text
