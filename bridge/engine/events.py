"""What the AMQP machine tells its owner, and the link both of them hold. No call of the engine is made here."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from bridge.amqp_values import Symbols
from bridge.hidden import hides


class Condition(NamedTuple):
    """An error as it goes over the wire (AMQP 1.0 section 2.8.14): symbolic name and words for a person.

    `info`: pairs of symbols for programs. They are sent with links and connections, and not looked at when received.
    """

    name: str
    description: str = ""
    info: tuple[tuple[str, str], ...] = ()


Detail = Condition | bytes | None
"""What comes with a state: the condition of `rejected`, or the annotations of `modified` as an encoded map."""


class State(enum.IntEnum):
    """Delivery states (section 3.4); the two fields of `modified` that matter are told apart as states of their own."""

    NONE = 0
    """Settled without a state."""
    RECEIVED = 0x23
    ACCEPTED = 0x24
    REJECTED = 0x25
    RELEASED = 0x26
    MODIFIED = 0x27
    MODIFIED_FAILED = 0x127
    """`modified` with delivery-failed."""
    MODIFIED_UNDELIVERABLE = 0x227
    """`modified` with undeliverable-here."""

    @property
    def terminal(self) -> bool:
        return self >= State.ACCEPTED


class TerminusKind(enum.IntEnum):
    """What stands at an end of a link; NONE is a null terminus (a refused link, section 2.6.3)."""

    NONE = 0
    SOURCE = 1
    TARGET = 2
    COORDINATOR = 3


@hides("filters", "properties")
class Terminus(msgspec.Struct, frozen=True, kw_only=True):
    """A source or a target (sections 3.5.3, 3.5.4). With kind TARGET and no address: the anonymous relay."""

    kind: TerminusKind = TerminusKind.NONE
    address: str | None = None
    dynamic: bool = False
    durability: int = 0
    """0 none, 1 configuration, 2 unsettled-state."""
    expiry: str = "session-end"
    """`link-detach`, `session-end`, `connection-close` or `never`."""
    timeout_s: int = 0
    distribution_mode: str | None = None
    """`move` or `copy`; sources only."""
    capabilities: tuple[str, ...] = ()
    filters: Mapping[Any, Any] = {}
    """Filter set of a source: name -> `Described` filter."""
    properties: Mapping[Any, Any] = {}
    """dynamic-node-properties."""


def source(address: str | None, **fields: Any) -> Terminus:
    """A source to attach with."""
    return Terminus(kind=TerminusKind.SOURCE, address=address, **fields)


def target(address: str | None, **fields: Any) -> Terminus:
    """A target to attach with; address None is the anonymous relay."""
    return Terminus(kind=TerminusKind.TARGET, address=address, **fields)


class Link:
    """One link. The owner reads everything, writes only `context` and `messages_at_once`; names with an underscore are
    the machine's.

    `source`, `target`, capabilities, properties, modes and `max_message_size` are what the *peer* said.
    """

    __slots__ = (
        "_address",
        "_cost_bytes",
        "_delivery_next",
        "_message_bytes_max",
        "_ours",
        "_pn",
        "_sent",
        "_session",
        "_tags",
        "_unsettled",
        "attached",
        "closed",
        "context",
        "credit",
        "desired_capabilities",
        "draining",
        "is_sender",
        "max_message_size",
        "messages_at_once",
        "name",
        "offered_capabilities",
        "properties",
        "rcv_settle_mode",
        "snd_settle_mode",
        "source",
        "target",
    )

    def __init__(self, pn: Any, session: Any, name: str, *, is_sender: bool, ours: bool) -> None:
        self.name = name
        self.is_sender = is_sender
        """We send on it."""
        self.source = Terminus()
        self.target = Terminus()
        self.desired_capabilities: tuple[str, ...] = ()
        self.offered_capabilities: tuple[str, ...] = ()
        self.properties: Mapping[Any, Any] = {}
        self.snd_settle_mode = 2
        """0 unsettled, 1 settled, 2 mixed."""
        self.rcv_settle_mode = 0
        """0 first, 1 second."""
        self.max_message_size = 0
        """Bytes the peer takes in one message; 0: it did not say."""
        self.credit = 0
        """Messages we may send now, or that the peer may still send."""
        self.draining = False
        """The receiver asked to use up the credit or give it back (`Engine.drained`)."""
        self.attached = False
        """Both ends are attached."""
        self.closed = False
        """Detached or closed by either side: nothing can be done with it any more."""
        self.context: Any = None
        """Whatever the owner wants to find again."""
        self.messages_at_once = 0
        """Messages one `Transfers` of it may hold, set by the owner where each is work of its own; 0: no bound."""
        self._pn = pn
        self._address = 0
        self._session = session
        self._ours = ours
        self._message_bytes_max = 0
        self._cost_bytes = 0
        self._delivery_next = 0
        self._unsettled: dict[int, Any] = {}
        self._sent: dict[int, Any] = {}
        self._tags: dict[Any, int] = {}

    def __repr__(self) -> str:
        return f"<Link {self.name!r} {'to' if self.is_sender else 'from'} peer, credit {self.credit}>"


@hides("properties")
class Opened(msgspec.Struct, frozen=True, gc=False):
    """The peer's open. A server answers with `Engine.open` (or `Engine.close`)."""

    container_id: str
    hostname: str | None
    desired_capabilities: tuple[str, ...]
    offered_capabilities: tuple[str, ...]
    properties: Mapping[Any, Any]
    identity: str | None
    """What SASL established; None where there was no SASL."""


