"""A way out through an HTTP proxy: the CONNECT method (RFC 9110 section 9.3.6), for whoever has a socket to the proxy.

Behind the proxy's answer the connection is the peer's alone, TLS and all: the proxy sees where to, and nothing of what
is said. Sans-I/O.
"""

from __future__ import annotations

import base64
import re
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from bridge.hidden import hides
from bridge.limits import PROXY_ANSWER_BYTES_MAX
from bridge.resources.endpoint import ListenEndpoint, authority, valid_host
from bridge.resources.fields import Host, Live, Port, ResourcePart

PORT: Final = 3128
"""Where proxies usually listen (Squid's)."""
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: ([^\r\n]*))?\r?\n")
_END: Final = re.compile(rb"\r?\n\r?\n")


class ProxyError(Exception):
    """The proxy does not let us through; the message says why, and what to do."""


@hides("password")
class Proxy(ResourcePart, frozen=True, kw_only=True):
    """The HTTP proxy through which a peer is reached: CONNECT, with name and password (Basic) where it wants them."""

    host: Live[Host]
    """Its name or address."""
    port: Live[Port] = PORT
    """Its TCP port."""
    username: Live[str | None] = None
    """Who we are there; it needs `password`."""
    password: Live[str | None] = None
    """In the clear; `get -o yaml` shows it, `describe` and `diff` do not."""

    @property
    def place(self) -> str:
        """``host:port``, for people."""
        return authority(self.host, self.port)


class PeerRoute(NamedTuple):
    """How a peer is reached."""

    endpoint: ListenEndpoint
    proxy: Proxy | None = None
    """None: directly."""

    def __str__(self) -> str:
        return str(self.endpoint) if self.proxy is None else f"{self.endpoint} through the proxy {self.proxy.place}"


class Tunnel:
    """The exchange with a proxy before a connection is the peer's. Send `request`, then give it what comes until it is
    `open`."""

    def __init__(self, proxy: Proxy, host: str, port: int) -> None:
        """`host` is not looked up here: the proxy does that."""
        self.open = False
        self._proxy = proxy
        self._target = authority(host, port)
        self._answer = b""

    @property
    def request(self) -> bytes:
        """What the proxy is told first."""
        fields = [f"CONNECT {self._target} HTTP/1.1", f"Host: {self._target}"]
        if self._proxy.username is not None:
            shown = f"{self._proxy.username}:{self._proxy.password or ''}".encode()
            fields.append(f"Proxy-Authorization: Basic {base64.b64encode(shown).decode()}")
        return ("\r\n".join(fields) + "\r\n\r\n").encode()

    def receive(self, data: bytes) -> None:
        """Take what the proxy answers; `data` empty: it has closed. Raises `ProxyError`."""
        self._answer += data
        end = _END.search(self._answer)
        status = _STATUS.match(self._answer)
        if end is None or status is None:
            if not data:
                raise ProxyError(f"the proxy {self._proxy.place} closes the connection without an answer")
            if len(self._answer) > PROXY_ANSWER_BYTES_MAX or (end is not None and status is None):
                raise ProxyError(f"what listens at {self._proxy.place} is no HTTP proxy")
            return
        code = int(status[1])
        if not 200 <= code < 300:
            raise ProxyError(self._refusal(code, (status[2] or b"").decode("latin-1")))
        if end.end() != len(self._answer):
            raise ProxyError(f"the proxy {self._proxy.place} says more than its answer before the peer has been asked")
        self.open = True

    def _refusal(self, code: int, phrase: str) -> str:
        shown = re.sub(r"[^ -~]", "?", phrase)[:80]
        said = f"the proxy {self._proxy.place} does not connect to {self._target}: {code} {shown}".rstrip()
        if code == 407:
            step = "it takes another name or password" if self._proxy.username else "it asks for a name and a password"
            return f"{said}; {step} (proxy: {{username, password}})"
        return said


def parse_proxy(url: str) -> Proxy:
    """``http://[user:password@]host[:port]``, user and password percent-encoded. Raises `ValueError`, which quotes no
    password."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError("a proxy is written http://host:port, or with a name http://user:password@host:port")
    shown = [None if part is None else unquote(part) for part in (parts.username, parts.password)]
    proxy = Proxy(host=valid_host(parts.hostname), port=parts.port or PORT, username=shown[0], password=shown[1])
    if fault := proxy_fault(proxy):
        raise ValueError(fault)
    return proxy


def proxy_fault(proxy: Proxy) -> str:
    """What does not fit together in it; empty: it does."""
    if (proxy.username is None) != (proxy.password is None):
        return "username and password go together"
    if proxy.username is not None and ":" in proxy.username:
        return "a user name with a colon cannot be sent to a proxy (RFC 7617)"
    return ""
