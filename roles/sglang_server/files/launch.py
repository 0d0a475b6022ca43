# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start SGLang with its API keys kept out of its own log: it prints all its options, keys included, at each start.

Runs in the engine's Python: ``launch.py --config FILE``. Child processes import this file again, so they are covered too.
"""

from __future__ import annotations

import json
import logging
import runpy
import sys

SECRET_OPTIONS = ("api-key", "admin-api-key")


def secrets_in(config_path: str) -> list[str]:
    """Return the values of the secret options of the engine's config file."""
    found = []
    with open(config_path, encoding="utf-8") as file:
        for line in file:
            name, colon, value = line.partition(":")
            if not colon or name.strip().replace("_", "-") not in SECRET_OPTIONS:
                continue
            value = value.strip()
            found.append(json.loads(value) if value.startswith('"') else value.strip("'"))
    return [value for value in found if value]


def keep_out_of_log(secrets: list[str]) -> None:
    """Replace the secrets in the text of every log record."""
    make_record = logging.getLogRecordFactory()

    def make_clean_record(*args: object, **kwargs: object) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        text = str(record.msg)
        if record.args:
            text = record.getMessage()
        if any(secret in text for secret in secrets):
            for secret in secrets:
                text = text.replace(secret, "********")
            record.msg, record.args = text, ()
        return record

    logging.setLogRecordFactory(make_clean_record)


if "--config" in sys.argv[1:-1]:
    keep_out_of_log(secrets_in(sys.argv[sys.argv.index("--config") + 1]))

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
