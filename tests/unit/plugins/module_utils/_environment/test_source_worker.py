# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._environment import source_worker as worker
from ansible_collections.kpro.llm.plugins.module_utils._environment.source_package import MANIFEST


def archive(folder: Path, members: dict[str, str]) -> None:
    folder.mkdir()
    with tarfile.open(folder / "extension-1.0.tar.gz", "w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))


def wheel(path: Path, names: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as made:
        for name in names:
            made.writestr(name, "x")
    return path


@pytest.fixture
def unpacking(tmp_path: Path) -> dict:
    archive(tmp_path / "archive", {"extension-1.0/setup.py": "1", "extension-1.0/extension/cute/a.py": "2", "extension-1.0/../../escape": "3", "/abs": "4"})
    return {"archive": str(tmp_path / "archive"), "path": str(tmp_path / "source"), "omit": ["extension/cute"], "user": None}


def test_a_source_is_unpacked_without_what_others_provide_and_without_what_leaves_its_folder(tmp_path: Path, unpacking: dict) -> None:
    worker.unpack(unpacking)
    assert sorted(path.name for path in (tmp_path / "source").iterdir()) == [".kpro-unpacked", "extension", "setup.py"]
    assert not (tmp_path / "source/extension/cute").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "source"]


def test_what_a_killed_build_left_is_kept_for_the_same_archive_and_thrown_away_for_another(tmp_path: Path, unpacking: dict) -> None:
    worker.unpack(unpacking)
    (tmp_path / "source/build").mkdir()
    worker.unpack(unpacking)
    assert (tmp_path / "source/build").exists()
    (tmp_path / "archive/extension-1.0.tar.gz").unlink()
    (tmp_path / "archive").rmdir()
    archive(tmp_path / "archive", {"extension-1.0/setup.py": "another"})
    worker.unpack(unpacking)
    assert not (tmp_path / "source/build").exists()


def test_an_archive_that_is_none_is_named(tmp_path: Path, unpacking: dict) -> None:
    (tmp_path / "archive/extension-1.0.tar.gz").write_bytes(b"half of it")
    with pytest.raises(KproError, match=r"extension-1\.0\.tar\.gz"):
        worker.unpack(unpacking)
    assert not (tmp_path / "source").exists()


def keeping(tmp_path: Path) -> dict:
    out, folder = tmp_path / "build/out", tmp_path / "wheelhouse/extension-1.0+torch2"
    return {"out": str(out), "folder": str(folder), "manifest_name": MANIFEST, "manifest": {"name": "extension"}, "build": str(tmp_path / "build")}


def test_a_wheel_is_kept_whole_with_its_hash_and_the_build_goes(tmp_path: Path) -> None:
    built = wheel(tmp_path / "build/out/extension-1.0-py3-none-any.whl", ["extension/__init__.py"])
    digest = worker.sha256_of(built)
    step = keeping(tmp_path)
    worker.keep(step)
    assert worker.kept_wheel(step["folder"]) == (f"{step['folder']}/extension-1.0-py3-none-any.whl", digest)
    assert [path.name for path in (tmp_path / "wheelhouse").iterdir()] == ["extension-1.0+torch2"]
    assert not (tmp_path / "build").exists()


def test_a_build_without_a_wheel_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "build/out").mkdir(parents=True)
    step = keeping(tmp_path)
    with pytest.raises(KproError, match="left 0 wheels"):
        worker.keep(step)
    assert worker.kept_wheel(step["folder"]) is None


def taking(tmp_path: Path) -> dict:
    (tmp_path / "env/lib/python3.11/site-packages/flash_attn/cute").mkdir(parents=True)
    (tmp_path / "env/lib/python3.11/site-packages/flash_attn/cute/interface.py").write_text("of flash-attn-4")
    return {"folder": str(tmp_path / "kept"), "name": "flash-attn", "target": str(tmp_path / "env"), "requirement": str(tmp_path / "requirement.txt")}


def test_a_kept_wheel_is_installed_by_its_hash(tmp_path: Path) -> None:
    step = taking(tmp_path)
    path = wheel(tmp_path / "kept/flash_attn-2.8.3-py3-none-any.whl", ["flash_attn/__init__.py"])
    (tmp_path / "kept" / MANIFEST).write_text(json.dumps({"file": path.name, "sha256": worker.sha256_of(path)}))
    worker.take(step)
    assert Path(step["requirement"]).read_text() == f"flash-attn @ {path.as_uri()} --hash=sha256:{worker.sha256_of(path)}\n"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(KproError, match="SHA-256"):
        worker.take(step)


def test_a_wheel_that_would_write_over_another_package_is_refused(tmp_path: Path) -> None:
    step = taking(tmp_path)
    wheel(tmp_path / "kept/flash_attn-2.8.3-py3-none-any.whl", ["flash_attn/__init__.py", "flash_attn/cute/interface.py"])
    with pytest.raises(KproError, match=r"over 1 files of another package, flash_attn/cute/interface\.py first"):
        worker.take(step)


def test_the_memory_of_this_machine_is_read() -> None:
    free_mib, limit_mib = worker.memory_mib()
    assert 0 < free_mib <= limit_mib
    assert worker.oom_kills() >= 0
