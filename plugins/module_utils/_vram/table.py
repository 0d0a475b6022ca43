# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan as lines for a terminal."""

from __future__ import annotations

import json
import re
import textwrap
import typing as t

from .._engine.options import TYPED_OPTIONS

Values = t.Mapping[str, t.Any]

_LABEL_WIDTH = 50
_WIDTH = 120
_NOT_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def table(plan: Values, title: str = "") -> list[str]:
    """Return the plan as lines of at most about 120 characters."""
    lines = [title] if title else []
    unverified = "" if plan["verified"] else ", unverified"
    lines.append(f"{plan['verdict']}  SGLang {plan['sglang_version']}{unverified}, {len(plan['gpus'])} GPU(s) {_names(plan)}".rstrip())
    lines.append(
        f"  {max(plan['max_total_num_tokens'], 0):,} tokens ({contexts(plan)}), {plan['max_running_requests']} requests, "
        f"{plan['state_slots']} slots, {plan['low_point_gib']:.2f} GiB at the lowest point"
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
    if starts(plan):
        lines += ["", f"  {do_this(plan)}", "", "  start with:", *(f"    {line}" for line in start_lines(plan))]
    else:
        lines += ["", f"  {do_this(plan)}"]
    return [piece for line in lines for piece in _wrapped(line)]


def _wrapped(line: str) -> list[str]:
    """A line as pieces of at most 120 characters, the later ones set in."""
    return textwrap.wrap(line, _WIDTH, subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2), drop_whitespace=True) if len(line) > _WIDTH else [line]


def starts(plan: Values) -> bool:
    """Whether the settings of a plan start: only such are shown to start with."""
    return bool(plan["verdict"] != "FAIL")


def contexts(plan: Values) -> str:
    """How many whole contexts the cache holds, in words."""
    number = plan.get("whole_contexts") or 0.0
    text = f"{int(number):,}" if number >= 10 or number == int(number) else f"{int(number * 10) / 10:g}"
    return f"{text} whole context{'' if text == '1' else 's'}"


def do_this(plan: Values) -> str:
    """One sentence: what to do now."""
    goal, advice = plan.get("goal"), plan.get("advice") or []
    if goal and not goal["satisfied"] and goal.get("nearest"):
        first = goal["nearest"][0]
        numbers = f"{first['max_total_num_tokens']:,} tokens, {first['max_running_requests']} requests"
        rest = "" if starts(plan) else "; these settings don't start"
        given = "gives all of the goal" if first["satisfied"] else "is the nearest that starts"
        return f"Do this: take {first['label']}, which {given} ({first['verdict']}, {numbers}){rest}."
    if plan["verdict"] == "OK":
        return "Do this: start with the settings below."
    if advice:
        first = advice[0]
        also = "".join(f", {name} to {value}" for name, value in first["also"].items())
        return f"Do this: set {first['option']} to {_yaml(first['to'])}{also} ({first['predicted']['verdict']} then)."
    if plan["verdict"] == "SHORT":
        return "Do this: start with the settings below and send shorter prompts, or give the model more memory."
    if plan["verdict"] == "RISK":
        return "Do this: start with the settings below only to try; too little is left for a busy server."
    return "Do this: take more or larger cards, or a smaller or quantised model; no single setting helps."


def start_lines(plan: Values) -> list[str]:
    """Return what an inventory says to start with this very plan, as YAML."""
    args = dict(plan["resolved_args"])
    lines = [f"sglang_server__tp_size: {args.pop('tp_size')}", "sglang_server__options:"]
    lines += [f"  {name}: {_yaml(value)}" for name, value in args.items() if name not in TYPED_OPTIONS]
    if plan["resolved_environment"]:
        lines += ["sglang_server__environment:", *(f"  {name}: {json.dumps(value)}" for name, value in plan["resolved_environment"].items())]
    return lines


def _yaml(value: t.Any) -> str:
    """JSON is YAML; words that can be nothing else stay as they are."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w./-]*", value) and value.lower() not in _NOT_WORDS
    return str(value) if plain else json.dumps(value)


def _names(plan: Values) -> str:
    return ", ".join(sorted({gpu["name"] for gpu in plan["gpus"] if gpu["name"]}))


def _goal_lines(goal: Values | None) -> list[str]:
    if not goal:
        return []
    if goal["satisfied"]:
        return ["", f"  goal: reached, with {goal['margin_gib']:.2f} GiB of slack on the tighter side"]
    lines = ["", "  goal: not reached in full", *(f"    given up: {text}" for text in goal["given_up"])]
    return lines + _compared("nearest that starts", [(item["label"], item, "; ".join(item["given_up"])) for item in goal.get("nearest") or []])


def _rung_lines(rungs: t.Sequence[Values], chosen: int) -> list[str]:
    if len(rungs) < 2:
        return []
    return _compared("rung", [(f"{'> ' if number == chosen else '  '}{number}: {item['name']}", item, "") for number, item in enumerate(rungs)])


def _alternative_lines(alternatives: t.Sequence[Values]) -> list[str]:
    return _compared("alternative", [(item["label"], item, item["note"]) for item in alternatives])


def _compared(head: str, rows: t.Sequence[tuple[str, Values, str]]) -> list[str]:
    if not rows:
        return []
    width = min(max(_LABEL_WIDTH, *(len(label) for label, _item, _note in rows)), _WIDTH - 40)
    said: set[str] = set()
    lines = ["", f"  {head:<{width}} {'verdict':<8} {'tokens':>9} {'requests':>8} {'lowest':>7}"]
    for label, item, note in rows:
        numbers = f"{item['max_total_num_tokens']:>9,} {item['max_running_requests']:>8} {item['low_point_gib']:>7.2f}"
        shown = label if len(label) <= width else label[: width - 3] + "..."
        more = [] if shown == label else [f"    {label}"]
        # What several rows say is said once.
        words = [f"    {note}"] if note and note not in said else []
        said.add(note)
        lines += [f"  {shown:<{width}} {item['verdict']:<8} {numbers}", *more, *words]
    return lines
