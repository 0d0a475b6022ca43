# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of ``bin/test``. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lanes
from lanes import CACHE, ROOT, Lane

SANDBOX_STEPS = ("stand-ins and node", "integration on nodes", "molecule default")

# ansible-test takes every file of a folder `bin` for Python, and refuses links to folders, whether or not they are shipped.
NOT_FOR_SANITY = ("bin/", "collections/")

# Names that `ansible-galaxy collection build` must keep out of the archive.
NOT_IN_ARCHIVE = re.compile(
    r"^(tests|molecule|inventories|collections|bin|\.[^/]+|kpro5|deploy_qwen\.yml|ansible\.cfg|pyproject\.toml)(/|$)|\.pyc$|__pycache__"
)


class Run:
    """Runs steps, prints a line for each, and counts. A step's output is shown only when it failed."""

    def __init__(self, only: str | None) -> None:
        self._only = only
        self.passed = self.failed = self.skipped = 0
        self._refused = False
        self._ran = 0
        self._counting = threading.Lock()

    def step(self, name: str, argv: Sequence[object], *, env: Mapping[str, str] | None = None, cwd: Path = ROOT, live: bool = False) -> bool:
        """Run a program as one check; the checks inside pytest count one by one. ``live`` shows the output as it comes."""
        return self.call(name, lambda: _run(argv, env, cwd, live))

    def call(self, name: str, check: Callable[[], tuple[bool, str]]) -> bool:
        """Run a function that returns whether it passed, and its output."""
        if self._only and self._only not in name:
            return True
        started = time.monotonic()
        self._ran += 1
        print(f"... {name}", flush=True)
        ok, output = check()
        with self._counting:
            self._count(name, ok, output, time.monotonic() - started)
        return ok

    def _count(self, name: str, ok: bool, output: str, elapsed_s: float) -> None:
        counts = _pytest_counts(output)
        self.passed += counts.get("passed", 0) if counts else int(ok)
        self.failed += max(counts.get("failed", 0) + counts.get("error", 0), int(not ok)) if counts else int(not ok)
        self.skipped += counts.get("skipped", 0) if counts else 0
        if not ok:
            print(output)
        shown = ", ".join(f"{number} {word}" for word, number in counts.items()) if counts else ""
        print(f"{'ok ' if ok else 'BAD'} {name} ({elapsed_s:.0f} s{'; ' + shown if shown else ''})", flush=True)

    def leave_out(self, names: Sequence[str], reason: str) -> None:
        for name in names:
            print(f"--- LEFT OUT: {name}: {reason}")
            self.skipped += 1

    def refuse(self, names: Sequence[str], reason: str) -> None:
        """As :meth:`leave_out`, but the run ends in an error."""
        self.leave_out(names, reason)
        self._refused = True

    def close(self) -> int:
        if self._refused:
            print("The sandbox can't run here, so the steps above were left out. Give --no-sandbox to accept that.")
        if not self._ran:
            print(f"No step's name contains {self._only!r}.")
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return 1 if self.failed or self._refused or not self._ran else 0


def _run(argv: Sequence[object], env: Mapping[str, str] | None, cwd: Path, live: bool) -> tuple[bool, str]:
    words = [str(word) for word in argv]
    with subprocess.Popen(
        words,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if live:
                print(line, end="", flush=True)
    return process.returncode == 0, "" if live and process.returncode == 0 and not _pytest_counts("".join(lines[-3:])) else "".join(lines)


def _pytest_counts(output: str) -> dict[str, int]:
    for line in reversed(output.splitlines()):
        if re.search(r"\d+ (passed|failed|error|skipped).* in [\d.]+s", line):
            found = re.findall(r"(\d+) (passed|failed|error|skipped|deselected|xfailed)", line)
            return {word: int(number) for number, word in found}
    return {}


def _tracked_copy(target: Path) -> Path:
    """Copy what git would commit to ``.../ansible_collections/kpro/llm``: ansible-test resolves links and insists on that path."""
    place = target / "ansible_collections" / "kpro" / "llm"
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    wanted = [name for name in names.stdout.decode().split("\0") if name and not name.startswith(NOT_FOR_SANITY)]
    for name in sorted(set(wanted)):
        source, copy = ROOT / name, place / name
        if source.is_symlink() or source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)
    subprocess.run("git init -q . && git add -A", shell=True, cwd=place, check=True)
    return place


