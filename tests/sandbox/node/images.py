# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build what nodes are started from: Debian trees, the stand-ins on top of them, the container template."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from node import content, mirror
from node.files import locked, remove_tree, say, tail, write_json
from node.folders import PARTS_SOURCE, SOURCE, Folders, SandboxError

SUITES = ("trixie", "bookworm")
PARTS = ("apt", "proxmox", "gpu", "hub")
TEMPLATE_NAME = "debian-12-standard_12.12-1_amd64.tar.zst"
TEMPLATE_SUITE = "bookworm"
_CA_FOLDER = Path("/usr/local/share/ca-certificates")
_DPKG_OPTIONS = (
    "path-exclude=/usr/share/doc/*",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
    "force-unsafe-io",
)
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Image:
    """What a node is started from. Without ``parts_key`` it is a pristine Debian: no Proxmox node, but a machine as new."""

    suite: str
    base_key: str
    parts_key: str

    @property
    def pristine(self) -> bool:
        return not self.parts_key

    @property
    def base_name(self) -> str:
        return f"{'pristine-' if self.pristine else ''}{self.suite}-{self.base_key}"

    @property
    def key(self) -> str:
        return self.base_name if self.pristine else f"{self.base_name}-{self.parts_key}"

    def lowers(self, folders: Folders) -> list[Path]:
        """Return the read-only folders to mount, topmost first."""
        base = folders.images / self.base_name / "root"
        return [base] if self.pristine else [folders.parts / self.key / "up", base]


def die_with_parent() -> None:
    """Let the kernel end this child when the thread that started it ends, however that happens (for ``preexec_fn``)."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _contained(*command: str, network: bool) -> list[str]:
    """Wrap a build command so that its end takes all its processes and mounts along."""
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *([] if network else ["--net"]), "--", *command]


def _run_build(what: str, command: list[str], log: Path, progress: bool, **environment: str) -> None:
    """Run a build step, repeat mmdebstrap's progress lines, raise with the end of its log if it fails."""
    with log.open("a", encoding="utf-8") as log_file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "LC_ALL": "C.UTF-8", **environment},
            preexec_fn=die_with_parent,
            umask=0o022,
        )
        assert process.stdout is not None
        for line in process.stdout:
            log_file.write(line)
            step = re.match(r"I: (running apt-get update|downloading|extracting|installing)", line)
            if progress and step:
                say(f"{what}: {line[3:].strip().rstrip('.')[:100]}")
    if process.wait():
        raise SandboxError(f"building {what} failed (exit {process.returncode}), the end of {log}:\n{tail(log, 25)}")


def _machine_release() -> str:
    match = re.search(r"^VERSION_CODENAME=(\S+)", Path("/etc/os-release").read_text(encoding="utf-8"), re.MULTILINE)
    return match.group(1).strip('"') if match else ""


def apt_lines(suite: str) -> list[str]:
    """Return the apt lines for a suite, from the machine's own sources or ``DEBIAN_MIRROR``."""
    files = {
        str(path): path.read_text(encoding="utf-8", errors="replace")
        for path in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*"))
        if path.is_file() and path.suffix in (".list", ".sources")
    }
    return mirror.mirror_lines(mirror.parse_sources(files), _machine_release(), suite, os.environ.get("DEBIAN_MIRROR", ""))


def _apt_proxy_options() -> list[str]:
    """Return the proxies that the machine's apt uses, so that builds and nodes use them too."""
    dump = subprocess.run(["apt-config", "dump", "--no-empty"], capture_output=True, text=True, check=False).stdout
    return [f"--aptopt={line}" for line in dump.splitlines() if re.match(r"Acquire::https?::Proxy\b", line)]


def _mmdebstrap(suite: str, target: str, packages: list[str], hook: Path) -> list[str]:
    return [
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        f"--include={','.join(packages)}",
        '--aptopt=Apt::Install-Recommends "false"',
        *_apt_proxy_options(),
        *(f"--dpkgopt={option}" for option in _DPKG_OPTIONS),
        f'--customize-hook={hook} "$1"',
        suite,
        target,
        *apt_lines(suite),
    ]


def _part_files(name: str) -> list[Path]:
    return [path for part in PARTS if (path := PARTS_SOURCE / part / name).exists()]


def _base_packages(pristine: bool) -> list[str]:
    if pristine:
        return content.package_list(SOURCE / "pristine-packages.txt")
    return content.package_list(SOURCE / "packages.txt", *_part_files("packages.txt"))


def _base_hook(pristine: bool) -> Path:
    return SOURCE / ("configure-common" if pristine else "configure-node")


def _base_key(suite: str, pristine: bool) -> str:
    """Return the key of a Debian tree: suite, packages, mirror, our files in it, the machine's own CAs."""
    files = [SOURCE / "configure-common", SOURCE / "kernel-units.txt", _CA_FOLDER]
    if not pristine:
        files += [SOURCE / "configure-node", SOURCE / "node-tree"]
    return content.content_key(files, "base 1", suite, *_base_packages(pristine), *apt_lines(suite), *_DPKG_OPTIONS)


