# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to what is remembered between runs: failed rungs and the last good configuration."""

from __future__ import annotations

import json
import os
import typing as t

from .._linux.text_file_edge import TextFile, read_text_file, write_text_file


class ServiceState:
    """Two small files (mode 0600, they hold the API key) in a folder of ours."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def rungs(self) -> t.Any:
        """Return what was kept about failed rungs; None if nothing."""
        return self._read("rungs.json")

    def keep_rungs(self, values: dict[str, t.Any]) -> None:
        """Keep what is known about failed rungs, if it is news."""
        self._write("rungs.json", values)

    def good(self) -> dict[str, t.Any]:
        """Return the last good configuration; empty if there was none."""
        found = self._read("last_good.json")
        return found if isinstance(found, dict) and isinstance(found.get("texts"), dict) else {}

    def good_pools(self, digest: str) -> dict[str, float]:
        """Return the sizes of the engine's pools in the last good run with this configuration; empty without one."""
        found = self.good()
        pools = found.get("pools") if found.get("digest") == digest else None
        return {str(name): float(size) for name, size in pools.items()} if isinstance(pools, dict) else {}

    def keep_good(
        self,
        digest: str,
        texts: t.Mapping[str, str],
        paths: t.Sequence[str],
        rung: int,
        names: t.Mapping[str, str],
        pools: t.Mapping[str, float] | None = None,
    ) -> None:
        """Keep a configuration that answered.

        :param names: engine version, model path and served name of the run identity.
        :param texts: text of each file by role.
        :param paths: links (to the environment, the model) whose present target belongs to the configuration.
        :param rung: number of its rung; -1 for one that was restored.
        :param pools: sizes of the engine's pools; the largest that this configuration ever had is kept, so that a smaller one stays noticed.
        """
        targets = {path: os.path.realpath(path) for path in paths if path and os.path.realpath(path) != path}
        before = self.good_pools(digest)
        largest = {**before, **{name: max(size, before.get(name, 0.0)) for name, size in (pools or {}).items()}}
        # What was restored is still the rung that it once was.
        rung = rung if rung >= 0 else int(self.good().get("rung", 0))
        kept = {"digest": digest, "texts": dict(texts), "targets": targets, "rung": rung, "names": dict(names), "pools": largest}
        self._write("last_good.json", kept)

    def _read(self, name: str) -> t.Any:
        found = read_text_file(os.path.join(self._folder, name))
        try:
            return json.loads(found.text) if found else None
        except ValueError:
            return None

    def _write(self, name: str, values: dict[str, t.Any]) -> None:
        if self._read(name) != values:
            write_text_file(TextFile(os.path.join(self._folder, name), f"{json.dumps(values, indent=1)}\n", 0o600, "root", "root"))


def good_texts(good: dict[str, t.Any], part: str = "texts") -> dict[str, str]:
    """Return the texts (or ``names``) of a good configuration, with links that lead elsewhere by now replaced by where they led then."""
    texts = {str(role): str(text) for role, text in good.get(part, {}).items()}
    for path, target in good.get("targets", {}).items():
        if os.path.realpath(path) != target and os.path.exists(target):
            texts = {role: text.replace(path, target) for role, text in texts.items()}
    return texts
