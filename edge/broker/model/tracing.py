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
"""Makes the owner of a driver once its transport is there."""


class Destination(NamedTuple):
    """Destination of the messages of one address, by the current routes."""

    kind: str
    """Type of the address: ``queue``, ``topic``, …"""
    live: int = 0
    """Consumers and subscribers that are connected and get it now."""
    log: int | None = None
    """Log that keeps it; None: no log does."""
    log_name: str = ""
    epoch: str = ""
    """Epoch of the store, by which its sequences are named."""
    in_memory: bool = False
    """The log is kept in memory."""


class TracedPublication(Protocol):
    """`edge.broker.router.batch.Publication`, as far as a trace needs it."""

    @property
    def run(self) -> Run:
        """Messages that are alike."""
        ...

    @property
    def tokens(self) -> Sequence[int]:
        """Numbers under which the messages are answered; empty: they are not."""
        ...


class TracedRouter(Protocol):
    """`edge.broker.router.router.Router`, as far as a trace needs it."""

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
    """The trace of one connection, as its session has it (`ConnectionDriver.trace`)."""

    def publish(self, router: TracedRouter, publication: TracedPublication) -> None:
        """Publish a run as `Router.publish` does, and report where it goes."""
        ...

    def refused(self, address: str, tokens: Sequence[int], why: Refusal) -> None:
        """Report that messages were not taken. `address`: empty where it is known by the packets."""
        ...


class Tracer(Protocol):
    """Shows packets and frames of connections to the traces that are running."""

    @property
    def active(self) -> bool:
        """A trace is running."""
        ...

    def follow(
        self, machine: ConnectionMachine, protocol: str, owner: MakeOwner
    ) -> tuple[ConnectionMachine, MakeOwner]:
        """Return the machine and the owner for the driver of a new connection. Without a trace both are unchanged."""
        ...

    def tls_refused(self, listener: str, remote: str, why: str) -> None:
        """Report a failed TLS handshake."""
        ...

    def requested(self, request: HttpRequest) -> None:
        """Report a request over HTTP that was answered."""
        ...


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
    """0: the client went before an answer."""
    error: str = ""
    """Error text of the answer, or a remark on what happened to the messages."""


@runtime_checkable
class Traceable(Protocol):
    """An owner of a connection that can be traced while it is open."""

    @property
    def connection(self) -> ConnectionMachine:
        """The protocol machine, without what is around it."""
        ...

    @property
    def trace_names(self) -> tuple[str, str]:
        """Client (or container) identifier and user; empty where they are not known."""
        ...

    def retrace(self) -> None:
        """A trace of the connection has started or ended: the fast path forgets what it has learnt."""
        ...


def as_traceable(owner: object) -> Traceable | None:
    """Return an owner that can be traced while its connection is open; None for others."""
    return owner if isinstance(owner, Traceable) else None


class Untraced:
    """A tracer that never traces."""

    active = False

    def follow(
        self, machine: ConnectionMachine, protocol: str, owner: MakeOwner
    ) -> tuple[ConnectionMachine, MakeOwner]:
        return machine, owner

    def tls_refused(self, listener: str, remote: str, why: str) -> None:
        """Do nothing."""

    def requested(self, request: HttpRequest) -> None:
        """Do nothing."""


UNTRACED = Untraced()
