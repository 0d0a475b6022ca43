# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shows the progress of the module of the same name while its work runs on the target."""

from __future__ import annotations

from ..plugin_utils._long_step import LongStep


class ActionModule(LongStep):
    pass
