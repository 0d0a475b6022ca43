# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the installed engine's own option parser."""

from __future__ import annotations

import os
import tempfile
import typing as t

from .._core.errors import KproError
from .._linux.command_edge import Command
from .text import environment_of

# Runs in the engine's Python. Builds only the parser: resolving the options would want the GPUs.
_PARSE = """
import argparse, sys
from sglang.srt.server_args import ServerArgs
try:
    from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger
except ImportError:
    from sglang.srt.server_args_config_parser import ConfigArgumentMerger
parser = argparse.ArgumentParser(prog="sglang serve")
ServerArgs.add_cli_args(parser)
for path in sys.argv[1:]:
    try:
        parser.parse_args(ConfigArgumentMerger(parser).merge_config_with_args(["--config", path]))
    except ValueError as error:
        parser.error(str(error))
"""

_CACHES = ("XDG_CACHE_HOME", "FLASHINFER_WORKSPACE_BASE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TVM_FFI_CACHE_DIR", "CUDA_CACHE_PATH")


class EngineParser:
    """Asks the engine whether it understands a config file."""

    def __init__(self, python: str, command: Command | None = None) -> None:
        self._python = python
        self._command = command or Command()

    @property
    def installed(self) -> bool:
        """The engine's Python is there."""
        return os.access(self._python, os.X_OK)

    def check(self, configs: t.Sequence[str], environment: dict[str, str], timeout_s: float = 180.0) -> None:
        """Check the texts of config files (they must hold no real secret), all with one start of the engine's Python.

        :raises KproError: with the parser's own words if it refuses an option or a value.
        """
        with tempfile.TemporaryDirectory(prefix="kpro-") as folder:
            paths = [os.path.join(folder, f"{number}.yaml") for number in range(len(configs))]
            for path, config in zip(paths, configs, strict=True):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(config)
            quiet = {"PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}
            # Its caches from the import would belong to root, and the service could not write there any more.
            aside = dict.fromkeys(("HOME", *_CACHES), folder)
            result = self._command.run([self._python, "-c", _PARSE, *paths], timeout_s=timeout_s, env={**environment, **quiet, **aside})
        if result.rc == 0:
            return
        if result.rc == 2:
            words = result.last_error_line.partition("error: ")[2] or result.last_error_line
            raise KproError("engine options", f"the installed engine refuses them: {words}", "Correct sglang_server__options", rc=result.rc)
        raise KproError(
            f"engine in {self._python}",
            f"its option parser cannot be loaded: {result.last_error_line}",
            "Repair the environment with the role kpro.llm.sglang_runtime",
            rc=result.rc,
        )


def check_options(python: str, configs: t.Sequence[str], environment: str, *, must_be_there: bool) -> None:
    """Let the installed engine's parser judge the texts of config files and of the environment file.

    :param must_be_there: an absent engine is an error (otherwise nothing is checked).
    :raises KproError: as :meth:`EngineParser.check`.
    """
    parser = EngineParser(python)
    if parser.installed:
        parser.check(configs, environment_of(environment))
    elif must_be_there:
        raise KproError(python, "the engine's Python is not there", "Run the role kpro.llm.sglang_runtime first")
