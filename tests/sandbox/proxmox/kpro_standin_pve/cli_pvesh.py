# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``pvesh``: the API on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from . import cli_options
from .api import call, handler_of
from .cli_options import UsageError
from .errors import ApiError, bad_parameters
from .node import Node, this_node
from .routes import Listed
from .tasks import Outcome

METHODS = {"get": "GET", "set": "PUT", "create": "POST", "delete": "DELETE"}
FORMATS = ("text", "json", "json-pretty", "yaml")
USAGE = """USAGE: pvesh <COMMAND> [ARGS] [OPTIONS]

       pvesh create <api_path> [OPTIONS] [FORMAT_OPTIONS]
       pvesh delete <api_path> [OPTIONS] [FORMAT_OPTIONS]
       pvesh get <api_path> [OPTIONS] [FORMAT_OPTIONS]
       pvesh ls <api_path> [OPTIONS] [FORMAT_OPTIONS]
       pvesh set <api_path> [OPTIONS] [FORMAT_OPTIONS]
       pvesh usage <api_path> [OPTIONS]

       pvesh help [<extra-args>] [OPTIONS]
"""
FORMAT_OPTIONS = {
    "output-format": {"type": "string"},
    "human-readable": {"type": "boolean"},
    "noborder": {"type": "boolean"},
    "noheader": {"type": "boolean"},
    "quiet": {"type": "boolean"},
    "noproxy": {"type": "boolean"},
}


def main(argv: Sequence[str], node: Node | None = None) -> int:
    """Run one command, on this machine unless a node is given."""
    if node is None:
        cli_options.startup_delay()
    if not argv or argv[0] not in METHODS:
        reason = "no command specified" if not argv else f"unknown command 'pvesh {argv[0]}'"
        sys.stderr.write(f"ERROR: {reason}\n{USAGE}")
        return 255
    return run(node or this_node(cli_options.notice), argv[0], argv[1:])


def run(node: Node, command: str, argv: Sequence[str]) -> int:
    """Run ``pvesh COMMAND ARGS`` against a node."""
    from . import schema

    method = METHODS[command]
    words = [word for word in argv if not word.startswith("-")]
    path = "/" + words[0].strip("/") if words and argv[0] == words[0] else ""
    found = schema.find(method, path) if path else None
    usage = f"pvesh {command} <api_path> {_required(found)}[OPTIONS] [FORMAT_OPTIONS]"
    try:
        if path and found is None:
            sys.stderr.write(f"No '{command}' handler defined for '{path}'\n")
            return 1
        properties = {**FORMAT_OPTIONS, **(found.properties if found else {})}
        options, _rest = cli_options.parse(argv, properties, ("api_path",))
        form = options.pop("output-format", "text")
        shown = {name: options.pop(name) for name in ("human-readable", "noborder", "noheader", "quiet") if name in options}
        if form not in FORMATS:
            raise bad_parameters({"output-format": _enum(form)})
        path = "/" + options.pop("api_path").strip("/")
        if found is not None:
            handler_of(found, path)
        answer = call(node, method, path, options, cli_options.echo)
    except UsageError as error:
        sys.stderr.write(f"{error}\n{usage}\n")
        return 255
    except ApiError as error:
        return cli_options.report(error, usage)
    _show(command, answer, form, "noborder" in shown, "quiet" in shown)
    return 0


def _enum(form: str) -> str:
    return f"value '{form}' does not have a value in the enumeration '{', '.join(FORMATS)}'"


def _required(found: Any) -> str:
    if found is None:
        return ""
    names = sorted(name for name, spec in found.properties.items() if not spec.get("optional") and "[" not in name and name not in found.bound)
    return "".join(f"--{name} <{found.properties[name].get('type', 'string')}> " for name in names)


def _show(command: str, answer: Any, form: str, noborder: bool, quiet: bool) -> None:
    if isinstance(answer, Outcome):
        sys.stdout.flush()
        if not answer.is_success:
            cli_options.notice(answer.exitstatus)
        elif answer.warnings:
            cli_options.notice(f"Task finished with {answer.warnings} warning(s)!")
        answer = answer.upid
    data = answer.data if isinstance(answer, Listed) else answer
    if quiet or (data is None and command != "get"):
        return
    if form == "json":
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"
    else:
        from . import cli_text

        text = cli_text.render(data, form, noborder)
    sys.stdout.write(text)
