# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What hf_model's transfer, check and re-check cost, against other tools, as ratios within one run.

    python3 bench.py [--mib 384] [--link-mib-per-s 24] [--rounds 3] [--hf PROGRAM] [--aria2 PROGRAM] [--folder FOLDER]

The hub is the sandbox's stand-in, behind a link that the kernel shapes for all connections together (a veth pair between two
network namespaces of our own, which end with this program; root and tc). With `--link hub`, and without root, the stand-in itself
shapes what it sends over loopback. The rate has to be one at which this machine serves, receives and hashes without being the
limit. The tools take turns within each round. `--hf` is the `hf` of huggingface_hub, `--aria2` is aria2c; without them their rows
are left out.
Needs ansible-core beside it (for the re-check) and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import typing as t
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.kpro.llm.plugins.module_utils._job.long_job_edge import worker_archive  # noqa: E402
from ansible_collections.kpro.llm.plugins.module_utils._model import hub_protocol as protocol  # noqa: E402
from ansible_collections.kpro.llm.plugins.module_utils._model import manifest as manifests  # noqa: E402
from ansible_collections.kpro.llm.plugins.module_utils._model import store_edge as store  # noqa: E402
from ansible_collections.kpro.llm.plugins.module_utils._model import worker  # noqa: E402
from ansible_collections.kpro.llm.plugins.module_utils._model.hub_edge import HubAccess  # noqa: E402
from ansible_collections.kpro.llm.plugins.module_utils._model.hub_protocol import RemoteFile  # noqa: E402
from ansible_collections.kpro.llm.plugins.module_utils._model.manifest import Manifest  # noqa: E402
from ansible_collections.kpro.llm.plugins.module_utils._model.transfer_edge import TransferSettings  # noqa: E402
from ansible_collections.kpro.llm.plugins.module_utils._model.worker import Job  # noqa: E402

MIB = 1 << 20
REPOSITORY = "bench/model"
MODULE = "ansible_collections.kpro.llm.plugins.modules.hf_model"


class Wire:
    """A veth pair to a network namespace in which the hub runs; to be made in a namespace of our own."""

    NEAR, FAR = "10.99.0.1", "10.99.0.2"

    def __init__(self) -> None:
        self._holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up && echo ready && exec sleep infinity"], stdout=subprocess.PIPE)
        assert self._holder.stdout and self._holder.stdout.readline()
        self.enter = ["nsenter", "--target", str(self._holder.pid), "--net"]
        for words in (
            "ip link set lo up",
            "ip link add kpro-near type veth peer name kpro-far",
            f"ip link set kpro-far netns {self._holder.pid}",
            f"ip address add {self.NEAR}/24 dev kpro-near",
            "ip link set kpro-near up",
        ):
            subprocess.run(words.split(), check=True)
        for words in (f"ip address add {self.FAR}/24 dev kpro-far", "ip link set kpro-far up"):
            subprocess.run([*self.enter, *words.split()], check=True)

    def shape(self, bytes_per_s: int) -> None:
        """Limit what the hub sends, the headers on the wire included."""
        words = f"tc qdisc replace dev kpro-far root tbf rate {8 * bytes_per_s}bit burst 256kb latency 100ms"
        subprocess.run([*self.enter, *words.split()], check=True)

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()


