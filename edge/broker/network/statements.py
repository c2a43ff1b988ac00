"""Documents that neighbours exchange, as JSON: greetings, statements of routers, and requests for them."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from bridge.connectors.limits import ROUTER_COST_MAX, ROUTER_HELLO_S_MAX
from edge.broker.limits import (
    NETWORK_ANNOUNCED_MAX,
    NETWORK_NAME_BYTES_MAX,
    NETWORK_NEIGHBOURS_MAX,
)

VERSION: Final = 1
"""Version of these documents. A router refuses a neighbour with another one."""

RouterName = Annotated[
    str, msgspec.Meta(min_length=1, max_length=NETWORK_NAME_BYTES_MAX, pattern=r"\A[^,\x00-\x1f]+\Z")
]
"""Name of a router; the hops of a message are names separated by commas."""
LinkCost = Annotated[int, msgspec.Meta(ge=1, le=ROUTER_COST_MAX)]
NUMBER_MAX: Final = 2**62
Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Announced = Annotated[str, msgspec.Meta(min_length=2, max_length=NETWORK_NAME_BYTES_MAX + 1, pattern=r"\A[am]")]

ANYCAST: Final = "a"
MULTICAST: Final = "m"
"""First characters of announced addresses, by their type; the name or filter follows."""


class Hello(msgspec.Struct, frozen=True, tag="hello", gc=False):
    """Greeting: the first document over a link, and then again in each interval."""

    router: RouterName
    version: int
    cost: LinkCost | None = None
    """Cost of the link in both directions; only the router that dials states it."""
    interval_s: Annotated[float, msgspec.Meta(ge=0.1, le=ROUTER_HELLO_S_MAX)] | None = None
    """Interval of greetings in both directions; only the router that dials states it."""


class Statement(msgspec.Struct, frozen=True, tag="statement"):
    """State of one router, or its changes since an earlier version; passed on to all routers."""

    router: RouterName
    instance: Number
    """Milliseconds since 1970 at the start of the router: a later one replaces what former processes have stated."""
    version: Number
    base: Number
    """Version that `added` and `removed` change; 0: the statement is complete."""
    neighbours: Annotated[dict[RouterName, LinkCost], msgspec.Meta(max_length=NETWORK_NEIGHBOURS_MAX)]
    added: Annotated[list[Announced], msgspec.Meta(max_length=NETWORK_ANNOUNCED_MAX)] = []
    removed: Annotated[list[Announced], msgspec.Meta(max_length=NETWORK_ANNOUNCED_MAX)] = []


class StatementRequest(msgspec.Struct, frozen=True, tag="request", gc=False):
    """Request for the complete statement of a router, because changes are missing."""

    router: RouterName


NetworkDocument = Hello | Statement | StatementRequest

_DECODER: Final = msgspec.json.Decoder(NetworkDocument)


class StatementError(ValueError):
    """The neighbour sent something other than a document of this version."""


def can_announce(name: str) -> bool:
    """Return whether an address is short enough as JSON, so that a statement with the most addresses keeps to
    `NETWORK_STATEMENT_BYTES_MAX` also if their characters are escaped."""
    return len(msgspec.json.encode(name)) - 2 <= NETWORK_NAME_BYTES_MAX


def encode_document(document: NetworkDocument) -> bytes:
    """Encode a document."""
    return msgspec.json.encode(document)


def decode_document(encoded: bytes) -> NetworkDocument:
    """Decode a document. Raises `StatementError`."""
    try:
        document: NetworkDocument = _DECODER.decode(encoded)
    except (msgspec.DecodeError, RecursionError) as error:
        raise StatementError(str(error)) from None
    return document
