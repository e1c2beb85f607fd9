"""Who may talk to the page's server, and what every answer carries.

- A random token, made at each start, stands in the page's address; the page sends it with every
  request. No cookie is used, so a browser adds nothing to what other sites make it send.
- The name in `Host` must be this machine's: a foreign name that resolves to 127.0.0.1 (DNS
  rebinding) is refused. `Origin` must be the page's own wherever something is written.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mini_fsod.limits import BODY_BYTES

METHODS = ("GET", "POST")
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_this_machine(name: str, served: str) -> bool:
    """Whether a name in `Host` may be meant for a server that listens on the host `served`.

    Numbers cannot be rebound. Ports are not compared: an ssh tunnel has another one.
    """
    if is_loopback(name):
        return True
    if is_loopback(served):
        return False
    this_machine = socket.gethostname().lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in (served.lower(), this_machine, f"{this_machine}.local")
    return True


class Guard:
    """Refuses requests that are not the page's own, before anything else sees them."""

    def __init__(self, app: ASGIApp, token: str, host: str) -> None:
        self._app, self._token, self._host = app, token, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no web sockets
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                more = ((k.encode(), v.encode()) for k, v in HEADERS.items())
                message["headers"] = [
                    *message["headers"], *(pair for pair in more if pair[0] not in given)
                ]  # fmt: skip
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            status, why = refusal
            await JSONResponse({"error": why}, status)(scope, receive, send_guarded)
        else:
            await self._app(scope, receive, send_guarded)

    def _refusal(self, scope: MutableMapping[str, Any]) -> tuple[int, str] | None:
        """Status and reason, or None for a request that may pass."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        host, method = headers.get("host", []), scope["method"]
        if len(host) != 1 or not is_this_machine(_name_of(host[0]), self._host):
            return 403, "This is not the server's address."
        if method not in METHODS:
            return 405, "Only GET and POST are answered."
        if not self._knows_token(scope, headers):
            return 403, "The token is missing or wrong. Open the address that mini review printed."
        from_site = headers.get("sec-fetch-site", ["same-origin"])
        allowed = {"same-origin"} if method == "POST" else {"same-origin", "none"}
        if not {*from_site} <= allowed:
            return 403, "Other sites may not use this page."
        origin = headers.get("origin", [])
        if (method == "POST" or origin) and origin != [f"{scope['scheme']}://{host[0]}"]:
            return 403, "Other sites may not use this page."
        if method == "POST":
            if headers.get("content-type", [""])[0].partition(";")[0] != "application/json":
                return 415, "Send application/json."
            length = headers.get("content-length", ["0"])[0]
            if not length.isdecimal() or int(length[:20]) > BODY_BYTES:
                return 413, f"More than {BODY_BYTES >> 20} MB."
        return None

    def _knows_token(self, scope: MutableMapping[str, Any], headers: dict[str, list[str]]) -> bool:
        if scope["path"] == "/":
            query = scope["query_string"].decode("latin-1")
            given = parse_qs(query).get("token", [])
        else:
            given = [v.removeprefix("Bearer ") for v in headers.get("authorization", [])]
        return len(given) == 1 and secrets.compare_digest(
            given[0].encode("utf-8", "replace"), self._token.encode()
        )


def _name_of(host: str) -> str:
    """The name in a `Host` header, without the port; empty where it is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower() if "@" not in host else ""
    except ValueError:
        return ""
