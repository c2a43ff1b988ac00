"""What many origins sent in one turn of the loop, stored and answered as one where the router can."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from typing import NamedTuple

from bridge.message import Run
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.model.isolation import answered
from edge.broker.retention.quotas import Account


class Column(NamedTuple):
    """Where runs go that are stored and given to nobody before: a log, and the account that pays."""

    log: int
    account: Account


class ColumnRuns(NamedTuple):
    """What a batch has for one log, in order."""

    column: Column
    runs: Sequence[Run]
    bytes: int
    """Of bodies."""
    messages: int


class Batch(Origin):
    """The runs of many origins, all of them for logs. It is the origin of them all: `Answers` gives it one answer."""

    __slots__ = ()
    name = "the senders of a turn"

    columns: Sequence[ColumnRuns]
    tokens: Sequence[int]
    """One for each message that is to be answered."""

    def members(self) -> Iterable[tuple[Origin, Run, Sequence[int]]]:
        """Each run with its own origin and tokens, in the order they came."""
        raise NotImplementedError

    def wait(self, awaiting: MutableMapping[Origin, int]) -> None:
        """Count an answer more that waits, for the origin of each run."""
        raise NotImplementedError

    def heard(self, awaiting: MutableMapping[Origin, int]) -> None:
        """Their answers do not wait any more."""
        raise NotImplementedError

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        for origin, _, its_tokens in self.members():
            if its_tokens:
                answered(origin, its_tokens, why)

    def abort(self) -> None:
        for origin, _, _ in self.members():
            origin.abort()
