# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Argument specs, defaults and documentation say the same."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir())

_found = importlib.util.spec_from_file_location("variables", ROOT / "tests" / "tools" / "variables.py")
assert _found is not None
assert _found.loader is not None
variables = importlib.util.module_from_spec(_found)
_found.loader.exec_module(variables)


@pytest.mark.parametrize("role", ROLES)
def test_defaults_and_argument_specs_do_not_drift(role: str) -> None:
    options = variables.spec(role)["options"]
    specified = {name: option["default"] for name, option in options.items() if "default" in option}
    written = variables.defaults(role)
    assert set(written) <= set(options)
    # A default with a template can't be repeated in the spec.
    for name, value in written.items():
        if not (isinstance(value, str) and "{{" in value):
            assert specified.get(name, value) == value, name
    for name in specified:
        assert name in written, name


@pytest.mark.parametrize("role", ROLES)
def test_public_names_carry_the_roles_name(role: str) -> None:
    assert all(name.startswith(f"{role}__") for name in variables.spec(role)["options"])


def test_every_role_is_in_the_page_of_variables() -> None:
    assert sorted(variables.ORDER) == ROLES


def test_the_page_of_variables_is_up_to_date() -> None:
    assert variables.TARGET.read_text(encoding="utf-8") == variables.page(), "run tests/tools/variables.py"
