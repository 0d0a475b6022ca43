# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write an apt repository of empty, labelled packages: ``repository.py ROOT LIST KERNEL`` (standard library only)."""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

VERSION = "1.0+standin"
FOLDER = "usr/lib/kpro-standin/apt"
# Any fixed time will do: the same list gives the same bytes.
_TIME_S = 1_735_689_600


@dataclass(frozen=True)
class Package:
    """An empty package."""

    name: str
    depends: str
    text: str
    files: tuple[tuple[str, str], ...] = ()  # path -> content, or "-> target" for a link

    @property
    def control(self) -> str:
        lines = [
            f"Package: {self.name}",
            f"Version: {VERSION}",
            "Architecture: all",
            "Section: admin",
            "Priority: optional",
            "Maintainer: kpro sandbox <root@localhost>",
            *([f"Depends: {self.depends}"] if self.depends else []),
            f"Description: STAND-IN of the kpro sandbox for Proxmox's {self.name}",
            f" Stands for: {self.text}. It holds nothing that can be compiled against.",
        ]
        return "\n".join(lines) + "\n"


def parse_list(text: str, kernel: str) -> list[Package]:
    """Parse the list of stand-ins; a headers package brings the folder that installers look for."""
    packages = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, depends, what = (part.strip().replace("{kernel}", kernel) for part in line.split(";"))
        files: tuple[tuple[str, str], ...] = ()
        if name == f"proxmox-headers-{kernel}":
            source = f"usr/src/linux-headers-{kernel}"
            files = (
                (f"{source}/STAND-IN", "Stand-in of the kpro sandbox: no headers here.\n"),
                (f"usr/lib/modules/{kernel}/build", f"-> /{source}"),
            )
        packages.append(Package(name, depends, what, files))
    return packages


def _tar(files: dict[str, str]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
        folders: set[str] = set()
        for path in files:
            folders.update(str(parent) for parent in Path(path).parents if str(parent) != ".")
        for folder in [".", *sorted(folders)]:
            member = tarfile.TarInfo("./" if folder == "." else f"./{folder}/")
            member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o755, _TIME_S
            archive.addfile(member)
        for path, text in sorted(files.items()):
            member = tarfile.TarInfo(f"./{path}")
            member.mode, member.mtime = 0o644, _TIME_S
            if text.startswith("-> "):
                member.type, member.linkname = tarfile.SYMTYPE, text[3:]
                archive.addfile(member)
            else:
                data = text.encode()
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


def _ar(members: dict[str, bytes]) -> bytes:
    text = b"!<arch>\n"
    for name, data in members.items():
        text += f"{name:<16}{_TIME_S:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return text


def deb(package: Package) -> bytes:
    """Return the bytes of a binary package."""
    control = _tar({"control": package.control})
    return _ar({"debian-binary": b"2.0\n", "control.tar.gz": control, "data.tar.gz": _tar(dict(package.files))})


def write_repository(folder: Path, packages: list[Package]) -> None:
    """Write a flat repository: packages, ``Packages``, ``Release``."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    index = ""
    for package in packages:
        data = deb(package)
        name = f"{package.name}_{VERSION}_all.deb"
        (folder / name).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        index += f"{package.control}Filename: ./{name}\nSize: {len(data)}\nSHA256: {digest}\n\n"
    raw = index.encode()
    (folder / "Packages").write_bytes(raw)
    release = (
        f"Origin: kpro-standin\nLabel: kpro-standin\nDate: Wed, 01 Jan 2025 00:00:00 UTC\nSHA256:\n {hashlib.sha256(raw).hexdigest()} {len(raw)} Packages\n"
    )
    (folder / "Release").write_text(release, encoding="utf-8")


def main(root: Path, list_file: Path, kernel: str) -> int:
    packages = parse_list(list_file.read_text(encoding="utf-8"), kernel)
    write_repository(root / FOLDER, packages)
    source = root / "etc/apt/sources.list.d/kpro-standin.sources"
    source.write_text(
        "# Stand-in of the kpro sandbox for Proxmox's package repository; made at image build, so not signed.\n"
        f"Types: deb\nURIs: file:///{FOLDER}\nSuites: ./\nTrusted: yes\n",
        encoding="utf-8",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