def parts_key(base: str) -> str:
    """Return the key of the stand-ins and the template; the running kernel's name is in the apt part's packages."""
    scripts = [SOURCE / "install-part", *(PARTS_SOURCE / part for part in PARTS)]
    return content.content_key(scripts, "parts 1", base, template_key(), os.uname().release)


def template_key() -> str:
    """Return the key of the container template."""
    return content.content_key(
        [SOURCE / "configure-container", SOURCE / "container-tree"],
        "template 1",
        *content.package_list(SOURCE / "template-packages.txt", *_part_files("template-packages.txt")),
        *apt_lines(TEMPLATE_SUITE),
        *_DPKG_OPTIONS,
    )


def current_image(suite: str, pristine: bool = False) -> Image:
    """Return the image that the files of this checkout ask for, built or not."""
    base = _base_key(suite, pristine)
    return Image(suite, base, "" if pristine else parts_key(base))


def template_path(folders: Folders) -> Path:
    return folders.templates / template_key() / TEMPLATE_NAME


def _build_once(folders: Folders, what: str, target: Path, build: Callable[[Path], None]) -> None:
    """Build a folder under a temporary name and rename it, once, however many ask for it at the same time."""
    if target.exists():
        return
    with locked(folders.cache_locks / f"build-{target.parent.name}-{target.name}", what):
        if target.exists():
            return
        temporary = folders.building / f"{target.parent.name}-{target.name}"
        remove_tree(temporary)
        temporary.mkdir()
        say(f"building {what} (once, then it is cached)")
        build(temporary)
        write_json(temporary / "made.json", {"what": what})
        temporary.rename(target)
        say(f"{what} is ready")


def _build_base(folders: Folders, image: Image) -> None:
    what = f"image {image.base_name.removesuffix('-' + image.base_key)}"

    def build(temporary: Path) -> None:
        command = _mmdebstrap(image.suite, str(temporary / "root"), _base_packages(image.pristine), _base_hook(image.pristine))
        log = temporary / "build.log"
        _run_build(what, _contained(*command, network=True), log, progress=True, KPRO_SANDBOX_CA=str(_CA_FOLDER))

    _build_once(folders, what, folders.images / image.base_name, build)


def _build_template(folders: Folders) -> None:
    def build(temporary: Path) -> None:
        packages = content.package_list(SOURCE / "template-packages.txt", *_part_files("template-packages.txt"))
        archive = temporary / "rootfs.tar"
        command = _mmdebstrap(TEMPLATE_SUITE, str(archive), packages, SOURCE / "configure-container")
        log = temporary / "build.log"
        _run_build("container template", _contained(*command, network=True), log, progress=True)
        pack = ["zstd", "-q", "-3", "-T0", "--rm", str(archive), "-o", str(temporary / TEMPLATE_NAME)]
        _run_build("container template", pack, log, progress=False)

    _build_once(folders, "container template", folders.templates / template_key(), build)


def _build_parts(folders: Folders, image: Image) -> None:
    """Run each part's install script on the tree and keep what it wrote as a layer of its own."""

    def build(temporary: Path) -> None:
        for name in ("up", "work", "root"):
            (temporary / name).mkdir()
        template = template_path(folders)
        for part in PARTS:
            script = PARTS_SOURCE / part / "install"
            if not script.exists():
                say(f"part {part} has no install script yet: left out")
                continue
            command = [str(SOURCE / "install-part"), str(image.lowers(folders)[1]), str(temporary), str(script)]
            _run_build(
                f"part {part}",
                _contained(*command, network=False),
                temporary / "build.log",
                progress=False,
                KPRO_SANDBOX_SUITE=image.suite,
                KPRO_SANDBOX_PART=part,
                KPRO_SANDBOX_TEMPLATE=str(template),
            )
        cache = temporary / "up/var/lib/vz/template/cache"
        cache.mkdir(parents=True, exist_ok=True)
        os.link(template, cache / TEMPLATE_NAME)
        remove_tree(temporary / "work")
        (temporary / "root").rmdir()

    _build_once(folders, f"stand-ins on image {image.suite}", folders.parts / image.key, build)


def build_image(folders: Folders, suite: str, pristine: bool = False) -> Image:
    """Return the current image of a suite, built first where it isn't cached. Image and template build side by side."""
    folders.make()
    image = current_image(suite, pristine)
    if all(path.exists() for path in image.lowers(folders)):
        return image
    if pristine:
        _build_base(folders, image)
        return image
    with ThreadPoolExecutor(max_workers=2) as pool:
        for job in [pool.submit(_build_base, folders, image), pool.submit(_build_template, folders)]:
            job.result()
    _build_parts(folders, image)
    return image
