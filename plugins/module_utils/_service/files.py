# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of the service, put together from rendered texts, and their diff."""

from __future__ import annotations

import secrets
import typing as t

from .._core.changes import Change
from .._core.errors import KproError
from .plan import ServiceFile, ServicePresent, ServiceWanted
from .text import ADMIN_KEY_PLACEHOLDER, API_KEY_PLACEHOLDER, DIGEST_NAME, quoted_for_yaml, settings_text, texts_digest, without_digest_line, without_secrets

TEXTS = ("unit", "config", "environment", "gate", "launcher")
PATH_SPEC: dict[str, t.Any] = {
    "unit_path": {"type": "path"},
    "config_path": {"type": "path", "default": "/etc/kpro-llm/sglang.yaml"},
    "environment_path": {"type": "path", "default": "/etc/kpro-llm/sglang.env"},
    "gate_path": {"type": "path", "default": "/usr/local/lib/kpro-llm/sglang_gate.py"},
    "launcher_path": {"type": "path", "default": "/usr/local/lib/kpro-llm/sglang_launch.py"},
    "started_path": {"type": "path", "default": "/run/kpro-sglang/started.json"},
    "api_key_path": {"type": "path", "default": "/etc/kpro-llm/api_key", "no_log": False},
    "state_path": {"type": "path", "default": "/var/lib/kpro-llm"},
}


def service_paths(params: t.Mapping[str, t.Any]) -> dict[str, str]:
    """Return where each file lies, by role."""
    unit_path = params["unit_path"] or f"/etc/systemd/system/{params['unit']}"
    return {**{role: str(params[f"{role}_path"]) for role in (*TEXTS, "api_key")}, "unit": unit_path}


def given_texts(params: t.Mapping[str, t.Any], config: str, key: str) -> dict[str, str]:
    """Return the rendered texts by role, with the keys filled in.

    :param params: options of the module (``*_text``).
    :param config: the engine's configuration to run, one of the rungs.
    :raises KproError: if a text is missing.
    """
    rendered = [role for role in TEXTS if role != "config"]
    missing = [f"{role}_text" for role in rendered if params[f"{role}_text"] is None]
    if missing:
        raise KproError("kpro.llm.sglang_service", f"state=started needs {', '.join(missing)}", "Render the templates of the role sglang_server")
    admin_key = _checked(str(params["admin_api_key"])) if params.get("admin_api_key") else ""
    for placeholder, value in ((API_KEY_PLACEHOLDER, key), (ADMIN_KEY_PLACEHOLDER, admin_key)):
        config = config.replace(placeholder, quoted_for_yaml(value))
    return {**{role: params[f"{role}_text"] for role in rendered}, "config": config}


def wanted_service(texts: t.Mapping[str, str], key: str, paths: t.Mapping[str, str], group: str, *, force_restart: bool = False) -> ServiceWanted:
    """Put together the files of a running service.

    :param paths: where each file lies, by role.
    :param group: group that may read the engine's configuration.
    """
    plain = {**texts, "environment": settings_text(texts["environment"])}
    digest = texts_digest(plain)
    environment = without_digest_line(texts["environment"]).rstrip()
    files = [
        ServiceFile("gate", paths["gate"], texts["gate"], 0o755, "root", "root"),
        ServiceFile("launcher", paths["launcher"], texts["launcher"], 0o644, "root", "root"),
        ServiceFile("config", paths["config"], texts["config"], 0o640, "root", group),
        ServiceFile("environment", paths["environment"], f"{environment}\n{DIGEST_NAME}={digest}\n", 0o600, "root", "root"),
        ServiceFile("unit", paths["unit"], texts["unit"], 0o644, "root", "root"),
    ]
    if key:
        files.insert(0, ServiceFile("api_key", paths["api_key"], f"{key}\n", 0o600, "root", "root", secret=True))
    return ServiceWanted(tuple(files), digest, force_restart=force_restart)


def plan_diff(changes: t.Sequence[Change], wanted: ServiceWanted) -> list[dict[str, str]]:
    """Return the diff of each step for Ansible, without secrets."""
    keys = [(file.text or "").removesuffix("\n") for file in wanted.files if file.secret]
    known = [form for key in keys for form in (key, quoted_for_yaml(key))]
    secret_roles = {file.role for file in wanted.files if file.secret}
    entries = []
    for change in changes:
        hidden = change.action[0] == "write" and change.action[1] in secret_roles
        before, after = ("" if side is None else f"{str(side).rstrip()}\n" for side in (change.before, change.after))
        entries.append(
            {
                "before_header": change.sentence,
                "after_header": change.sentence,
                "before": "(a secret)\n" if hidden and before else without_secrets(before, known),
                "after": "(another secret)\n" if hidden else without_secrets(after, known),
            }
        )
    return entries


def api_key(params: t.Mapping[str, t.Any], present: ServicePresent) -> str:
    """Return the key to use; a new one is made here if there is none yet, and kept once the plan is carried out.

    :raises KproError: if the given one can't be used.
    """
    source = params["api_key_source"]
    if source == "none":
        return ""
    if source == "given":
        if not params["api_key"]:
            raise KproError("API key", "api_key_source=given needs api_key", 'Give a key, or say "generated" or "none"')
        return _checked(str(params["api_key"]))
    kept = present.files.get("api_key")
    # A fixed beginning: a key that begins with a dash would be taken for an option by the engine.
    return (kept.text or "").strip() if kept and (kept.text or "").strip() else f"kpro-{secrets.token_hex(24)}"


def _checked(key: str) -> str:
    if not key.isascii() or not key.isprintable() or key != key.strip():
        raise KproError("API key", "a client can send it in an HTTP header only as printable ASCII without blanks around it", "Give another one")
    if key.startswith("-"):
        raise KproError("API key", "it begins with a dash, and the engine would take it for an option", "Give another one")
    return key