def static(run: Run, lane: Lane) -> None:
    """Lint, types and documentation, on the newest lane."""
    tools = lanes.environment(lane, "dev") / "bin"
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections")}
    python_files = ["plugins", "tests", "bin/test"]
    run.step("ruff check", [tools / "ruff", "check", *python_files])
    run.step("ruff format", [tools / "ruff", "format", "--check", *python_files])
    run.step("mypy", [tools / "mypy"], env={**env, "MYPYPATH": str(ROOT / "collections")})
    run.step("ansible-lint", [tools / "ansible-lint", "--profile", "production", "--offline"], env=env)
    run.step("documentation", [tools / "antsibull-docs", "lint-collection-docs", "--plugin-docs", "."], env=env)
    run.step("changelog", [tools / "antsibull-changelog", "lint"], env=env)
    for words in (["--syntax-check"], ["--list-tasks"]):
        run.step(f"deploy_qwen.yml {words[0]}", [tools / "ansible-playbook", "deploy_qwen.yml", "-i", "kpro5", *words], env=env)
    run.call("collection archive", lambda: _archive(tools))


def _archive(tools: Path) -> tuple[bool, str]:
    with tempfile.TemporaryDirectory() as folder:
        ok, output = _run([tools / "ansible-galaxy", "collection", "build", "--output-path", folder], None, ROOT, False)
        if not ok:
            return False, output
        built = next(Path(folder).glob("*.tar.gz"))
        with tarfile.open(built) as archive:
            members = archive.getmembers()
        installed = Path(folder) / "installed"
        ok, output = _run([tools / "ansible-galaxy", "collection", "install", "--offline", "--collections-path", installed, built], None, Path(folder), False)
        env = {"ANSIBLE_COLLECTIONS_PATH": str(installed)}
        play = [tools / "ansible-playbook", "kpro.llm.deploy_qwen", "-i", ROOT / "kpro5", "--list-tasks"]
        ok, output = _run(play, env, Path(folder), False) if ok else (ok, output)
        if not ok:
            return False, output
        unwanted = [m.name for m in members if NOT_IN_ARCHIVE.search(m.name) or m.issym() or m.islnk()]
        wanted = {"plugins/connection/pct.py", "playbooks/deploy_qwen.yml", "LICENSE", "README.md"} - {m.name for m in members}
        return not unwanted and not wanted, "".join(f"not wanted in the archive: {n}\n" for n in unwanted) + "".join(f"missing: {n}\n" for n in sorted(wanted))


def units(run: Run, all_lanes: Sequence[Lane]) -> None:
    """Unit tests on each lane, in the checkout."""
    for lane in all_lanes:
        tools = lanes.environment(lane, "dev") / "bin"
        env = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
        run.step(f"unit tests, {lane.name}", [tools / "python", "-m", "pytest", "-q", "-n", "4", "tests/unit", "-m", "not sandbox"], env=env)


def attacks(run: Run, lane: Lane, *, everything: bool) -> None:
    """A compromised container's root and a hostile hub against all that reads or writes where they can (two minutes; hours with every swap)."""
    tools = lanes.environment(lane, "dev") / "bin"
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    env.update({"KPRO_TEST_EVERYTHING": "1"} if everything else {})
    run.step("attacks", [tools / "python", "-m", "pytest", "-q", "-n", "2", "tests/security"], env=env)