class Hub:
    """The stand-in with a model of random shards."""

    def __init__(self, folder: Path, mib: int, shards: int, wire: Wire | None) -> None:
        self._wire = wire
        self.model = folder / "hub" / REPOSITORY
        self.model.mkdir(parents=True)
        (self.model / "config.json").write_text("{}\n")
        for number in range(1, shards + 1):
            with (self.model / f"model-{number:05d}-of-{shards:05d}.safetensors").open("wb") as file:
                for _round in range(mib // shards):
                    file.write(os.urandom(MIB))
        self._control, self._log = folder / "faults.json", folder / "requests.jsonl"
        bind, enter = (f"{wire.FAR}:8090", wire.enter) if wire else ("127.0.0.1:0", [])
        argv = [*enter, sys.executable, str(ROOT / "tests" / "sandbox" / "hub" / "standin_hub"), "--bind", bind, "--models", str(folder / "hub")]
        argv += ["--faults", str(self._control), "--log", str(self._log)]
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        self.endpoint = self._process.stdout.readline().split()[-1]
        # The first question makes the stand-in hash the files; that is no part of what is measured.
        with urllib.request.urlopen(protocol.revision_url(self.endpoint, REPOSITORY, "main")) as answer:
            self.commit = protocol.commit_of(json.load(answer), "hub")
        with urllib.request.urlopen(protocol.tree_url(self.endpoint, REPOSITORY, self.commit)) as answer:
            self.files = protocol.files_of(json.load(answer), "hub")
        self.size_bytes = sum(file.size_bytes for file in self.files)

    def set(self, link_bytes_per_s: int, per_mib: float = 0.0) -> None:
        rules = [{"kind": "cut", "match": "/cdn/*", "times": 0, "per_mib": per_mib}] if per_mib else []
        if self._wire:
            self._wire.shape(link_bytes_per_s)
        draft = self._control.with_suffix(".new")
        draft.write_text(json.dumps({"link_bytes_per_s": 0 if self._wire else link_bytes_per_s, "rules": rules}))
        draft.rename(self._control)

    def sent_bytes(self) -> int:
        time.sleep(0.3)  # the last lines of the log
        sent = sum(json.loads(line)["bytes"] for line in self._log.read_text().splitlines())
        os.truncate(self._log, 0)
        return sent

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


Tool = t.Callable[[Path], "list[str]"]


def tool_kpro(hub: Hub, scratch: Path) -> Tool:
    """The worker as its unit runs it."""

    def command(target: Path) -> list[str]:
        folder = Path(tempfile.mkdtemp(dir=scratch))
        selected = tuple(file.path for file in hub.files)
        access = HubAccess(hub.endpoint)
        target.mkdir(exist_ok=True)
        job = Job(str(target), REPOSITORY, hub.commit, tuple(hub.files), selected, False, access, (), TransferSettings())
        (folder / "job.json").write_text(json.dumps(job.to_dict()))
        (folder / "worker.pyz").write_bytes(worker_archive(worker))
        return ["/usr/bin/python3", "-I", str(folder / "worker.pyz"), str(folder)]

    return command


def tool_hf(program: str) -> Tool:
    return lambda target: [program, "download", REPOSITORY, "--local-dir", str(target / "m"), "--max-workers", "8"]


def tool_aria2(program: str, hub: Hub, scratch: Path) -> Tool:
    """Eight connections, resume, and the hashes checked, as a role would call it."""

    def command(target: Path) -> list[str]:
        lines = []
        for file in hub.files:
            lines += [protocol.file_url(hub.endpoint, REPOSITORY, hub.commit, file.path), f"  out={file.path}"]
            lines += [f"  checksum=sha-256={file.sha256}"] if file.sha256 else []
        (scratch / "list").write_text("\n".join(lines))
        options = ["--max-concurrent-downloads=2", "--split=4", "--max-connection-per-server=4", "--continue=true", "--file-allocation=none"]
        options += ["--retry-wait=1", "--max-tries=50", "--auto-save-interval=1", "--quiet", "--no-conf", "--allow-overwrite=true"]
        return [program, *options, f"--input-file={scratch / 'list'}", f"--dir={target / 'm'}"]

    return command


class Bench:
    def __init__(self, hub: Hub, scratch: Path, tools: dict[str, Tool]) -> None:
        self._hub = hub
        self._scratch = scratch
        self._tools = tools
        self._env = {"PATH": os.environ["PATH"], "HF_ENDPOINT": hub.endpoint, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

    def _start(self, name: str, target: Path) -> subprocess.Popen[bytes]:
        env = {**self._env, "HF_HOME": str(target / "hf-home")}
        return subprocess.Popen(self._tools[name](target), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _fresh(self) -> Path:
        target = self._scratch / "target"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        return target

    def _right(self, target: Path) -> bool:
        found = [path for path in target.rglob("*.safetensors") if "incoming" not in str(path)]
        return len(found) == len(self._hub.files) - 1 and all(path.read_bytes() == (self._hub.model / path.name).read_bytes() for path in found)

    def download(self, rounds: int, link: int, per_mib: float) -> None:
        """Share of the link that each tool uses."""
        print(f"\n## Download of {self._hub.size_bytes // MIB} MiB at {link // MIB} MiB/s, {per_mib:.0%} of cuts at each MiB\n", flush=True)
        self._hub.set(link, per_mib)
        shares: dict[str, list[float]] = {name: [] for name in self._tools}
        extra: dict[str, list[float]] = {name: [] for name in self._tools}
        failed = dict.fromkeys(self._tools, 0)
        for _round in range(rounds):
            for name in self._tools:
                target = self._fresh()
                self._hub.sent_bytes()
                began = time.monotonic()
                code = self._start(name, target).wait()
                seconds = time.monotonic() - began
                if code != 0 or not self._right(target):
                    failed[name] += 1
                    continue
                shares[name].append(self._hub.size_bytes / link / seconds)
                extra[name].append(self._hub.sent_bytes() / self._hub.size_bytes - 1)
        print("| tool | share of the link (median) | least | sent twice | failed |\n| --- | --- | --- | --- | --- |")
        for name, found in shares.items():
            row = f"{statistics.median(found):.1%} | {min(found):.1%} | {statistics.median(extra[name]):.1%}" if found else "- | - | -"
            print(f"| {name} | {row} | {failed[name]} of {rounds} |", flush=True)

    def kill(self, link: int) -> None:
        """Bytes that are sent again when the process is killed half-way and a new one goes on."""
        print(
            f"\n## Killed (-9) at 60 % of the time, then a new process, at {link // MIB} MiB/s\n\n| tool | sent in all | lost |\n| --- | --- | --- |",
            flush=True,
        )
        self._hub.set(link)
        for name in self._tools:
            target = self._fresh()
            self._hub.sent_bytes()
            process = self._start(name, target)
            time.sleep(0.6 * self._hub.size_bytes / link)
            process.send_signal(signal.SIGKILL)
            process.wait()
            time.sleep(1.0)
            code = self._start(name, target).wait()
            sent = self._hub.sent_bytes()
            right = "" if code == 0 and self._right(target) else " (not right)"
            print(
                f"| {name} | {sent / MIB:.0f} MiB of {self._hub.size_bytes // MIB} | {max(0, sent - self._hub.size_bytes) / MIB:.1f} MiB{right} |", flush=True
            )

    def verify(self, rounds: int) -> None:
        """Speed of the check of files about which nothing is known, against one openssl per core (sha256sum knows no SHA instructions)."""
        target = self._fresh()
        snapshot = store.Snapshot(str(target), REPOSITORY, self._hub.commit)
        shutil.copytree(self._hub.model, snapshot.path)
        ratios = []
        for _round in range(rounds):
            began = time.monotonic()
            names = "\0".join(str(path) for path in Path(snapshot.path).glob("*.safetensors"))
            subprocess.run(
                ["xargs", "-0", "-n", "1", "-P", str(os.cpu_count()), "openssl", "dgst", "-sha256"], input=names.encode(), stdout=subprocess.DEVNULL, check=True
            )
            theirs = time.monotonic() - began
            Path(snapshot.path, manifests.MANIFEST_NAME).unlink(missing_ok=True)
            argv = self._tools["kpro"](target)
            began = time.monotonic()
            subprocess.run(argv, check=True)
            ours = time.monotonic() - began
            argv = self._tools["kpro"](target)
            began = time.monotonic()
            subprocess.run(argv, check=True)
            # The same once more with nothing to read: what the start of the worker costs, whatever the size.
            ours -= time.monotonic() - began
            ratios.append(theirs / ours)
            rate = self._hub.size_bytes / ours
        print(
            f"\n## Check of {self._hub.size_bytes // MIB} MiB\n\n"
            f"{statistics.median(ratios):.1%} of openssl dgst -sha256 on each core ({rate / 1e6:.0f} MB/s last), start of the worker taken off",
            flush=True,
        )

    def recheck(self, rounds: int) -> None:
        """Time of the module's whole call for an unchanged model of 30 shards of 4 GB (sparse files)."""
        target = self._fresh()
        files = [RemoteFile(f"model-{number:05d}-of-00030.safetensors", 4_000_000_000, f"{number:064x}") for number in range(30)]
        snapshot = store.Snapshot(str(target), REPOSITORY, "a" * 40)
        os.makedirs(snapshot.path)
        for file in files:
            with open(os.path.join(snapshot.path, file.path), "wb") as handle:
                handle.truncate(file.size_bytes)
        checked = store.stats(snapshot.path, [file.path for file in files])
        folder = snapshot.folder()
        assert folder
        store.write_manifest(folder, Manifest(REPOSITORY, "a" * 40, tuple(files), checked))
        arguments = {"repository": REPOSITORY, "revision": "a" * 40, "store": str(target), "endpoint": "http://127.0.0.1:9"}
        call = (
            f"from ansible.module_utils.testing import patch_module_args as p\nfrom {MODULE} import main\nimport atexit, sys, time\nbegan = time.monotonic()\n"
        )
        call += "atexit.register(lambda: print(time.monotonic() - began, file=sys.stderr))\n" + f"with p({arguments!r}):\n    main()\n"
        env = {**os.environ, "PYTHONPATH": str(ROOT / "collections")}
        times, inner = [], []
        for _round in range(rounds):
            began = time.monotonic()
            done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, env=env, check=True)
            times.append(time.monotonic() - began)
            inner.append(float(done.stderr.split()[-1]))
            assert json.loads(done.stdout)["changed"] is False
        print(
            "\n## Unchanged model, 30 shards of 4 GB\n\n"
            f"{statistics.median(inner):.3f} s for the module, {statistics.median(times):.2f} s with the start of Python",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure hf_model.")
    parser.add_argument("--mib", type=int, default=384)
    parser.add_argument("--link-mib-per-s", type=int, default=24)
    parser.add_argument("--link", choices=["kernel", "hub"], default="kernel" if os.geteuid() == 0 and shutil.which("tc") else "hub", help="who shapes it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hf", help="program hf of huggingface_hub")
    parser.add_argument("--aria2", help="program aria2c")
    parser.add_argument("--only", choices=["download", "cuts", "kill", "verify", "recheck"], help="one part")
    parser.add_argument("--folder", help="where to work; several times --mib are needed")
    args = parser.parse_args()
    link = args.link_mib_per_s * MIB
    if args.link == "kernel" and "KPRO_BENCH_APART" not in os.environ:
        # Interfaces and rates are of a network namespace that only this program sees.
        os.environ["KPRO_BENCH_APART"] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        scratch = Path(name)
        wire = Wire() if args.link == "kernel" else None
        hub = Hub(scratch, args.mib, 4, wire)
        tools: dict[str, Tool] = {"kpro": tool_kpro(hub, scratch)}
        if args.hf:
            tools["hf download"] = tool_hf(args.hf)
        if args.aria2:
            tools["aria2c"] = tool_aria2(args.aria2, hub, scratch)
        bench = Bench(hub, scratch, tools)
        try:
            if args.only in (None, "download"):
                bench.download(args.rounds, link, 0.0)
            if args.only in (None, "cuts"):
                bench.download(args.rounds, link, 0.01)
            if args.only in (None, "kill"):
                bench.kill(link)
            if args.only in (None, "verify"):
                bench.verify(args.rounds)
            if args.only in (None, "recheck"):
                bench.recheck(args.rounds)
        finally:
            hub.close()
            if wire:
                wire.close()


if __name__ == "__main__":
    main()
