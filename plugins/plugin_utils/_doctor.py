# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of each link of a deployment, judged from what was observed. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ..module_utils._core.errors import KproError

OK, DIFFERS, BROKEN, NOT_LOOKED_AT = "ok", "differs", "BROKEN", "not looked at"
_AGAIN = "Run the deployment again (kpro.llm.deploy_qwen), it repairs exactly what differs"

Values = t.Mapping[str, t.Any]


@dataclasses.dataclass(frozen=True)
class Link:
    """One link of the chain.

    :param text: what was seen, for one line.
    :param cause: why it is broken; empty if it is not.
    :param remedy: what to do.
    :param evidence: lines that decided.
    """

    name: str
    state: str
    text: str = ""
    cause: str = ""
    remedy: str = ""
    evidence: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Seen:
    """The answers of the modules that looked; empty where nothing was asked, with ``failed`` or ``unreachable`` where there was no answer.

    :param node: of ``gpu_info`` on the node.
    :param container: of ``lxc_container`` in check mode.
    :param environment: of the role ``sglang_runtime`` in check mode: ``base``, ``userland``, ``cuda``, ``environment``.
    :param model: of ``hf_model`` in check mode.
    :param service: of ``sglang_info``.
    :param diagnosis: of ``sglang_diagnose``.
    :param answer: of ``sglang_probe``.
    """

    node: Values
    container: Values
    environment: Values
    model: Values
    service: Values
    diagnosis: Values
    answer: Values


def chain(names: Values, seen: Seen) -> list[Link]:
    """Return the links in order. What lies behind a link that cannot be passed was not looked at.

    :param names: ``node`` and ``vmid``, and ``port`` of the service.
    """
    links = [_node(names, seen.node)]
    links.append(_container(names, seen.container) if links[0].text else Link("container", NOT_LOOKED_AT))
    if seen.service.get("unreachable") or seen.service.get("failed"):
        links.append(Link("environment", BROKEN, "", _reason(seen.service), "The container runs, yet no command runs in it: look at it with pct enter"))
        return [*links, Link("model", NOT_LOOKED_AT), Link("service", NOT_LOOKED_AT)]
    inside = bool(seen.service)
    links.append(_environment(seen.environment) if inside else Link("environment", NOT_LOOKED_AT))
    links.append(_model(seen.model) if inside else Link("model", NOT_LOOKED_AT))
    links.append(_service(names, seen) if inside else Link("service", NOT_LOOKED_AT))
    return links


def first_broken(links: t.Sequence[Link]) -> Link | None:
    """Return the first link that is broken; None if none is."""
    return next((link for link in links if link.state == BROKEN), None)


def page(title: str, links: t.Sequence[Link]) -> list[str]:
    """Return the page as lines."""
    lines = [title, ""]
    for link in links:
        lines.append(f"  {link.name:<12} {link.state:<14} {link.text or link.cause}".rstrip())
    worst = first_broken(links)
    differing = [link for link in links if link.state == DIFFERS]
    if worst:
        lines += ["", f"First broken link: {worst.name}", f"  cause:  {worst.cause}"]
        lines += [f"  remedy: {worst.remedy}"] if worst.remedy else []
        lines += [f"  log:    {line}" for line in worst.evidence]
    elif differing:
        lines += ["", "Nothing is broken. What differs from the inventory:"]
        lines += [f"  {link.name}: {link.cause}. {link.remedy}" for link in differing]
    else:
        lines += ["", "Nothing is broken."]
    return lines


def report(name: str, links: t.Sequence[Link]) -> dict[str, t.Any]:
    """Return the page as plain values, for a file."""
    worst = first_broken(links)
    return {
        "deployment": name,
        "healthy": worst is None,
        "first_broken": worst.name if worst else "",
        "links": [{**dataclasses.asdict(link), "evidence": list(link.evidence)} for link in links],
    }


def _reason(answer: Values) -> str:
    text = " ".join(str(answer.get("msg") or answer.get("module_stderr") or "no reason given").split())
    return text.removeprefix("Task failed: ").rstrip(".")


def _node(names: Values, node: Values) -> Link:
    name = names["node"]
    if node.get("unreachable"):
        remedy = f"Check power and network, and address, user and key of {name} in the inventory (ssh to it by hand)"
        return Link("node", BROKEN, "", f"{name} can't be reached: {_reason(node)}", remedy)
    if "host" not in node:
        return Link("node", BROKEN, "", f"{name} answers, but can't be looked at: {_reason(node)}", "The node needs Debian's python3 and a login as root")
    host, driver, gpus = node["host"], node.get("driver") or {}, node.get("gpus") or []
    text = f"{name}: PVE {host.get('pve_version') or 'none'}, driver {driver.get('loaded') or 'none'}, {len(gpus)} GPU(s)"
    if not host.get("pve_version"):
        return Link("node", BROKEN, text, f"{name} is no Proxmox VE node", "Correct ansible_host of the group llm_node")
    findings = [*node.get("findings", [])]
    errors = [each for each in findings if each.get("level") == "error"]
    for found, state in ((errors, BROKEN), (findings, DIFFERS)):
        if found:
            first, more = found[0], f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            return Link("node", state, text, f"{first['what']}: {str(first['reason']).rstrip('.')}{more}", str(first.get("remedy") or _AGAIN))
    return Link("node", OK, text)


