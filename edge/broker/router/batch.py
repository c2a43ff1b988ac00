"""Batches that are published: one run, runs collected from many origins, or messages for one anycast address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import NamedTuple, Protocol

from bridge.message import Run
from edge.broker.delivery.batches import LiveOffer
from edge.broker.model.interfaces import ManyOrigins, Origin
from edge.broker.retention.quotas import QuotaAccount
from edge.broker.router.flows import AddressFlow
from edge.broker.router.live_subscriptions import LiveSink


class RouteTargets(NamedTuple):
    """Live subscriptions and log that take the runs of a route without a look at each message."""

    live: tuple[LiveSink, ...]
    log: LogSink | None
    """None: they are not kept."""
    flow: AddressFlow
    """Counts the messages."""


class LogSink(NamedTuple):
    """A log, and the quota account that it is charged to."""

    log: int
    account: QuotaAccount


class LogRuns(NamedTuple):
    """Runs of a batch for one log, in order."""

    sink: LogSink
    runs: Sequence[Run]
    bytes: int
    """Size of the bodies."""
    messages: int


class Publication(NamedTuple):
    """A run with its origin and tokens: one token for each message, or none where no answer is wanted.

    The tokens return through `Origin.accepted` or `Origin.refused`, in this order.
    """

    origin: Origin
    run: Run
    tokens: Sequence[int]


class CollectedBatch(Origin):
    """Runs that many origins published in one turn of the event loop, stamped, each with its `RouteTargets`.

    It is the origin of all of them: `Answers` gives it one answer.
    """

    __slots__ = ()
    name = "the senders of a turn"

    logs: Sequence[LogRuns]
    offers: Sequence[tuple[Sequence[LiveSink], LiveOffer]]
    """Runs for live subscriptions, in order of arrival."""
    messages: int

    def members(self) -> Iterable[tuple[Origin, Run, Sequence[int]]]:
        """Return each run with its own origin and tokens, in order of arrival."""
        raise NotImplementedError

    def part(self, awaiting: Mapping[Origin, int]) -> tuple[int, int]:
        """Return how many answers leave now, and how many wait.

        The commit answers messages that a log keeps. Other messages are answered at once, unless their origin still
        waits for an earlier answer: then it is in `awaiting`.
        """
        raise NotImplementedError

    def accept_now(self) -> None:
        """Give the answers that do not wait."""
        raise NotImplementedError

    def count_waits(self, awaiting: MutableMapping[Origin, int]) -> None:
        """Add the answers that wait to the counts of their origins."""
        raise NotImplementedError

    def count_answered(self, awaiting: MutableMapping[Origin, int]) -> None:
        """Subtract these answers from the counts of their origins."""
        raise NotImplementedError

    def abort(self) -> None:
        for origin, _, _ in self.members():
            origin.abort()


class AnycastBatch(ManyOrigins, Protocol):
    """AMQP messages of many origins for one anycast address, each answered by its consumer."""

    __slots__ = ()

    address: str

    def members(self, start: int) -> Iterable[Publication]:
        """Return each message from this place on as a run of its own."""
        ...


PublishBatch = Publication | CollectedBatch | AnycastBatch
