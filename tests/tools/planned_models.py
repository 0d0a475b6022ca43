# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/planned_models.md from the recorded configs: ``python tests/tools/planned_models.py > docs/planned_models.md``."""

from __future__ import annotations

import json
import sys
import typing as t
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError  # noqa: E402
from ansible_collections.kpro.llm.plugins.module_utils._vram.cards import idle_card  # noqa: E402
from ansible_collections.kpro.llm.plugins.module_utils._vram.families import EVERY_FOURTH, FAMILIES  # noqa: E402
from ansible_collections.kpro.llm.plugins.module_utils._vram.model import model_of  # noqa: E402
from ansible_collections.kpro.llm.plugins.module_utils._vram.request import Request, planned  # noqa: E402
from ansible_collections.kpro.llm.plugins.module_utils._vram.weights import parameters  # noqa: E402

VERSION = "0.5.23"
RECORDS = ROOT / "tests/unit/plugins/module_utils/fixtures/plan/model_configs_2.jsonl"
# The smallest that starts is shown.
CARDS = (("rtx3090", 1), ("a6000", 1), ("rtxpro6000", 1), ("a6000", 2), ("a6000", 4), ("h100", 2), ("h100", 4), ("h100", 8), ("h200", 8), ("b200", 8))
HEAD = f"""# Planned models

Each row is planned for SGLang {VERSION} from the recorded `config.json` alone, with a context of 32,768 tokens (or the model's own, if that is shorter), on the
first of a row of idle cards on which it starts with that context. `tests/tools/planned_models.py` writes this page, and a test holds it to the planner.

"Checked": every architecture's cache and state are compared with the engine's own functions (`tests/differential`), and its class is looked up in the wheels.
"sum" is what the parameters were summed up to independently, "published" what the model's maker says.

| model | cards | verdict | tokens | weights, GiB on each | how it was checked |
| --- | --- | --- | ---: | ---: | --- |
"""
REFUSED = """
## Refused, and why

| model | reason |
| --- | --- |
"""


def records() -> list[dict[str, t.Any]]:
    """Return the recorded configs."""
    return [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]


def row(record: dict[str, t.Any]) -> tuple[bool, str]:
    """Return whether a model is planned, and its line."""
    name = record["model"].split("/")[-1]
    try:
        model = model_of(record["config"], name)
    except KproError as error:
        return False, f"| {name} | {error.reason} |"
    if model.by_headers:
        return False, f"| {name} | {model.by_headers}: planned from a folder with the safetensors headers |"
    context = min(32768, model.max_position)
    found = None
    for card, count in CARDS:
        args: dict[str, t.Any] = {"tp_size": count, "context_length": context, "max_running_requests": 8}
        try:
            plan = planned(Request(record["config"], name, (), (idle_card(card),) * count, VERSION, args))
        except KproError:
            continue
        found = (f"{count} x {idle_card(card).name}", plan)
        if plan["verdict"] == "OK":
            break
    if found is None:
        return False, f"| {name} | none of the cards that were tried loads its quantisation |"
    cards, plan = found
    tokens = f"{max(plan['max_total_num_tokens'], 0):,}"
    return True, f"| {name} | {cards} | {plan['verdict']} | {tokens} | {plan['weights_gib']:.2f} | {_checked(record, parameters(model))} |"


def _checked(record: dict[str, t.Any], count: int) -> str:
    words = [f"{count / 1e9:.2f} billion parameters"]
    if "shapes_sum" in record:
        words.append(f"sum {record['shapes_sum'] / 1e9:.2f}")
    if record.get("published_parameters"):
        words.append(f"published {record['published_parameters'] / 1e9:.2f}")
    family = FAMILIES[record["config"]["architectures"][0]]
    kinds = [family.state, "window" if family.window else "", "compressed cache" if family.latent else ""]
    assert family.window in ("", EVERY_FOURTH) or family.window
    return "; ".join([*words, *[f"{kind} by the differential test" for kind in kinds if kind]])


def page() -> str:
    """Return the page."""
    rows = [row(record) for record in sorted(records(), key=lambda each: each["model"].split("/")[-1].lower())]
    planned_rows, refused = ["".join(f"{text}\n" for good, text in rows if good == wanted) for wanted in (True, False)]
    return HEAD + planned_rows + REFUSED + refused


if __name__ == "__main__":
    sys.stdout.write(page())
