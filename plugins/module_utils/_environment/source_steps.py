# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps from a source archive to a wheel in the wheelhouse, and from there into an environment, as values.

The source's own code runs as the service user, never as root.
"""

from __future__ import annotations

import dataclasses
import typing as t

from .source_package import MANIFEST, KeptWheel, SourcePackage

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the steps work.

    :param root: folder of environments; ``target``: the environment that the package joins.
    :param uv: path of uv; ``pip_python``: an interpreter that has pip.
    :param user: ``uid`` and ``gid`` of the service user, None: root.
    :param offline: no index is asked; ``find_links``: further places with files.
    """

    root: str
    target: str
    uv: str
    pip_python: str
    user: t.Mapping[str, int] | None = None
    offline: bool = False
    find_links: tuple[str, ...] = ()

    @property
    def python(self) -> str:
        """The environment's interpreter."""
        return f"{self.target}/bin/python"

    @property
    def sources(self) -> list[str]:
        """Where pip and uv look for files."""
        return [*(["--no-index"] if self.offline else []), *(word for link in self.find_links for word in ("--find-links", link))]


def source_steps(source: SourcePackage, wheel: KeptWheel | None, place: Place) -> list[dict[str, t.Any]]:
    """Return the worker's steps: the build where no wheel is kept, then the installation and the import as the service user."""
    requirement = f"{place.root}/tools/extension.txt"
    check = f"import importlib.metadata as m; assert m.version({source.name!r}) == {source.version!r}, m.version({source.name!r})"
    imports = "; ".join(f"import {name}" for name in source.imports)
    take = {"kind": "take", "phase": "extension", "folder": source.wheel_folder, "name": source.name, "target": place.target, "requirement": requirement}
    install = [place.uv, "pip", "install", "--python", place.python, "--no-deps", "--no-index", "--require-hashes", "--compile-bytecode"]
    return [
        *([] if wheel else _build_steps(source, place)),
        take,
        {"phase": "extension", "argv": [*install, "--requirement", requirement]},
        {"phase": "import", "argv": [place.python, "-I", "-c", f"{check}; {imports}" if imports else check], "user": place.user},
    ]


def _build_steps(source: SourcePackage, place: Place) -> list[dict[str, t.Any]]:
    folder = f"{place.root}/build/{source.key}"
    tools, source_folder, out = f"{folder}/tools", f"{folder}/source", f"{folder}/out"
    path = ":".join([*([f"{source.cuda_home}/bin"] if source.cuda_home else []), f"{tools}/bin", SYSTEM_PATH])
    env = {"PYTHONPATH": tools, "PATH": path, "HOME": f"{folder}/tmp", "TMPDIR": f"{folder}/tmp", **source.variables}
    if source.cuda_home:
        env["CUDA_HOME"] = source.cuda_home
    pip = [place.pip_python, "-m", "pip", "--python", place.python]
    install_tools = [place.uv, "pip", "install", "--python", place.python, "--target", tools, "--require-hashes", "--no-deps", "--only-binary=:all:"]
    # Asks the source for its metadata, which runs its code.
    download = [*pip, "download", "--no-deps", "--no-build-isolation", "--no-binary=:all:", "--require-hashes", "--no-cache-dir", "--dest", f"{folder}/archive"]
    # In the source's own folder, so that a build that was killed goes on where it was; without PEP 517 pip would clean that folder after a failure.
    compile_ = [
        *pip,
        "wheel",
        "--verbose",
        "--use-pep517",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--no-cache-dir",
        "--wheel-dir",
        out,
        source_folder,
    ]
    return [
        {"kind": "folders", "phase": "source", "paths": [f"{folder}/{name}" for name in ("archive", "out", "tmp")], "user": place.user},
        {"phase": "source", "argv": [*install_tools, *place.sources, "--requirement", f"{place.root}/tools/source-tools.txt"]},
        {"phase": "source", "argv": [*download, *place.sources, "--requirement", f"{place.root}/tools/source.txt"], "user": place.user, "env": env},
        {"kind": "unpack", "phase": "source", "archive": f"{folder}/archive", "path": source_folder, "omit": list(source.omit), "user": place.user},
        {"phase": "compile", "argv": compile_, "user": place.user, "env": env, "clean": True, "job_memory_mib": source.job_memory_mib},
        {
            "kind": "keep",
            "phase": "keep",
            "out": out,
            "folder": source.wheel_folder,
            "manifest_name": MANIFEST,
            "manifest": {"name": source.name, "version": source.version, "tags": dict(source.tags)},
            "build": folder,
        },
    ]
