# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A question whose answer is known."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  question:
    description: A question whose answer is known; asked with thinking off and temperature 0.
    type: str
    default: What is the capital of France? Answer with one word.
  answer_pattern:
    description: Regular expression that the answer must contain; letter case is ignored.
    type: str
    default: paris
  max_tokens:
    description: Tokens that the answer may have.
    type: int
    default: 64
"""
