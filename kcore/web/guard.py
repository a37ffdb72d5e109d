"""What every request passes: the check of its Host header, and headers that limit what a browser does with a page."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: No script and no style but those of files of this server, so a message that became a tag could do nothing.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_NO_STORE = (b"cache-control", b"no-store")
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def host_of(header: str) -> str:
    """The host of a Host header, without its port and brackets, in lower case."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def is_address(host: str) -> bool:
    """Whether it is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Hosts:
    """Which Host headers are answered.  A page of another site whose name an attacker has lead to this machine (DNS
    rebinding) sends that name.

    listening: the address that the server listens on; on one that stands for all of the machine (0.0.0.0, ::) every
    address is answered.  names: other names of the machine.
    """

    def __init__(self, listening: str, names: Collection[str] = ()) -> None:
        host = host_of(listening) if not is_address(listening) else listening.lower()
        self._names = _LOOPBACK_NAMES | {host} | {name.lower() for name in names}
        self._any_address = is_address(host) and ipaddress.ip_address(host).is_unspecified

    def __contains__(self, header: str) -> bool:
        host = host_of(header)
        return host in self._names or (self._any_address and is_address(host))


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                is_static = scope["path"].startswith("/static/")
                message["headers"] = [*message["headers"], *_HEADERS, *([] if is_static else [_NO_STORE])]
            await send(message)

        headers = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        app = self._app
        if len(headers) != 1 or headers[0] not in self._hosts:
            app = PlainTextResponse(
                "kcore web does not answer under this name.  Use the address that it printed, or start it with "
                "--http-name NAME.\n",
                status_code=421,
            )
        await app(scope, receive, send_guarded)
