"""Documents of the addresses API, the same for server and command. Times are UTC seconds since 1970."""

from __future__ import annotations

import msgspec


class AddressDocument(msgspec.Struct, kw_only=True):
    """One row: queue, durable subscription, anycast address with consumers, or rule for topics or multicast."""

    id: str
    """Identity, unique among the rows."""
    address: str
    """Name of the address; the filter of a subscription or a rule."""
    type: str
    """``queue``, ``deadletter``, ``subscription``, ``forwarder``, ``anycast``, ``multicast`` or ``topic``."""
    subscription: str
    """Name of a durable subscription; empty for others."""
    received: int | None
    """Messages from publishers: for a queue ever, for others since the start; None for a durable subscription, which
    shares its log with others."""
    delivered: int | None
    """Messages given to consumers since the start, also again; for topics and multicast copies for live subscribers."""
    received_per_s: float | None
    """Rate between the last two lists, some seconds apart; None: there is only one yet."""
    delivered_per_s: float | None
    """Rate of `delivered`."""
    waiting: int
    """Stored messages that are not settled; 0 for types that store nothing, and for topics, where subscriptions count
    them."""
    oldest_at: float | None
    """Time of the oldest of them; None without one."""
    consumers: int
    """Connected consumers."""


class AddressPage(msgspec.Struct, kw_only=True):
    """Page of addresses."""

    addresses: list[AddressDocument]
    """Rows of this page."""
    next: str | None
    """Value of `after` for the next page; None: this is the last one."""
    total: int
    """Rows that match the request, on all pages."""
    left_out: int
    """Further addresses, which are in no page."""


class AddressLevel(msgspec.Struct, kw_only=True):
    """One name at a level of the tree, with everything below it."""

    name: str
    """Text between two slashes."""
    path: str
    """Address up to here."""
    rows: int
    """Rows of the list that are here or below."""
    deeper: int
    """Rows below; 0: the branch ends here."""
    received_per_s: float
    """Rates of these rows in all."""
    waiting: int
    """Waiting messages of these rows in all."""


class AddressTreePage(msgspec.Struct, kw_only=True):
    """Page of one level of the tree of addresses, by name."""

    under: str
    """Address above the level; empty for the first level."""
    levels: list[AddressLevel]
    next: str | None
    """Value of `after` for the next page; None: this is the last one."""
    total: int
    """Names of the level, on all pages."""
    left_out: int
    """Further addresses, which are in no page."""


class AddressConsumer(msgspec.Struct, kw_only=True):
    """Consumer of an address."""

    name: str
    """Client identifier or container id."""
    user: str
    """Its user; empty without authentication."""
    subscription: str
    """Name of its durable subscription, or the filter of a live one; empty for a consumer of a queue."""
    can_take: int | None
    """Messages that it can take now; None for an unlimited number or if it is not known. 0: it does not keep up."""
    dropped: int
    """Messages that were dropped because it was too slow, for a live subscriber."""


class AddressUsers(msgspec.Struct, kw_only=True):
    """Users with a right for an address."""

    names: list[str]
    """Some of them, in order."""
    total: int
    """All of them."""


class AddressDetail(msgspec.Struct, kw_only=True):
    """One address: the rule that applies, figures, consumers and rights. Any name has one."""

    address: str
    """Name or filter."""
    type: str
    """Type by the rule."""
    rule: str
    """Pattern of the rule that applies; ``#`` may be the default of the space."""
    resource: str
    """Name of the Address resource with this rule; empty: it is from no resource of this gateway."""
    etag: str
    """State of that resource, for `If-Match`."""
    overlapping: list[str]
    """Patterns of other rules that apply to some of the same names; the most specific one decides."""
    policy: list[str]
    """Sentences about what happens to messages."""
    rows: list[AddressDocument]
    """Rows of the table that belong to the address."""
    consumers: list[AddressConsumer]
    """Some of the connected consumers."""
    consumers_total: int
    """All connected consumers."""
    senders: AddressUsers
    """Users that may send to it."""
    receivers: AddressUsers
    """Users that may receive from it."""
    everyone: bool
    """Without authentication every client may send and receive."""
    forwarders: list[str]
    """Forwarders that carry its messages, as ``connector: filter``."""
    deadletter: str
    """Address of its dead letters; empty: they are dropped."""
    dead_letters: int
    """Messages that wait there, also those of other addresses."""


class ExplanationStep(msgspec.Struct, kw_only=True):
    """One finding on the way of a message."""

    part: str
    """Part of the way: ``rule``, ``senders``, ``arrivals``, ``room``, ``receivers``, ``subscribers``, ``waiting`` or
    ``forwarders``."""
    state: str
    """``ok``, ``note``, or ``wrong`` for a reason why messages do not arrive."""
    text: str
    """Sentence about it."""
    next_step: str
    """Next step for the operator; empty: there is nothing to do."""


class AddressExplanation(msgspec.Struct, kw_only=True):
    """Answer to the question why messages to an address do not arrive."""

    address: str
    verdict: str
    """First reason, or that nothing stands in the way."""
    steps: list[ExplanationStep]
    """Findings in the order of a message's way."""
