# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""STAND-IN of the model hub. Run: ``python3 standin_hub --models FOLDER [--bind ADDRESS:PORT]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from server import Hub


def main() -> None:
    parser = argparse.ArgumentParser(prog="standin_hub", description="Stand-in of a model hub for tests.")
    parser.add_argument("--bind", default="127.0.0.1:8090", help="address:port, the port above it serves large files; port 0 takes free ones")
    parser.add_argument("--models", required=True, type=Path, help="folder of ORG/NAME folders")
    parser.add_argument("--files", type=Path, help="folder served at /files/")
    parser.add_argument("--faults", type=Path, help="control file of the faults (may be absent)")
    parser.add_argument("--log", type=Path, help="request log, one JSON object a line")
    args = parser.parse_args()
    address, _colon, port = args.bind.rpartition(":")
    hub = Hub((address, int(port)), args.models, args.files, args.faults, args.log)
    print(f"stand-in hub at http://{address}:{hub.front.server_port}", flush=True)
    hub.serve_forever()


if __name__ == "__main__":
    main()