def sanity(run: Run, all_lanes: Sequence[Lane]) -> None:
    """``ansible-test sanity`` on each lane, two at a time, in copies at the path that it insists on."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda lane: _sanity(run, lane), all_lanes))


def _sanity(run: Run, lane: Lane) -> None:
    tools = lanes.environment(lane, "dev") / "bin"
    home = CACHE / f"ansible-test-{lane.ansible_core}"
    _bootstrap_pip(tools, home)
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(home)}
    argv = [tools / "ansible-test", "sanity", "--local", "--python", lane.python_version, "--color", "no"]
    with tempfile.TemporaryDirectory() as folder:
        run.step(f"ansible-test sanity, {lane.name}", argv, env=env, cwd=_tracked_copy(Path(folder)))


def _bootstrap_pip(tools: Path, home: Path) -> None:
    """Put pip's bootstrap where ansible-test looks first: it would fetch it from a host of its own, the rest comes from the index."""
    ask = (
        "import inspect, re; from ansible_test._internal.python_requirements import get_venv_packages;"
        " print(re.search(r\"pip='([0-9.]+)'\", inspect.getsource(get_venv_packages)).group(1))"
    )
    version = subprocess.run([tools / "python", "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    script = home / ".ansible" / "test" / "cache" / f"get_pip_{version.replace('.', '_')}.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(
        "import ensurepip, os, subprocess, sys\n"
        "ensurepip.bootstrap()\n"
        "packages = [word for word in sys.argv[1:] if not word.startswith('-')]\n"
        "# Older pips don't look at the system's authorities by themselves.\n"
        "bundle = '/etc/ssl/certs/ca-certificates.crt'\n"
        "trust = ['--cert', bundle] if os.path.exists(bundle) else []\n"
        "sys.exit(subprocess.call([sys.executable, '-m', 'pip', 'install', '-q', '--disable-pip-version-check', *trust, *packages]))\n",
        encoding="utf-8",
    )


def why_no_sandbox() -> str:
    """Return why the sandbox can't run here, or an empty text."""
    if not sys.platform.startswith("linux"):
        return "the sandbox needs Linux"
    if os.geteuid() != 0:
        return "the sandbox needs root (systemd-nspawn, mounts, network namespaces)"
    return ""


def sandbox(run: Run, lane: Lane, *, everything: bool) -> None:
    """What needs a sandbox node: the stand-ins held to their recordings, the connection, the whole deployment."""
    tools = lanes.environment(lane, "dev") / "bin"
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "PYTHONUNBUFFERED": "1"}
    env.update({"KPRO_TEST_EVERYTHING": "1", "KPRO_TEST_SUITES": "trixie,bookworm"} if everything else {})
    pytest = [tools / "python", "-m", "pytest", "-q", "--durations=5"]
    # Much of the time nodes boot and stop: two files at once, each with nodes of its own. The stand-ins' tests measure themselves
    # against limits in time, and run alone.
    side_by_side = ["-n", "2", "--dist", "loadfile"]
    lists = [ROOT / "tests/sandbox/node/machine-packages.txt", ROOT / "tests/tools/machine-packages.txt"]
    if not run.step("machine packages", [ROOT / "tests/tools/install-packages", *lists], env=env):
        return
    run.step(SANDBOX_STEPS[0], [*pytest, "tests/sandbox"], env=env)
    run.step(SANDBOX_STEPS[1], [*pytest, *side_by_side, "tests/integration"], env=env)
    run.step(SANDBOX_STEPS[2], [tools / "molecule", "test", "--scenario-name", "default"], env=env, live=True)
    if everything:
        run.step("molecule migrate", [tools / "molecule", "test", "--scenario-name", "migrate"], env=env, live=True)
        run.step("bin/try on machines as new", [*pytest, "-s", "tests/as_new"], env=env, live=True)


def index(run: Run, lane: Lane) -> None:
    """What is held against the package index of today, side by side: each of the two waits for it most of the time."""
    with ThreadPoolExecutor(2) as pool:
        for done in (pool.submit(differential, run, lane), pool.submit(locks, run)):
            done.result()


def locks(run: Run) -> None:
    """Each engine lane's lock files: they still resolve, are complete, hashed and wheels only, and uv plans their installation (40 s)."""
    wheels = CACHE / "wheels" if os.geteuid() else Path(os.environ.get("KPRO_SANDBOX_DIR") or "/var/lib/kpro-sandbox") / "cache" / "wheels"
    with tempfile.TemporaryDirectory() as folder:
        if run.step("lock files: wheels of the CPU lane", [sys.executable, ROOT / "tests/sandbox/engine/wheelhouse", folder, "--cache", wheels]):
            run.step("lock files", [sys.executable, ROOT / "tests/locks/check", "--wheelhouse", folder])


def differential(run: Run, lane: Lane) -> None:
    """The memory plan beside the engine's own functions, taken out of the wheels of the package index (under a minute)."""
    tools = lanes.environment(lane, "dev") / "bin"
    run.step("differential tests against the engine's code", [tools / "python", "-m", "pytest", "-q", "tests/differential"])


def matrices(run: Run, lane: Lane) -> None:
    """Larger matrices: run by hand before an issue is resolved, and by a scheduled job."""
    tools = lanes.environment(lane, "dev") / "bin"
    # Gates nothing: the newest release may have rules that are not read yet. The planner marks such a version as unverified.
    _ok, output = _run([tools / "python", "tests/differential/newest.py"], None, ROOT, False)
    print(f"newest engine on the package index: {output.strip()}", flush=True)
