# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The house of module_utils: packages on floors, rings in names. Read by syntax tree, so late and relative imports count, too."""

from __future__ import annotations

import ast
import dataclasses
import functools
import graphlib
from pathlib import Path

import pytest

ROOT = next(parent for parent in Path(__file__).resolve().parents if (parent / "galaxy.yml").exists())
HOUSE = ROOT / "plugins" / "module_utils"
PREFIX = "ansible_collections.kpro.llm.plugins.module_utils."

# A package imports from lower floors and from itself.
FLOORS = (
    {"_core"},
    {"_linux", "_engine"},
    {"_job", "_apt", "_gpu", "_service"},
    {"_cuda", "_driver", "_pve", "_environment", "_model"},
    {"_container", "_runtime", "_vram"},
    {"_diagnosis", "_launch", "_removal"},
    {"_ready"},
    {"_start"},
)
FLOOR = {package: number for number, floor in enumerate(FLOORS) for package in floor}

# Files that may touch the world: edges by their ending, programs of their own, and those that observe, plan and apply.
EDGE_ENDINGS = ("edge", "worker", "converge")
CONVERGING = {"ensure", "look", "observe", "apply", "migrate"}

# What reaches out of the process, or asks it for the time. Of os, only what calculates with text is pure.
WORLD = {
    "concurrent.futures", "ctypes", "fcntl", "glob", "grp", "http.client", "http.server", "mmap", "multiprocessing", "pathlib", "pwd", "resource", "select",
    "selectors", "shutil", "socket", "ssl", "subprocess", "tempfile", "threading", "urllib.error", "urllib.request",
}  # fmt: skip
PURE_OS = {"PathLike", "fsdecode", "fsencode", "fspath", "sep", "strerror"}
PURE_OS_PATH = {"basename", "commonpath", "dirname", "isabs", "join", "normpath", "relpath", "sep", "split", "splitext"}
# Modules that also name and convert.
PURE_OF = {"signal": {"Signals", "SIGABRT", "SIGKILL", "SIGTERM", "SIGSEGV", "SIGBUS"}, "time": {"gmtime", "localtime", "strftime"}}
WORLD_CALLS = {"input", "open", "print"}


@dataclasses.dataclass(frozen=True)
class File:
    """A file of the house, with the files that it imports and what of the world it names."""

    name: str
    imports: frozenset[str]
    world: frozenset[str]

    @property
    def package(self) -> str:
        return self.name.split(".")[0]

    @property
    def stem(self) -> str:
        return self.name.rsplit(".", maxsplit=1)[-1]

    @property
    def is_pure(self) -> bool:
        return not self.stem.endswith(EDGE_ENDINGS) and self.stem not in CONVERGING


def imports_of(name: str, tree: ast.AST, known: frozenset[str]) -> set[str]:
    """Return the files of the house that a file imports; ``name`` is its own, as ``package.file``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.removeprefix(PREFIX) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            here = name.split(".")[: -node.level] if node.level and node.level <= name.count(".") + 1 else []
            module = ".".join([*here, *([node.module] if node.module else [])]).removeprefix(PREFIX)
            found |= {module, *(f"{module}.{alias.name}".removeprefix(".") for alias in node.names)}
    return found & known


def world_of(tree: ast.AST) -> set[str]:
    """Return what a source names of the world outside the process."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in WORLD}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= ({node.module or ""} | names) & WORLD
            found |= {name for name in names if name.startswith(("os.", "time.")) and name not in {"os.path"}}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in WORLD_CALLS:
            found.add(node.func.id)
        elif isinstance(node, ast.Attribute):
            found |= _named(node)
    return found


def _named(node: ast.Attribute) -> set[str]:
    inner = node.value
    if isinstance(inner, ast.Name) and inner.id in PURE_OF and node.attr not in PURE_OF[inner.id]:
        return {f"{inner.id}.{node.attr}"}
    if isinstance(inner, ast.Name) and inner.id == "os" and node.attr not in PURE_OS | {"path"}:
        return {f"os.{node.attr}"}
    if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and (inner.value.id, inner.attr) == ("os", "path"):
        return set() if node.attr in PURE_OS_PATH else {f"os.path.{node.attr}"}
    return set()


@functools.cache
def files() -> dict[str, File]:
    paths = {".".join(path.relative_to(HOUSE).with_suffix("").parts): path for path in HOUSE.rglob("*.py") if path.name != "__init__.py"}
    known = frozenset(paths)
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in paths.items()}
    return {name: File(name, frozenset(imports_of(name, tree, known)), frozenset(world_of(tree))) for name, tree in trees.items()}


def test_every_file_lies_in_a_package_that_has_a_floor() -> None:
    assert not [name for name in files() if name.count(".") != 1 or name.split(".")[0] not in FLOOR]


def test_no_package_imports_from_its_own_floor_or_a_higher_one() -> None:
    upward = [
        f"{file.name} imports {other}"
        for file in files().values()
        for other in sorted(file.imports)
        if other.split(".")[0] != file.package and FLOOR[other.split(".")[0]] >= FLOOR[file.package]
    ]
    assert not upward


def test_there_is_no_cycle() -> None:
    graphlib.TopologicalSorter({file.name: file.imports for file in files().values()}).prepare()


@pytest.mark.parametrize("name", sorted(name for name, file in files().items() if file.is_pure))
def test_a_pure_file_touches_nothing(name: str) -> None:
    file = files()[name]
    assert not file.world, f"{name} touches the world: name it ..._edge, or take that part out"
    # This holds for types, too: one that a decision needs belongs into a pure file.
    assert not [other for other in sorted(file.imports) if not files()[other].is_pure], f"{name} imports a file that touches the world"


def test_plugins_import_relatively() -> None:
    for path in sorted((ROOT / "plugins").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert not module.startswith("ansible_collections.kpro"), f"{path.relative_to(ROOT)}: {module}"


def test_tests_stand_in_the_same_tree() -> None:
    unit = ROOT / "tests" / "unit" / "plugins" / "module_utils"
    strays = [path.name for path in unit.glob("test_*.py")]
    assert not strays and {path.parent.name for path in unit.glob("*/test_*.py")} <= set(FLOOR)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from ..b.two_edge import X", {"b.two_edge"}),
        ("from ..b import two_edge", {"b.two_edge"}),
        ("from . import other", {"a.other"}),
        ("def late():\n    from .other import X", {"a.other"}),
        (f"from {PREFIX}b.two_edge import X", {"b.two_edge"}),
        ("from . import other as something", {"a.other"}),
        ("import typing", set()),
    ],
)
def test_each_form_of_import_is_found(source: str, found: set[str]) -> None:
    assert imports_of("a.one", ast.parse(source), frozenset({"a.one", "a.other", "b.two_edge"})) == found


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.stat('x')",
        "open('x')",
        "import time\ntime.sleep(1)",
        "from os import stat",
        "import os\nos.path.exists('x')",
        "import socket",
        "from urllib import request",
    ],
)
def test_the_world_is_found(source: str) -> None:
    assert world_of(ast.parse(source))


@pytest.mark.parametrize("source", ["import os\nos.path.join('x')", "import os\nos.sep", "opened('x')", "import re"])
def test_what_is_pure_is_no_finding(source: str) -> None:
    assert not world_of(ast.parse(source))
