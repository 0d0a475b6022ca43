# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to other programs."""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
import typing as t

from .._core.errors import KproError


@dataclasses.dataclass(frozen=True)
class CommandResult:
    """A program's answer; ``stdout`` and ``stderr`` are text (undecodable bytes are kept as surrogates)."""

    argv: tuple[str, ...]
    rc: int
    stdout: str
    stderr: str

    @property
    def last_error_line(self) -> str:
        """The last line the program said, standard error first."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return lines[-1].strip() if lines else f"exit code {self.rc} without a message"


class Command:
    """Runs programs by argument vector (never a shell), in the C.UTF-8 locale."""

    def __init__(self, env: t.Mapping[str, str] | None = None) -> None:
        self._env = {**os.environ, "LC_ALL": "C.UTF-8", "LANGUAGE": "C", **(env or {})}

    @property
    def env(self) -> dict[str, str]:
        """The environment of its programs."""
        return dict(self._env)

    def run(
        self,
        argv: t.Sequence[str],
        *,
        stdin: str | bytes | None = None,
        timeout_s: float = 60.0,
        env: t.Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run a program and return what it answered, whatever its exit code.

        :raises KproError: if the program is absent or takes longer than ``timeout_s``.
        """
        data = stdin.encode() if isinstance(stdin, str) else stdin
        try:
            done = subprocess.run(
                list(argv),
                input=data if data is not None else b"",
                capture_output=True,
                timeout=timeout_s,
                env={**self._env, **(env or {})},
                check=False,
            )
        except FileNotFoundError as error:
            raise KproError(argv[0], "the program is not there", "Install it or correct PATH", argv=list(argv)) from error
        except subprocess.TimeoutExpired as error:
            raise KproError(shlex.join(argv), f"no end after {timeout_s:g} s", argv=list(argv)) from error
        return CommandResult(
            tuple(argv),
            done.returncode,
            done.stdout.decode("utf-8", "surrogateescape"),
            done.stderr.decode("utf-8", "surrogateescape"),
        )

    def check(self, argv: t.Sequence[str], **options: t.Any) -> CommandResult:
        """Run a program that has to succeed.

        :raises KproError: as :meth:`run`, and if the exit code is not 0.
        """
        result = self.run(argv, **options)
        if result.rc != 0:
            raise KproError(shlex.join(argv), f"exit code {result.rc}, {result.last_error_line}", argv=list(argv), rc=result.rc)
        return result
