# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""STAND-IN: turns the engine's config file into arguments, as the engine does before it parses them."""

from __future__ import annotations

import argparse

from sglang.launch_server import options_of


class ConfigArgumentMerger:
    """Stands for the class of that name."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser

    def merge_config_with_args(self, arguments: list[str]) -> list[str]:
        """Return ``--name value`` for each line of the file; true is a flag, false is nothing."""
        merged = []
        for name, value in options_of(arguments[arguments.index("--config") + 1]).items():
            if value != "false":
                merged += [f"--{name}"] if value == "true" else [f"--{name}", str(value)]
        return merged
