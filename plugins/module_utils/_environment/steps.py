# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job that builds an environment, and its progress, as values."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import typing as t

from .files import packages_of
from .plan import MARKER, Present, Wanted, differences, prunable, python_folder, reusable, target_path
from .source_steps import SYSTEM_PATH, Place, source_steps

PHASES: t.Mapping[str, str] = {
    "uv": "install uv",
    "clean": "drop damaged packages from the cache",
    "venv": "make the environment",
    "packages": "download and unpack packages",
    "verify": "read all files",
    "check": "import as the service user",
    "source": "fetch and unpack the source",
    "compile": "compile",
    "keep": "keep the wheel",
    "extension": "install the wheel",
    "import": "import it as the service user",
    "switch": "put it in force",
}

# Settings of a person at the task or in the container's session that have to reach the unit too.
PASSED_ON = re.compile(r"^(https?_proxy|no_proxy|all_proxy|uv_.*|pip_.*|ssl_cert_(file|dir)|requests_ca_bundle)$", re.IGNORECASE)


def unit_name(root: str) -> str:
    """Return the name of the transient unit for a root folder: one build at a time for each."""
    return f"kpro-environment-{hashlib.sha256(root.encode()).hexdigest()[:8]}.service"


def job(present: Present, wanted: Wanted, ambient: t.Mapping[str, str], now_s: float) -> dict[str, t.Any]:
    """Return the job for the worker (see ``worker``).

    :param ambient: environment variables of the module's process.
    """
    target = target_path(present, wanted)
    return {
        "unit": unit_name(wanted.root),
        "key": wanted.key,
        "distribution_python": "" if wanted.managed else wanted.python,
        "root": wanted.root,
        "target": target,
        "packages": len(wanted.pins),
        "size_mib": wanted.size_mib,
        "archive": f"{wanted.root}/cache/archive-v0",
        "env": environment(wanted, ambient, python_folder(present)),
        "clean": [f"{wanted.uv_folder}/bin/uv", "cache", "clean"],
        "steps": steps(present, wanted, target),
        "finish": {
            "target": target,
            "link": wanted.link,
            "marker_name": MARKER,
            "marker": {"key": wanted.key, "python": wanted.python, "packages": len(wanted.pins), "built_at": now_s},
            "prune": prunable(present, wanted),
            "pythons": [f"{wanted.root}/{name}" for name in present.python_folders if name != python_folder(present)],
        },
    }


def environment(wanted: Wanted, ambient: t.Mapping[str, str], python: str = "python") -> dict[str, str]:
    """Return the environment variables of every step.

    Addresses that can hold a password travel here and never in an argument vector.
    """
    values = {name: value for name, value in ambient.items() if PASSED_ON.match(name)}
    values.update(
        {
            "HOME": "/root",
            "PATH": SYSTEM_PATH,
            "LC_ALL": "C.UTF-8",
            "UV_CACHE_DIR": f"{wanted.root}/cache",
            "UV_PYTHON_INSTALL_DIR": f"{wanted.root}/{python}",
            "UV_PYTHON_PREFERENCE": "only-managed" if wanted.managed else "only-system",
            "UV_NO_PROGRESS": "1",
            "UV_HTTP_TIMEOUT": "300",
            "UV_COMPILE_BYTECODE_TIMEOUT": "600",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
        }
    )
    if wanted.ca_bundle:
        values.update({"SSL_CERT_FILE": wanted.ca_bundle, "PIP_CERT": wanted.ca_bundle, "REQUESTS_CA_BUNDLE": wanted.ca_bundle})
    if wanted.index_url:
        values.update({"UV_DEFAULT_INDEX": wanted.index_url, "PIP_INDEX_URL": wanted.index_url})
    if wanted.python_mirror:
        values["UV_PYTHON_INSTALL_MIRROR"] = wanted.python_mirror
    if wanted.offline:
        values["PIP_NO_INDEX"] = "1"
    values.update(wanted.environment)
    return values


