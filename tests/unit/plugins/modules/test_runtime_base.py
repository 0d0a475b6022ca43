# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The edge in a folder that plays the system's root, with stand-in programs that change it."""

from __future__ import annotations

import http.server
import os
import threading
import typing as t
from pathlib import Path

import pytest

from ansible_collections.kpro.llm.plugins.module_utils._core.errors import KproError
from ansible_collections.kpro.llm.plugins.module_utils._linux.command_edge import Command
from ansible_collections.kpro.llm.plugins.module_utils._runtime.base import BaseWanted, Repository, plan_base
from ansible_collections.kpro.llm.plugins.module_utils._runtime.base_edge import Distribution
from ansible_collections.kpro.llm.plugins.modules import runtime_base

KEY = (Path(__file__).parents[1] / "module_utils/fixtures/key-debian-bookworm-stable.asc").read_text()
FINGERPRINT = "4D64FEC119C2029067D6E791F8D2585B8783D481"
PEM = "-----BEGIN CERTIFICATE-----\nMIIBAAAA\n-----END CERTIFICATE-----\n"

PROGRAMS = {
    # STAND-INS: they change the folder as the real programs change a system.
    "update-ca-certificates": 'cat "$ROOT"/usr/local/share/ca-certificates/*.crt > "$ROOT/etc/ssl/certs/ca-certificates.crt"',
    "apt-get": """
echo "$*" >> "$ROOT/apt.log"
case "$*" in *" update"*) exit 0;; *no-such-package*) echo "E: Unable to locate package no-such-package" >&2; exit 100;; esac
for word; do
  case $word in -*|install|DPkg*|Acquire*) ;; *) printf 'Package: %s\\nStatus: install ok installed\\n\\n' "$word" >> "$ROOT/var/lib/dpkg/status";; esac
done
""",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if os.geteuid() != 0:
        pytest.skip("the files belong to root")
    for folder in ("usr/local/share/ca-certificates", "etc/ssl/certs", "var/lib/dpkg", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/os-release").write_text('PRETTY_NAME="Debian"\nID=debian\nVERSION_ID="12"\n')
    for name, text in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nset -e\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("ROOT", str(tmp_path))
    return tmp_path


@pytest.fixture
def key_url() -> t.Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write((KEY if self.path == "/key.pub" else "no key").encode())

        def log_message(self, *_arguments: t.Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def converge(root: Path, wanted: BaseWanted) -> list[str]:
    distribution = Distribution(Command(), str(root))
    changes = plan_base(distribution.observe(wanted), wanted)
    for change in changes:
        distribution.apply(change)
    return [change.sentence for change in changes]


def test_a_system_converges_and_stays(root: Path, key_url: str) -> None:
    wanted = BaseWanted({"company.crt": PEM}, ("python3-venv",), (Repository("cuda", "https://example.org/", f"{key_url}/key.pub", FINGERPRINT),))
    assert len(converge(root, wanted)) == 5
    assert converge(root, wanted) == []
    assert "MIIBAAAA" in (root / "etc/ssl/certs/ca-certificates.crt").read_text()
    assert (root / "etc/apt/sources.list.d/cuda.sources").read_text().endswith("Signed-By: /usr/share/keyrings/cuda.asc\n")
    assert "--no-install-recommends python3-venv" in (root / "apt.log").read_text()


def test_an_authority_that_is_no_longer_wanted_goes_and_foreign_ones_stay(root: Path) -> None:
    foreign = root / "usr/local/share/ca-certificates/somebody.crt"
    foreign.write_text(PEM)
    converge(root, BaseWanted({"company.crt": PEM}, ()))
    assert converge(root, BaseWanted({}, ())) == ["Remove the certificate authority company.crt", "Rebuild the certificate bundle"]
    assert [path.name for path in foreign.parent.iterdir()] == ["somebody.crt"]


@pytest.mark.parametrize(("path", "says"), [("/other.pub", "holds no key"), ("/key.pub", f"holds {FINGERPRINT}, and {'0' * 40} alone is expected")])
def test_a_key_that_is_not_the_expected_one_is_never_trusted(root: Path, key_url: str, path: str, says: str) -> None:
    wanted = BaseWanted({}, (), (Repository("cuda", "https://example.org/", f"{key_url}{path}", "0" * 40),))
    with pytest.raises(KproError, match=says):
        converge(root, wanted)
    assert not (root / "usr/share/keyrings").exists() and not (root / "etc/apt").exists()


def test_a_package_that_does_not_exist_is_told_in_apts_words(root: Path) -> None:
    with pytest.raises(KproError, match="apt-get install: E: Unable to locate package no-such-package"):
        converge(root, BaseWanted({}, ("no-such-package",)))


def test_facts_name_the_system(root: Path) -> None:
    (root / "usr/local/cuda-13.0/bin").mkdir(parents=True)
    (root / "usr/local/cuda-13.0/bin/nvcc").touch()
    facts = Distribution(Command(), str(root)).facts()
    assert (facts["distribution"], facts["distribution_version"], facts["toolkits"]) == ("debian", "12", ["13.0"])
    assert facts["architecture"] and facts["python"].startswith("3.") and facts["glibc"].startswith("2.")


def test_a_repository_of_another_distribution_is_left_out() -> None:
    repositories = [
        {"name": "cuda", "uri": f"https://example.org/{name}/", "key_url": "u", "key_fingerprint": "f", "distribution": name}
        for name in ("debian12", "debian13")
    ]
    params = {"certificates": {}, "packages": [], "repositories": repositories, "user": "", "home": "/", "shell": "/"}
    wanted = runtime_base.wanted_from(params, {"distribution": "debian", "distribution_version": "13"})
    assert [repository.uri for repository in wanted.repositories] == ["https://example.org/debian13/"]


@pytest.mark.parametrize("name", ["company.pem", "../company.crt"])
def test_a_certificate_that_would_not_be_found_is_refused(name: str) -> None:
    params = {"certificates": {name: PEM}, "packages": [], "repositories": [], "user": "", "home": "/", "shell": "/"}
    with pytest.raises(KproError, match="not a plain file name"):
        runtime_base.wanted_from(params, {"distribution": "debian", "distribution_version": "12"})
