# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A client of the model that asks once a second, stays with the address that answers, and writes down each answer: ADDRESS[,ADDRESS...] KEY LOG."""

import json
import sys
import time
import urllib.request

ADDRESSES, KEY, LOG = sys.argv[1].split(","), *sys.argv[2:4]
QUESTION = {
    "model": "kpro/tiny-qwen3_5",
    "messages": [{"role": "user", "content": "Who are you?"}],
    "temperature": 0,
    "max_tokens": 32,
    "chat_template_kwargs": {"enable_thinking": False},
}


def ask(address: str) -> str:
    """Return the answer, or an empty text if there is none."""
    request = urllib.request.Request(
        f"http://{address}:30000/v1/chat/completions",
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
    answered = ask(ADDRESSES[0])
    with open(LOG, "a", encoding="utf-8") as log:
        log.write(json.dumps({"began": began, "address": ADDRESSES[0], "answer": answered, "ended": time.time()}) + "\n")
    if not answered:
        ADDRESSES.append(ADDRESSES.pop(0))
    time.sleep(max(0.0, 1.0 - (time.time() - began)) if answered else 0.2)