class Attached(msgspec.Struct, frozen=True, gc=False):
    """The peer attached: a link of its own (answer with `Engine.accept` or `Engine.refuse`), or the answer to ours.

    A refusal of ours by the peer is no Attached; it is the Detached alone, with the peer's condition.
    """

    link: Link


class Flow(msgspec.Struct, frozen=True, gc=False):
    """The credit of a link changed by the peer's doing: it granted, asked to drain, or gave back (`drained`)."""

    link: Link
    credit: int
    drain: bool


class Transfers(msgspec.Struct, frozen=True, gc=False):
    """Messages that arrived complete on one link in one read, in order.

    `deliveries` are numbers to be settled with `Engine.settle`, one a message; empty when `settled`.
    """

    link: Link
    deliveries: Sequence[int]
    messages: list[bytes]
    settled: bool

    def __repr__(self) -> str:
        """Counts and sizes, no bodies."""
        size = sum(map(len, self.messages))
        return f"<{len(self.messages)} transfers on {self.link!r}, {size} bytes, settled: {self.settled}>"


class Dispositions(msgspec.Struct, frozen=True, gc=False):
    """What the peer did with messages of ours: (tag, state, settled by the peer, detail).

    Where the peer settled, the delivery is over; where it did not, `Engine.settle_sent` ends it.
    """

    link: Link
    items: list[tuple[int, State, bool, Detail]]


class Detached(msgspec.Struct, frozen=True, gc=False):
    """The link is over by the peer's doing (the machine answers). Not told for links we detached ourselves."""

    link: Link
    closed: bool
    condition: Condition | None


class SessionEnded(msgspec.Struct, frozen=True, gc=False):
    """A session of the peer ended; its links were told as Detached (not closed) before."""

    condition: Condition | None


class Closed(msgspec.Struct, frozen=True, gc=False):
    """The connection is over; always the last event, exactly once. Its links end with it, without Detached."""

    condition: Condition | None


Event = Opened | Attached | Flow | Transfers | Dispositions | Detached | SessionEnded | Closed


def symbols(value: Any) -> tuple[str, ...]:
    """A field of type symbol with ``multiple``, as decoded, in the one form used here."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()


CAPABILITIES_DESIRED = "waypost:desired-capabilities"
CAPABILITIES_OFFERED = "waypost:offered-capabilities"


def link_properties(
    properties: Mapping[Any, Any] | None, desired: Sequence[str], offered: Sequence[str]
) -> dict[Any, Any]:
    """Link properties that carry the link's capabilities.

    Proton's engine writes the fields desired- and offered-capabilities of attach as null and drops the peer's, so
    they travel as link properties, which brokers do not echo (as many do a terminus' capabilities).
    """
    merged = dict(properties or {})
    if desired:
        merged[CAPABILITIES_DESIRED] = Symbols(desired)
    if offered:
        merged[CAPABILITIES_OFFERED] = Symbols(offered)
    return merged
