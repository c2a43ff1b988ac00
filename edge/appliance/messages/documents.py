"""Documents of the messages API, the same for server and command. Times are UTC seconds since 1970."""

from __future__ import annotations

from typing import Annotated

import msgspec

from bridge.hidden import hides
from edge.appliance.messages.limits import PROPERTIES_MAX, STEP_MESSAGES_MAX


class DeadLetterGroup(msgspec.Struct, kw_only=True):
    """Dead letters of one queue with the same reason and origin."""

    queue: str
    """Dead letter address that has them."""
    reason: str
    """Why they were dropped; empty for messages that a client sent to the queue itself."""
    origin: str = msgspec.field(name="from")
    """Address where they were dropped, and that a retry sends them to; empty as for `reason`."""
    messages: int
    """Messages that no consumer has taken yet."""
    last_at: float
    """Time when the last of them was dropped."""


class DeadLetterList(msgspec.Struct, kw_only=True):
    """Dead letters by queue, reason and origin, the most messages first."""

    groups: list[DeadLetterGroup]
    """At most 500."""
    total: int
    """Groups in all."""
    messages: int
    """Messages in all groups."""
    queues: list[str]
    """Dead letter addresses of the configuration."""
    complete: bool
    """False while messages are still being counted: ask again."""


class DeadLetterStep(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Selection of dead letters of one queue, for `retry` and `delete`. Without a condition: all of them."""

    queue: str
    """Dead letter address."""
    reason: str | None = None
    """Only this reason."""
    origin: str | None = msgspec.field(default=None, name="from")
    """Only from this address."""
    positions: Annotated[list[int], msgspec.Meta(max_length=STEP_MESSAGES_MAX)] | None = None
    """Only these messages, by `position`."""
    after: int | None = None
    """Continue after an earlier step: its `next`."""
    dry_run: bool = False
    """Count the messages, and check where they would go; change nothing."""


class DeadLetterMove(DeadLetterStep, kw_only=True, forbid_unknown_fields=True):
    """Selection of dead letters, for `move`."""

    to: str
    """Address that gets them."""


class DeadLetterOutcome(msgspec.Struct, kw_only=True):
    """Outcome of a step, which has up to 1 000 messages."""

    messages: int
    """Messages of the selection, before this step."""
    done: int = 0
    """Messages that were retried, moved or deleted: that is on disk."""
    kept: int = 0
    """Messages that stay in the queue, because they were refused or a consumer has them."""
    why: str = ""
    """Why messages stay."""
    next: int | None = None
    """Value of `after` for the next step; None: this was the last one."""


@hides("body")
class MessageDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One stored message."""

    position: int
    """Place in its log."""
    sequence: int
    """Number among the messages of its address."""
    address: str
    received_at: float
    """Time of its arrival, or, for a dead letter, of its drop."""
    device: str
    """Device that published it."""
    client: str = ""
    """Client of the publisher, if its name differs from the device's."""
    protocol: str = "MQTT"
    """``MQTT`` or ``AMQP``: how it came."""
    qos: int = 0
    retain: bool = False
    content_type: str | None = None
    properties: list[tuple[str, str]] = []
    """User properties of MQTT, application properties of AMQP; at most 50."""
    size: int = 0
    """Bytes of the body."""
    body: str = ""
    """Begin of the body: text, or hexadecimal digits if it is not text."""
    form: str = "text"
    """Form of `body`: ``text`` or ``hex``."""
    shown: int = 0
    """Bytes of the body that `body` has; fewer than `size` if it was cut."""
    reason: str = ""
    """Reason of a dead letter."""
    origin: str = msgspec.field(default="", name="from")
    """Address where a dead letter was dropped."""


class MessagePage(msgspec.Struct, kw_only=True):
    """Page of messages."""

    messages: list[MessageDocument]
    """Entries of this page, which may be fewer than `limit`."""
    next: int | None
    """Value of `after` for the next page; None: this is the last one."""
    log: str = ""
    """Log that has the messages: that of a queue, or of a rule for topics."""
    searched: int = 0
    """Messages that were looked at for this page."""


class ScheduledMessageDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One message that waits for its delivery time, without its body."""

    number: str
    """Identifier of the message, decimal digits."""
    address: str
    user: str = ""
    """User who sent it; empty without authentication."""
    device: str
    """Device that sent it."""
    client: str = ""
    """Client of the sender, if its name differs from the device's."""
    received_at: float
    """Time of its arrival."""
    due_in_s: float
    """Seconds until its delivery; 0: it is due."""
    size: int
    """Bytes of body, properties and address."""
    refused: str = ""
    """Why its address refused it at the last try; empty: it is not due yet."""


class ScheduledDeletion(msgspec.Struct, kw_only=True):
    """Outcome of the deletion of several scheduled messages."""

    messages: int
    """Messages that were deleted: that is on disk."""


class ScheduledMessageList(msgspec.Struct, kw_only=True):
    """Page of selected scheduled messages, in order of arrival."""

    messages: list[ScheduledMessageDocument]
    total: int
    """Selected messages, on all pages."""
    bytes: int
    """Bytes of all of them."""
    next: int | None
    """Value of `after` for the next page; None: this is the last one."""


@hides("body", "base64")
class NewMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Message that a person publishes."""

    address: str
    body: str = ""
    """Body as text."""
    base64: str | None = None
    """Body in Base64, instead of `body`."""
    content_type: str | None = None
    """Media type. A body of ``application/json`` has to be JSON."""
    properties: Annotated[dict[str, str], msgspec.Meta(max_length=PROPERTIES_MAX)] = {}
    """User properties."""
    retain: bool = False
    """Keep it as the last message of a topic."""
    ttl_s: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)] | None = None
    """Time to live, seconds."""


class PublishOutcome(msgspec.Struct, kw_only=True):
    """Outcome of a message that was accepted: it is on disk where its address stores messages."""

    subscribers: bool
    """False if no subscriber gets it: a topic without a subscriber keeps nothing."""
