# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where ``pct`` begins: ``exec`` and ``enter`` go straight to lxc-attach, everything else loads the core."""

from __future__ import annotations

from collections.abc import Sequence

from . import cli_options


def main(argv: Sequence[str]) -> int:
    """Run one command."""
    cli_options.startup_delay()
    if argv and argv[0] in ("exec", "enter"):
        from . import cli_exec

        return cli_exec.main(argv)
    from . import cli_pct
    from .node import this_node

    return cli_pct.run(this_node(cli_options.notice), argv)
