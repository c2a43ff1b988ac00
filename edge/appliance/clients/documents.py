"""Documents of the clients API, the same for server and command. Times are UTC seconds since 1970."""

from __future__ import annotations

from typing import Final

import msgspec


class RefusalDocument(msgspec.Struct, kw_only=True):
    """Refusals of one client for one reason."""

    number: int
    """Number of the last refusal; a later one has a higher number."""
    reason: str
    """Code of the reason, such as ``wrong-password`` (`edge.broker.model.refusals.RefusalCause`)."""
    what: str
    """Why the client is refused, as a sentence."""
    next_step: str
    """Next step for the operator."""
    remote: str
    """Host of the client; empty when it is not known."""
    user: str
    """User name that the client gave; empty: none."""
    client: str
    """Client identifier or container id; empty when it is not known yet."""
    address: str
    """Address of the last refused message or subscription; empty for other reasons."""
    first_at: float
    """First refusal."""
    last_at: float
    """Last refusal."""
    count: int
    """Refusals from the first to the last."""
    right: str = ""
    """Right that would have allowed it, such as ``send:plant/7``; empty for other reasons."""


class RefusalPage(msgspec.Struct, kw_only=True):
    """Page of refused clients, the latest first."""

    refusals: list[RefusalDocument]
    """Entries of this page."""
    next: str | None
    """Value of `after` for the next page; None: this is the last one."""
    total: int
    """Entries that match the request, on all pages."""


class ClientDocument(msgspec.Struct, kw_only=True):
    """One client: an MQTT session, an AMQP connection, or an HTTP device that waits for a message."""

    id: str
    """Identity for `/api/v1/clients/{id}`: ``mqtt/`` and the client identifier, ``amqp/`` or ``http/`` and a number."""
    name: str
    """Client identifier, container id or device."""
    user: str
    """User that the client has authenticated as; empty without authentication."""
    protocol: str
    """Protocol with its version; ``MQTT`` while the client is not connected."""
    remote: str
    """``host:port`` of the client; empty while it is not connected."""
    tls: str
    """Version of TLS; empty without TLS."""
    state: str
    """``connected``, ``silent`` (for longer than usual, connected or not) or ``absent``."""
    why: str
    """Explanation of the state; empty for a connected client."""
    connected_at: float | None
    """Begin of the connection; None while the client is not connected."""
    received: int = msgspec.field(name="in")
    """Messages from the client since it connected."""
    sent: int = msgspec.field(name="out")
    """Messages to the client since it connected."""
    subscriptions: int
    """Subscriptions of MQTT, receiving links of AMQP, queues of HTTP."""
    queued: int
    """Stored messages for the subscriptions of an MQTT session that it has not acknowledged."""
    in_flight: int
    """Messages sent to the client that it has not acknowledged."""
    last_at: float | None
    """Last message from the client, to some seconds; None if it has sent none."""


class ClientSubscription(msgspec.Struct, kw_only=True):
    """One subscription or receiving link of a client."""

    filter: str
    """Topic filter or address."""
    qos: int | None = None
    """Quality of service; None for AMQP and HTTP."""
    queued: int = 0
    """Stored messages that the client has not acknowledged."""


class ClientDetail(ClientDocument, kw_only=True):
    """One client in full."""

    session_ends_at: float | None
    """End of a stored session if the client does not return; None: no end, or it is connected."""
    usual_interval_s: int | None
    """Usual seconds between messages from the client; None while it is not known."""
    filters: list[ClientSubscription]
    """Subscriptions, at most `FILTERS_SHOWN_MAX`."""
    rights: list[str]
    """Rights of the user, such as ``send:plant/#``; empty also without authentication."""
    refusals: list[RefusalDocument]
    """Latest refusals of this client or its user."""


class ClientPage(msgspec.Struct, kw_only=True):
    """Page of clients."""

    clients: list[ClientDocument]
    """Entries of this page."""
    next: str | None
    """Value of `after` for the next page; None: this is the last one."""
    total: int
    """Clients that match the request, on all pages."""


class ClientDisconnection(msgspec.Struct, kw_only=True):
    """Outcome of `DELETE /api/v1/clients/{id}`."""

    id: str
    """Identity of the client."""
    disconnected: bool
    """True if a connection was closed."""
    session_ended: bool
    """True if the stored session was ended, with its subscriptions and their messages."""


FILTERS_SHOWN_MAX: Final = 200
"""Subscriptions that the document of one client lists."""

REFUSALS_SHOWN_MAX: Final = 10
"""Refusals that the document of one client lists."""