def _container(names: Values, container: Values) -> Link:
    vmid, node = names["vmid"], names["node"]
    if "exists" not in container:
        return Link("container", BROKEN, "", f"container {vmid} can't be looked at: {_reason(container)}", str(container.get("remedy") or _AGAIN))
    sentences = container.get("plan") or []
    plan = "; ".join(sentences)
    if not container["exists"]:
        return Link("container", BROKEN, f"{vmid}: absent", f"container {vmid} does not exist on {node}", "Run the deployment (kpro.llm.deploy_qwen)")
    if not container.get("here", True):
        notes = ". ".join(container.get("notes") or [f"container {vmid} is on another node"])
        return Link("container", BROKEN, f"{vmid}: elsewhere", notes, "Correct pct_node in the inventory, or move the container back")
    if not container.get("running"):
        remedy = f"Run the deployment again, or start it by hand on {node}: pct start {vmid}"
        plan = "; ".join(sentence for sentence in sentences if not sentence.startswith("Start container"))
        return Link("container", BROKEN, f"{vmid}: stopped", f"container {vmid} is stopped{f' and differs: {plan}' if plan else ''}", remedy)
    text = f"{vmid}: running{' at ' + str(container['address']) if container.get('address') else ''}"
    return Link("container", DIFFERS, text, plan, _AGAIN) if plan else Link("container", OK, f"{text}, as declared")


def _environment(seen: Values) -> Link:
    cuda, built = seen.get("cuda") or {}, seen.get("environment") or {}
    text = f"SGLang {built.get('package_version')} in {built.get('venv')}" if built.get("package_version") else ""
    for plan in ((seen.get("userland") or {}).get("plan"), built.get("plan")):
        if plan:
            return Link("environment", BROKEN, text, f"it is not what the inventory asks for: {'; '.join(plan)}", _AGAIN)
    if cuda and not cuda.get("usable", True):
        reason, _dot, remedy = str(cuda.get("error") or "CUDA can't be used by the service user").rstrip(".").partition(". ")
        return Link("environment", BROKEN, text, reason, remedy or _AGAIN)
    if seen.get("failed"):
        return Link("environment", BROKEN, text, _reason(seen), str(seen.get("remedy") or _AGAIN))
    plan = (seen.get("base") or {}).get("plan")
    return Link("environment", DIFFERS, text, "; ".join(plan), _AGAIN) if plan else Link("environment", OK, text)


def _model(model: Values) -> Link:
    if model.get("failed") or "path" not in model:
        return Link("model", BROKEN, "", _reason(model), str(model.get("remedy") or _AGAIN))
    text = f"{model.get('repository')} at commit {str(model.get('commit'))[:12]} in {model['path']}"
    if model.get("plan"):
        remedy = "Run the deployment again, it fetches only what is missing or wrong"
        return Link("model", BROKEN, text, f"files are missing or damaged: {'; '.join(model['plan'])}", remedy)
    return Link("model", OK, text)


def _service(names: Values, seen: Seen) -> Link:
    service, state = seen.service, seen.service.get("state") or {}
    restarts = f", {state.get('n_restarts', 0)} automatic restarts" if state.get("n_restarts") else ""
    text = f"{state.get('active_state') or 'absent'}{restarts}"
    if state.get("load_state") in ("", "not-found"):
        return Link("service", BROKEN, "absent", "the service was never set up in this container", "Run the deployment (kpro.llm.deploy_qwen)")
    if service.get("port_taken") and not service.get("port_is_ours"):
        cause = f"port {names['port']} is held by {service.get('port_owner')}, which is not the service"
        return Link("service", BROKEN, text, cause, "End that, or choose another port (sglang_server__port)")
    if not service.get("running") or (restarts and not service.get("port_is_ours")):
        return _lost(text, state, seen.diagnosis)
    if not service.get("port_is_ours"):
        phase = seen.diagnosis.get("phase") or "starting"
        cause = f"the service starts and does not listen yet (phase '{phase}')"
        return Link("service", BROKEN, f"{text}, starting", cause, "Wait, or run the deployment again: it follows the start and names what it waits for")
    if "answer" in seen.answer:
        warnings = "; ".join(seen.answer.get("warnings_found") or [])
        words = f"{text}, answered {str(seen.answer['answer']).strip()!r}"
        remedy = "A restart of the service clears what came of a start under bad conditions"
        return Link("service", DIFFERS, words, warnings, remedy) if warnings else Link("service", OK, words)
    return Link("service", BROKEN, text, str(seen.answer.get("reason") or _reason(seen.answer)), str(seen.answer.get("remedy") or _AGAIN))


def _lost(text: str, state: Values, diagnosis: Values) -> Link:
    ended = f" (result {state['result']})" if state.get("result") not in (None, "", "success") else ""
    if diagnosis.get("cause"):
        cause = f"the service does not run{ended}. Its last start: {diagnosis['cause']}"
        return Link("service", BROKEN, text, cause, str(diagnosis.get("remedy") or _AGAIN), tuple(diagnosis.get("evidence") or ())[:3])
    return Link("service", BROKEN, text, f"the service does not run{ended}, and its log does not say why", _AGAIN)


def sentence(link: Link) -> str:
    """Return a broken link as the one sentence that a run ends with."""
    return KproError(f"First broken link: {link.name}", link.cause, link.remedy).sentence
