# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``bin/try`` alone on a Debian with little more than git and python3, systemd as its first process, cgroups v2.

A matter of minutes for each, so ``bin/test --all`` runs it. It prints how long each run took; only what the runs say is checked.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SANDBOX = ROOT / "tests" / "sandbox" / "sandbox"
ANSWER = "Hello from the tiny test model"

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif("KPRO_TEST_EVERYTHING" not in os.environ, reason="bin/test --all boots whole machines"),
]


class Machine:
    """A pristine machine; commands run as root in a login's environment."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, line: str, stdin: int | None = None) -> subprocess.CompletedProcess[str]:
        argv = [str(SANDBOX), "exec", self.name, "--", "bash", "-lc", line]
        return subprocess.run(argv, stdin=subprocess.DEVNULL if stdin is None else stdin, capture_output=True, text=True, timeout=2400, check=False)

    def receive(self, folder: str, *tar: str) -> None:
        """Unpack what a ``tar`` on this machine packs."""
        with subprocess.Popen(["tar", "-c", *tar], stdout=subprocess.PIPE) as packing:
            assert packing.stdout is not None
            done = self.run(f"mkdir -p {shlex.quote(folder)} && tar -C {shlex.quote(folder)} -x --no-same-owner", packing.stdout.fileno())
        assert done.returncode == 0, done.stderr

    def bin_try(self, *words: str) -> tuple[str, float]:
        """Run it as a newcomer would; return what it said and how long it took. pip finds the one wheel that no package index has."""
        started_s = time.monotonic()
        done = self.run(f"cd kpro && PIP_FIND_LINKS=/root/wheels bin/try {shlex.join(words)}")
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout, time.monotonic() - started_s


@pytest.fixture(params=["bookworm", "trixie"])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    suite = str(request.param)
    name = f"new-{suite}"
    subprocess.run([SANDBOX, "down", name], check=True, capture_output=True)
    try:
        subprocess.run([SANDBOX, "up", name, "--pristine", "--suite", suite], check=True)
        yield Machine(name)
    finally:
        subprocess.run([SANDBOX, "down", name], check=True)


@pytest.fixture(scope="module")
def wheels() -> Path:
    content = Path(os.environ.get("KPRO_SANDBOX_DIR") or "/var/lib/kpro-sandbox") / "content"
    subprocess.run([ROOT / "tests/sandbox/prepare", content], check=True)
    return content / "files" / "wheels"


def recap(output: str) -> dict[str, int]:
    """Return the changes by host."""
    return {host: int(changed) for host, changed in re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+) +unreachable=0 +failed=0", output, re.MULTILINE)}


def test_try_alone_on_a_machine_as_new(machine: Machine, wheels: Path, tmp_path: Path) -> None:
    listing = tmp_path / "files"
    files = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True).stdout
    listing.write_bytes(b"\0".join(name for name in files.split(b"\0") if name and os.path.lexists(ROOT / name.decode())))
    machine.receive("kpro", "-C", str(ROOT), "--null", "-T", str(listing))
    machine.receive("wheels", "-C", str(wheels), *(path.name for path in wheels.glob("torch-*.whl")))

    cold, cold_s = machine.bin_try()
    assert ANSWER in cold
    assert set(recap(cold)) == {"localhost", "qwen", "sandbox"}
    again, again_s = machine.bin_try()
    assert recap(again) == {"localhost": 0, "qwen": 0, "sandbox": 0}, again
    assert ANSWER in machine.bin_try("ask", "Who are you?")[0]
    machine.bin_try("down")
    warm, warm_s = machine.bin_try()
    assert ANSWER in warm
    machine.bin_try("down")
    print(f"\nbin/try on {machine.name}: {cold_s:.0f} s cold, {warm_s:.0f} s warm, {again_s:.0f} s again without a change", flush=True)
