# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks for secrets where none may be: command lines while they live, texts, trees of files, journals. Standard library only."""

from __future__ import annotations

import base64
import os
import re
import threading
import typing as t
import urllib.parse
from collections.abc import Iterable, Mapping
from pathlib import Path

EVERY_S = 0.002


class ArgvSampler:
    """Keeps the command line of every process that it sees; on the machine that runs a sandbox node these are the node's and its containers', too."""

    def __init__(self) -> None:
        self.seen: dict[str, None] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> ArgvSampler:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        # A program's line replaces that of the shell or fork it came from, so that a young process is read again.
        ages: dict[str, int] = {}
        while not self._end.wait(EVERY_S):
            pids = [name for name in os.listdir("/proc") if name.isdigit()]
            ages = {pid: ages.get(pid, 0) + 1 for pid in pids}
            for pid in (pid for pid, age in ages.items() if age <= 20 or age % 100 == 0):
                try:
                    self.seen[Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")] = None
                except OSError:
                    continue


def spellings(secret: str) -> list[str]:
    """Return the forms in which a secret may stand in a text: as it is, in an address, and in Base64 at each of the three alignments."""
    found = [secret, urllib.parse.quote(secret, safe="")]
    for shift in range(3):
        coded = base64.b64encode(b"\0" * shift + secret.encode()).decode()
        # What depends on the neighbours is left out at both ends.
        found.append(coded[(0, 2, 3)[shift] : len(coded.rstrip("=")) - 1])
    return list(dict.fromkeys(found))


def in_text(name: str, text: str, secrets: Mapping[str, str]) -> list[str]:
    """Return a sentence for each secret in a text, with its surroundings but without itself."""
    found = []
    for what, secret in secrets.items():
        for spelling in spellings(secret):
            if (at := text.find(spelling)) >= 0:
                around = f"{text[max(0, at - 80) : at]}<{what}>{text[at + len(spelling) : at + len(spelling) + 40]}"
                found.append(f"{what} in {name}: {around!r}")
                break
    return found


def in_texts(texts: Iterable[tuple[str, str]], secrets: Mapping[str, str]) -> list[str]:
    """Return a sentence for each secret in any of the texts."""
    return [sentence for name, text in texts for sentence in in_text(name, text, secrets)]


def in_folder(folder: Path, secrets: Mapping[str, str]) -> list[str]:
    """Return a sentence for each secret in any file below a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return in_texts(((str(path), path.read_bytes().decode("utf-8", "replace")) for path in files), secrets)


def in_tree(run: t.Callable[[str], str], tree: str, secrets: Mapping[str, str], skip: Iterable[str] = ()) -> list[str]:
    """Return the files below a folder of another machine that hold a secret, as ``MODE UID SECRET PATH``.

    :param run: runs a line in its shell; the secrets travel on a file of that machine's memory, not in its arguments.
    """
    words = {spelling: what for what, secret in secrets.items() for spelling in spellings(secret)}
    pruned = " -o ".join(f"-path '{path}'" for path in skip)
    prune = rf"\( {pruned} \) -prune -o" if pruned else ""
    lines = run(f"find {tree} -xdev {prune} -type f -size -64M -print0 | xargs -0 -r grep -aoHFf /dev/shm/words 2>/dev/null || true").splitlines()
    hits = {(path, words[word]) for line in lines if (match := re.match(r"^(.*):(\S+)$", line)) for path, word in [match.groups()] if word in words}
    return sorted(f"{run(f'stat -c %a:%u {path!r}').strip()} {what} {path}" for path, what in hits)
