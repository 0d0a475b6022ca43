# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A client of the model that asks once a second and writes down each answer: ADDRESS KEY LOG."""

import json
import sys
import time
import urllib.request

ADDRESS, KEY, LOG = sys.argv[1:4]
QUESTION = {
    "model": "kpro/tiny-qwen3_5",
    "messages": [{"role": "user", "content": "Who are you?"}],
    "temperature": 0,
    "max_tokens": 32,
    "chat_template_kwargs": {"enable_thinking": False},
}


def ask() -> str:
    """Return the answer, or an empty text if there is none."""
    request = urllib.request.Request(
        f"http://{ADDRESS}:30000/v1/chat/completions",
        json.dumps(QUESTION).encode(),
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return str(json.load(answer)["choices"][0]["message"]["content"] or "(empty)")
    except (OSError, ValueError, KeyError):
        return ""


while True:
    began = time.time()
    with open(LOG, "a", encoding="utf-8") as log:
        log.write(json.dumps({"began": began, "answer": ask(), "ended": time.time()}) + "\n")
    time.sleep(max(0.0, 1.0 - (time.time() - began)))
