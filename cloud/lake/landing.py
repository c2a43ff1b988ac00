"""Landing: write batches into the lake, each message exactly once.

A landing has four steps, each durable before the next begins:

1. *prepare*: the registry records the sequences about to land, under a commit id;
2. *commit*: the rows are appended to the table, with that id as the transaction version of this writer's application
id;
3. *confirm*: the registry adds them to the landed sequences;
4. the caller acknowledges.

A landing that closes holes of a stream lists them in the ledger first, in a commit of its own: a crash in between
leaves at worst a hole that is explained and still open.

After a crash, or an error with unknown outcome, `resolve` looks for the id in the table. If it is there, the commit is
confirmed. If not, the table is fenced against it, so that no delayed writer can commit it, and it is forgotten.
Messages that are repeated after a confirmed commit are trimmed; after a forgotten one they land. A hub to which a
gateway has moved does the same with the open commits of other hubs of the lake that name the gateway, before it reads
what has landed of it: no hub waits for another.

This module has no thread, clock, socket, disk or database of its own: `cloud.hub.lander` calls it from one thread.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from bridge.batch import encode
from bridge.hidden import hides
from cloud.lake.commits import CommitLog, Failpoint, GatewayStore, Prepared, no_failpoint
from cloud.lake.faults import CommitSettled, LakeError, StreamDamaged, StreamInDoubt, TableMismatch
from cloud.lake.lake import LandingLake, TableRefusal, TransactionId
from cloud.lake.limits import HOLES_MAX, SLICE_BYTES_MAX
from cloud.lake.rebuild import Rebuild
from cloud.lake.rows import BatchSlice, ReceivedBatch, join_tables, record_rows, slices_of, telemetry_rows
from cloud.lake.sequences import SequenceRange, SequenceSet, SequenceStream, Span

log = logging.getLogger(__name__)


class HubLossReason(enum.Enum):
    """Reason in the ledger for messages that the hub drops."""

    QUARANTINED = "quarantined"
    """The content could not become rows. It is in table `quarantine`."""
    HOLE_CLOSED = "hole-closed"
    """The address had too many gaps, so the hub no longer waits for this one. A message that comes later is dropped."""


Clock = Callable[[], float]
"""Returns monotonic seconds."""


def _no_clock() -> float:
    """Clock without progress, for landings without a time limit."""
    return 0.0


class LandingResult(NamedTuple):
    """Result of a landing."""

    rows: int = 0
    duplicates: int = 0
    """Messages that had landed before."""
    gaps: int = 0
    """Ranges that began later than expected; the missing messages are in the ledger, on their way, or lost."""
    holes_closed: int = 0
    """Holes closed to keep `HOLES_MAX`, listed in the ledger; messages that would fill them count as duplicates."""
    by_gateway: Mapping[tuple[str, str], int] = {}
    """New messages of each (tenant, gateway)."""
    held: Mapping[int, str] = {}
    """Reason by index of the batches that did not land completely because a stream is in doubt."""
    left: int = 0
    """Batches at the end that were not tried for lack of time."""
    spent_s: Mapping[tuple[str, str], float] = {}
    """Seconds spent on making the rows of each (tenant, gateway)."""

    def plus(self, other: LandingResult) -> LandingResult:
        """Return the sum of two results; `held` and `left` refer to one landing and are dropped."""
        spent_s = {**self.spent_s}
        for key, seconds in other.spent_s.items():
            spent_s[key] = spent_s.get(key, 0.0) + seconds
        return LandingResult(
            self.rows + other.rows,
            self.duplicates + other.duplicates,
            self.gaps + other.gaps,
            self.holes_closed + other.holes_closed,
            Counter(self.by_gateway) + Counter(other.by_gateway),
            spent_s=spent_s,
        )


class LandedRanges(NamedTuple):
    """Result of a landing of ledger documents."""

    new: int
    left: int
    """Documents at the end that were not tried for lack of time."""


class LedgerRange(NamedTuple):
    """Range of sequences that a gateway discarded, as reported; `decided_at` is UTC microseconds."""

    tenant: str
    gateway: str
    epoch: str
    address: str
    first: int
    last: int
    bytes: int
    reason: str
    decided_at: int


@hides("content")
class UnreadableContent(NamedTuple):
    """Unreadable content of a gateway, kept unchanged. `received_at` is UTC microseconds."""

    tenant: str
    gateway: str
    link: str
    delivery: int | None
    """Number of the delivery on its link; None for a batch that was readable."""
    reason: str
    content: bytes
    received_at: int


class LandingPlan(NamedTuple):
    """New messages of some batches."""

    slices: list[BatchSlice]
    ranges: list[SequenceRange]
    closed: list[SequenceRange]
    """Holes that these messages close."""
    landed: LandingResult


class LandedSets:
    """Landed sequences of streams, including those of the current landing; None for a stream in doubt."""

    def __init__(self, landed_of: Callable[[SequenceStream], SequenceSet]) -> None:
        self._landed_of = landed_of
        self._sets: dict[SequenceStream, SequenceSet | None] = {}
        self.doubts: dict[SequenceStream, StreamInDoubt] = {}

    @property
    def damaged(self) -> dict[tuple[str, str], StreamDamaged]:
        """Streams with a damaged record, by (tenant, gateway)."""
        return {
            (stream.tenant, stream.gateway): why
            for stream, why in self.doubts.items()
            if isinstance(why, StreamDamaged)
        }

    def of(self, stream: SequenceStream) -> SequenceSet | None:
        if stream not in self._sets:
            try:
                self._sets[stream] = self._landed_of(stream).copy()
            except StreamInDoubt as error:
                self._sets[stream], self.doubts[stream] = None, error
        return self._sets[stream]


def plan(batches: Iterable[ReceivedBatch], known: LandedSets) -> LandingPlan:
    """Remove landed and repeated messages from batches, in order."""
    slices: list[BatchSlice] = []
    ranges: list[SequenceRange] = []
    closed: list[SequenceRange] = []
    held: dict[int, str] = {}
    total = gaps = 0
    for index, received in enumerate(batches):
        wanted: list[Sequence[Span]] = []
        names = received.tenant, received.gateway, received.batch.epoch
        for part in received.batch.ranges:
            stream = SequenceStream(*names, part.address)
            landed = known.of(stream)
            if landed is None:
                held[index] = str(known.doubts[stream])
                wanted.append(())
                continue
            gaps += part.first > max(landed.mark + 1, part.base)
            spans = landed.missing(part.first, part.first + part.count - 1)
            for span in spans:
                closed += [SequenceRange(*stream, *hole) for hole in landed.add(*span, HOLES_MAX)]
                ranges.append(SequenceRange(*stream, *span))
            wanted.append(spans)
            total += part.count
        slices += slices_of(received, wanted)
    by_gateway: Counter[tuple[str, str]] = Counter()
    for new in slices:
        by_gateway[new.received.tenant, new.received.gateway] += new.stop - new.start
    rows = by_gateway.total()
    return LandingPlan(slices, ranges, closed, LandingResult(rows, total - rows, gaps, len(closed), by_gateway, held))


class Landing:
    """Only committer of its writer's commits. For one thread."""

    def __init__(self, lake: LandingLake, commits: CommitLog, *, failpoint: Failpoint = no_failpoint) -> None:
        """Settle commits that a crash left open. Raises `CannotLand`, except for a table that accepts nothing now: its
        commits are settled before its next landing."""
        self._lake = lake
        self._commits = commits
        self._failpoint = failpoint
        self._unsettled: set[str] = set()
        """Tables with a commit of unknown outcome."""
        self._rebuilds: dict[tuple[str, str], Rebuild] = {}
        with contextlib.suppress(TableMismatch):
            self.resolve()

    @property
    def versions(self) -> Mapping[str, int]:
        """Version of each table after the last commit."""
        return self._lake.versions

    @property
    def refusals(self) -> Mapping[str, TableRefusal]:
        """Tables that accept no rows, as they were last read."""
        return self._lake.refusals

    def resolve(self) -> None:
        """Confirm or forget every prepared commit. May be called again.

        Raises `CannotLand` after all were tried: a failing table does not hold back commits of others.
        """
        fault: LakeError | None = None
        unsettled: set[str] = set()
        for prepared in self._commits.unresolved():
            try:
                self._look_up(prepared)
            except CommitSettled:
                continue
            except LakeError as error:
                if fault is None or isinstance(fault, TableMismatch):
                    fault = error
                unsettled.add(prepared.table)
        self._unsettled = unsettled
        if fault is not None:
            raise fault

    def _look_up(self, prepared: Prepared) -> None:
        """Confirm or forget a prepared commit, of this hub or of another. Raises `CannotLand`."""
        transaction = TransactionId(self._commits.application(prepared), prepared.commit)
        if self._lake.settled(prepared.table, transaction):
            self._commits.confirm(prepared, self._lake.versions[prepared.table])
        else:
            self._commits.forget(prepared)

    def _take_over(self, gateways: Iterable[tuple[str, str]]) -> None:
        """Prepare to land for these gateways: settle what other hubs of the lake have left open. Raises `CannotLand`.

        The other hub may have ended, or wait, or be about to append: the lake decides, and fences it.
        """
        names = set(gateways)
        while left_open := self._commits.take_over(names):
            for prepared in left_open:
                with contextlib.suppress(CommitSettled):
                    self._look_up(prepared)

    def land(
        self, batches: Sequence[ReceivedBatch], now_us: int, *, clock: Clock = _no_clock, seconds: float = 1.0
    ) -> LandingResult:
        """Land batches. On return all their messages are in `telemetry`, once and durable.

        Exceptions are batches in `held`, and the last batches, counted in `left`, if making the rows took `seconds` by
        `clock`. `now_us`: UTC microseconds, stored as `ingested_at`. Raises `ContentError` if no rows can be made, or
        the fault of the hub; then nothing may be acknowledged.
        """
        self._settle("telemetry")
        self._take_over((received.tenant, received.gateway) for received in batches)
        known = LandedSets(self._commits.landed)
        began = clock()
        tables: list[pa.Table] = []
        ranges: list[SequenceRange] = []
        closed: list[SequenceRange] = []
        landed, held, done = LandingResult(), dict[int, str](), 0
        for piece in _in_slices(batches):
            at_s = clock()
            if done and at_s - began >= seconds:
                break
            new = plan(piece, known)
            if new.slices:
                tables.append(telemetry_rows(new.slices, now_us))
            ranges += new.ranges
            closed += new.closed
            held |= {done + index: why for index, why in new.landed.held.items()}
            landed = landed.plus(new.landed._replace(spent_s=_shares(piece, clock() - at_s)))
            done += len(piece)
        if tables:
            self._explain(closed, now_us)
            self._commit("telemetry", join_tables(tables), ranges, _reached(batches[:done]))
        for key, why in known.damaged.items():
            self._rebuild(*key, why)
        return landed._replace(held=held, left=len(batches) - done)

    def land_ledger(
        self, documents: Sequence[Sequence[LedgerRange]], now_us: int, *, clock: Clock = _no_clock, seconds: float = 1.0
    ) -> LandedRanges:
        """Land ledger ranges, each once: as many documents as can be looked up in `seconds` by `clock`, at least one.
        Raises as `land`."""
        self._settle("ledger")
        self._take_over((entry.tenant, entry.gateway) for document in documents for entry in document)
        began = clock()
        new: dict[SequenceRange, LedgerRange] = {}
        done = 0
        for document in documents:
            if done and clock() - began >= seconds:
                break
            names = [SequenceRange(*entry[:6]) for entry in document]
            known = self._commits.ledgered(names)
            for name, entry in zip(names, document, strict=True):
                if name not in known:
                    new.setdefault(name, entry)
            done += 1
        if new:
            rows = [_ledger_row(entry) for entry in new.values()]
            self._commit("ledger", record_rows("ledger", rows, now_us), list(new))
        return LandedRanges(len(new), len(documents) - done)

    def _explain(self, closed: Iterable[SequenceRange], now_us: int) -> None:
        """List the messages of closed holes in the ledger, except those that it has. Raises as `land`."""
        by_stream: dict[SequenceStream, list[Span]] = {}
        for hole in closed:
            by_stream.setdefault(hole.stream, []).append((hole.first, hole.last))
        entries: list[LedgerRange] = []
        for stream, holes in by_stream.items():
            low, high = min(first for first, _ in holes), max(last for _, last in holes)
            explained = SequenceSet()
            for span in self._commits.dropped(stream, low, high):
                explained.add(*span)
            parts = [part for hole in holes for part in explained.missing(*hole)]
            entries += [LedgerRange(*stream, *part, 0, HubLossReason.HOLE_CLOSED.value, now_us) for part in parts]
        if entries:
            self.land_ledger([entries], now_us)

    def compact(self) -> int:
        """Compact small files of the lake; return their number. Raises `LakeError`."""
        return self._lake.compact()

    def land_records(self, table: str, rows: Sequence[Mapping[str, Any]], now_us: int) -> None:
        """Append rows that may be there twice after a crash (statuses, manifests: each carries its time)."""
        if rows:
            self._lake.append(table, record_rows(table, rows, now_us))

    def quarantine(self, unreadable: Sequence[UnreadableContent], now_us: int) -> None:
        """Store unreadable bytes. They have no name, so a repeated one is stored again: `digest` shows it."""
        self.land_records("quarantine", [_quarantine_row(entry) for entry in unreadable], now_us)

    def quarantine_batch(self, received: ReceivedBatch, reason: str, now_us: int) -> None:
        """Store a batch that cannot become rows, and list its messages in the ledger.

        Raises `CannotLand`, and ValueError for a batch that cannot be encoded.
        """
        self._settle("telemetry")
        self._take_over([(received.tenant, received.gateway)])
        tenant, gateway, batch = received.tenant, received.gateway, received.batch
        content = encode(batch.stored(), space=batch.space, epoch=batch.epoch, lane=batch.lane)
        self.quarantine([UnreadableContent(tenant, gateway, "telemetry", None, reason, content, now_us)], now_us)
        new = plan([received], LandedSets(self._commits.landed))
        entries = [LedgerRange(*names, 0, HubLossReason.QUARANTINED.value, now_us) for names in new.ranges]
        self.land_ledger([entries], now_us)

    def drop_rebuilds(self, gateways: Iterable[tuple[str, str]]) -> None:
        """Drop the unfinished rebuilds of gateways that left. They begin again after the next connection."""
        for key in gateways:
            self._rebuilds.pop(key, None)

    def _rebuild(self, tenant: str, gateway: str, why: StreamDamaged) -> None:
        """Continue to rebuild the landed sequences of a gateway from the lake. Raises `CannotLand`."""
        rebuild = self._rebuilds.pop((tenant, gateway), None)
        if rebuild is None or rebuild.connection != why.connection:
            log.error("%s: rebuilding it from the lake", why)
            rebuild = Rebuild(self._lake, tenant, gateway, why.connection)
        if rebuild.advance():
            self._commits.restore(tenant, gateway, rebuild.landed)
            log.warning("gateway %s: rebuilt the landed sequences from %d data files", gateway, rebuild.files)
        else:
            self._rebuilds[tenant, gateway] = rebuild

    def _settle(self, table: str) -> None:
        """Resolve open commits of a table. Raises `CannotLand`."""
        if table in self._unsettled:
            try:
                self.resolve()
            except LakeError:
                if table in self._unsettled:
                    raise

    def _commit(
        self,
        name: str,
        rows: pa.Table,
        ranges: Sequence[SequenceRange],
        reached: Mapping[GatewayStore, Mapping[int, int]] | None = None,
    ) -> None:
        """Run the steps described in the module. After an error the outcome is looked up before the next landing.

        A table that accepts no rows is found first: else each attempt would leave a fence in it.
        """
        self._lake.require_writable(name)
        self._unsettled.add(name)
        prepared = self._commits.prepare(name, ranges, rows.num_rows, reached)
        self._failpoint("prepared")
        try:
            version = self._lake.append(name, rows, TransactionId(self._commits.application(prepared), prepared.commit))
        except LakeError:
            with contextlib.suppress(LakeError):  # then the next landing resolves it
                self.resolve()
            raise
        self._commits.confirm(prepared, version)
        self._failpoint("confirmed")
        self._unsettled.discard(name)


