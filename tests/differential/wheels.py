# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine's published wheels: fetched from the package index once, and read as source text; never installed or imported."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
import typing as t
import zipfile
from pathlib import Path

# SHA-256 of the wheels that the planner's rules were read in.
PINNED: dict[str, str] = {
    "0.5.9": "8a936c4d25fea605f44254e533cff2144c73ceffbc1f8738aba393461bbb64d1",
    "0.5.10.post1": "a854a68b11caf6b4b55c241a44378a7cdede7ede325db85c955f131506703bc6",
    "0.5.10": "ac8855a5d57dac8831fee526bca5212f1ae451f378e2ab08b3baecbc4deb4076",
    "0.5.19": "fdc65d1235f6861ad3a1116c36c2270e46a95f030200091f8de595c6c3426cd2",
    "0.5.20": "ffaced7e91c3536c63077b16b08210b5c1a2f362418e9841a8767d5e019cf08a",
    "0.5.21": "ac300998eb6b1afcb2971b31317b66ef12891003bdf9d1a5c7e34f9d4e3dcf0d",
    "0.5.22": "3505e3744366201296f94d244b3e7d3b0bb91b69726dc15e994070adb338ea2f",
    "0.5.23": "8d257a319395b322bb1be327d05e5528859358153c8563b04c0a4a3c8af164b6",
}
# Those in between: their automatic fraction is run, and their sizing was read.
BETWEEN: dict[str, str] = {
    "0.5.11": "0cdf73e8d463df53010c33017c7baa68ce5f2d0bf7d015923d6b37b809ca7c50",
    "0.5.12": "d3fc7ecb61ad3e533ebe1ae9b4109fbb62ecbf2d17453b62770c8a7ec49d539a",
    "0.5.13": "2c32b23dade35e3e5038ed200580a692ab378e1c232ad690d893c6cfce95c1e8",
    "0.5.14": "4573aac774045ba926bab2f7efaaad7b120e4f84695ccf27c59d276f856deca8",
    "0.5.15": "b737df527bbba96fe098a02d182e98f72a1b3564d7fc754629041129a5d8edc1",
    "0.5.16": "b8ed16e72c7d6a643e31ba52e3ff106439e9dbb78543950e4c810158b826ea8e",
    "0.5.17": "fb4cba478a5dca5ee146550b39f33add1c4e475d21ee11810b86ed1c58068093",
    "0.5.18": "fba7bb31a5de4c014945cbc50e9357c9253cc965a423736c324b2aaccd2270dc",
}
_PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64")


class Wheel:
    """The source files of one version of the engine."""

    def __init__(self, file: Path) -> None:
        self.path = file
        self._archive = zipfile.ZipFile(file)
        self.version = file.name.split("-")[1]

    def source(self, path: str) -> str:
        """Return a source file below ``sglang/srt``."""
        return self._archive.read(f"sglang/srt/{path}").decode()

    def files(self, folder: str) -> list[str]:
        """Return the Python files of a folder below ``sglang/srt``."""
        prefix = f"sglang/srt/{folder}/"
        names = (name for name in self._archive.namelist() if name.startswith(prefix) and name.endswith(".py"))
        return sorted(name.removeprefix("sglang/srt/") for name in names)

    def names(self, path: str, inside: str = "") -> set[str]:
        """Return the names of the functions, classes and assignments of a file, or of a class inside it."""
        body: list[ast.stmt] = ast.parse(self.source(path)).body
        if inside:
            body = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == inside).body
        return {name for node in body for name in _names_of(node)}

    def nodes(self, path: str, names: t.Collection[str], inside: str = "") -> list[ast.stmt]:
        """Return the named functions, classes and assignments of a file, or of a class inside it, without their decorators of no use.

        :raises KeyError: if one is missing: the engine has changed there.
        """
        body: list[ast.stmt] = ast.parse(self.source(path)).body
        if inside:
            body = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == inside).body
        found = {name: node for node in body for name in _names_of(node) if name in names}
        missing = sorted(set(names) - set(found))
        if missing:
            raise KeyError(f"{path} of {self.version} has no {', '.join(missing)}{f' in {inside}' if inside else ''}")
        return [found[name] for name in names]

    def fields(self, path: str, inside: str = "") -> set[str]:
        """Return the annotated names of all classes of a file, or of one of them: the records of arguments."""
        classes = (node for node in ast.parse(self.source(path)).body if isinstance(node, ast.ClassDef) and inside in ("", node.name))
        return {name for node in classes for item in node.body if isinstance(item, ast.AnnAssign) for name in _names_of(item)}


def _names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [node.target.id] if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else []


def fetch(version: str, sha256: str = "") -> Wheel:
    """Return a version's wheel, from the cache or from the package index.

    :raises RuntimeError: if the index can't be reached, or the file is not the one that was read.
    """
    folder = Path(os.environ.get("KPRO_WHEELS") or Path.home() / ".cache" / "kpro-llm" / "wheels") / version
    found = sorted(folder.glob("sglang-*.whl"))
    if not found:
        folder.mkdir(parents=True, exist_ok=True)
        _download(version, folder)
        found = sorted(folder.glob("sglang-*.whl"))
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    if sha256 and digest != sha256:
        raise RuntimeError(f"{found[0].name} has the SHA-256 {digest}, and {sha256} was read")
    return Wheel(found[0])


def _download(version: str, folder: Path) -> None:
    platforms = [word for platform in _PLATFORMS for word in ("--platform", platform)]
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"),
        *("--python-version", "3.12", *platforms, "--dest", str(folder), f"sglang=={version}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"sglang {version} can't be fetched from the package index: {done.stderr.strip()[-500:]}")


def fetch_pinned(version: str) -> Wheel:
    """Return a pinned version's wheel, checked by its hash."""
    return fetch(version, {**PINNED, **BETWEEN}[version])