def steps(present: Present, wanted: Wanted, target: str) -> list[dict[str, t.Any]]:
    """Return the worker's steps: a phase, an argument vector, the user, what to remove before it, and what to discard if it fails."""
    links = [word for link in wanted.find_links for word in ("--find-links", link)]
    offline = ["--no-index"] if wanted.offline else []
    uv = f"{wanted.uv_folder}/bin/uv"
    python = f"{target}/bin/python"
    files = f"{wanted.root}/tools"
    interpreter = wanted.python if wanted.managed else f"/usr/bin/python{wanted.python}"
    pip_install = [f"{wanted.uv_folder}/bin/python", "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    install_uv = [
        {"phase": "uv", "argv": ["/usr/bin/python3", "-m", "venv", wanted.uv_folder], "remove": [wanted.uv_folder]},
        {
            "phase": "uv",
            "argv": [*pip_install, *links, "--requirement", f"{files}/uv.txt"],
        },
    ]
    sync = [uv, "pip", "sync", "--python", python, "--require-hashes", "--only-binary=:all:", "--compile-bytecode", *offline, *links, f"{files}/packages.txt"]
    check = f"import importlib.metadata as m; assert m.version({wanted.package!r}) == {wanted.package_version!r}, m.version({wanted.package!r})"
    user = {"uid": wanted.user.uid, "gid": wanted.user.gid} if wanted.user else None
    # The environment shares files with uv's cache by hard links, so they are damaged there, too.
    damaged = packages_of(damage for damage in present.damage if damage.shared)
    clean = [{"phase": "clean", "argv": [uv, "cache", "clean", *damaged]}] if damaged else []
    build = [
        *clean,
        {"phase": "venv", "argv": [uv, "venv", "--no-project", "--python", interpreter, target], "remove": [target]},
        {"phase": "packages", "argv": sync},
    ]
    # An environment kept from before that fails the check is forgotten, so that the next run builds it.
    checked = [{"phase": "check", "argv": [python, "-I", "-c", check], "user": user, "discard": [f"{target}/{MARKER}"]}]
    extension = []
    if not differences(present, wanted):
        build, checked = [], []
    elif reusable(present, wanted):
        build = []
    elif wanted.source:
        place = Place(wanted.root, target, uv, f"{wanted.uv_folder}/bin/python", user, wanted.offline, wanted.find_links)
        extension = source_steps(wanted.source, present.wheel, place)
    return [*([] if present.uv_installed else install_uv), *build, *extension, *checked]


@dataclasses.dataclass(frozen=True)
class Status:
    """Where the worker is.

    :param pid: the running program; ``started_at``: when the step began, seconds since the epoch.
    :param cached_before: wheels that lay unpacked in uv's cache then.
    :param done: steps of a compilation that are done, of ``of``.
    """

    phase: str
    pid: int
    started_at: float
    cached_before: int
    done: int = 0
    of: int = 0

    def with_pid(self, pid: int) -> Status:
        """Return the status with another program."""
        return dataclasses.replace(self, pid=pid)

    def with_compiled(self, done: int, of: int) -> Status:
        """Return the status with the count of a compilation."""
        return dataclasses.replace(self, done=done, of=of)


@dataclasses.dataclass(frozen=True)
class Counters:
    """The countable progress of a running step.

    :param cached: wheels unpacked in uv's cache; ``installed``: packages in the new environment.
    :param sources: files of Python code in it; ``compiled``: those with bytecode.
    """

    cached: int = 0
    installed: int = 0
    sources: int = 0
    compiled: int = 0
    written_mib: int = 0
    elapsed_s: float = 0.0


def progress_line(job_values: t.Mapping[str, t.Any], status: Status, counters: Counters) -> str:
    """Return one line about a running build: what, how far, how fast, and how long still where that is known."""
    name = str(job_values.get("target", "environment")).rsplit("/", 1)[-1]
    words = PHASES.get(status.phase, "start")
    if status.phase == "compile" and status.of:
        parts = [f"{words}, {status.done} of {status.of} steps ({100 * status.done // status.of} %)"]
        if status.done:
            parts.append(f"about {counters.elapsed_s * (status.of - status.done) / status.done / 60:.0f} min left")
    elif status.phase != "packages":
        parts = [words]
    elif counters.installed >= int(job_values.get("packages", 0)) > 0:
        share = f" ({100 * counters.compiled // counters.sources} %)" if counters.sources else ""
        parts = [f"compile bytecode, {counters.compiled} of {counters.sources} files{share}"]
    else:
        parts = [words, *_package_parts(job_values, status, counters)]
    return f"Build {name}: {', '.join(parts)}, {counters.elapsed_s:.0f} s so far"


def _package_parts(job_values: t.Mapping[str, t.Any], status: Status, counters: Counters) -> list[str]:
    """Packages that uv finds in its cache are not written again, so that the size is a bound and not a goal."""
    total, size_mib = int(job_values.get("packages", 0)), int(job_values.get("size_mib", 0))
    fetched = min(max(counters.cached - status.cached_before, 0), total)
    parts = [f"{fetched} of {total} packages fetched"]
    if not size_mib or counters.written_mib >= size_mib:
        return [*parts, f"{counters.written_mib} MiB"]
    parts.append(f"{counters.written_mib} of at most {size_mib} MiB ({100 * counters.written_mib // size_mib} %)")
    rate = counters.written_mib / counters.elapsed_s if counters.elapsed_s > 0 else 0.0
    if rate >= 0.5:
        parts += [f"{rate:.0f} MiB/s", f"at most {(size_mib - counters.written_mib) / rate:.0f} s left"]
    return parts
