"""Link of an AMQP connection, shared by the machine and its owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bridge.amqp_values import Symbols
from bridge.engine.terminus import Terminus


class Deliveries:
    """Deliveries of all links of a connection."""

    __slots__ = ("partial", "unsettled")

    def __init__(self) -> None:
        self.unsettled = 0
        """Unsettled deliveries, in both directions."""
        self.partial: dict[Link, bytearray] = {}
        """Received bytes of large incomplete messages; at most one per link."""


class Link:
    """One link. The owner reads its public attributes and calls its methods; the machine writes them, and only the
    machine uses names with an underscore.

    `source`, `target`, capabilities, properties, modes and `max_message_size` are those of the *peer*.
    """

    __slots__ = (
        "_address",
        "_close_waits",
        "_cost_bytes",
        "_deliveries",
        "_delivery_next",
        "_message_bytes_max",
        "_ours",
        "_pn",
        "_sent",
        "_session",
        "_unsettled",
        "accepted_by_tag",
        "answers_close",
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

    def __init__(
        self,
        pn: Any,
        session: Any,
        name: str,
        *,
        is_sender: bool,
        ours: bool,
        deliveries: Deliveries | None = None,
    ) -> None:
        """`deliveries`: counts of the connection; None: this link counts its own."""
        self.name = name
        self.is_sender = is_sender
        """True when this end sends on it."""
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
        """Largest message in bytes that the peer takes; 0: not specified."""
        self.credit = 0
        """Messages that the sender may still send."""
        self.draining = False
        """The receiver requested a drain: use up the credit or return it (`Engine.drained`)."""
        self.attached = False
        """True while both ends are attached."""
        self.closed = False
        """Detached or closed by either end: it can no longer be used."""
        self.answers_close = False
        """The owner answers a closing detach of the peer (`Engine.answer_close`); otherwise the machine does."""
        self.accepted_by_tag = False
        """Accepted and settled messages are reported as `Accepted`, not among `Dispositions`."""
        self.context: Any = None
        """Any object of the owner."""
        self.messages_at_once = 0
        """Most messages in one `Transfers`, set by the owner where each message is much work; 0: no limit."""
        self._pn = pn
        self._address = 0
        self._close_waits = False
        """The peer has closed the link, and the owner has to answer."""
        self._session = session
        self._ours = ours
        self._message_bytes_max = 0
        self._cost_bytes = 0
        self._deliveries = Deliveries() if deliveries is None else deliveries
        self._delivery_next = 0
        self._unsettled: dict[int, Any] = {}
        self._sent: dict[int, Any] = {}

    def bind(self, context: Any) -> None:
        """Attach an object of the owner."""
        self.context = context

    def report_accepted_by_tag(self) -> None:
        """Report accepted and settled messages as `Accepted`, not among `Dispositions`."""
        self.accepted_by_tag = True

    def defer_close_to_owner(self, *, answers: bool) -> None:
        """Set whether the owner answers a closing detach of the peer; otherwise the machine does."""
        self.answers_close = answers

    def bound_transfers(self, messages: int) -> None:
        """Limit the messages in one `Transfers`, where each message is much work."""
        self.messages_at_once = messages

    def __repr__(self) -> str:
        return f"<Link {self.name!r} {'to' if self.is_sender else 'from'} peer, credit {self.credit}>"


def symbols(value: Any) -> tuple[str, ...]:
    """Return a decoded field of type symbol with ``multiple`` as a tuple."""
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
