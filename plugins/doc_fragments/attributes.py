# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every module of the collection says about itself."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return the changes without making them.
    support: full
  diff_mode:
    description: Returns what has changed, or would change, when in C(diff_mode).
    support: full
  idempotent:
    description: A second run with the same options on an unchanged system reports C(changed=false).
    support: full
"""

    # For modules that only look.
    INFO = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode); the module never changes anything.
    support: full
  diff_mode:
    description: Returns what has changed, or would change, when in C(diff_mode).
    support: N/A
  idempotent:
    description: The module never changes anything.
    support: N/A
"""
