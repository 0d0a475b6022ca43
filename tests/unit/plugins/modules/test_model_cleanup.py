# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a deployment put into a store goes, and nothing else: no other model, no file of somebody else, nothing that a guest or process uses."""

from __future__ import annotations

import json
import os
import pathlib
import stat
import typing as t

import pytest
from ansible.module_utils import basic
from ansible.module_utils.testing import patch_module_args

from ansible_collections.kpro.llm.plugins.module_utils._model import manifest as manifests
from ansible_collections.kpro.llm.plugins.module_utils._model.hub_protocol import MANIFEST_NAME, RemoteFile
from ansible_collections.kpro.llm.plugins.module_utils._model.manifest import Manifest, Stat
from ansible_collections.kpro.llm.plugins.module_utils._removal import models as removal
from ansible_collections.kpro.llm.plugins.modules import model_cleanup

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="reads the files of all processes")

COMMIT, OTHER = "0123456789abcdef" * 2 + "01234567", "fedcba9876543210" * 2 + "fedcba98"
REPOSITORY = "kpro/tiny"
OURS = "hostname: qwen\nmp0: /srv/models,mp=/srv/models\ntags: kpro-llm\n"
ROOT_LINE = "21 1 259:2 / / rw,relatime - ext4 /dev/nvme0n1p2 rw"


class Node:
    """A node in a folder: its guests, its mount table, its processes, its store."""

    def __init__(self, root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.name = os.uname().nodename.split(".")[0]
        self.store = root / "srv/models"
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.store.mkdir(parents=True)
        self.process("self", ROOT_LINE)
        monkeypatch.setattr(model_cleanup, "HOST_ROOT", str(root))
        self.guest(OURS)

    def file(self, path: str, content: str) -> pathlib.Path:
        found = self.root / path
        found.parent.mkdir(parents=True, exist_ok=True)
        found.write_text(content, encoding="utf-8")
        return found

    def guest(self, text: str, vmid: int = 129, kind: str = "lxc", node: str = "") -> None:
        self.file(f"etc/pve/nodes/{node or self.name}/{kind}/{vmid}.conf", text)

    def process(self, pid: str, *mounts: str, cgroup: str = "0::/\n", namespace: str = "mnt:[1]") -> pathlib.Path:
        folder = self.root / "proc" / pid
        for name in ("ns", "fd"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "ns/mnt").symlink_to(namespace)
        self.file(f"proc/{pid}/mountinfo", "".join(f"{line}\n" for line in mounts))
        self.file(f"proc/{pid}/cgroup", cgroup)
        self.file(f"proc/{pid}/comm", "python3\n")
        return folder

    def snapshot(self, repository: str = REPOSITORY, commit: str = COMMIT, names: t.Sequence[str] = ("config.json", "sub/a.safetensors")) -> pathlib.Path:
        folder = self.store / manifests.folder_name(repository, commit)
        checked = {}
        for name in names:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name} of {commit}", encoding="utf-8")
            checked[name] = Stat(path.stat().st_size, path.stat().st_mtime_ns)
        files = tuple(RemoteFile(name, stat.size_bytes, "0" * 64) for name, stat in checked.items())
        (folder / MANIFEST_NAME).write_text(manifests.to_text(Manifest(repository, commit, files, checked)), encoding="utf-8")
        return folder

    def run(self, check: bool = False, **options: t.Any) -> dict[str, t.Any]:
        usual = {"leaving": [129, 131], "mounts": [{"source": "/srv/models", "target": "/srv/models"}], "repository": REPOSITORY, "revision": COMMIT}
        with patch_module_args({**usual, **options, "_ansible_check_mode": check, "_ansible_diff": True}), pytest.raises(SystemExit):
            model_cleanup.main()
        self._monkeypatch.setattr(basic, "_ANSIBLE_ARGS", None, raising=False)
        return json.loads(self._capsys.readouterr().out.strip().splitlines()[-1])

    def tree(self) -> dict[str, t.Any]:
        return {str(path): path.lstat().st_mtime_ns for path in sorted(self.root.rglob("*"))}

    def refused(self, *words: str, **options: t.Any) -> None:
        before = self.tree()
        for check in (True, False):
            result = self.run(check, **options)
            assert result.get("failed"), result
            assert all(word in result["msg"] for word in words), result["msg"]
        assert self.tree() == before


