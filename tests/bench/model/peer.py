#!/usr/bin/env python3
# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Share of a link between two nodes that hf_model uses when it takes a model from the old node, beside one plain ssh.

    peer.py [--mib 512] [--mbit 160]

Two sandbox nodes (root), their link shaped by the kernel; the rate has to be one at which two processors can encrypt, decrypt
and hash, so that the link and not this machine is the limit. The wire's own headers count against the share. The new node's hub
has the model as well and stands for the internet: what it had to send is printed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tools"))

import two_nodes  # noqa: E402

from plain_node import SANDBOX  # noqa: E402

MIB = 1 << 20
REPOSITORY = "bench/model"
SHARDS = 4


def publish(pair: two_nodes.Pair, folder: Path, mib: int) -> None:
    """Give both nodes' hubs a model of random shards."""
    model = folder / "hub" / REPOSITORY
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}\n")
    for number in range(1, SHARDS + 1):
        with (model / f"model-{number:05d}-of-{SHARDS:05d}.safetensors").open("wb") as file:
            for _round in range(mib // SHARDS):
                file.write(os.urandom(MIB))
    for node in pair.nodes:
        subprocess.run([SANDBOX, "publish", node.name, "--hub", folder / "hub"], check=True, stdout=subprocess.DEVNULL)


def by_role(pair: two_nodes.Pair) -> float:
    """Run the role on the new node and return the seconds that its unit worked."""
    done = subprocess.run(
        pair.ansible("ansible-playbook", HERE / "peer.yml", "--limit", "kpro5"), env=pair.environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    lines = pair.new.run("journalctl --unit 'kpro-hf-model-*' --output short-unix --quiet").splitlines()
    stamps = [float(line.split()[0]) for line in lines]
    return stamps[-1] - stamps[0]


def by_ssh(pair: two_nodes.Pair) -> float:
    """Send the same files through one ssh and return the seconds."""
    public = pair.new.run("mkdir -p /root/bench && ssh-keygen -q -t ed25519 -N '' -f /root/bench/key && cat /root/bench/key.pub").strip()
    pair.old.run(f"echo '{public}' >> /root/.ssh/authorized_keys")
    ssh = f"ssh -i /root/bench/key -o StrictHostKeyChecking=accept-new -o UserKnownHostsFile=/root/bench/hosts root@{pair.old.address}"
    began = time.monotonic()
    pair.new.run(f"{ssh} 'cat /srv/models/*/model-*' > /dev/null")
    return time.monotonic() - began


def measure(pair: two_nodes.Pair, folder: Path, mib: int, mbit: int) -> None:
    publish(pair, folder, mib)
    filled = subprocess.run(
        pair.ansible("ansible-playbook", HERE / "peer.yml", "--limit", "kpro6"), env=pair.environment, capture_output=True, text=True, check=False
    )
    if filled.returncode:
        sys.exit(filled.stdout + filled.stderr)
    pair.shape(f"{mbit}mbit")
    carried = pair.carried_bytes(pair.new)
    ours = by_role(pair)
    carried = pair.carried_bytes(pair.new) - carried
    plain = by_ssh(pair)
    size = mib * MIB
    internet = sum(one["bytes"] for one in pair.new.hub_requests() if one["path"].endswith(".safetensors"))
    same = pair.new.run("cd /srv/models/*@*/ && sha256sum model-*") == pair.old.run("cd /srv/models/*@*/ && sha256sum model-*")
    print(f"\n## {mib} MiB from node to node over a link of {mbit} Mbit/s\n\n| way | seconds | share of the link |\n| --- | --- | --- |")
    for name, seconds in (("hf_model, checked", ours), ("one ssh, unchecked", plain)):
        print(f"| {name} | {seconds:.1f} | {8 * size / (mbit * 1e6) / seconds:.1%} |")
    print(
        f"\non the wire {carried / size:.3f} of the model's size; from the internet {internet} bytes of shards; files {'the same' if same else 'NOT THE SAME'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure hf_model between two nodes.")
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--mbit", type=int, default=160)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        pair = two_nodes.start("bench-peer", Path(name))
        try:
            measure(pair, Path(name), chosen.mib, chosen.mbit)
        finally:
            two_nodes.stop(pair)


if __name__ == "__main__":
    main()
