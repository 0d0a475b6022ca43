# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The last thing a deployment prints. Pure."""

from __future__ import annotations

import typing as t

Result = t.Mapping[str, t.Any]


def phase_seconds(phases: t.Sequence[Result], now_s: float) -> list[tuple[str, float]]:
    """Return name and duration of each phase, in the order in which they began.

    A phase lasts until the next one begins; the last one until ``now_s``.
    """
    ordered = sorted(phases, key=lambda phase: phase["started_s"])
    ends = [*(phase["started_s"] for phase in ordered[1:]), now_s][: len(ordered)]
    return [(phase["name"], max(0.0, end - phase["started_s"])) for phase, end in zip(ordered, ends, strict=True)]


def summary_lines(node: str, results: t.Mapping[str, Result], phases: t.Sequence[Result], now_s: float) -> list[str]:
    """Return the summary as lines: what answers where, from which parts, and what each phase took.

    A phase without a result (check mode before the container exists) says so.
    """
    durations = phase_seconds(phases, now_s)
    width = max([len(name) for name, _seconds in durations] + [len("verify")])
    rows = dict(durations)
    lines = []
    for name, text in _rows(node, results):
        took = f"{rows[name]:6.1f} s" if name in rows else " " * 8
        lines.append(f"{name:{width}} {took}  {text}")
    lines.append(f"{'total':{width}} {sum(rows.values()):6.1f} s")
    return lines


def _rows(node: str, results: t.Mapping[str, Result]) -> list[tuple[str, str]]:
    later = "not part of this run" if results.get("container", {}).get("running") else "after creation (the container does not run yet)"
    return [
        ("preflight", "nothing stands in the way"),
        ("node", _node(node, results.get("node", {}))),
        ("container", _container(results.get("container", {})) or later),
        ("runtime", _runtime(results.get("runtime", {})) or later),
        ("model", _model(results.get("model", {})) or later),
        ("service", _service(results.get("service", {})) or later),
        ("verify", _answer(results.get("answer", {})) or later),
    ]


def _node(node: str, result: Result) -> str:
    if not result:
        return f"{node}: not looked at in this run"
    gpus = result.get("gpus") or []
    names = ", ".join(sorted({f"{sum(other['name'] == gpu['name'] for other in gpus)}x {gpu['name']}" for gpu in gpus})) or "no GPU visible yet"
    reboot = "; REBOOT NEEDED" if result.get("reboot_needed") else ""
    return f"{node}: PVE {result.get('pve_version', '?')}, driver {result.get('driver_version') or 'none'}, {names}{reboot}"


def _container(result: Result) -> str:
    if not result.get("running"):
        return ""
    gpus = ", ".join(gpu["uuid"] for gpu in result.get("gpus") or []) or "none"
    return f"{result['vmid']} at {result.get('address') or '?'}, GPUs: {gpus}"


def _runtime(result: Result) -> str:
    return f"SGLang {result['engine_version']} (lane {result['lane']}) in {result['venv']}" if result else ""


def _model(result: Result) -> str:
    return f"{result['repository']} at commit {result['commit'][:12]} in {result['path']}" if result else ""


def _service(result: Result) -> str:
    if not result.get("ready"):
        return ""
    key = f", API key in {result['api_key_path']} of the container" if result.get("api_key_path") else ", no API key"
    rung = f", rung '{result['rung_name']}'" if result.get("rung_name", "default") != "default" else ""
    given_up = f" (given up: {'; '.join(result['given_up'])})" if result.get("given_up") else ""
    return f"{result['url']}{key}{rung}{given_up}"


def _answer(result: Result) -> str:
    if not result.get("answer"):
        return ""
    words = f"answered {str(result['answer']).strip()!r} in {result['seconds']:.2f} s; context {result['context_length']} tokens"
    measured = result.get("measured") or {}
    if "clients_tokens_per_s" in measured:
        alone = f"{measured.get('decode_tokens_per_s', result.get('tokens_per_s', 0)):g} tokens/s alone"
        words += f"; {alone}, {measured['clients_tokens_per_s']:g} by {measured['clients']} clients together"
    return words
