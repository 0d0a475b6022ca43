# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the engine's extracted functions need around them, and nothing of what they decide."""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import logging
import math
import sys
import types
import typing as t
from bisect import bisect_right
from unittest import mock

GIB = 1 << 30


class Bag(types.SimpleNamespace):
    """A namespace that answers None for whatever was not given."""

    def __getattr__(self, name: str) -> t.Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Variable:
    """An environment variable of the engine."""

    def __init__(self, value: t.Any) -> None:
        self.value = value

    def get(self) -> t.Any:
        return self.value

    def set(self, value: t.Any) -> None:
        self.value = value

    def is_set(self) -> bool:
        return False


class Variables:
    """The engine's environment: given values, and False for the rest."""

    def __init__(self, **values: t.Any) -> None:
        self._values = {name: Variable(value) for name, value in values.items()}

    def __getattr__(self, name: str) -> Variable:
        return self.__dict__["_values"].setdefault(name, Variable(False))


class Dtype:
    """A tensor type that knows its size."""

    def __init__(self, size: int) -> None:
        self.itemsize = size


FLOAT32, FLOAT16, BFLOAT16, FLOAT8 = Dtype(4), Dtype(2), Dtype(2), Dtype(1)


def torch() -> types.SimpleNamespace:
    """What the sizing asks of PyTorch: sizes of types, and none of its tensors."""
    sizes = types.SimpleNamespace(_element_size=lambda dtype: dtype.itemsize)
    types_ = {"float32": FLOAT32, "float16": FLOAT16, "bfloat16": BFLOAT16, "float8_e4m3fn": FLOAT8, "int64": Dtype(8)}
    return types.SimpleNamespace(_utils=sizes, iinfo=lambda _dtype: types.SimpleNamespace(max=2**63 - 1), **types_)


def _product(values: t.Iterable[int]) -> int:
    return math.prod(values)


def namespace(**extra: t.Any) -> dict[str, t.Any]:
    """Return names that extracted functions use, with ``extra`` before the common ones."""
    logger = logging.getLogger("engine")
    logger.disabled = True
    numpy = types.SimpleNamespace(sum=sum, prod=_product)
    common: dict[str, t.Any] = {
        "torch": torch(),
        "np": numpy,
        "math": math,
        "gc": types.SimpleNamespace(collect=lambda: None),
        "copy": copy,
        "logger": logger,
        "logging": types.SimpleNamespace(warning=lambda *_: None, getLogger=lambda *_: logger),
        "dataclass": dataclasses.dataclass,
        "field": dataclasses.field,
        "replace": dataclasses.replace,
        "dataclasses": dataclasses,
        "Optional": t.Optional,
        "Tuple": tuple,
        "List": list,
        "Dict": dict,
        "Any": t.Any,
        "ABC": object,
        "TYPE_CHECKING": False,
        "bisect_right": bisect_right,
        "divide": lambda number, by: number // by,
        "is_float4_e2m1fn_x2": lambda _dtype: False,
        "_is_npu": False,
        "_is_hip": False,
        "is_deepseek_nsa": lambda _config: False,
        "is_deepseek_dsa": lambda _config: False,
        "is_minimax_sparse": lambda _config: False,
        "is_deepseek_v4": lambda _config: False,
        "ceil_div": lambda number, by: -(-number // by),
    }
    return {"__name__": __name__, **common, **extra}


def define(names: dict[str, t.Any], nodes: t.Iterable[ast.stmt], file: str = "engine.py") -> dict[str, t.Any]:
    """Compile the nodes into the namespace, with annotations left as text, and return it."""
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    module = ast.fix_missing_locations(ast.Module([future, *nodes], []))
    exec(compile(module, file, "exec"), names)  # noqa: S102  the engine's own functions, out of a wheel with a known hash
    return names


def class_of(names: dict[str, t.Any], nodes: t.Sequence[ast.stmt]) -> type:
    """Return a class with these functions as methods."""
    methods = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    define(names, methods)
    return type("Extracted", (), {node.name: names[node.name] for node in methods})


@contextlib.contextmanager
def modules(**contents: dict[str, t.Any]) -> t.Iterator[None]:
    """Answer the imports that functions make inside themselves; ``a__b`` stands for ``sglang.srt.a.b``."""
    stand_ins: dict[str, types.ModuleType] = {}
    for key, values in contents.items():
        parts = ["sglang", "srt", *key.split("__")]
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            stand_ins.setdefault(name, types.ModuleType(name))
        stand_ins[".".join(parts)].__dict__.update(values)
    with mock.patch.dict(sys.modules, stand_ins):
        yield
