# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""STAND-IN: the part of the engine's option parser that the collection asks, with the options that its inventories use."""

from __future__ import annotations

import argparse

VALUES = (
    "model-path served-model-name host port tp-size api-key admin-api-key context-length mem-fraction-static max-running-requests max-total-tokens"
    " chunked-prefill-size max-mamba-cache-size mamba-ssm-dtype mamba-radix-cache-strategy page-size speculative-algorithm speculative-num-steps"
    " speculative-eagle-topk speculative-num-draft-tokens attention-backend sampling-backend kv-cache-dtype cuda-graph-max-bs"
    " cuda-graph-max-bs-decode dtype device watchdog-timeout"
)
FLAGS = "enable-metrics disable-custom-all-reduce disable-radix-cache disable-overlap-schedule sleep-on-idle language-model-only"
PARSERS = {"reasoning-parser": ["qwen3", "deepseek-r1"], "tool-call-parser": ["qwen", "qwen25", "qwen3_coder"]}


class ServerArgs:
    """Stands for ``sglang.srt.server_args.ServerArgs``."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        for name in VALUES.split():
            parser.add_argument(f"--{name}")
        for name in FLAGS.split():
            parser.add_argument(f"--{name}", action="store_true")
        for name, choices in PARSERS.items():
            parser.add_argument(f"--{name}", choices=choices)