def _in_slices(batches: Sequence[ReceivedBatch]) -> Iterator[Sequence[ReceivedBatch]]:
    """Yield consecutive batches to make rows of together: all of those read as columns, at most `SLICE_BYTES_MAX` of
    those with messages read one by one."""
    start = size = 0
    for index, received in enumerate(batches):
        more = received.batch.expanded if received.one_by_one else 0
        if start < index and size + more > SLICE_BYTES_MAX:
            yield batches[start:index]
            start, size = index, 0
        size += more
    if start < len(batches):
        yield batches[start:]


def _shares(batches: Sequence[ReceivedBatch], seconds: float) -> dict[tuple[str, str], float]:
    """Divide the time of making rows among gateways, by bytes."""
    sizes: Counter[tuple[str, str]] = Counter()
    for received in batches:
        sizes[received.tenant, received.gateway] += received.batch.expanded
    total = sizes.total() or 1
    return {key: seconds * size / total for key, size in sizes.items()}


def _reached(batches: Iterable[ReceivedBatch]) -> dict[GatewayStore, dict[int, int]]:
    """Return the minimum ends of the logs of the gateways' stores."""
    reached: dict[GatewayStore, dict[int, int]] = {}
    for received in batches:
        if received.store_epoch:
            store = GatewayStore(received.tenant, received.gateway, received.store_epoch)
            ends = reached.setdefault(store, {})
            ends.update({log: max(end, ends.get(log, 0)) for log, end in received.ends.items()})
    return reached


def _ledger_row(entry: LedgerRange) -> dict[str, Any]:
    row: dict[str, Any] = entry._asdict()
    row["first_sequence"], row["last_sequence"] = row.pop("first"), row.pop("last")
    return row


def _quarantine_row(entry: UnreadableContent) -> dict[str, Any]:
    return {**entry._asdict(), "digest": hashlib.sha256(entry.content).hexdigest()}
