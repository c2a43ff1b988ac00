"""Batches that are published: a run, runs of many origins with a column, messages for the consumers of one address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import NamedTuple, Protocol

from bridge.message import Run
from edge.broker.delivery.batches import Offer
from edge.broker.model.interfaces import ManyOrigins, Origin
from edge.broker.retention.quotas import Account
from edge.broker.router.live_subscriptions import LiveSink


class Column(NamedTuple):
    """Where runs go of which nothing has to be looked at: who gets them now, and the log that keeps them."""

    live: tuple[LiveSink, ...]
    log: LogSink | None
    """None: they are not kept."""


class LogSink(NamedTuple):
    """A log, and the account that pays."""

    log: int
    account: Account


class LogRuns(NamedTuple):
    """What a batch has for one log, in order."""

    sink: LogSink
    runs: Sequence[Run]
    bytes: int
    """Of bodies."""
    messages: int


class Publication(NamedTuple):
    """A run, its origin, and the tokens under which the origin is answered: one a message, or none at all.

    They come back through `Origin.accepted` or `Origin.refused`, in this order.
    """

    origin: Origin
    run: Run
    tokens: Sequence[int]


class ColumnBatch(Origin):
    """Runs of many origins, stamped already, each with a `Column`. It is the origin of them all: `Answers` gives it one
    answer."""

    __slots__ = ()
    name = "the senders of a turn"

    logs: Sequence[LogRuns]
    offers: Sequence[tuple[Sequence[LiveSink], Offer]]
    """Runs that live subscriptions get now, in the order they came."""
    messages: int

    def members(self) -> Iterable[tuple[Origin, Run, Sequence[int]]]:
        """Return each run with its own origin and tokens, in the order they came."""
        raise NotImplementedError

    def part(self, awaiting: Mapping[Origin, int]) -> tuple[int, int]:
        """How many answers are to be given now, and how many wait: what a log keeps is answered by the commit, and what
        none keeps at once, or behind what its origin sent before. Origins for whom answers wait are in `awaiting`."""
        raise NotImplementedError

    def accept_now(self) -> None:
        """Give the answers that do not wait."""
        raise NotImplementedError

    def wait(self, awaiting: MutableMapping[Origin, int]) -> None:
        """Count an answer more that waits, for the origin of each run whose answer does."""
        raise NotImplementedError

    def heard(self, awaiting: MutableMapping[Origin, int]) -> None:
        """Their answers do not wait any more."""
        raise NotImplementedError

    def abort(self) -> None:
        for origin, _, _ in self.members():
            origin.abort()


class AnycastBatch(ManyOrigins, Protocol):
    """AMQP messages of many origins for the consumers of one address, which answer each."""

    __slots__ = ()

    address: str

    def members(self, start: int) -> Iterable[Publication]:
        """Return each message from this place on as a run of its own."""
        ...


PublishBatch = Publication | ColumnBatch | AnycastBatch
