# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edge to the Proxmox API over https, by proxmoxer, from the controller."""

from __future__ import annotations

import dataclasses
import sys
import typing as t

from .._core.errors import KproError
from .answers import condition_of
from .api_edge import Params, PveError, PveTimeout, read_or_error, with_retries

VERBS = {"get": "get", "create": "post", "set": "put", "delete": "delete"}


@dataclasses.dataclass(frozen=True)
class Login:
    """Where the API is and who asks; secrets stay out of every message."""

    host: str
    user: str = "root@pam"
    port: int = 8006
    password: str = dataclasses.field(default="", repr=False)
    token_id: str = ""
    token_secret: str = dataclasses.field(default="", repr=False)
    ca_file: str = ""
    timeout_s: int = 30

    @classmethod
    def of(cls, params: t.Mapping[str, t.Any]) -> Login:
        """Return the login in a module's options.

        :raises KproError: if it has neither a password nor a token.
        """
        login = cls(
            params["api_host"],
            params["api_user"],
            params["api_port"],
            params["api_password"] or "",
            params["api_token_id"] or "",
            params["api_token_secret"] or "",
            params["api_ca_file"] or "",
            params["api_timeout_s"],
        )
        if not login.password and not (login.token_id and login.token_secret):
            raise KproError(f"login at {login.host}", "neither a password nor a token was given", "Give api_password, or api_token_id and api_token_secret")
        return login

    @property
    def name(self) -> str:
        """The login as Proxmox writes it; a token with an exclamation mark."""
        return f"{self.user}!{self.token_id}" if self.token_secret else self.user


class PveHttps:
    """The API over https: starts tasks and returns at once, and may only do what its login may.

    :raises KproError: if proxmoxer is missing or the login is refused.
    """

    def __init__(self, login: Login, deadline_s: float = 600.0, note: t.Callable[[str], None] = lambda sentence: None) -> None:
        self._login = login
        self._deadline_s = deadline_s
        self._note = note
        self._proxmoxer, self._requests = _libraries()
        self._client = self._guard("login", self._connect)

    @property
    def user(self) -> str:
        """Who asks."""
        return self._login.name

    def get(self, path: str, params: Params | None = None) -> t.Any:
        """Return the data of a read; one that takes too long is repeated within the deadline."""
        timeout_s = float(self._login.timeout_s)
        return with_retries(lambda: self._call("get", path, params or {}), f"reading {path}", timeout_s, self._deadline_s, self._note)

    def get_all(self, paths: t.Sequence[tuple[str, Params]]) -> list[t.Any]:
        """Return the data of several reads, a :class:`PveError` in the place of each refused one."""
        return [read_or_error(self, path, params) for path, params in paths]

    def put(self, path: str, params: Params) -> t.Any:
        """Change something at once."""
        return self._call("set", path, params)

    def task(self, verb: str, path: str, params: Params, timeout_s: float, details: Params | None = None) -> str:
        """Start a task and return its UPID at once; its worker belongs to the node's daemon and outlives everybody."""
        return str(self._call(verb, path, params))

    def _connect(self) -> t.Any:
        login = self._login
        way = {"token_name": login.token_id, "token_value": login.token_secret} if login.token_secret else {"password": login.password}
        verify: bool | str = login.ca_file or True
        return self._proxmoxer.ProxmoxAPI(login.host, port=login.port, user=login.user, verify_ssl=verify, timeout=login.timeout_s, **way)

    def _call(self, verb: str, path: str, params: Params) -> t.Any:
        # proxmoxer sends Python booleans as words, which the API refuses.
        plain = {key: int(value) if isinstance(value, bool) else value for key, value in params.items()}
        return self._guard(f"{verb} {path}", lambda: getattr(self._client(path.lstrip("/")), VERBS[verb])(**plain))

    def _guard(self, what: str, call: t.Callable[[], t.Any]) -> t.Any:
        where = f"Proxmox API at {self._login.host}: {what}"
        try:
            return call()
        except self._proxmoxer.ResourceException as error:
            errors = "; ".join(f"{key}: {str(text).strip()}" for key, text in sorted((error.errors or {}).items()))
            reason = errors or str(error.content or error.status_message).strip()
            cause, remedy = condition_of(reason)
            raise PveError(where, cause or reason, remedy, status=error.status_code) from error
        except self._proxmoxer.AuthenticationError as error:
            raise KproError(where, f"{self._login.name} was refused", "Correct the user (with its realm), the password or the token") from error
        except self._requests.exceptions.SSLError as error:
            raise KproError(where, f"its certificate is not trusted ({error})", "Give api_ca_file (on the node: /etc/pve/pve-root-ca.pem)") from error
        except self._requests.exceptions.Timeout as error:
            raise PveTimeout(where, f"no answer within {self._login.timeout_s} s") from error
        except self._requests.exceptions.ConnectionError as error:
            raise KproError(where, f"no connection ({error})", "Check address and port, and that pveproxy runs") from error


def _libraries() -> tuple[t.Any, t.Any]:
    try:
        import proxmoxer
        import requests
    except ImportError as error:
        python = f"{sys.executable} ({sys.version_info.major}.{sys.version_info.minor})"
        remedy = f"Install them for that one: {sys.executable} -m pip install proxmoxer requests; or choose another by ansible_python_interpreter"
        raise KproError("way over https", f"the Python package '{error.name}' can't be imported by {python}, with which the module runs", remedy) from error
    return proxmoxer, requests
