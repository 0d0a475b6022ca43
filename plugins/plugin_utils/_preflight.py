# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Obstacles to a deployment, judged from the observation. Pure."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ..module_utils._core.errors import KproError
from ..module_utils._engine import lanes
from ..module_utils._engine.tensor_parallel import AUTO, DIVIDED, heads, tp_size, wanted_count
from ..module_utils._pve.gpus import BUS_ID, bus_address

OK, NOTE, WILL_FIX, NEEDS_YOU = "OK", "note", "will fix", "needs you"
PVE_MIN = (8, 1)  # the first with dev[n]
CPU_LEVEL_MIN = 2  # of the wheels of NumPy 2.4 (numpy._core._multiarray_umath.__cpu_baseline__)

# Findings of gpu_info that only a person can settle; nouveau, for one, is put aside by the node phase.
_ONLY_A_PERSON = ("foreign_driver", "claimed_by_vm", "vfio_ids", "gpu_not_started")

Values = t.Mapping[str, t.Any]
# ansible-core's words before the reason itself.
_BEFORE_THE_REASON = re.compile(r"^(?:(?:Task|Action|Module) failed: |Nothing was changed\. )+")
_UUID = re.compile(r"(GPU|MIG)-[0-9a-f-]+\Z", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the table: what was looked at, how it stands, one sentence."""

    subject: str
    state: str
    sentence: str


@dataclasses.dataclass(frozen=True)
class Observed:
    """The observation of the preflight; an empty mapping means that it did not look, and ``errors`` has the reason by subject.

    A subject that was not looked at without a reason is a finding, too: a look must not be able to drop out.

    :param node: answer of ``gpu_info`` on the node.
    :param container: answer of ``lxc_container`` in check mode.
    :param model: answer of ``hf_model`` with ``only: config``.
    :param service: answer of ``sglang_info``, if the container runs.
    :param plan: the plan of ``sglang_launch``, if it could be made.
    :param previous: answers of ``lxc_container_info`` by previous node.
    :param entry: answer of ``pct_entry``, where the container does not run yet and the node's login is not root.
    """

    node: Values
    container: Values
    model: Values
    service: Values
    plan: Values
    errors: t.Mapping[str, str]
    previous: t.Mapping[str, Values] = dataclasses.field(default_factory=dict)
    entry: Values = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The wanted deployment.

    :param gpus: the inventory's choice of GPUs: ``all``, a number, or a list.
    :param tp_chosen: ``tp_size`` was not asked for, but follows from GPUs and model.
    :param moves_from: the node of the same cluster from which the container is about to be moved.
    :param plan: the memory is to be planned.
    :param node: inventory name of the node, for sentences.
    """

    lane: str
    driver_version: str
    driver_source: str
    gpus: t.Any
    tp_size: int
    port: int
    replace_driver: bool = False
    moves_from: str = ""
    tp_chosen: bool = False
    plan: bool = False
    node: str = ""


def wanted_of(values: Values, seen: Observed, decided: int | None) -> Wanted:
    """Return what the deployment asks for, with the number of GPUs that the engine uses.

    :param values: plain values, ``tp_size`` as it is asked for.
    :param decided: over how many GPUs the model is divided, if that was decided already; it is not while the node has no driver.
    :raises KproError: if ``tp_size`` is no number of GPUs.
    """
    asked, there = values.get("tp_size", AUTO), max(len(seen.node.get("gpus") or []), len(seen.node.get("pci") or []))
    count, config = wanted_count(values["gpus"], there), seen.model.get("config") or {}
    size = decided or tp_size(asked, count, config, on_cpu=values["lane"] == lanes.CPU)
    return Wanted(**{**values, "tp_size": size, "tp_chosen": asked == AUTO, "port": int(values["port"])})


def findings(wanted: Wanted, seen: Observed) -> list[Finding]:
    """Return all findings, in the order of the phases."""
    if problem := seen.errors.get("move"):
        return [Finding("move", NEEDS_YOU, problem)]
    if problem := seen.errors.get("node"):
        # All else is looked at through it.
        return [Finding("node", NEEDS_YOU, problem)]
    return [
        *_node(wanted, seen.node),
        *_packages(seen.node),
        *_gpus(wanted, seen.node),
        *_peers(wanted, seen.node),
        *_container(wanted, seen),
        *_previous(seen),
        *_engine(wanted, seen),
        *_model(wanted, seen),
        *_plan(wanted, seen),
        *_way(seen),
        *_port(wanted, seen),
    ]


def table(rows: t.Sequence[Finding], host: str = "") -> list[str]:
    """Return the findings as aligned lines, with the deployment's name before each if there are several."""
    return [f"{host + '  ' if host else ''}{row.subject:10} {row.state:9}  {row.sentence}" for row in rows]


def reason(answer: Values) -> str:
    """Return in one line why a look failed, from whatever ended it; empty if it did not."""
    if not (answer.get("failed") or answer.get("unreachable")):
        return ""
    for inner in answer.get("results") or []:
        if words := reason(inner):
            return words
    words = _BEFORE_THE_REASON.sub("", " ".join(str(answer.get("msg") or "").split()))
    printed = str(answer.get("module_stderr") or answer.get("stderr") or answer.get("module_stdout") or "").strip()
    # The last line of a traceback, or of whatever was printed, is what tells.
    detail = printed.splitlines()[-1].strip() if printed else ""
    return f"{words or 'It failed without a message'}{': ' + detail if detail and detail not in words else ''}"


def of_inventory(problems: t.Iterable[str]) -> list[Finding]:
    """Return the findings for values that a role would refuse."""
    return [Finding("inventory", NEEDS_YOU, problem) for problem in problems]


def ended(answer: Values) -> list[Finding]:
    """Return the finding for a preflight that something ended before it was judged."""
    return [Finding("preflight", NEEDS_YOU, f"It could not be finished: {reason({**answer, 'failed': True})}")]


def lost() -> list[Finding]:
    """Return the finding for a deployment whose preflight left nothing, not even a reason."""
    return [Finding("preflight", NEEDS_YOU, "It was not finished, and left no reason: look at what is printed above")]


def _node(wanted: Wanted, node: Values) -> list[Finding]:
    host = node.get("host") or {}
    version = host.get("pve_version")
    if not version:
        return [Finding("node", NEEDS_YOU, "This is not a Proxmox VE node (pveversion is not there): correct ansible_host of the group llm_node")]
    if lanes.numbers(version)[:2] < PVE_MIN:
        return [Finding("node", NEEDS_YOU, f"Proxmox VE {version} is too old: 8.1 or newer is needed, where containers can be given devices. Upgrade the node")]
    if host.get("euid") != 0:
        return [Finding("node", NEEDS_YOU, f"The login is not root (uid {host.get('euid')}): set ansible_user: root, or become for the group llm_node")]
    level = host.get("cpu_level")
    processor = f", x86-64-v{level}" if level else ""
    rows = [Finding("node", OK, f"Proxmox VE {version}, kernel {host.get('kernel')}{processor}")]
    if level and level < CPU_LEVEL_MIN:
        reason = f"The processor is x86-64-v{level}, and the engine's wheels need v{CPU_LEVEL_MIN} (SSE4.2, POPCNT)"
        rows.append(Finding("node", NEEDS_YOU, f"{reason}: choose another node (pct_node)"))
    rows += [Finding("driver", NEEDS_YOU, _sentence(each)) for each in node.get("findings") or [] if each["kind"] == "module_blocked"]
    loaded = (node.get("driver") or {}).get("loaded")
    if wanted.driver_source == "none" or loaded == wanted.driver_version:
        return [*rows, Finding("driver", OK, f"{loaded or 'none'} is loaded")]
    if loaded and not wanted.replace_driver:
        consent = "allow it with gpu_node__replace_driver: true, or ask for the loaded one (gpu_node__driver_version)"
        return [*rows, Finding("driver", NEEDS_YOU, f"{loaded} is loaded and {wanted.driver_version} is asked for: {consent}")]
    if host.get("secure_boot") and not host.get("mok_enrolled"):
        reason = "Secure Boot is on, and the firmware does not know the key with which DKMS signs modules"
        rows.append(Finding("driver", NEEDS_YOU, f"{reason}: enrol it at the console (the phase node names the steps), or switch Secure Boot off"))
    return [*rows, Finding("driver", WILL_FIX, f"{loaded or 'None'} is loaded, {wanted.driver_version} will be installed")]


def _packages(node: Values) -> list[Finding]:
    """Return why the packages that the driver's build needs can't be had; what can be had is part of the installation."""
    apt = node.get("apt") or {}
    if not apt.get("problem"):
        return []
    reason = f"apt can't install {', '.join(apt['missing'])}: {apt['problem']}"
    return [Finding("packages", NEEDS_YOU, ". ".join(each.rstrip(".") for each in (reason, apt.get("remedy")) if each))]


def _gpus(wanted: Wanted, node: Values) -> list[Finding]:
    if not (node.get("host") or {}).get("pve_version"):
        return []
    taken = [each for each in node.get("findings") or [] if each["level"] == "error" and each["kind"] in _ONLY_A_PERSON]
    there = max(len(node.get("gpus") or []), len(node.get("pci") or []))
    count = wanted_count(wanted.gpus, there)
    named = wanted.gpus if isinstance(wanted.gpus, (list, tuple)) else ()
    # A GPU that a VM has is in the way only if the container is to get it.
    in_the_way = [each for each in taken if count > there - len(taken) or any(str(one) in each["what"] for one in named)]
    rows = [Finding("GPUs", NEEDS_YOU if each in in_the_way else NOTE, _sentence(each)) for each in taken]
    if not there:
        rows.append(Finding("GPUs", NEEDS_YOU, "The node has no NVIDIA GPU (neither on the PCI bus nor by the driver)"))
    elif count > there:
        rows.append(Finding("GPUs", NEEDS_YOU, f"{count} are asked for (gpu_container__gpus) and the node has {there}"))
    rows += _named_before_the_driver(named, node)
    if wanted.tp_chosen and wanted.lane != lanes.CPU and wanted.tp_size < count <= there:
        rows.append(Finding("GPUs", NOTE, f"{count - wanted.tp_size} of {count} stay idle: {wanted.tp_size} is what divides the model's heads"))
    elif count and wanted.tp_size != count and not wanted.tp_chosen:
        rows.append(
            Finding(
                "GPUs",
                NEEDS_YOU,
                f"The container gets {count} (gpu_container__gpus) and the engine is to use {wanted.tp_size} (sglang_server__tp_size): make both the same",
            )
        )
    names = sorted({str(gpu.get("name")) for gpu in node.get("gpus") or [] if gpu.get("name")})
    return (
        rows
        if any(row.state == NEEDS_YOU for row in rows)
        else [*rows, Finding("GPUs", OK, f"{there} on the node{' (' + ', '.join(names) + ')' if names else ''}, {count} for the container")]
    )


def _peers(wanted: Wanted, node: Values) -> list[Finding]:
    """Say what the GPUs' ways to each other let expect; the verdict is a copy that is compared, made in the container."""
    if wanted.tp_size < 2 or wanted.lane == lanes.CPU:
        return []
    ways = sorted({str(each.get("level")) for each in node.get("topology") or []})
    if not ways:
        return []
    if all(way.startswith("NV") for way in ways):
        return [Finding("P2P", OK, f"NVLink joins the GPUs ({', '.join(ways)})")]
    iommu = str((node.get("host") or {}).get("iommu") or "")
    sentence = f"The GPUs reach each other over PCIe ({', '.join(ways)}): a copy between them is compared before the start, and decides"
    if "DMA" not in iommu:
        return [Finding("P2P", OK, sentence)]
    return [Finding("P2P", NOTE, f"{sentence}. The IOMMU translates ({iommu}), which can lose such copies: iommu=pt on the kernel's command line is faster")]


def _named_before_the_driver(named: t.Sequence[t.Any], node: Values) -> list[Finding]:
    """Judge GPUs that are asked for by name where no driver tells UUIDs yet; with one the container's look judges them."""
    if any(gpu.get("uuid") for gpu in node.get("gpus") or []):
        return []
    buses = {str(card["bus_id"]): bus_address(str(card["bus_id"]))[:3] for card in node.get("pci") or []}
    rows = []
    for name in map(str, named):
        if _UUID.match(name):
            rows.append(Finding("GPUs", NOTE, f"{name} can be looked up only once the driver is there, which the phase node sees to"))
        elif not BUS_ID.match(name) or bus_address(name)[:3] not in buses.values():
            there = f"The node has {', '.join(sorted(buses))}" if buses else "The node has none"
            rows.append(Finding("GPUs", NEEDS_YOU, KproError(f"GPU '{name}'", "there is no such GPU", f"{there} (gpu_container__gpus)").sentence))
    return rows


def _sentence(finding: Values) -> str:
    return KproError(finding["what"], finding["reason"], finding.get("remedy", "")).sentence


def _container(wanted: Wanted, seen: Observed) -> list[Finding]:
    if problem := seen.errors.get("container"):
        return [Finding("container", NEEDS_YOU, problem)]
    if not seen.container:
        return _not_looked_at("container", seen)
    vmid = seen.container.get("vmid")
    plan = list(seen.container.get("plan") or [])
    if seen.container.get("exists") and not seen.container.get("here", True):
        if wanted.moves_from and wanted.moves_from == seen.container.get("node"):
            return [Finding("container", WILL_FIX, f"{vmid} will be moved from {wanted.moves_from}")]
        where = ". ".join(seen.container.get("notes") or [f"Container {vmid} is on another node"])
        source = seen.container.get("node")
        way = f"To move it: kpro.llm.migrate_qwen with -e migrate_from={source}, and {source} in the group llm_node_previous" if source else ""
        return [Finding("container", NEEDS_YOU, ". ".join(filter(None, (where, way))))]
    # A change that waits for a restart without consent ends the run in its container phase: better here, before anything changes.
    waits = bool(seen.container.get("restart_needed"))
    notes = [Finding("container", NEEDS_YOU if waits and "needs a restart" in note else NOTE, note) for note in seen.container.get("notes") or []]
    rows = [Finding("container", WILL_FIX, sentence) for sentence in plan] or [Finding("container", NOTE if waits else OK, f"{vmid} is as declared")]
    return [*rows, *notes]


def _previous(seen: Observed) -> list[Finding]:
    """Two containers must not serve under one name by accident."""
    rows = []
    for host, answer in seen.previous.items():
        if words := reason(answer) or ("" if "here" in answer else str(answer.get("msg") or "")):
            rows.append(Finding("container", NOTE, f"Whether it also runs on {host} (llm_node_previous) is not known: {words}"))
        if answer.get("here") and answer.get("ours") and answer.get("running"):
            where = f"{answer.get('vmid')} also runs on {host} (llm_node_previous) and may serve under the same name"
            remedy = f"move it with kpro.llm.migrate_qwen and -e migrate_from={host}, or stop it there and set onboot to 0"
            rows.append(Finding("container", NEEDS_YOU, f"{where}: {remedy}"))
    return rows


def _engine(wanted: Wanted, seen: Observed) -> list[Finding]:
    driver = wanted.driver_version if wanted.driver_source != "none" else str((seen.node.get("driver") or {}).get("loaded") or "")
    try:
        lane = lanes.choose_lane(wanted.lane, driver)
    except KproError as error:
        return [Finding("engine", NEEDS_YOU, error.sentence)]
    model_type = str((seen.model.get("config") or {}).get("model_type") or "")
    problems = lanes.contract_problems(lane, lanes.Facts(driver_version=driver, model_type=model_type, tp_size=wanted.tp_size))
    return [Finding("engine", NEEDS_YOU, problem) for problem in problems] or [
        Finding("engine", OK, f"Lane {lane.name}: SGLang {lane.engine_version}{', driver ' + driver if driver else ''}")
    ]


def _model(wanted: Wanted, seen: Observed) -> list[Finding]:
    if problem := seen.errors.get("model"):
        return [Finding("model", NEEDS_YOU, problem)]
    if not seen.model:
        return _not_looked_at("model", seen)
    name = seen.model.get("repository")
    config = seen.model.get("config") or {}
    rows = []
    for key, words in DIVIDED:
        count = heads(config, key)
        if count % wanted.tp_size:
            remedy = "choose a number of GPUs that divides it"
            rows.append(
                Finding("model", NEEDS_YOU, f"{name} has {count} {words}, which {wanted.tp_size} GPUs (sglang_server__tp_size) do not divide: {remedy}")
            )
    size_gb = seen.model.get("size_bytes", 0) / 1e9
    missing, free = seen.model.get("missing_bytes", 0), seen.model.get("free_bytes")
    if free is not None and missing > free:
        where = f"The store on the node has {free / 1e9:.3g} GB free and {missing / 1e9:.3g} GB of {name} are missing"
        rows.append(Finding("model", NEEDS_YOU, f"{where}: free space there, or choose another mount source (gpu_container__mounts)"))
    left_out = seen.model.get("left_out") or []
    rest = f". Left out, as the engine does not load it: {'; '.join(map(str, left_out))}" if left_out else ""
    return rows or [Finding("model", OK, f"{name} at commit {str(seen.model.get('commit'))[:12]}, {size_gb:.3g} GB{rest}")]


def _not_looked_at(subject: str, seen: Observed) -> list[Finding]:
    if not (seen.node.get("host") or {}).get("pve_version"):
        return []  # the node's own row says why
    return [Finding(subject, NEEDS_YOU, "It was not looked at: run the whole preflight (no --skip-tags, no --start-at-task)")]


def _plan(wanted: Wanted, seen: Observed) -> list[Finding]:
    if problem := seen.errors.get("plan"):
        gpus = seen.container.get("gpus")
        if gpus and len(gpus) < wanted.tp_size and not wanted.tp_chosen:
            return []  # the row of the GPUs says it
        way = ", or deploy without a plan (sglang_server__plan: off)" if wanted.plan and wanted.lane != lanes.CPU else ""
        return [Finding("memory", NEEDS_YOU, f"{problem.rstrip('.')}. Change that{way}")]
    if not seen.plan:
        return _without_plan(wanted, seen)
    if seen.plan.get("verdict") == "FAIL":
        cause = (seen.plan.get("cause") or {}).get("message", "the engine would not start")
        return [Finding("memory", NEEDS_YOU, f"{cause}. {_advice(seen.plan.get('advice') or [])}")]
    verdict = seen.plan.get("verdict")
    rungs = seen.plan.get("rungs") or []
    chosen = int(seen.plan.get("rung") or 0)
    passed = [Finding("memory", NOTE, f"Rung '{row['name']}' is passed over: {row['passed_over']}") for row in rungs[:chosen]]
    name = f"rung '{rungs[chosen]['name']}': " if len(rungs) > 1 else ""
    return [*passed, Finding("memory", OK if verdict == "OK" else NOTE, f"{verdict}: {name}{_prediction(seen.plan)}")]


def _without_plan(wanted: Wanted, seen: Observed) -> list[Finding]:
    """Say why there is no plan where one is wanted; without a container's GPUs their own rows do."""
    gpus = seen.container.get("gpus", seen.node.get("gpus")) or []
    if not wanted.plan or wanted.lane == lanes.CPU or not seen.model.get("config") or len(gpus) < wanted.tp_size or "container" in seen.errors:
        return []
    silent = [str(gpu.get("name") or gpu.get("uuid")) for gpu in gpus if not gpu.get("memory_mib")]
    if silent:
        return [Finding("memory", NOTE, f"It is not planned: the driver does not tell the memory of {', '.join(dict.fromkeys(silent))}")]
    return _not_looked_at("memory", seen)


def _advice(advice: t.Sequence[Values]) -> str:
    if not advice:
        return "No single change makes it work"
    first = advice[0]
    return f"Set {first['option']} to {first['to']} (now {first['from']}): predicted {first['predicted']['verdict']}, {_prediction(first['predicted'])}"


def _prediction(plan: Values) -> str:
    return f"{plan.get('max_total_num_tokens', 0):,} tokens, {plan.get('max_running_requests')} requests"


def _way(seen: Observed) -> list[Finding]:
    """Judge whether tasks get into the container."""
    words = reason(seen.service) if seen.service.get("unreachable") else str(seen.entry.get("reason") or "")
    return [Finding("way", NEEDS_YOU, words)] if words else []


def _port(wanted: Wanted, seen: Observed) -> list[Finding]:
    service = seen.service
    if service.get("unreachable"):
        return []  # the row of the way in has it
    if service.get("failed") and service.get("rc") == 127:
        return [Finding("port", NOTE, f"Whether {wanted.port} is free could not be asked: the container has no Python yet, which the phase runtime sees to")]
    if words := reason(service) or seen.errors.get("service"):
        return [Finding("port", NEEDS_YOU, words)]
    if "port_taken" not in service:
        runs = seen.container.get("running") and seen.container.get("here", True)
        return _not_looked_at("port", seen) if runs else []
    if service.get("port_taken") and not service.get("port_is_ours"):
        who = service.get("port_owner")
        return [Finding("port", NEEDS_YOU, f"{wanted.port} is held by {who}: end that, or choose another port (sglang_server__port)")]
    return [Finding("port", OK, f"{wanted.port} is {'held by our service' if service.get('port_taken') else 'free'}")]