@pytest.fixture
def node(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Node:
    return Node(tmp_path, monkeypatch, capsys)


def test_the_snapshot_goes_with_the_folder_that_is_empty_then(node: Node) -> None:
    folder = node.snapshot()
    (node.store / ".incoming").mkdir()
    before = node.tree()
    foretold = node.run(check=True)
    assert node.tree() == before
    done = node.run()
    assert (done["plan"], done["diff"], done["paths"]) == (foretold["plan"], foretold["diff"], foretold["paths"])
    assert done["paths"] == [f"/srv/models/{folder.name}/{name}" for name in ("config.json", "sub/a.safetensors", MANIFEST_NAME)]
    assert all(path in done["diff"]["before"] for path in done["paths"])
    assert not node.store.exists() and (node.root / "srv").exists()
    assert node.run()["changed"] is False


def test_another_model_another_commit_and_anything_else_stay(node: Node) -> None:
    node.snapshot()
    others = [node.snapshot("kpro/other", OTHER), node.snapshot(REPOSITORY, OTHER)]
    loose = node.file("srv/models/notes.txt", "mine")
    kept = {path: path.read_bytes() for each in others for path in each.rglob("*") if path.is_file()}
    result = node.run()
    assert not result.get("failed"), result
    assert {path: path.read_bytes() for each in others for path in each.rglob("*") if path.is_file()} == kept and loose.read_text(encoding="utf-8") == "mine"
    assert len(result["notes"]) == 3 and any("another commit" in note for note in result["notes"])
    assert node.run()["changed"] is False


def test_what_the_manifest_does_not_prove_stays_and_is_named(node: Node) -> None:
    folder = node.snapshot(names=("config.json", "tuned.safetensors"))
    (folder / "adapter.bin").write_text("mine", encoding="utf-8")
    (folder / "tuned.safetensors").write_text("trained by hand", encoding="utf-8")
    os.mkfifo(folder / "pipe")
    target = node.file("etc/precious", "precious")
    (folder / "link").symlink_to(target)
    result = node.run()
    assert result["paths"] == [f"/srv/models/{folder.name}/config.json"]
    assert sorted(path.name for path in folder.iterdir()) == [MANIFEST_NAME, "adapter.bin", "link", "pipe", "tuned.safetensors"]
    assert target.read_text(encoding="utf-8") == "precious"
    assert "adapter.bin (not in the manifest)" in result["notes"][-1] and "tuned.safetensors (changed since it was checked)" in result["notes"][-1]
    assert node.run()["changed"] is False


@pytest.mark.parametrize("damage", ["none", "broken", "fifo", "link", "other", "giant"])
def test_a_snapshot_without_proof_is_not_touched(node: Node, damage: str) -> None:
    folder = node.snapshot()
    manifest = folder / MANIFEST_NAME
    content = manifest.read_text(encoding="utf-8")
    manifest.unlink()
    if damage == "fifo":
        os.mkfifo(manifest)
    elif damage == "link":
        manifest.symlink_to(node.file("srv/elsewhere", content))
    elif damage == "giant":
        manifest.touch()
        os.truncate(manifest, 1 << 40)
    elif damage != "none":
        manifest.write_text(content.replace(COMMIT, OTHER) if damage == "other" else content[:40], encoding="utf-8")
    node.refused("Nothing of it is removed")


def test_a_link_in_place_of_the_snapshot_is_not_followed(node: Node) -> None:
    folder = node.snapshot()
    folder.rename(node.root / "srv/elsewhere")
    folder.symlink_to("../elsewhere")
    node.refused("no plain folder")


def test_a_folder_that_was_swapped_for_a_link_is_not_followed(node: Node) -> None:
    folder = node.snapshot()
    (folder / "sub").rename(node.root / "srv/sub")
    (folder / "sub").symlink_to("../../sub")
    node.run()
    assert (node.root / "srv/sub/a.safetensors").exists()


def test_a_store_behind_a_link_that_others_could_make_is_refused(node: Node) -> None:
    node.snapshot()
    node.store.rename(node.root / "srv/pool")
    node.store.symlink_to("pool")
    (node.root / "srv").chmod(0o777)
    node.refused("is a link that others than root could have made")


def test_an_admins_link_is_followed_and_stays(node: Node) -> None:
    node.snapshot()
    node.store.rename(node.root / "pool")
    node.store.symlink_to("../pool")
    (node.root).chmod(0o755)
    result = node.run()
    assert not result.get("failed"), result
    assert os.listdir(node.root / "pool") == [] and node.store.is_symlink()


REFERENCES = [
    ("lxc", "mp0: /srv/models,mp=/models,ro=1"),
    ("lxc", "mp3: volume=/srv/models/kpro--tiny@0123456789ab,mp=/m"),
    ("lxc", "lxc.mount.entry: /srv srv none bind 0 0"),
    ("lxc", "lxc.mount.entry = /srv/models/kpro--tiny@0123456789ab/sub m none bind,ro 0 0"),
    ("lxc", "[before-upgrade]\nmp0: /srv/models,mp=/models"),
    ("lxc", "[pve:pending]\nmp0: /srv/models/,mp=/models"),
    ("lxc", "template: 1\nmp0: /srv//models,mp=/models"),
    ("lxc", "lxc.mount.fstab: /etc/extra.fstab"),
    ("qemu-server", "args: -virtfs local,path=/srv/models,mount_tag=m,security_model=none"),
    ("qemu-server", "virtiofs0: dirid=models,cache=auto"),
    ("qemu-server", "virtiofs0: models"),
    ("qemu-server", "[old]\nvirtiofs1: models"),
    ("qemu-server", "scsi1: file=/srv/models/kpro--tiny@0123456789ab/disk.raw,size=1G"),
]


@pytest.mark.parametrize(("kind", "line"), REFERENCES)
def test_a_guest_that_refers_to_it_is_named_and_nothing_goes(node: Node, kind: str, line: str) -> None:
    node.snapshot()
    node.file("etc/extra.fstab", "/srv/models models none bind 0 0\n")
    node.file("etc/pve/mapping/directory.cfg", f"models\n\tdescription shared\n\tmap node={node.name},path=/srv/models\n")
    node.guest(f"hostname: whisper\nname: whisper\n{line}\n", 140, kind)
    node.refused("in use", "140 (whisper)", "Nothing was removed")


@pytest.mark.parametrize(
    "line",
    [
        "mp0: /srv/models/other--model@000000000000,mp=/srv/models",
        "mp0: local-zfs:subvol-140-disk-1,mp=/srv/models,size=8G",
        "mp0: /srv/models-old,mp=/m",
        "#mp0: /srv/models,mp=/m",
        "net0: name=eth0,ip=10.0.0.5/24",
    ],
)
def test_a_guest_that_only_looks_alike_is_not_in_the_way(node: Node, line: str) -> None:
    folder = node.snapshot()
    node.guest(f"hostname: whisper\n{line}\n", 140)
    assert not node.run().get("failed")
    assert not folder.exists()


def test_two_containers_that_leave_together_do_not_keep_each_other(node: Node) -> None:
    folder = node.snapshot()
    node.guest(OURS, 131)
    assert not node.run().get("failed")
    assert not folder.exists()


def test_a_container_of_the_same_id_that_is_not_ours_counts(node: Node) -> None:
    node.snapshot()
    node.guest(OURS.replace("tags: kpro-llm", "tags: web"))
    node.refused("container 129 (qwen) refers to /srv/models (mp0)")


@pytest.mark.parametrize(
    ("line", "namespace"),
    [
        ("90 80 259:2 /srv/models /models rw - ext4 /dev/nvme0n1p2 rw", "mnt:[2]"),
        ("90 80 259:2 /srv /data rw - ext4 /dev/nvme0n1p2 rw", "mnt:[2]"),
        ("90 80 259:2 /srv/models/kpro--tiny@0123456789ab/sub /m rw - ext4 /dev/nvme0n1p2 rw", "mnt:[2]"),
    ],
)
def test_a_container_that_has_it_mounted_is_named(node: Node, line: str, namespace: str) -> None:
    node.snapshot()
    node.process("4711", "80 1 0:99 / / rw - zfs rpool/data/subvol-140-disk-0 rw", line, cgroup="0::/lxc/140/ns/init.scope\n", namespace=namespace)
    node.refused("in use", "running container 140", "mounted")


def test_a_service_with_a_table_of_its_own_is_no_user(node: Node) -> None:
    folder = node.snapshot()
    node.process("900", ROOT_LINE.replace("21 1", "77 70"), "78 77 0:50 / /tmp rw - tmpfs tmpfs rw", namespace="mnt:[3]")
    assert not node.run().get("failed")
    assert not folder.exists()


def test_a_service_that_has_it_bound_elsewhere_is_named(node: Node) -> None:
    node.snapshot()
    node.process("900", ROOT_LINE.replace("21 1", "77 70"), "78 77 259:2 /srv/models /var/lib/x rw - ext4 /dev/nvme0n1p2 rw", namespace="mnt:[3]")
    node.refused("in use", "python3 (pid 900)")


def test_a_process_with_an_open_file_is_named(node: Node) -> None:
    folder = node.snapshot()
    place = node.process("900")
    (place / "fd/3").symlink_to(folder / "sub/a.safetensors")
    node.refused("in use", "python3 (pid 900) has", "a.safetensors open")


def test_a_process_that_works_in_it_is_named(node: Node) -> None:
    folder = node.snapshot()
    (node.process("900") / "cwd").symlink_to(folder)
    node.refused("in use", "pid 900")


SHARED = [
    ("fs", "30 21 0:70 / /srv/models rw - nfs4 nas:/models rw"),
    ("fs", "30 21 0:70 / /srv/models rw - cifs //nas/models rw"),
    ("fs", "30 21 0:70 / /srv rw - ceph :/ rw"),
    ("fs", "30 21 0:70 / /srv/models rw - fuse.sshfs nas: rw"),
    ("storage", "dir: models\n\tpath /srv/models\n\tcontent iso\n\tshared 1\n"),
    ("storage", "nfs: nas\n\tpath /srv\n\tserver 10.0.0.9\n\texport /x\n"),
    ("mount", ""),
]


@pytest.mark.parametrize(("how", "text"), SHARED)
def test_a_shared_store_needs_a_consent_of_its_own(node: Node, how: str, text: str) -> None:
    folder = node.snapshot()
    options: dict[str, t.Any] = {}
    if how == "fs":
        node.file("proc/self/mountinfo", f"{ROOT_LINE}\n{text}\n")
    elif how == "storage":
        node.file("etc/pve/storage.cfg", text)
    else:
        options["mounts"] = [{"source": "/srv/models", "target": "/srv/models", "shared": True}]
    node.refused("other machines may use the same files", "decommission_shared", **options)
    # With it, the guests of all nodes count.
    node.guest(OURS, 129, node="kpro7")
    node.refused("on kpro7: container 129 (qwen)", allow_shared=True, **options)
    (node.root / "etc/pve/nodes/kpro7/lxc/129.conf").unlink()
    assert not node.run(allow_shared=True, **options).get("failed")
    assert not folder.exists()


@pytest.mark.parametrize("lost", ["proc/self/mountinfo", "etc/pve/nodes"])
def test_a_look_that_is_not_possible_is_no_good_news(node: Node, lost: str) -> None:
    node.snapshot()
    (node.root / lost).rename(node.root / "lost")
    node.refused("cannot be read", "Nothing was removed")


def test_a_read_only_mount_is_never_touched(node: Node) -> None:
    node.snapshot()
    before = node.tree()
    result = node.run(mounts=[{"source": "/srv/models", "target": "/srv/models", "read_only": True}])
    assert (result["changed"], node.tree()) == (False, before)


def test_another_mount_of_the_container_is_never_touched(node: Node) -> None:
    node.snapshot()
    data = node.file("srv/data/precious", "precious")
    mounts = [{"source": "/srv/models", "target": "/srv/models"}, {"source": "/srv/data", "target": "/data"}]
    assert node.run(mounts=mounts)["changed"]
    assert data.exists()


def test_another_deployment_on_the_node_keeps_everything(node: Node) -> None:
    node.snapshot()
    node.refused("in use", "whisper of the inventory", other_users=["whisper of the inventory is deployed there"])


def test_without_a_known_commit_nothing_goes(node: Node) -> None:
    node.snapshot()
    node.refused("not known at which commit", "hf_model__revision", revision="main")
    assert node.run(revision="main", locked=[f"{REPOSITORY} main {COMMIT}"])["changed"]


@pytest.mark.parametrize("source", ["/", "/etc", "/srv", "/srv/models/.."])
def test_a_system_folder_is_never_emptied(node: Node, source: str) -> None:
    node.snapshot()
    node.refused("mount source", mounts=[{"source": source, "target": "/srv/models"}])


def test_a_volume_goes_with_its_container(node: Node) -> None:
    node.snapshot()
    assert node.run(mounts=[{"source": "local-zfs:100", "target": "/srv/models"}])["changed"] is False


def test_a_removal_that_was_cut_off_goes_on(node: Node) -> None:
    folder = node.snapshot()
    (folder / "config.json").unlink()
    assert node.run()["changed"]
    assert not folder.exists()


def test_a_socket_and_names_with_escapes_do_no_harm(node: Node) -> None:
    folder = node.snapshot()
    (folder / "bad\x1b[2J\nname").write_text("x", encoding="utf-8")
    os.mknod(folder / "s", stat.S_IFSOCK | 0o666)
    result = node.run()
    assert "\x1b" not in json.dumps(result, ensure_ascii=False) and r"\x1b[2J\nname" in result["notes"][-1]


def test_the_store_is_found_below_a_mount_above_it() -> None:
    wish = removal.RemovalOptions(
        (129,), ({"source": "/tank", "target": "/srv"}, {"source": "/x", "target": "/srv/models/other"}), "/srv/models", REPOSITORY, ()
    )
    found = removal.node_store(wish)
    assert found is not None and (found.source, found.path) == ("/tank", "/tank/models")
