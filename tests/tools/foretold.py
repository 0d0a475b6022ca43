# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A role run as an operator does, and held to its word: what ``--check --diff`` prints is what the run does, and what stops has changed nothing."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import re
import subprocess
import time
import typing as t
from pathlib import Path

import lanes
from plain_node import ROOT, SANDBOX

ROUND_TRIP = r"> (?:SSH: )?EXEC "
MOST_ROUND_TRIPS = 4  # of one phase when there is nothing to do


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one run of a role said.

    :param result: of the role's one task that changes things, empty if it did not come to that.
    """

    rc: int
    result: dict[str, t.Any]
    message: str
    diff: str
    output: str

    @property
    def plan(self) -> list[str]:
        assert "plan" in self.result, self.output
        return list(self.result["plan"])

    @property
    def notes(self) -> str:
        return " | ".join(self.result.get("notes") or [])

    @property
    def round_trips(self) -> int:
        """Of a run with ``-vvv``."""
        return len(re.findall(ROUND_TRIP, self.output))


@dataclasses.dataclass(frozen=True)
class Roles:
    """A sandbox node on which one role runs.

    :param round_trips: of each run that had nothing to do.
    """

    name: str
    inventory: Path
    tools: Path
    round_trips: list[int] = dataclasses.field(default_factory=list, kw_only=True)

    def converge(self, *arguments: str, **variables: t.Any) -> Outcome:
        """Run the role; ``arguments`` go to ansible-playbook, ``variables`` are the role's without its name."""
        raise NotImplementedError

    def state(self) -> str:
        """Everything that a refused run must leave as it is."""
        raise NotImplementedError

    def run(self, command: str, check: bool = True) -> str:
        """Run a line in the node's shell and return its output."""
        done = subprocess.run([SANDBOX, "ssh", self.name, "--", command], capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def reboot(self) -> None:
        """Reboot the node as a person does, and wait until it is up again."""
        before = self.run("cat /proc/sys/kernel/random/boot_id").strip()
        asked = [SANDBOX, "ssh", self.name, "--", "cat /proc/sys/kernel/random/boot_id; systemctl is-system-running --wait"]
        subprocess.run([SANDBOX, "ssh", self.name, "--", "systemctl reboot"], capture_output=True, check=False)
        for _unused in range(600):
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            if done.stdout.strip() and done.stdout.split()[0] != before:
                return
            time.sleep(0.2)
        raise AssertionError("the node did not come back")

    def play(self, playbook: str, task: str, arguments: t.Sequence[str], declared: t.Mapping[str, t.Any]) -> Outcome:
        """Run a playbook of ``tests/integration`` and return what its task said.

        :param task: end of the task's name.
        """
        argv = [self.tools / "ansible-playbook", ROOT / "tests/integration" / playbook, "-i", self.inventory, "--diff", "-v", *arguments]
        done = subprocess.run([*argv, "-e", json.dumps(declared)], cwd="/", env=environment(), capture_output=True, text=True, check=False)
        return read_output(done.returncode, done.stdout + done.stderr, task)

    # -- held to its word ----------------------------------------------------------------------------------------------------------------

    def as_foretold(self, *, rc: int = 0, **variables: t.Any) -> Outcome:
        """Print the plan by ``--check --diff``, run it, and run again: the same plan, nothing touched before, nothing left after.

        :param rc: how both real runs end (2: a person is asked for a restart or a reboot).
        """
        foretold = self.foretold(**variables)
        done = self.converge(**variables)
        assert done.rc == rc, done.output
        assert (done.plan, done.diff) == (foretold.plan, foretold.diff), foretold.output + done.output
        second = self.converge("-vvv", **variables)
        assert (second.rc, second.plan, second.result["changed"]) == (rc, [], False), second.output
        assert 1 <= second.round_trips <= MOST_ROUND_TRIPS, second.round_trips
        self.round_trips.append(second.round_trips)
        return done

    def foretold(self, **variables: t.Any) -> Outcome:
        """Print the plan by ``--check --diff``, with nothing touched."""
        before = self.state()
        foretold = self.converge("--check", **variables)
        assert foretold.rc == 0, foretold.output
        assert difference(before, self.state()) == ""
        return foretold

    def refused(self, *words: str, **variables: t.Any) -> Outcome:
        """Run what must end with these words, in check mode and for real, with nothing changed."""
        for arguments in (("--check",), ()):
            done = self._stopped(words, arguments, variables)
        return done

    def failed_at(self, step: str, *words: str, **variables: t.Any) -> Outcome:
        """Run what only the attempt can show to be impossible: ``step`` is in the plan of ``--check``, and the run ends there with these words.

        Nothing is changed then.
        """
        foretold = self.foretold(**variables)
        assert any(step in sentence for sentence in foretold.plan), foretold.plan
        return self._stopped(words, (), variables)

    def _stopped(self, words: t.Sequence[str], arguments: t.Sequence[str], variables: t.Mapping[str, t.Any]) -> Outcome:
        before = self.state()
        done = self.converge(*arguments, **variables)
        assert done.rc == 2, done.output
        missing = [word for word in words if word not in done.message]
        assert not missing, (missing, done.message)
        assert difference(before, self.state()) == ""
        return done


def difference(before: str, after: str) -> str:
    """Return the lines that differ."""
    return "\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))


def read_output(rc: int, output: str, task: str) -> Outcome:
    """Return what a playbook printed, apart."""
    # After a reboot the task runs again; the last one that was not passed over counts.
    tasks = [text for text in output.split("\nTASK [") if text.partition("] ***")[0].endswith(task) and "\nskipping: " not in text]
    said = tasks[-1] if tasks else ""
    found = re.search(r"^(?:ok|changed|fatal): \[[^\]]+\]:?.*?=> (\{\n.*?^\}|\{[^\n]*\})$", said, re.MULTILINE | re.DOTALL)
    diff = re.search(r"^--- before.*?(?=^(?:changed|ok|fatal): )", said, re.MULTILINE | re.DOTALL)
    messages = [json.loads(text).get("msg", "") for text in re.findall(r"^fatal: .*?=> (\{.*\})$", output, re.MULTILINE)]
    # Progress is printed between the diff and the result.
    shown = re.sub(r"^  node: .*\n", "", diff[0], flags=re.MULTILINE) if diff else ""
    return Outcome(rc, json.loads(found[1]) if found else {}, str(messages[-1]) if messages else "", shown, output)


def environment() -> dict[str, str]:
    """Return the environment of Ansible's programs."""
    return {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_PIPELINING": "1"}


def tools() -> Path:
    """Return the folder of the newest lane's programs."""
    return lanes.environment(lanes.available()[-1], "dev") / "bin"
