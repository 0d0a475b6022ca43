# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fallback ladder of the service."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  fallback_config_texts:
    description:
      - Configurations to fall back to, in order, if a start with O(config_text) is lost for a reason that a smaller one cures.
      - A rung that failed is remembered and not tried again while nothing of what it is started with changes. If all are known to fail and the last
        good configuration runs, it stays.
    type: list
    elements: str
    default: []
  rung_names:
    description: Names of the rungs for the report, that of O(config_text) first.
    type: list
    elements: str
    default: []
  unfit:
    description: Why the memory plan refuses rungs, by number (V(0) for O(config_text)). They are passed over.
    type: dict
    default: {}
  lost:
    description: A start of this run that was lost, with the keys C(rung), C(digest), C(class), C(cause) and C(remedy); runs the next rung, or the last good
      configuration.
    type: dict
    default: {}
  retry:
    description: Forget which rungs failed.
    type: bool
    default: false
"""
