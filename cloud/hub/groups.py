"""What waits for the landing, and what one turn of the landing's thread takes of it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bridge.lane import BatchLane
from cloud.lake.landing import Landed, LedgerRange, Unreadable
from cloud.lake.limits import LEDGER_PART_RANGES, LEDGER_RANGE_BYTES, STATEMENT_BYTES
from cloud.lake.rows import ReceivedBatch

Key = tuple[str, str]
"""(tenant, gateway)."""


@dataclass(slots=True, eq=False)
class Session:
    """One connection of one gateway."""

    tenant: str
    gateway: str
    remote: str
    store_epoch: str = ""
    """Of its store, once the store has been compared."""
    gone: bool = False
    """It is over, or a later one has taken its place."""

    @property
    def key(self) -> Key:
        return (self.tenant, self.gateway)


class Verdict(enum.Enum):
    """What became of something put in."""

    LANDED = "landed"
    """On the medium: acknowledge it."""
    RELEASED = "released"
    """The gateway is to send it again over another connection."""
    OLDER = "older"
    """The hub has seen a later life of the gateway's store."""


Answer = Callable[[Verdict, str], None]
"""Called on the loop's thread, at most once, with the reason or, for `Verdict.OLDER`, with the last opening that
gateway and hub both know, or an empty text."""


class Lineage(NamedTuple):
    """Which store a gateway has, and which openings of it that store knows of, the newest last."""

    epoch: str
    openings: Sequence[str]
    ends: Sequence[Mapping[int, int] | None] = ()
    """Of the newest openings, the newest last: where each log ended at that moment; None: the store cannot say."""


class LedgerDocument(NamedTuple):
    """What a gateway reported it gave up."""

    ranges: Sequence[LedgerRange]

    def parts(self) -> list[LedgerDocument]:
        """In documents of `LEDGER_PART_RANGES`, in order; itself where it is small enough."""
        if len(self.ranges) <= LEDGER_PART_RANGES:
            return [self]
        starts = range(0, len(self.ranges), LEDGER_PART_RANGES)
        return [LedgerDocument(self.ranges[start : start + LEDGER_PART_RANGES]) for start in starts]


class Manifest(NamedTuple):
    """What a gateway states it accepted: rows of `manifests`."""

    rows: Sequence[Mapping[str, Any]]


class ClockOffsets(NamedTuple):
    """How far a gateway says its clock was off, and for which messages: rows of `clock_offsets`."""

    rows: Sequence[Mapping[str, Any]]


Content = ReceivedBatch | LedgerDocument | Manifest | ClockOffsets | Unreadable | Lineage


@dataclass(slots=True, eq=False)
class Entry:
    """Something that waits for its answer."""

    session: Session
    content: Content
    answer: Answer
    at_s: float
    """When it was put in; monotonic seconds."""
    bytes: int = 0
    """What it costs while it waits."""
    landing_bytes: int = 0
    """What it costs while it lands."""
    backlog_bytes: int = 0
    """What of `bytes` a gateway had kept while it could not send."""
    rows: int = 0
    verdict: Verdict | None = None
    """Set by the landing's thread; None: it could not be landed."""
    words: str = ""
    """Goes with the verdict, or says why there is none."""
    untried: bool = False
    """Set by the landing's thread: there was no time for it."""
    attempts: int = 0
    due_s: float = 0.0
    """When it is tried again; 0 before the first try."""

    def __post_init__(self) -> None:
        if isinstance(self.content, ReceivedBatch):
            batch = self.content.batch
            self.bytes, self.landing_bytes, self.rows = batch.size, batch.expanded, len(batch)
            self.backlog_bytes = self.bytes if batch.lane is BatchLane.BACKLOG else 0
        elif isinstance(self.content, Unreadable):
            self.bytes = self.landing_bytes = len(self.content.content)
        elif isinstance(self.content, LedgerDocument):
            self.bytes = self.landing_bytes = LEDGER_RANGE_BYTES * len(self.content.ranges)
        elif isinstance(self.content, Manifest | ClockOffsets):
            self.bytes = self.landing_bytes = STATEMENT_BYTES * len(self.content.rows)

    def land(self) -> None:
        """It is on the medium."""
        self.verdict, self.words = Verdict.LANDED, ""


class AnswerOfParts:
    """The one answer to what was cut: once all of its parts have landed, or the first was released."""

    def __init__(self, answer: Answer, parts: int) -> None:
        self._answer = answer
        self._waits_for = parts
        self._released = False

    def __call__(self, verdict: Verdict, words: str) -> None:
        if verdict is Verdict.LANDED:
            self._waits_for -= 1
            if not self._waits_for:
                self._answer(verdict, words)
        elif not self._released:
            self._released = True
            self._answer(verdict, words)


@dataclass(slots=True)
class Presence:
    """How a gateway's connections came and went since it was last written to the registry."""

    remote: str
    connected: bool
    at_us: int
    connects: int = 0


@dataclass(slots=True)
class Group:
    """What one turn takes, in the order it was put in."""

    entries: list[Entry] = field(default_factory=list)
    presence: dict[Key, Presence] = field(default_factory=dict)
    states: list[Mapping[str, Any]] = field(default_factory=list)
    seen: dict[Key, int] = field(default_factory=dict)
    bytes: int = field(init=False)
    landing_bytes: int = field(init=False)
    rows: int = field(init=False)
    """Of the entries, which stay the same; asked for with every batch that comes meanwhile."""

    def __post_init__(self) -> None:
        self.bytes = sum(entry.bytes for entry in self.entries)
        self.landing_bytes = sum(entry.landing_bytes for entry in self.entries)
        self.rows = sum(entry.rows for entry in self.entries)


@dataclass(slots=True)
class Report:
    """What a turn did, for health and metrics."""

    landed: Landed = field(default_factory=Landed)
    seconds: float = 0.0
    """Of the landing of batches; 0 when there were none."""
    ledger_ranges: int = 0
    statements: int = 0
    """Of manifests."""
    states: int = 0
    quarantined: int = 0
    """Deliveries."""
    fault: str | None = None
    """Why something could not be done."""
    versions: Mapping[str, int] = field(default_factory=dict)
