# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Engine options: names by engine version, and the engine's config file."""

from __future__ import annotations

import difflib
import json
import re
import typing as t

from .._core.errors import KproError
from .option_names import ALIASES, BY_VERSION, RENAMED

OptionValue: t.TypeAlias = bool | int | float | str | list[t.Any]

OPTIONS_PLACEHOLDER = "@KPRO_OPTIONS@"
# Set by the role's own typed variables; a second value in the free options would contradict them.
TYPED_OPTIONS = frozenset({"model_path", "served_model_name", "host", "port", "tp_size", "api_key", "admin_api_key"})


def release_of(version: str) -> tuple[int, ...]:
    """Return the release number of an engine version as a tuple ("0.5.10.post1" -> (0, 5, 10)).

    :raises KproError: if the text is no version.
    """
    match = re.match(r"\d+(?:\.\d+)*", version)
    if not match:
        raise KproError("engine version", f"{version!r} is not a version number", 'Give it like "0.5.23"')
    return tuple(int(part) for part in match[0].split("."))


def named_for(options: t.Mapping[str, t.Any], version: str) -> dict[str, OptionValue]:
    """Return the options under the names (with underscores) that this engine version knows.

    Null values are left out: they mean the engine's own default. For a version whose options are not recorded here, names are kept, and the
    engine's own parser is the judge.

    :raises KproError: for an unknown option (with the nearest known one), one given twice, and one that has a variable of its own.
    """
    return {name: value for name, value in _named(options, version).items() if value is not None}


def _named(options: t.Mapping[str, t.Any], version: str) -> dict[str, OptionValue | None]:
    known = BY_VERSION.get(".".join(str(number) for number in release_of(version)))
    named: dict[str, OptionValue | None] = {}
    for given, value in options.items():
        name = _name_in(str(given).replace("-", "_").strip("_"), known, version)
        if name in TYPED_OPTIONS:
            raise KproError(f"engine option {given}", "it has a variable of its own in the role sglang_server", "Use that variable")
        if name in named:
            raise KproError(f"engine option {given}", f"it is given twice (as {name})", "Keep one of them")
        named[name] = None if value is None else _checked(name, value)
    return named


def merged_options(options: t.Mapping[str, t.Any], own: t.Mapping[str, t.Any], version: str) -> dict[str, OptionValue]:
    """Return ``options`` with those of a rung over them; null takes an option away.

    Both sides are named for the version first, so that an old and a new name of one option meet.

    :raises KproError: as :func:`named_for`.
    """
    return {name: value for name, value in {**_named(options, version), **_named(own, version)}.items() if value is not None}


def config_text(options: t.Mapping[str, OptionValue]) -> str:
    """Return the lines of the engine's config file: one ``long-name: value`` a line, sorted, values as JSON (which is YAML)."""
    return "".join(f"{name.replace('_', '-')}: {json.dumps(options[name], ensure_ascii=False)}\n" for name in sorted(options))


def rung_texts(text: str, profiles: t.Sequence[t.Mapping[str, t.Any]], options: t.Mapping[str, t.Any], version: str) -> list[str]:
    """Return a rendered config file with the options of each profile in place of the placeholder; without profiles, one with ``options``.

    :raises KproError: as :func:`named_for`, and if a profile has no options.
    """
    texts = []
    for profile in profiles or [{"name": "default", "options": {}}]:
        own = profile.get("options")
        if not isinstance(own, dict):
            raise KproError(f"profile {profile.get('name', '(without a name)')}", "it has no options", "Give it name and options")
        if profile.get("goal") is not None:
            reason = "its goal needs the memory plan, which was not made"
            raise KproError(f"profile {profile.get('name')}", reason, "Set sglang_server__plan to required, or give options in place of the goal")
        lines = config_text(merged_options(options, own, version))
        texts.append(text.replace(OPTIONS_PLACEHOLDER, lines.rstrip("\n")))
    return texts


def service_rungs(rungs: t.Sequence[t.Mapping[str, t.Any]], template: str, version: str, tp_size: int) -> list[dict[str, t.Any]]:
    """Return each rung with its name, the text of its config file, its options for the diagnosis, and why the plan refuses it.

    :param rungs: each with ``config_text``, or with ``options`` that are put into the template.
    :param tp_size: named by the template itself, and so only told to the diagnosis; 0 if it is not known.
    :raises KproError: as :func:`rung_texts`, and for a rung with neither.
    """
    return [_service_rung(rung, template, version, {"tp_size": tp_size} if tp_size else {}) for rung in rungs]


def _service_rung(rung: t.Mapping[str, t.Any], template: str, version: str, told: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    name, text, args = str(rung.get("name") or "default"), rung.get("config_text"), rung.get("args") or {}
    if text is None:
        if not template:
            raise KproError(f"rung {name}", "it has no config_text", "Give it one, or options and the module's config_text")
        text = rung_texts(template, [rung], {}, version)[0]
        args = {**rung["options"], **told}
    if not isinstance(text, str) or not isinstance(args, dict):
        raise KproError(f"rung {name}", "config_text is no text, or args has no keys", "Correct it")
    return {"name": name, "config_text": text, "args": args, "refused": str(rung.get("refused") or "")}


def _name_in(given: str, known: frozenset[str] | None, version: str) -> str:
    name = ALIASES.get(given, given)
    if known is None or name in known:
        return name
    old_names = {new: old for old, new in RENAMED.items()}
    for other in (RENAMED.get(name), old_names.get(name)):
        if other in known:
            return str(other)
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    raise KproError(f"engine option {given}", f"SGLang {version} does not know it", f"Did you mean {near[0]}?" if near else "Look at sglang serve --help")


def _checked(name: str, value: t.Any) -> OptionValue:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise KproError(f"engine option {name!r}", "it is not a long option name", 'Write it like "context_length"')
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [item if isinstance(item, (bool, int, float)) else str(item) for item in value]
    if isinstance(value, dict):
        # Older engines would print a mapping in Python's notation; the option itself takes JSON text in all of them.
        return json.dumps(value)
    raise KproError(f"engine option {name}", f"a {type(value).__name__} is no value for it", "Give a text, a number, a boolean or a list")
