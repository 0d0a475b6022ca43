# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role's files: the gate and the launcher as programs, the templates as Ansible renders them."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import subprocess
import sys
import typing as t
from pathlib import Path

import jinja2
import pytest

ROLE = next(parent / "roles" / "sglang_server" for parent in Path(__file__).resolve().parents if (parent / "galaxy.yml").exists())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}", encoding="ascii")
    return folder


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment with the engine's version note, whose python says what it was started with."""
    venv = tmp_path / "venv"
    (venv / "lib" / "python3.11" / "site-packages" / "sglang-0.5.23.dist-info").mkdir(parents=True)
    (venv / "bin").mkdir()
    python = venv / "bin" / "python"
    python.write_text('#!/bin/sh\necho "engine $$ $*"\n', encoding="ascii")
    python.chmod(0o755)
    return venv


@pytest.fixture
def gate(tmp_path: Path, model: Path, venv: Path) -> t.Callable[..., subprocess.CompletedProcess[str]]:
    def run(**changes: t.Any) -> subprocess.CompletedProcess[str]:
        settings = {
            "engine_version": "0.5.23",
            "model_path": str(model),
            "driver_version": "",
            "devices": [],
            "bind_address": "127.0.0.1",
            "port": 0,
            "port_wait_s": 0,
            "gpus": [],
            "gpu_used_limit_mib": 500,
            "gpu_wait_s": 0,
            "started_path": str(tmp_path / "started.json"),
            "kernels": "",
            **changes,
        }
        rendering = jinja2.Environment()
        rendering.filters["to_json"] = json.dumps
        text = (ROLE / "templates" / "gate.py.j2").read_text(encoding="utf-8")
        program = tmp_path / "gate.py"
        program.write_text(rendering.from_string(text).render(__sglang_server_gate_settings=settings), encoding="utf-8")
        env = {**os.environ, "KPRO_CONFIG_DIGEST": "d1", "INVOCATION_ID": "i1", "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        return subprocess.run([sys.executable, str(program), str(venv / "bin" / "python"), "launch.py"], capture_output=True, text=True, env=env, check=False)

    return run


def test_the_gate_becomes_the_engine_and_notes_the_start(gate: t.Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    done = gate()
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    note = json.loads((tmp_path / "started.json").read_text(encoding="utf-8"))
    assert first == "gate: ok"
    assert second == f"engine {note['pid']} launch.py"
    assert (note["digest"], note["invocation_id"]) == ("d1", "i1")


def test_the_gate_keeps_compiled_kernels_of_this_hardware_and_of_the_last_one(gate: t.Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    root = tmp_path / "kernels"
    for age_s, name in enumerate(("sm86", "sm89", "sm90")):
        (root / name / "triton").mkdir(parents=True)
        os.utime(root / name, (2_000_000_000 - age_s, 2_000_000_000 - age_s))
    (root / "a file").touch()
    done = gate(kernels=str(root / "sm120"))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in root.iterdir()) == ["a file", "sm120", "sm86"]
    assert (root / "sm120" / "cuda").is_dir(), "CUDA makes no folder of its own"
    assert gate(kernels=str(root / "sm86")).returncode == 0
    assert sorted(path.name for path in root.iterdir()) == ["a file", "sm120", "sm86"], "the way back is kept"


def test_a_place_for_kernels_that_cannot_be_kept_in_order_stops_no_start(gate: t.Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = gate(kernels=str(tmp_path / "file" / "sm86"))
    assert done.returncode == 0
    assert "cannot be kept in order (Not a directory)" in done.stderr
    assert not done.stderr.startswith("gate: "), "which is how a refusal begins"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_path": "/nowhere"}, "is the model store mounted?"),
        ({"engine_version": "0.5.10.post1"}, "installed is sglang 0.5.23, configured for 0.5.10.post1"),
        ({"driver_version": "1.2.3"}, "driver"),
        ({"devices": ["/dev/nvidia-not-there"]}, "/dev/nvidia-not-there cannot be opened"),
        ({"bind_address": "203.0.113.1", "port": 30000}, "cannot be had"),
    ],
)
def test_the_gate_refuses_what_no_retry_cures(
    gate: t.Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, changes: dict[str, t.Any], words: str
) -> None:
    done = gate(**changes)
    assert done.returncode == 78
    assert done.stderr.startswith("gate: ") and words in done.stderr
    assert not (tmp_path / "started.json").exists() and "engine" not in done.stdout


def test_the_gate_leaves_the_driver_behind_a_device_node_to_the_driver_check(gate: t.Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    node = tmp_path / "nvidia0"
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(195, 0))
    except OSError:
        pytest.skip("no device nodes can be made here")
    try:
        os.close(os.open(node, os.O_RDWR))
    except OSError as error:
        if error.errno != errno.ENXIO:
            pytest.skip("device nodes cannot be opened here")
    assert gate(devices=[str(node)]).returncode == 0


def test_the_gate_sees_a_taken_port(gate: t.Callable[..., subprocess.CompletedProcess[str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = gate(port=server.getsockname()[1])
    assert done.returncode == 78 and "Address already in use" in done.stderr


def test_the_gate_lets_systemd_retry_while_memory_is_in_use(gate: t.Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU-aa, 9000'\necho 'GPU-bb, 3'\n", encoding="ascii")
    smi.chmod(0o755)
    done = gate(gpus=["GPU-aa", "GPU-bb"])
    assert done.returncode == 75 and "GPU-aa holds 9000 MiB" in done.stderr and "GPU-bb" not in done.stderr
    assert gate(gpus=["GPU-bb"]).returncode == 0
    assert gate(gpus=["GPU-cc"]).returncode == 78


def test_the_launcher_keeps_keys_out_of_the_log(tmp_path: Path) -> None:
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(
        "import logging, multiprocessing, sys\n"
        "def child():\n"
        "    logging.basicConfig(level='INFO', stream=sys.stdout)\n"
        "    logging.getLogger('x').info('child api_key=%s', 'kpro-secret')\n"
        "if __name__ == '__main__':\n"
        "    child()\n"
        "    logging.getLogger('x').info(f\"server_args={{'api_key': 'kpro-secret', 'admin': 'other-secret'}} {sys.argv[1:]}\")\n"
        "    import sglang.launch_server\n"
        "    process = multiprocessing.get_context('spawn').Process(target=sglang.launch_server.child)\n"
        "    process.start()\n"
        "    process.join()\n",
        encoding="utf-8",
    )
    config = tmp_path / "sglang.yaml"
    config.write_text('model-path: "x"\napi-key: "kpro-secret"\nadmin_api_key: \'other-secret\'\n', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(ROLE / "files" / "launch.py"), "--config", str(config)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
    )
    assert "secret" not in done.stdout + done.stderr
    assert done.stdout.count("child api_key=********") == 2
    assert f"['--config', '{config}']" in done.stdout
