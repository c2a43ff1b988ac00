"""Interfaces between sessions, listeners and the packet trace (`edge.broker.tracing`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from bridge.message import Run
from bridge.transport.connection import ConnectionMachine
from bridge.transport.driver import ConnectionDriver, ConnectionOwner
from edge.broker.model.interfaces import Refusal
from edge.broker.model.isolation import EventListeners

MakeOwner: TypeAlias = Callable[[ConnectionDriver], ConnectionOwner]
"""Creates the owner of a driver once its transport is connected."""


class Destination(NamedTuple):
    """Destination of the messages of one address, by the current routes."""

    kind: str
    """Type of the address: ``queue``, ``topic``, …"""
    live: int = 0
    """Connected consumers and subscribers that get it now."""
    log: int | None = None
    """Log that stores it; None: it is not stored."""
    log_name: str = ""
    epoch: str = ""
    """Epoch of the store, part of the message names."""
    in_memory: bool = False
    """The log is kept in memory."""


class TracedPublication(Protocol):
    """The part of `edge.broker.router.batch.Publication` that a trace needs."""

    @property
    def run(self) -> Run:
        """Run of messages."""
        ...

    @property
    def tokens(self) -> Sequence[int]:
        """Tokens for the answers to the messages; empty: no answer."""
        ...


class TracedRouter(Protocol):
    """The part of `edge.broker.router.router.Router` that a trace needs."""

    @property
    def commit_listeners(self) -> EventListeners[[Any]]:
        """Called at the end of each commit (`edge.broker.store.records.Committed`), before answers are released."""
        ...

    def publish(self, batch: Any, /) -> None:
        """Route a run."""
        ...

    def destination(self, address: str, qos: int) -> Destination:
        """Return where messages of this QoS to an address go."""
        ...


class ConnectionTrace(Protocol):
    """Trace of one connection, held by its session (`ConnectionDriver.trace`)."""

    def publish(self, router: TracedRouter, publication: TracedPublication) -> None:
        """Publish a run as `Router.publish` does, and report its destination."""
        ...

    def refused(self, address: str, tokens: Sequence[int], why: Refusal) -> None:
        """Report that messages were refused. `address`: empty where the packets show it."""
        ...


class Tracer(Protocol):
    """Passes packets and frames of connections to the running traces."""

    @property
    def active(self) -> bool:
        """True while a trace is running."""
        ...

    def follow(
        self, machine: ConnectionMachine, protocol: str, owner: MakeOwner
    ) -> tuple[ConnectionMachine, MakeOwner]:
        """Return the machine and the owner factory for a new connection. Without a trace both are unchanged."""
        ...

    def tls_refused(self, listener: str, remote: str, why: str) -> None:
        """Report a failed TLS handshake."""
        ...

    def requested(self, request: HttpRequest) -> None:
        """Report an HTTP request and its answer."""
        ...

    def relayed(self, run: RelayedMessages) -> None:
        """Report messages between this router and a neighbour, or their answers."""
        ...


class RelayedMessages(NamedTuple):
    """Messages of one address between this router and a neighbour, or the answers to them."""

    neighbour: str
    from_neighbour: bool
    """True for messages from the neighbour, and for our answers to them."""
    address: str
    messages: int
    route: str
    """Routers that they have passed, or the one to which they go; empty for answers and multicast messages."""
    outcome: str = ""
    """Answer; empty: these are messages."""
    payload_bytes: int | None = None


class HttpRequest(NamedTuple):
    """One HTTP request and its answer, without their bodies."""

    method: str
    path: str
    remote: str
    """``host:port`` of the client."""
    user: str
    """Empty: not known."""
    received_bytes: int
    """Size of the request's body."""
    sent_bytes: int
    """Size of the answer's body."""
    status: int
    """0: the client disconnected before an answer."""
    error: str = ""
    """Error text of the answer, or a remark on what happened to the messages."""


@runtime_checkable
class Traceable(Protocol):
    """Owner of a connection that can be traced while the connection is open."""

    @property
    def connection(self) -> ConnectionMachine:
        """Protocol machine, without its wrappers."""
        ...

    @property
    def trace_names(self) -> tuple[str, str]:
        """Client (or container) identifier and user; empty where they are not known."""
        ...

    def reset_fast_path(self) -> None:
        """Reset the fast path, because a trace of the connection has started or ended."""
        ...


def as_traceable(owner: object) -> Traceable | None:
    """Return the owner if it can be traced while its connection is open; otherwise None."""
    return owner if isinstance(owner, Traceable) else None


class Untraced:
    """Tracer that does nothing."""

    active = False

    def follow(
        self, machine: ConnectionMachine, protocol: str, owner: MakeOwner
    ) -> tuple[ConnectionMachine, MakeOwner]:
        return machine, owner

    def tls_refused(self, listener: str, remote: str, why: str) -> None:
        """Do nothing."""

    def requested(self, request: HttpRequest) -> None:
        """Do nothing."""

    def relayed(self, run: RelayedMessages) -> None:
        """Do nothing."""


UNTRACED = Untraced()
