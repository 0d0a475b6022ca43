# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Command line options as Proxmox's tools read them: long names with one or two dashes, booleans with optional value."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .errors import ApiError
from .formats import parse_boolean

SETTINGS = "/etc/kpro-standin/pve.json"


class UsageError(Exception):
    """Arguments that can't be used; the text goes before the usage line."""


def startup_delay() -> None:
    """Wait as long as the settings say: a real ``pct`` needs about 0.65 s to load (only benchmarks ask for it)."""
    if not os.path.exists(SETTINGS):
        return
    import json
    import time

    with open(SETTINGS, encoding="utf-8") as file:
        time.sleep(float(json.load(file).get("startup_delay_s", 0)))


def parse(argv: Sequence[str], specs: Mapping[str, Any], positional: Sequence[str] = (), extra: bool = False) -> tuple[dict[str, str], list[str]]:
    """Return options and positionals by name, and the remaining arguments; raises UsageError."""
    find: Callable[[str], Any] = specs.get
    if any("[" in name for name in specs):
        from .schema import spec_of

        find = functools.partial(spec_of, specs)
    options, arguments = _split(argv, find)
    for name in positional:
        if not arguments:
            raise UsageError("400 not enough arguments")
        options[name] = arguments.pop(0)
    if arguments and not extra:
        raise UsageError("400 too many arguments")
    return options, arguments


def _split(argv: Sequence[str], find: Any) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    arguments: list[str] = []
    unknown: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            arguments += rest
            break
        if not word.startswith("-") or word == "-":
            arguments.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        spec = find(name)
        if spec is None:
            unknown.append(f"Unknown option: {name}\n")
        elif spec.get("type") == "boolean":
            if not equals and rest and (not rest[0].startswith("-") or rest[0] == "-"):
                value = rest.pop(0)
            options[name] = value
        elif not equals and not rest:
            unknown.append(f"Option {name} requires an argument\n")
        else:
            value = value if equals else rest.pop(0)
            options[name] = f"{options[name]}\0{value}" if name in options and _is_list(spec) else value
    if unknown:
        raise UsageError("".join(unknown) + "400 unable to parse option")
    return {name: _boolean(find(name), value) for name, value in options.items()}, arguments


def _is_list(spec: Mapping[str, Any]) -> bool:
    return str(spec.get("format", "")).endswith("-list")


def _boolean(spec: Mapping[str, Any], value: str) -> str:
    if spec.get("type") != "boolean":
        return value
    if value == "":
        return "1"
    boolean = parse_boolean(value)
    if boolean is None:
        raise UsageError("400 unable to parse boolean option")
    return str(boolean)


def notice(text: str) -> None:
    """Print a line on standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def echo(text: str) -> None:
    """Print a line of a task on standard output at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def exit_code(error: ApiError) -> int:
    """Return an exit code; Proxmox leaks errno here, callers may only ask whether it is 0."""
    return 2 if error.message.endswith("does not exist") else 1 if error.status == 501 else 255


def report(error: ApiError, usage: str) -> int:
    """Print an error (with the usage line when parameters were bad) and return the exit code."""
    sys.stdout.flush()
    sys.stderr.write(error.cli_text() + (f"{usage}\n" if error.status == 400 else ""))
    return exit_code(error)


def clean_environment() -> None:
    """Set the search path as Proxmox's tools do for what they start (without /usr/local)."""
    os.environ["PATH"] = "/sbin:/bin:/usr/sbin:/usr/bin"
