# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge that gets the vendor's package: resumed after a break, used only if its SHA-256 is right."""

from __future__ import annotations

import dataclasses
import hashlib
import http.client
import pathlib
import time
import typing as t
import urllib.error
import urllib.request

from .._core.errors import KproError
from .._gpu.model import MIB
from .._gpu.text import checksum_of

BLOCK_BYTES = MIB
TIMEOUT_S = 60.0
ATTEMPTS = 5
Tell = t.Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Package:
    """The package to get; ``sha256`` empty: the vendor's checksum file ``url``.sha256sum decides.

    :param record: file that keeps the hash which was used.
    """

    url: str
    path: str
    sha256: str
    record: str


def fetch(package: Package, tell: Tell) -> None:
    """Have the package at its path, whole and checked.

    :raises KproError: it can't be got, or its bytes are not those of the checksum.
    """
    target = pathlib.Path(package.path)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    wanted = package.sha256.lower() or vendor_checksum(package.url)
    if not (target.exists() and _sha256(target) == wanted):
        part = target.with_name(f"{target.name}.part")
        _download(package.url, part, tell)
        found = _sha256(part)
        if found != wanted:
            part.unlink()
            source = "the given hash" if package.sha256 else "the vendor's checksum file"
            raise KproError(package.url, f"its SHA-256 is {found}, {source} says {wanted}", "Nothing was installed; check version, address and hash")
        part.replace(target)
    record = pathlib.Path(package.record)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(f"{wanted}  {target.name}\n")


def vendor_checksum(url: str) -> str:
    """Return the SHA-256 in the checksum file beside the package.

    :raises KproError: there is none, or it does not name the package.
    """
    address = f"{url}.sha256sum"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
            text = answer.read(64 * 1024).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        raise KproError(address, f"the vendor's checksum file can't be read ({_words(error)})", "Give the hash: gpu_node__driver_sha256") from error
    found = checksum_of(text, url.rpartition("/")[2])
    if not found:
        raise KproError(address, f"it names no SHA-256 of {url.rpartition('/')[2]}", "Give the hash: gpu_node__driver_sha256")
    return found


def _download(url: str, part: pathlib.Path, tell: Tell) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            if _get(url, part, tell):
                return
        except urllib.error.HTTPError as error:
            if error.code == 416:
                return
            if error.code < 500 or attempt == ATTEMPTS:
                raise KproError(url, f"the server answers {error.code} {error.reason}", "Check gpu_node__driver_version and gpu_node__driver_url") from error
        except (OSError, http.client.HTTPException) as error:
            if attempt == ATTEMPTS:
                raise KproError(url, f"it can't be downloaded ({_words(error)})", "Check the node's network and gpu_node__driver_url") from error
        tell(f"broken off, attempt {attempt + 1} of {ATTEMPTS}")
        time.sleep(attempt)
    raise KproError(url, f"the transfer broke off {ATTEMPTS} times", "Run again: it goes on where it stopped")


def _get(url: str, part: pathlib.Path, tell: Tell) -> bool:
    """Get what is missing; return whether the file is as long as the server said."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        have = have if answer.status == 206 else 0
        total = have + int(answer.headers.get("Content-Length") or 0)
        began, first = time.monotonic(), have
        with part.open("r+b" if have else "wb") as out:
            out.seek(have)
            while block := answer.read(BLOCK_BYTES):
                out.write(block)
                have += len(block)
                tell(_line(have, total, (have - first) / max(time.monotonic() - began, 0.001)))
            out.truncate()
    return have >= total


def _line(have: int, total: int, rate_bytes_s: float) -> str:
    if total <= 0:
        return f"{have // MIB} MiB"
    remaining_s = (total - have) / max(rate_bytes_s, 1.0)
    return f"{have * 100 // total} % of {total // MIB} MiB, {rate_bytes_s / MIB:.0f} MiB/s, {remaining_s:.0f} s left"


def _sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _words(error: BaseException) -> str:
    return str(getattr(error, "reason", "") or error) or type(error).__name__
