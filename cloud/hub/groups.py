"""Entries that wait for the landing, and the group that one landing takes."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bridge.lane import BatchLane
from cloud.lake.lake import TableRefusal
from cloud.lake.landing import LandingResult, LedgerRange, UnreadableContent
from cloud.lake.limits import LEDGER_PART_RANGES, LEDGER_RANGE_BYTES, STATEMENT_BYTES
from cloud.lake.rows import ReceivedBatch

Key = tuple[str, str]
"""(tenant, gateway)."""


@dataclass(slots=True, eq=False)
class GatewaySession:
    """One connection of one gateway."""

    tenant: str
    gateway: str
    remote: str
    store_epoch: str = ""
    """Epoch of the gateway's store, after the store was compared."""
    gone: bool = False
    """True after the connection ended or was replaced."""
    refused: bool = False
    """True after its tenant had no room for the gateway."""

    @property
    def key(self) -> Key:
        return (self.tenant, self.gateway)


class LandingOutcome(enum.Enum):
    """Outcome of an entry."""

    LANDED = "landed"
    """On disk: acknowledge it."""
    RELEASED = "released"
    """To be sent again by the gateway over another connection."""
    OLDER = "older"
    """The gateway's store is an older copy: the hub has seen a later epoch or opening."""


Answer = Callable[[LandingOutcome, str], None]
"""Called on the loop's thread, at most once, with the reason. For `LandingOutcome.OLDER` the text is the last opening
that gateway and hub both know, or empty."""


class GatewayLineage(NamedTuple):
    """Epoch of a gateway's store, and the openings that it knows, the newest last."""

    epoch: str
    openings: Sequence[str]
    ends: Sequence[Mapping[int, int] | None] = ()
    """End of each log at the newest openings, the newest last; None where the store does not know."""


class LedgerDocument(NamedTuple):
    """Ranges that a gateway reported as discarded."""

    ranges: Sequence[LedgerRange]

    def parts(self) -> list[LedgerDocument]:
        """Split into documents of at most `LEDGER_PART_RANGES` ranges, in order."""
        if len(self.ranges) <= LEDGER_PART_RANGES:
            return [self]
        starts = range(0, len(self.ranges), LEDGER_PART_RANGES)
        return [LedgerDocument(self.ranges[start : start + LEDGER_PART_RANGES]) for start in starts]


class Manifest(NamedTuple):
    """Statements of a gateway about accepted messages: rows of `manifests`."""

    rows: Sequence[Mapping[str, Any]]


class ClockOffsetRows(NamedTuple):
    """Clock errors that a gateway reported, and the messages concerned: rows of `clock_offsets`."""

    rows: Sequence[Mapping[str, Any]]


Content = ReceivedBatch | LedgerDocument | Manifest | ClockOffsetRows | UnreadableContent | GatewayLineage


@dataclass(slots=True, eq=False)
class QueueEntry:
    """Content of a gateway that waits for its answer."""

    session: GatewaySession
    content: Content
    answer: Answer
    at_s: float
    """Arrival, in monotonic seconds."""
    bytes: int = 0
    """Memory while it waits."""
    landing_bytes: int = 0
    """Memory while it lands."""
    backlog_bytes: int = 0
    """Part of `bytes` that the gateway had stored while it could not send."""
    rows: int = 0
    verdict: LandingOutcome | None = None
    """Set by the landing's thread; None if it could not land."""
    words: str = ""
    """Text of the outcome, or the reason why it is missing."""
    untried: bool = False
    """Set by the landing's thread if time ran out before it."""
    attempts: int = 0
    due_s: float = 0.0
    """Time of the retry; 0 before the first try."""

    def __post_init__(self) -> None:
        if isinstance(self.content, ReceivedBatch):
            batch = self.content.batch
            self.bytes, self.landing_bytes, self.rows = batch.size, batch.expanded, len(batch)
            self.backlog_bytes = self.bytes if batch.lane is BatchLane.BACKLOG else 0
        elif isinstance(self.content, UnreadableContent):
            self.bytes = self.landing_bytes = len(self.content.content)
        elif isinstance(self.content, LedgerDocument):
            self.bytes = self.landing_bytes = LEDGER_RANGE_BYTES * len(self.content.ranges)
        elif isinstance(self.content, Manifest | ClockOffsetRows):
            self.bytes = self.landing_bytes = STATEMENT_BYTES * len(self.content.rows)

    def land(self) -> None:
        """Mark the entry as landed."""
        self.verdict, self.words = LandingOutcome.LANDED, ""


class AnswerOfParts:
    """Combined answer of split content: sent when all parts have landed or the first was released."""

    def __init__(self, answer: Answer, parts: int) -> None:
        self._answer = answer
        self._waits_for = parts
        self._released = False

    def __call__(self, verdict: LandingOutcome, words: str) -> None:
        if verdict is LandingOutcome.LANDED:
            self._waits_for -= 1
            if not self._waits_for:
                self._answer(verdict, words)
        elif not self._released:
            self._released = True
            self._answer(verdict, words)


@dataclass(slots=True)
class Presence:
    """Connects and disconnects of a gateway since they were last written to the registry."""

    remote: str
    connected: bool
    at_us: int
    connects: int = 0


@dataclass(slots=True)
class LandingGroup:
    """Entries and other changes of one landing, in order of arrival."""

    entries: list[QueueEntry] = field(default_factory=list)
    presence: dict[Key, Presence] = field(default_factory=dict)
    states: list[Mapping[str, Any]] = field(default_factory=list)
    seen: dict[Key, int] = field(default_factory=dict)
    observed: dict[Key, str] = field(default_factory=dict)
    """New observations of gateways that were seen, JSON."""
    undecided: Collection[Key] = ()
    """New gateways that cannot be counted now: their entries and changes wait for a later group."""
    bytes: int = field(init=False)
    landing_bytes: int = field(init=False)
    rows: int = field(init=False)
    """Totals of the entries, computed once because every arriving batch reads them."""

    def __post_init__(self) -> None:
        self.bytes = sum(entry.bytes for entry in self.entries)
        self.landing_bytes = sum(entry.landing_bytes for entry in self.entries)
        self.rows = sum(entry.rows for entry in self.entries)


class StoredState(NamedTuple):
    """State of a gateway in the registry at its connection."""

    landed: int
    """Messages in the lake, without those of the last minute."""
    observed: str | None
    """Observations of its last hub, JSON."""


@dataclass(slots=True)
class GroupReport:
    """Results of a landed group, for health and metrics."""

    landed: LandingResult = field(default_factory=LandingResult)
    seconds: float = 0.0
    """Duration of the landing of batches; 0 without batches."""
    ledger_ranges: int = 0
    statements: int = 0
    """Statements of manifests."""
    states: int = 0
    quarantined: int = 0
    """Deliveries put into quarantine."""
    fault: str | None = None
    """Reason why part of the group failed."""
    versions: Mapping[str, int] = field(default_factory=dict)
    refused: Collection[Key] = ()
    """Gateways that have just connected, and that their tenants have no room for."""
    stored: Mapping[Key, StoredState] = field(default_factory=dict, repr=False)
    """States in the registry of gateways that have just connected."""
    refusals: Mapping[str, TableRefusal] = field(default_factory=dict)
    """Tables that accept no rows now."""
