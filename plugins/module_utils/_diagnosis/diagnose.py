# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the cause: rules over the log and the facts around it, the most telling first."""

from __future__ import annotations

import dataclasses
import typing as t

from .._engine.failures import Failure
from . import families, rules_host, rules_memory, rules_notes, rules_service, rules_start, rules_unit
from .case import Case, Diagnosis

# Facts about unit and service first: they say whether the log is worth reading. Then memory, whose texts also hold general words.
_RULES = (
    *rules_host.RULES,
    *rules_unit.RULES,
    *rules_service.RULES,
    *rules_memory.RULES,
    *rules_start.RULES,
)


def diagnose(lines: t.Sequence[str], context: t.Mapping[str, t.Any] | None = None) -> Diagnosis:
    """Return the cause of a failed start, or an honest "unknown" with what there is to see.

    :param lines: the start's log, whole lines in order.
    :param context: facts around it (``args``, ``unit``, ``engine_version``, ``driver``, ``loss`` ...); unknown ones are accepted.
    """
    case = Case(lines, context)
    if isinstance(case.get("loss"), (list, tuple)) and list(case.get("loss"))[:1] in ([Failure.OTHER_SERVER_ANSWERS], [Failure.CONTAINER_STOPPING]):
        # Seen in the kernel's tables or by systemd: more than the log can know.
        return dataclasses.replace(_loss(case) or _unknown(case), phase=case.log.phase)
    found = next((finding for rule in _RULES if _may_speak(rule, case) and (finding := rule(case)) is not None), None)
    if found is not None:
        return dataclasses.replace(found, phase=case.log.phase)
    looping = isinstance(case.get("loss"), (list, tuple)) and list(case.get("loss"))[:1] == [Failure.CRASH_LOOP]
    found = None if looping else families.family(case) or rules_host.cuda_error(case)
    if found is not None:
        return dataclasses.replace(found, phase=case.log.phase)
    # A line that only warns is an answer where no start was lost.
    note = None if case.get("loss") else next(iter(rules_notes.notes(case)), None)
    found = _loss(case) or rules_start.first_exception(case) or rules_unit.killed(case) or _hint(case) or note or _unknown(case)
    return dataclasses.replace(found, phase=case.log.phase)


def silent_faults(lines: t.Sequence[str], context: t.Mapping[str, t.Any] | None = None) -> list[str]:
    """Return what the log of a start says that serves, and serves worse than it seems; one sentence with the remedy each."""
    case = Case(lines, context)
    rules = [rules_service.wrong_weights, rules_service.effective_setting]
    if case.option("device") != "cpu":
        rules.append(rules_service.on_the_cpu)
    found = [finding for rule in rules if (finding := rule(case)) is not None]
    return [f"{finding.cause}. {finding.remedy}" for finding in [*found, *rules_notes.notes(case)]]


def _loss(case: Case) -> Diagnosis | None:
    """The waiter's own observation, if the log is silent."""
    loss = case.get("loss")
    if not isinstance(loss, (list, tuple)) or len(loss) != 2 or loss[0] in (Failure.CRASHED, Failure.START_FAILED, Failure.TIMEOUT):
        return None
    remedies = {
        Failure.WRONG_ANSWER: "If the text is no language at all, weights or copies between the GPUs are wrong: do not use this service",
        Failure.WRONG_MODEL: "Another server may have the port, or the service was started with an older configuration",
        Failure.API_KEY_REFUSED: "Another server may have the port; the key lies in /etc/kpro-llm/api_key of the container",
        Failure.HANG: "Look at the node (disk, GPU, kernel log); allow more in sglang_server__hang_budgets_s if it was only slow",
        Failure.TOOL_PARSER_WRONG: "Set tool_call_parser and reasoning_parser for this model",
        Failure.REASONING_PARSER_WRONG: "Set reasoning_parser for this model",
        Failure.OTHER_SERVER_ANSWERS: "End the other server or choose another sglang_server__port",
        Failure.IDENTITY_CHANGED: "Run the deployment again",
        Failure.CRASH_LOOP: "Stop the unit, repair the cause of the first start's end, run the deployment again",
        Failure.CONTAINER_STOPPING: "Run the deployment again once container and node are up; the service comes back by itself",
        Failure.NEVER_STARTED: "Start it by running the deployment",
    }
    class_ = Failure.of(str(loss[0]))
    error = case.first_error.strip() if loss[0] == Failure.CRASH_LOOP else ""
    cause = f"{loss[1]}. Cause of the first start's end: {error}" if error else str(loss[1])
    return Diagnosis(class_, cause, remedies.get(class_, ""), (error,) if error else tuple(case.lines[-3:]))


# What a start says that goes on all the same: the answer only where no exception ended it.
_SILENT = frozenset({rules_service.wrong_weights, rules_service.effective_setting, rules_service.on_the_cpu})


def _may_speak(rule: t.Callable[[Case], Diagnosis | None], case: Case) -> bool:
    return rule not in _SILENT or case.reading.fatal is None


def _hint(case: Case) -> Diagnosis | None:
    """What a line elsewhere in the log suggests, where nothing ended the start in words. It is no cause of a lost start."""
    wide = case.widened()
    found = next((finding for rule in (*rules_memory.RULES, *rules_start.RULES) if (finding := rule(wide)) is not None), None)
    if found is None:
        return None
    if not case.get("loss"):
        return dataclasses.replace(found, confidence="likely")
    line = next(iter(found.evidence), "").strip()
    silent = _unknown(case)
    return dataclasses.replace(silent, cause=f"{silent.cause}. A hint, not a cause: '{line}' ({found.class_.value})", evidence=(*silent.evidence, line))


def _unknown(case: Case) -> Diagnosis:
    loss = case.get("loss")
    if isinstance(loss, (list, tuple)) and len(loss) == 2 and loss[0] == Failure.TIMEOUT:
        remedy = "Allow more in sglang_server__ready_timeout_s if it was only slow; the log tells where the time went"
        return Diagnosis(Failure.TIMEOUT, str(loss[1]), remedy, tuple(case.lines[-3:]), "raise", "likely")
    exit_words = str(case.get("unit.exit_words") or "")
    how = f" ({exit_words})" if exit_words else ""
    errors = case.reading.errors
    why = f"none of the {len(errors)} lines of its log that look like errors is known to end a start" if errors else "its log does not say why"
    return Diagnosis(
        Failure.UNKNOWN,
        f"the start ended in the phase '{case.log.phase}'{how} and {why}",
        "",
        (*errors[-3:], *(line for line in case.lines[-5:] if line not in errors[-3:])),
        confidence="none",
    )
