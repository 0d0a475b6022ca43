# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan as one self-contained HTML page, for light and dark."""

from __future__ import annotations

import html
import typing as t

from .table import contexts, do_this, start_lines, starts

Values = t.Mapping[str, t.Any]

_PARTS = {
    "something else": "foreign",
    "driver and process": "held",
    "weights": "weights",
    "draft head": "draft",
    "speculative copies": "copies",
    "state": "state",
    "cache": "cache",
    "padding and tables": "kept",
    "slack": "slack",
}

_HEADLINE = (("context_length", "tokens of context"), ("mem_fraction_static", "of the free memory planned"))
# Rows of the breakdown that sum up those before them.
_SUBTOTALS = frozenset({"card", "free before loading", "free after loading", "rest", "pool end", "lowest point"})
# Percent of a bar from which a label of four digits fits on a screen of 400 px.
_LABEL_SHARE = 9

_STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1d2530; --soft: #5b6675; --line: #d9dee5; --panel: #f5f7f9;
  --foreign: #4a5260; --held: #8a94a3; --weights: #3867a8; --draft: #7d5ba6; --copies: #c4553b; --state: #ad6a12; --cache: #2f8f6b;
  --kept: #9a8f7a; --slack: #e6eaef;
  --good: #1f7a54; --warn: #9a6200; --bad: #b3311f; --label: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181e; --ink: #e6eaf0; --soft: #9aa6b5; --line: #2d3540; --panel: #1b2129;
  --foreign: #b9c2cf; --held: #697586; --weights: #5b8fd6; --draft: #a283cf; --copies: #e07a5f; --state: #e5ab55; --cache: #4db98e;
  --kept: #a89c84; --slack: #2a323d;
  --good: #5fc796; --warn: #e0a83f; --bad: #f08a76; --label: #10151c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 22px; margin: 0 0 4px; } h1 .verdict { font-size: 15px; vertical-align: 3px; margin-left: 6px; } h2 { font-size: 16px; margin: 36px 0 12px; }
p { margin: 6px 0; } .facts + p { margin-top: 20px; } .soft { color: var(--soft); }
.verdict { display: inline-block; padding: 2px 12px; border-radius: 999px; font-weight: 600; border: 1px solid currentColor; }
.OK { color: var(--good); } .RISK, .SHORT { color: var(--warn); } .FAIL { color: var(--bad); }
.facts { display: flex; flex-wrap: wrap; gap: 12px; margin: 18px 0 0; }
.fact { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px; min-width: 150px; flex: 1; }
.fact b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; } .fact span { color: var(--soft); font-size: 13px; }
.cause { border-left: 4px solid currentColor; background: var(--panel); padding: 10px 16px; margin: 20px 0; }
.cause p { color: var(--ink); }
.gpu { margin: 0 0 14px; } .gpu .name { display: flex; justify-content: space-between; gap: 12px; font-size: 13px; color: var(--soft); }
.do { font-weight: 600; } tr.sub td { font-weight: 600; background: var(--panel); }
.bar .end { position: absolute; top: 0; bottom: 0; width: 0; border-left: 3px solid var(--bad); }
.bar { position: relative; display: flex; height: 40px; border: 1px solid var(--line); border-radius: 6px; overflow: hidden; background: var(--slack); }
.small .bar { height: 18px; }
.bar i { display: block; overflow: hidden; white-space: nowrap; font-style: normal; font-size: 12px; line-height: 40px;
  color: var(--label); text-align: center; }
.small .bar i { line-height: 18px; }
.bar .slack { color: var(--soft); }
.over { color: var(--bad); font-size: 13px; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; font-size: 13px; color: var(--soft); margin: 4px 0 0; padding: 0; list-style: none; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; } th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: 6px 10px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(250px, 1fr)); gap: 14px; }
.card { border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; background: var(--panel); }
.card h3 { font-size: 14px; margin: 0 0 8px; overflow-wrap: anywhere; } .card p { font-size: 13px; }
.scroll { overflow-x: auto; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 12px 16px; margin: 0; overflow-x: auto;
  font: 13px/1.5 ui-monospace, monospace; }
