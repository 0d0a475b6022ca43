# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line parser of SGLang 0.5.23 itself, out of its wheel: ``engine_parser.py WHEEL CONFIG ...``.

The engine builds its parser from records of options. These, and what lists their choices, are the engine's own code; the packages that only its
kernels and its server need answer as absent. Run as a program of its own, because it fills the table of modules. Prints the parsed options of each config
file as JSON, and ends as argparse does (code 2) if it refuses one.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.abc
import importlib.machinery
import inspect
import json
import sys
import types
import typing as t

_OWN = ("sglang.srt.server_args", "sglang.srt.environ", "sglang.srt.utils.server_args_config_parser")
_OWN_PACKAGES = ("sglang.srt.arg_groups", "sglang.srt.parser", "sglang.srt.function_call")
_ELSEWHERE = frozenset({*sys.stdlib_module_names, "yaml", "_wmi"})
_NO_DEFAULT = object()


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a record, as msgspec describes one."""

    name: str = ""
    default: t.Any = _NO_DEFAULT
    default_factory: t.Any = _NO_DEFAULT


class Struct:
    """As much of msgspec's records as the engine's lists of options use."""

    def __init_subclass__(cls, **_options: t.Any) -> None:
        return

    def __init__(self, *values: t.Any, **named: t.Any) -> None:
        known = fields(type(self))
        given = {**dict(zip((item.name for item in known), values, strict=False)), **named}
        for item in known:
            default = item.default if item.default_factory is _NO_DEFAULT else item.default_factory()
            setattr(self, item.name, given.get(item.name, default))


def fields(cls: type) -> tuple[Field, ...]:
    """Return the fields of a record in their order."""
    found: dict[str, Field] = {}
    for owner in reversed(cls.__mro__):
        for name, kind in inspect.get_annotations(owner).items():
            if "ClassVar" not in str(kind):
                value = owner.__dict__.get(name, _NO_DEFAULT)
                found[name] = dataclasses.replace(value, name=name) if isinstance(value, Field) else Field(name, value)
    return tuple(found.values())


def defstruct(name: str, items: t.Sequence[tuple[t.Any, ...]], namespace: dict[str, t.Any] | None = None, **_options: t.Any) -> type:
    """Return a record with these fields."""
    defaults = {item[0]: item[2] for item in items if len(item) > 2}
    return type(name, (Struct,), {**(namespace or {}), **defaults, "__annotations__": {item[0]: item[1] for item in items}})


class Absent:
    """What a package that is not there would give: it can be named, called and put into an annotation."""

    def __init__(self, *_values: t.Any, **_named: t.Any) -> None:
        return

    def __call__(self, *values: t.Any, **named: t.Any) -> t.Any:
        return values[0] if len(values) == 1 and not named and callable(values[0]) else Absent()

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Absent()

    def __mro_entries__(self, _bases: tuple[t.Any, ...]) -> tuple[type, ...]:
        return (Struct,)

    def __getitem__(self, _key: t.Any) -> Absent:
        return Absent()

    def __add__(self, other: t.Any) -> t.Any:
        return other

    def __radd__(self, other: t.Any) -> t.Any:
        return other

    def __or__(self, _other: t.Any) -> t.Any:
        return t.Any

    def __ror__(self, _other: t.Any) -> t.Any:
        return t.Any

    def __iter__(self) -> t.Iterator[t.Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False


class AbsentPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers for every module that is neither the engine's own list of options nor of Python itself."""

    def __init__(self, wheel: str) -> None:
        self._wheel = wheel

    def find_spec(self, name: str, _path: t.Any = None, _target: t.Any = None) -> importlib.machinery.ModuleSpec | None:
        own = name in _OWN or name in _OWN_PACKAGES or name.startswith(tuple(f"{package}." for package in _OWN_PACKAGES))
        return None if own or name.partition(".")[0] in _ELSEWHERE else importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        # The engine's own packages lead on to its own files.
        module.__path__ = [f"{self._wheel}/{spec.name.replace('.', '/')}"] if spec.name.startswith("sglang") else []
        module.__dict__.update(__getattr__=_missing, __all__=[])
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        return


def _missing(name: str) -> Absent:
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent()


def main() -> None:
    wheel, *configs = sys.argv[1:]
    structs = types.ModuleType("msgspec.structs")
    structs.__dict__.update(fields=fields)
    msgspec = types.ModuleType("msgspec")
    msgspec.__dict__.update(Struct=Struct, NODEFAULT=_NO_DEFAULT, UNSET=object(), field=Field, defstruct=defstruct, structs=structs)
    sys.modules.update({"msgspec": msgspec, "msgspec.structs": structs})
    sys.meta_path.insert(0, AbsentPackages(wheel))
    from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found]
    from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    for path in configs:
        parsed = parser.parse_args(ConfigArgumentMerger(parser).merge_config_with_args(["--config", path]))
        print(json.dumps(vars(parsed), default=str))


if __name__ == "__main__":
    main()
