# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan as lines for a terminal. PRIVATE: for use in kpro.llm only."""

from __future__ import annotations

import typing as t

Values = t.Mapping[str, t.Any]


def table(plan: Values, title: str = "") -> list[str]:
    """Return the plan as lines of at most about 120 characters."""
    lines = [title] if title else []
    unverified = "" if plan["verified"] else ", unverified"
    lines.append(f"{plan['verdict']}  SGLang {plan['sglang_version']}{unverified}, {len(plan['gpus'])} GPU(s) {_names(plan)}".rstrip())
    lines.append(
        f"  {plan['max_total_num_tokens']:,} tokens, {plan['max_running_requests']} requests, {plan['state_slots']} slots, "
        f"{plan['low_point_gib']:.2f} GiB at the lowest point"
    )
    lines.append("")
    lines += [f"  {row['name']:<20} {row['gib']:>8.2f} GiB  {row['why']}" for row in plan["breakdown"]]
    cause = plan["cause"]
    if cause:
        lines += ["", f"  cause: {cause['message']}", f"  stage: {cause['stage']}; what helps: {cause['direction'].replace('_', ' ')}"]
        if cause["irrelevant"]:
            lines.append(f"  makes no difference: {', '.join(cause['irrelevant'])}")
    lines += _goal_lines(plan.get("goal"))
    lines += _rung_lines(plan.get("rungs") or [], plan.get("rung", 0))
    lines += _alternative_lines(plan["alternatives"])
    if plan["notes"]:
        lines += ["", *(f"  note: {text}" for text in plan["notes"])]
    lines += [
        "",
        "  start with:",
        *(f"    {name}: {str(value).lower() if isinstance(value, bool) else value}" for name, value in plan["resolved_args"].items()),
    ]
    return lines


def _names(plan: Values) -> str:
    return ", ".join(sorted({gpu["name"] for gpu in plan["gpus"] if gpu["name"]}))


def _goal_lines(goal: Values | None) -> list[str]:
    if not goal:
        return []
    if goal["satisfied"]:
        return ["", f"  goal: reached, with {goal['margin_gib']:.2f} GiB of slack on the tighter side"]
    return ["", "  goal: not reached in full", *(f"    given up: {text}" for text in goal["given_up"])]


def _rung_lines(rungs: t.Sequence[Values], chosen: int) -> list[str]:
    if len(rungs) < 2:
        return []
    lines = ["", f"  {'rung':<62} {'verdict':<8} {'tokens':>9} {'requests':>8} {'lowest':>7}"]
    for number, item in enumerate(rungs):
        label = f"{'> ' if number == chosen else '  '}{number}: {item['name']}"
        lines.append(
            f"  {label[:62]:<62} {item['verdict']:<8} {item['max_total_num_tokens']:>9,} {item['max_running_requests']:>8} {item['low_point_gib']:>7.2f}"
        )
    return lines


def _alternative_lines(alternatives: t.Sequence[Values]) -> list[str]:
    if not alternatives:
        return []
    lines = ["", f"  {'alternative':<62} {'verdict':<8} {'tokens':>9} {'requests':>8} {'lowest':>7}"]
    for item in alternatives:
        lines.append(
            f"  {item['label'][:62]:<62} {item['verdict']:<8} {item['max_total_num_tokens']:>9,} {item['max_running_requests']:>8} "
            f"{item['low_point_gib']:>7.2f}"
        )
        if item["note"]:
            lines.append(f"    {item['note']}")
    return lines