""" + "".join(f".{key} {{ background: var(--{key}); }}\n" for key in _PARTS.values())


def report(plan: Values, title: str = "Memory plan", subtitle: str = "") -> str:
    """Return the page as text; it needs nothing from the network."""
    body = [
        f"<h1>{_text(title)} <span class='verdict {plan['verdict']}'>{plan['verdict']}</span></h1>",
        f"<p class='soft'>{_text(subtitle or _subtitle(plan))}</p>",
        f"<p class='do'>{_text(do_this(plan))}</p>",
        _facts(plan),
        _cause(plan),
        _goal(plan.get("goal")),
        "<h2>Each GPU</h2>",
        *(_gpu(gpu) for gpu in plan["gpus"]),
        "<h2>Where the memory goes</h2>",
        _breakdown(plan["breakdown"]),
        _rungs(plan),
        _alternatives(plan["alternatives"]),
        _notes(plan["notes"]),
        _start(plan),
    ]
    head = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'><title>{_text(title)}</title>"
    return f"<!DOCTYPE html>\n<html lang='en'><head>{head}<style>{_STYLE}</style></head><body><main>\n{chr(10).join(body)}\n</main></body></html>\n"


def _text(value: t.Any) -> str:
    return html.escape(str(value), quote=True)


def _subtitle(plan: Values) -> str:
    names = ", ".join(sorted({gpu["name"] for gpu in plan["gpus"] if gpu["name"]})) or f"{plan['gpus'][0]['total_gib']:.0f} GiB"
    unverified = "" if plan["verified"] else " (rules not verified for this version)"
    return f"SGLang {plan['sglang_version']}{unverified} on {len(plan['gpus'])} x {names}"


def _facts(plan: Values) -> str:
    args = plan["resolved_args"]
    facts = [
        (f"{max(plan['max_total_num_tokens'], 0):,}", f"tokens in the cache, {contexts(plan)}"),
        (plan["max_running_requests"], "requests at once"),
        *[(f"{args[name]:,}" if name == "context_length" else args[name], words) for name, words in _HEADLINE if name in args and starts(plan)],
        (f"{plan['weights_gib']:.2f} GiB", "weights on each GPU"),
        (f"{plan['low_point_gib']:.2f} GiB", "free at the lowest point"),
    ]
    if plan["state_slots"]:
        facts.insert(-2, (plan["state_slots"], f"slots of state, {plan['state_mib_per_slot']:.1f} MiB each"))
    return "<div class='facts'>" + "".join(f"<div class='fact'><b>{_text(value)}</b><span>{_text(name)}</span></div>" for value, name in facts) + "</div>"


def _cause(plan: Values) -> str:
    cause = plan["cause"]
    if not cause:
        return ""
    lines = [f"<p><b>Cause</b> ({_text(cause['stage'])}): {_text(cause['message'])}</p>"]
    lines.append(f"<p class='soft'>What helps: {_text(cause['direction'].replace('_', ' '))}.</p>")
    if cause["irrelevant"]:
        lines.append(f"<p class='soft'>Makes no difference: {_text(', '.join(cause['irrelevant']))}.</p>")
    return f"<div class='cause {plan['verdict']}'>{''.join(lines)}</div>"


def _goal(goal: Values | None) -> str:
    if not goal:
        return ""
    if goal["satisfied"]:
        return f"<p>The goal is reached, with {goal['margin_gib']:.2f} GiB of slack on the tighter side ({goal['tried']} settings compared).</p>"
    lost = "<p>The goal is not reached in full. Given up:</p><ul>" + "".join(f"<li>{_text(text)}</li>" for text in goal["given_up"]) + "</ul>"
    others = "".join(
        f"<li><b>{_text(item['label'])}</b>: <span class='{item['verdict']}'>{item['verdict']}</span>, {item['max_total_num_tokens']:,} tokens, "
        f"{item['max_running_requests']} requests{'' if item['satisfied'] else _text('; given up: ' + '; '.join(item['given_up']))}</li>"
        for item in goal.get("nearest") or []
    )
    return lost + (f"<p>The nearest that starts:</p><ul>{others}</ul>" if others else "")


def _bar(parts: t.Sequence[Values], labels: bool, card_gib: float = 0.0) -> str:
    """The parts side by side, with their values for a screen reader, and a mark where the card ends if they are more than it has."""
    total = sum(part["gib"] for part in parts) or 1.0
    pieces = []
    for part in parts:
        share = part["gib"] / total * 100
        # Room for four digits at 400 px, below which the values stand in the list under the bar.
        label = f"{part['gib']:.1f}" if labels and share > _LABEL_SHARE else ""
        tip = f"{part['name']}: {part['gib']:.2f} GiB"
        pieces.append(f"<i class='{_PARTS[part['name']]}' style='width:{share:.2f}%' title='{_text(tip)}'>{label}</i>")
    words = ", ".join(f"{part['name']} {part['gib']:.2f} GiB" for part in parts)
    over = card_gib and total > card_gib * 1.001
    end = f"<b class='end' style='left:{card_gib / total * 100:.2f}%' title='the card ends here: {card_gib:.2f} GiB'></b>" if over else ""
    return f"<div class='bar' role='img' aria-label='{_text(words)}'>{''.join(pieces)}{end}</div>"


def _gpu(gpu: Values) -> str:
    name = f"GPU {gpu['index']} {gpu['name']}".rstrip()
    over = f"<div class='over'>{gpu['over_gib']:.2f} GiB too little for the cache at this fraction</div>" if gpu["over_gib"] else ""
    sizes = f"{gpu['free_gib']:.1f} of {gpu['total_gib']:.1f} GiB free before the start"
    values = "".join(f"<li><i class='{_PARTS[part['name']]}'></i>{_text(part['name'])} <b>{part['gib']:.2f}</b></li>" for part in gpu["parts"])
    drawn = _bar(gpu["parts"], True, gpu["total_gib"])
    return (
        f"<div class='gpu'><div class='name'><span>{_text(name)}</span><span>{sizes}</span></div>{drawn}{over}"
        f"<ul class='legend' aria-label='GiB of {_text(name)}'>{values}</ul></div>"
    )


def _breakdown(rows: t.Sequence[Values]) -> str:
    lines = "".join(
        f"<tr class='{'sub' if row['name'] in _SUBTOTALS else ''}'><td>{_text(row['name'])}</td><td class='n'>{row['gib']:.2f}</td>"
        f"<td>{_text(row['why'])}</td></tr>"
        for row in rows
    )
    return f"<div class='scroll'><table><tr><th>item</th><th class='n'>GiB</th><th>why</th></tr>{lines}</table></div>"


def _alternatives(items: t.Sequence[Values]) -> str:
    if not items:
        return ""
    cards = []
    first = items[0]
    for item in items:
        numbers = (
            f"{item['max_total_num_tokens']:,} tokens ({contexts(item)}), {item['max_running_requests']} requests, "
            f"{item['low_point_gib']:.2f} GiB at the lowest point"
        )
        if item is not first:
            more = item["max_total_num_tokens"] - first["max_total_num_tokens"]
            requests = item["max_running_requests"] - first["max_running_requests"]
            numbers += f"<br><span class='soft'>against {_text(first['label'])}: {more:+,} tokens, {requests:+} requests</span>"
        note = f"<p class='soft'>{_text(item['note'])}</p>" if item["note"] else ""
        verdict = f"<span class='verdict {item['verdict']}'>{item['verdict']}</span>"
        cards.append(f"<div class='card small'><h3>{_text(item['label'])}</h3>{_bar(item['parts'], False)}<p>{verdict} {numbers}</p>{note}</div>")
    return f"<h2>Alternatives</h2><div class='cards'>{''.join(cards)}</div>"


def _notes(warnings: t.Sequence[str]) -> str:
    if not warnings:
        return ""
    return "<h2>Notes</h2><ul>" + "".join(f"<li>{_text(text)}</li>" for text in warnings) + "</ul>"


def _rungs(plan: Values) -> str:
    rungs = plan.get("rungs") or []
    if len(rungs) < 2:
        return ""
    head = "<tr><th>rung</th><th>verdict</th><th class='n'>tokens</th><th class='n'>requests</th><th class='n'>lowest, GiB</th></tr>"
    lines = []
    for number, rung in enumerate(rungs):
        name = f"<b>{_text(rung['name'])}</b> (planned here)" if number == plan["rung"] else _text(rung["name"])
        numbers = (f"{rung['max_total_num_tokens']:,}", rung["max_running_requests"], f"{rung['low_point_gib']:.2f}")
        cells = "".join(f"<td class='n'>{value}</td>" for value in numbers)
        verdict = f"<td><span class='{rung['verdict']}'>{rung['verdict']}</span></td>"
        why = f"<p class='soft'>passed over: {_text(rung['passed_over'])}</p>" if rung["passed_over"] else ""
        lines.append(f"<tr><td>{name}{why}</td>{verdict}{cells}</tr>")
    return f"<h2>Fallback ladder</h2><div class='scroll'><table>{head}{''.join(lines)}</table></div>"


def _start(plan: Values) -> str:
    if not starts(plan):
        return ""
    return f"<h2>Start with</h2><pre>{_text(chr(10).join(start_lines(plan)))}</pre>"
