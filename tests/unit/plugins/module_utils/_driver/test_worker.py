# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import json
import pathlib
import typing as t

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._driver.fetch_edge import Package
from ansible_collections.kpro.llm.plugins.module_utils._driver.steps import Step
from ansible_collections.kpro.llm.plugins.module_utils._driver.worker import Job, Worker
from ansible_collections.kpro.llm.plugins.module_utils._job.status_edge import JobStatus, run_worker

VERSION = "580.173.02"


class Place:
    """A folder with programs, a package and a status."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        source = folder / f"NVIDIA-Linux-x86_64-{VERSION}.run"
        source.write_text('echo "$@" >> "$PLACE/calls"\n[ "$1" = --advanced-options ] && echo "  --no-kernel-module"\nexit 0\n')
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        self.package = Package(f"file://{source}", str(folder / "cache" / source.name), digest, str(folder / "record"))

    def program(self, name: str, script: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def run(self, *steps: Step) -> dict[str, t.Any]:
        """Do the steps as the unit would, from the text of its job."""
        return self.do(Job(VERSION, self.package, steps))

    def do(self, job: Job, loaded: pathlib.Path | None = None) -> dict[str, t.Any]:
        (self.folder / "job.json").write_text(json.dumps(job.to_dict()))
        env = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "PLACE": str(self.folder)}
        where = {"loaded": loaded} if loaded else {}
        run_worker(str(self.folder), lambda values, status: Worker(Job.from_dict(values), status, env, **where).run(), "driver")
        found = JobStatus(str(self.folder)).read()
        assert found is not None
        return found

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


def test_steps_in_their_order(tmp_path: pathlib.Path) -> None:
    place = Place(tmp_path)
    install = ("sh", place.package.path, "--silent", "--no-kernel-modules")
    found = place.run(Step("download", "Download"), Step("run", "Install", install, "installer"), Step("remove", "Remove"))
    assert found["state"] == "done"
    assert place.calls() == ["--advanced-options", "--silent --no-kernel-module"], "the package at hand has the older spelling"
    assert not pathlib.Path(place.package.path).exists()
    assert (tmp_path / "record").read_text() == f"{place.package.sha256}  NVIDIA-Linux-x86_64-{VERSION}.run\n"


def test_a_failure_ends_the_work_and_says_why(tmp_path: pathlib.Path) -> None:
    place = Place(tmp_path)
    place.program("modprobe", "echo \"modprobe: ERROR: could not insert 'nvidia': Key was rejected by service\" >&2; exit 1")
    found = place.run(Step("run", "Load nvidia", ("modprobe", "nvidia"), "load"), Step("run", "Never", ("sh", "-c", 'echo x >> "$PLACE/calls"'), "load"))
    assert (found["state"], found["what"]) == ("failed", "Load nvidia")
    assert "Secure Boot" in found["reason"]
    assert not (tmp_path / "calls").exists()


def test_a_step_that_may_fail(tmp_path: pathlib.Path) -> None:
    place = Place(tmp_path)
    assert place.run(Step("run", "Stop the persistence daemon", ("sh", "-c", "exit 5")))["state"] == "done"


def test_the_index_is_asked_only_if_a_package_is_not_found(tmp_path: pathlib.Path) -> None:
    place = Place(tmp_path)
    place.program("apt-get", 'echo "$1" >> "$PLACE/calls"; [ "$1" = update ] && touch "$PLACE/fresh"; [ -e "$PLACE/fresh" ]')
    step = Step("packages", "Install dkms", ("apt-get", "install", "dkms"), "apt")
    assert place.run(step)["state"] == "done"
    assert place.calls() == ["install", "update", "install"]
    assert place.run(step)["state"] == "done"
    assert place.calls()[3:] == ["install"]


def test_program_that_is_not_there_and_one_that_hangs(tmp_path: pathlib.Path) -> None:
    place = Place(tmp_path)
    assert place.run(Step("run", "Build", ("dkms-not-there",), "dkms"))["reason"] == "the program dkms-not-there is not there"
    assert "no end after 0.2 s" in place.run(Step("run", "Build", ("sleep", "60"), "dkms", 0.2))["reason"]


def test_wrong_bytes_end_it_before_anything_runs(tmp_path: pathlib.Path) -> None:
    place = Place(tmp_path)
    place.package = Package(place.package.url, place.package.path, "0" * 64, place.package.record)
    found = place.run(Step("download", "Download"), Step("run", "Install", ("sh", place.package.path), "installer"))
    assert found["state"] == "failed" and "its SHA-256 is" in found["reason"]
    assert not (tmp_path / "calls").exists() and not (tmp_path / "record").exists()


def test_exactly_the_wanted_version_of_the_repository(tmp_path: pathlib.Path) -> None:
    place = Place(tmp_path)
    place.program("apt-get", 'echo "apt-get $*" >> "$PLACE/calls"')
    offers = {"nvidia-driver-cuda": f"{VERSION}-1", "nvidia-driver-pinning-580": "580-1"}
    place.program("apt-cache", "".join(f'[ "$2" = {name} ] && echo "$2 | {text} | http://x"\n' for name, text in offers.items()) + "exit 0")
    place.program("dpkg-query", 'echo "ii  nvidia-driver-pinning-570.148.08"; exit 0')
    assert place.run(Step("repository", "Install", (VERSION, "open", "http://x/"), "apt"))["state"] == "done"
    update, install = place.calls()
    assert update == "apt-get update"
    assert f"nvidia-driver-pinning-580 nvidia-driver-cuda={VERSION}-* nvidia-kernel-open-dkms={VERSION}-*" in install, (
        "the branch's, as there is none for the version"
    )
    assert install.endswith("nvidia-driver-pinning-570.148.08-")


def test_a_version_that_the_repository_does_not_have_installs_nothing(tmp_path: pathlib.Path) -> None:
    place = Place(tmp_path)
    place.program("apt-get", 'echo "apt-get $*" >> "$PLACE/calls"')
    place.program("apt-cache", f'echo "$2 | {VERSION}-1 | http://x"')
    found = place.run(Step("repository", "Install", ("580.200.01", "open", "http://x/"), "apt"))
    assert found["state"] == "failed" and f"does not offer it: it has {VERSION}" in found["reason"]
    assert place.calls() == ["apt-get update"]


def test_a_file_between_the_steps(tmp_path: pathlib.Path) -> None:
    place = Place(tmp_path)
    assert place.run(Step("file", "Write it", (str(tmp_path / "etc" / "one.conf"), "blacklist nouveau\n")))["state"] == "done"
    assert (tmp_path / "etc" / "one.conf").read_text() == "blacklist nouveau\n"


def test_a_module_is_built_under_the_name_that_dkms_knows(tmp_path: pathlib.Path) -> None:
    place = Place(tmp_path)
    place.program("dkms", f'[ "$1" = status ] && echo "nvidia-open/{VERSION}: added" || echo "$*" >> "$PLACE/calls"')
    assert place.run(Step("build", "Build", ("dkms", "install", "-m", "nvidia", "-v", VERSION, "-k", "6.14.8-2-pve"), "dkms"))["state"] == "done"
    assert place.calls() == [f"install -m nvidia-open -v {VERSION} -k 6.14.8-2-pve"]


FORMER = {"before": "580.119.02", "version": VERSION, "modules": "nvidia nvidia_uvm", "units": "nvidia-persistenced.service"}
SAYS = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.119.02  Release Build  (builder@host)\n"


@pytest.mark.parametrize("there", [True, False], ids=["still there", "taken away"])
def test_a_failed_replacement_takes_the_former_driver_up_again_or_says_that_it_is_gone(tmp_path: pathlib.Path, there: bool) -> None:
    place = Place(tmp_path)
    place.program("modprobe", f'echo "modprobe $*" >> "$PLACE/calls"; {f"echo {SAYS.strip()!r} > $PLACE/loaded" if there else "exit 1"}')
    place.program("systemctl", 'echo "systemctl $*" >> "$PLACE/calls"')
    place.program("modinfo", "exit 1")
    job = Job(VERSION, place.package, (Step("run", "Install", ("sh", "-c", "echo 'ERROR: no room'; exit 1"), "installer"),), FORMER)
    found = place.do(job, tmp_path / "loaded")
    assert found["state"] == "failed" and found["reason"].startswith("no room. Driver 580.119.02")
    assert place.calls() == ["modprobe nvidia", "modprobe nvidia_uvm", "systemctl start nvidia-persistenced.service"]
    if there:
        assert found["reason"].endswith("is there as before")
    else:
        assert "is gone: no container of this node has a GPU" in found["reason"]
        assert "gpu_node__driver_version: 580.119.02 and gpu_node__replace_driver: true" in found["remedy"]


def test_a_first_installation_that_fails_leaves_nothing_to_speak_of(tmp_path: pathlib.Path) -> None:
    place = Place(tmp_path)
    found = place.run(Step("run", "Install", ("sh", "-c", "echo 'ERROR: no room'; exit 1"), "installer"))
    assert found["reason"] == "no room"
