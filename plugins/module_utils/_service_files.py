# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of the service, put together from rendered texts, and their diff. PRIVATE: for use in kpro.llm only."""

from __future__ import annotations

import secrets
import typing as t

from ansible_collections.kpro.llm.plugins.module_utils._changes import Change
from ansible_collections.kpro.llm.plugins.module_utils._errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._service_plan import ServiceFile, ServicePresent, ServiceWanted
from ansible_collections.kpro.llm.plugins.module_utils._service_text import API_KEY_PLACEHOLDER, DIGEST_NAME, texts_digest, without_secrets

TEXTS = ("unit", "config", "environment", "gate", "launcher")


def wanted_service(params: t.Mapping[str, t.Any], paths: t.Mapping[str, str], present: ServicePresent) -> ServiceWanted:
    """Put together the files of a running service; a new API key is made here if there is none yet.

    :param params: options of the module (``*_text``, ``api_key*``, ``group``, ``force_restart``).
    :param paths: where each file lies, by role.
    :raises KproError: if a text or the key is missing.
    """
    missing = [f"{role}_text" for role in TEXTS if params[f"{role}_text"] is None]
    if missing:
        raise KproError("kpro.llm.sglang_service", f"state=started needs {', '.join(missing)}", "Render the templates of the role sglang_server")
    group = params["group"]
    key = _api_key(params, present)
    texts = {role: params[f"{role}_text"] for role in TEXTS}
    texts["config"] = texts["config"].replace(API_KEY_PLACEHOLDER, key)
    digest = texts_digest(texts)
    texts["environment"] = f"{texts['environment'].rstrip()}\n{DIGEST_NAME}={digest}\n"
    files = [
        ServiceFile("gate", paths["gate"], texts["gate"], 0o755, "root", "root"),
        ServiceFile("launcher", paths["launcher"], texts["launcher"], 0o644, "root", "root"),
        ServiceFile("config", paths["config"], texts["config"], 0o640, "root", group),
        ServiceFile("environment", paths["environment"], texts["environment"], 0o600, "root", "root"),
        ServiceFile("unit", paths["unit"], texts["unit"], 0o644, "root", "root"),
    ]
    if key:
        files.insert(0, ServiceFile("api_key", paths["api_key"], f"{key}\n", 0o600, "root", "root", secret=True))
    return ServiceWanted(tuple(files), digest, force_restart=params["force_restart"])


def plan_diff(changes: t.Sequence[Change], wanted: ServiceWanted) -> list[dict[str, str]]:
    """Return the diff of each step for Ansible, without secrets."""
    known = [(file.text or "").strip() for file in wanted.files if file.secret]
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


def _api_key(params: t.Mapping[str, t.Any], present: ServicePresent) -> str:
    source = params["api_key_source"]
    if source == "none":
        return ""
    if source == "given":
        if not params["api_key"]:
            raise KproError("API key", "api_key_source=given needs api_key", 'Give a key, or say "generated" or "none"')
        return str(params["api_key"])
    kept = present.files.get("api_key")
    # A fixed beginning: a key that begins with a dash would be taken for an option by the engine.
    return (kept.text or "").strip() if kept and (kept.text or "").strip() else f"kpro-{secrets.token_hex(24)}"
