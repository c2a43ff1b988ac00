"""Check Host and Origin of HTTP and WebSocket requests against the names of this node, without I/O.

A browser runs the pages of every site its user visits. A page of evil.example can make its name resolve to 127.0.0.1
(DNS rebinding) and then has the same origin as this node. It cannot choose Host, which is its own name, nor Origin
(RFC 6454) nor Sec-Fetch-Site (Fetch Metadata). Programs other than browsers can send any value there; credentials
protect against those.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

LOCALHOST: Final = "localhost"
EVERY_ORIGIN: Final = "*"
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~-]+)(?::[0-9]{0,5})?")
"""``Host`` (RFC 9110 section 7.2): a name or an address, and a port unless it is the default."""
_ORIGIN: Final = re.compile(r"https?://(.+)")
_OWN_FETCHES: Final = frozenset(("same-origin", "none"))
"""Sec-Fetch-Site of requests that a page of ours or a person made, not a page of another origin."""


class ForeignRequest(Exception):
    """The request names another host, or comes from a page of another site."""

    def __init__(self, status: int, text: str) -> None:
        """`status` is the HTTP status."""
        super().__init__(text)
        self.status = status


class RequestOrigin(NamedTuple):
    """Header fields that say where a request goes and which page made it; None if absent."""

    host: str | None
    origin: str | None = None
    fetch_site: str | None = None
    """Sec-Fetch-Site."""
    navigates: bool = False
    """A person follows a link to a page of ours; no script can read the response."""


class Site:
    """Names of one node, and the check of requests from browsers."""

    def __init__(self, hosts: Iterable[str], *, exposed: bool, machine: str = "", listed: Iterable[str] = ()) -> None:
        """`hosts`: those of the listeners; `exposed`: other machines can reach one of them; `machine`: name of this
        machine; `listed`: further configured names, of a proxy or in the DNS."""
        listed_names = {name.lower().rstrip(".") for name in listed}
        own = machine.lower().partition(".")[0]
        own_names = {machine.lower(), own, f"{own}.local"} if exposed and own else set()
        self._exposed = exposed
        self._names = frozenset({host.lower() for host in hosts} | own_names | listed_names | {LOCALHOST})
        self._all_are_listed = bool(listed_names)

    def check(self, request: RequestOrigin, *, guarded: bool, others: Collection[str] = ()) -> None:
        """Raise ForeignRequest unless the request may be served.

        `guarded`: the client has to authenticate. `others`: other origins with access to this route (CORS).
        """
        self.check_host(request.host, guarded=guarded)
        if request.origin is not None:
            if not (same_origin(request.origin, request.host) or request.origin in others or EVERY_ORIGIN in others):
                raise ForeignRequest(403, "pages of other sites may not use this node")
        elif request.fetch_site not in (None, *_OWN_FETCHES) and not request.navigates and not others:
            raise ForeignRequest(403, "pages of other sites may not use this node")

    def check_host(self, host: str | None, *, guarded: bool) -> None:
        """Raise ForeignRequest unless `host`, a Host header, names this node. None (HTTP/1.0) passes: no browser."""
        if host is None:
            return
        name = host_name(host)
        if name is None:
            raise ForeignRequest(400, "Host is neither a name nor an address")
        if not self._knows(name, guarded=guarded):
            raise ForeignRequest(
                421,
                f"{name[:100]} is not a name of this node: use its address, or list the name in listeners.hostNames",
            )

    def check_page_of_this_host(self, host: str | None, origin: str | None, *, guarded: bool) -> None:
        """Check a WebSocket upgrade: allow pages of any port of this host and of the browser's own machine, as such
        listeners serve no pages."""
        self.check_host(host, guarded=guarded)
        if origin is None:
            return
        of_page = _ORIGIN.fullmatch(origin)
        theirs = host_name(of_page[1]) if of_page else None
        ours = host_name(host or "")
        if theirs is None or not (theirs == ours or _is_loopback(theirs)):
            raise ForeignRequest(403, "pages of other sites may not use this node")

    def _knows(self, name: str, *, guarded: bool) -> bool:
        if name in self._names or _is_loopback(name):
            return True
        if not self._exposed:
            return False
        # DNS rebinding needs a name, not an address. Where clients authenticate, a browser has no credentials for a
        # page of an unknown name.
        return _address(name) is not None or (guarded and not self._all_are_listed)


def host_name(host: str) -> str | None:
    """Return name or address of a Host field in lower case, without port and brackets; None if it is malformed."""
    found = _HOST.fullmatch(host)
    return found[1].lower().strip("[]").rstrip(".") or None if found else None


def same_origin(origin: str, host: str | None) -> bool:
    """Return True for a page of the requested host and port. Schemes may differ, as a proxy may terminate TLS."""
    found = _ORIGIN.fullmatch(origin.lower())
    return found is not None and host is not None and found[1] == host.lower()


def is_loopback(host: str) -> bool:
    """Return True for a loopback name or address."""
    return _is_loopback(host.lower())


def _is_loopback(name: str) -> bool:
    address = _address(name)
    return name == LOCALHOST if address is None else address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
