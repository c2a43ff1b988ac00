"""Tunnel through an HTTP proxy: the CONNECT method (RFC 9110 section 9.3.6) over a socket to the proxy.

After the proxy's answer the connection reaches the peer, including TLS: the proxy sees the destination and no content.
Sans-I/O.
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
"""Usual port of proxies (Squid)."""
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: ([^\r\n]*))?\r?\n")
_END: Final = re.compile(rb"\r?\n\r?\n")


class ProxyError(Exception):
    """The proxy refused the connection; the message says why and gives the next step."""


@hides("password")
class Proxy(ResourcePart, frozen=True, kw_only=True):
    """HTTP proxy on the way to a peer, used by CONNECT, with user name and password (Basic) where it requires them."""

    host: Live[Host]
    """Name or address of the proxy."""
    port: Live[Port] = PORT
    """TCP port of the proxy."""
    username: Live[str | None] = None
    """User name at the proxy; requires `password`."""
    password: Live[str | None] = None
    """Password, stored as it is; `get -o yaml` shows it, `describe` and `diff` do not."""

    @property
    def place(self) -> str:
        """``host:port``, for people."""
        return authority(self.host, self.port)


class PeerRoute(NamedTuple):
    """Route to a peer: its endpoint, and the proxy if any."""

    endpoint: ListenEndpoint
    proxy: Proxy | None = None
    """None: a direct connection."""

    def __str__(self) -> str:
        return str(self.endpoint) if self.proxy is None else f"{self.endpoint} through the proxy {self.proxy.place}"


class Tunnel:
    """Handshake with a proxy. Send `request`, then pass received bytes to `receive` until it is `open`."""

    def __init__(self, proxy: Proxy, host: str, port: int) -> None:
        """`host` is not resolved here: the proxy does that."""
        self.open = False
        self._proxy = proxy
        self._target = authority(host, port)
        self._answer = b""

    @property
    def request(self) -> bytes:
        """Bytes of the CONNECT request."""
        fields = [f"CONNECT {self._target} HTTP/1.1", f"Host: {self._target}"]
        if self._proxy.username is not None:
            shown = f"{self._proxy.username}:{self._proxy.password or ''}".encode()
            fields.append(f"Proxy-Authorization: Basic {base64.b64encode(shown).decode()}")
        return ("\r\n".join(fields) + "\r\n\r\n").encode()

    def receive(self, data: bytes) -> None:
        """Handle bytes of the proxy's answer; `data` empty: it has closed. Raises `ProxyError`."""
        self._answer += data
        end = _END.search(self._answer)
        status = _STATUS.match(self._answer)
        if end is None or status is None:
            if not data:
                raise ProxyError(f"the proxy {self._proxy.place} closed the connection without an answer")
            if len(self._answer) > PROXY_ANSWER_BYTES_MAX or (end is not None and status is None):
                raise ProxyError(f"the server at {self._proxy.place} is not an HTTP proxy")
            return
        code = int(status[1])
        if not 200 <= code < 300:
            raise ProxyError(self._refusal(code, (status[2] or b"").decode("latin-1")))
        if end.end() != len(self._answer):
            raise ProxyError(f"the proxy {self._proxy.place} sent bytes after its answer, before the peer could answer")
        self.open = True

    def _refusal(self, code: int, phrase: str) -> str:
        shown = re.sub(r"[^ -~]", "?", phrase)[:80]
        fault = f"the proxy {self._proxy.place} does not connect to {self._target}: {code} {shown}".rstrip()
        if code == 407:
            step = "correct its user name or password" if self._proxy.username else "set its user name and password"
            return f"{fault}; {step} (proxy: {{username, password}})"
        return fault


def parse_proxy(url: str) -> Proxy:
    """Parse ``http://[user:password@]host[:port]``, user and password percent-encoded. Raises `ValueError`, which
    quotes no password."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError("a proxy is written http://host:port, or with a name http://user:password@host:port")
    shown = [None if part is None else unquote(part) for part in (parts.username, parts.password)]
    proxy = Proxy(host=valid_host(parts.hostname), port=parts.port or PORT, username=shown[0], password=shown[1])
    if fault := proxy_fault(proxy):
        raise ValueError(fault)
    return proxy


def proxy_fault(proxy: Proxy) -> str:
    """Return the inconsistency in the settings of a proxy; empty when nothing is."""
    if (proxy.username is None) != (proxy.password is None):
        return "username and password go together"
    if proxy.username is not None and ":" in proxy.username:
        return "a user name with a colon cannot be sent to a proxy (RFC 7617)"
    return ""
