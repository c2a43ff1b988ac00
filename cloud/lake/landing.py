"""The landing: batches into the lake, each message once, whatever happens in between.

A landing is four steps, and each is durable before the next begins:

1. *prepare*: the registry records the sequences about to move, under a commit id;
2. *commit*: the rows are appended to the table, with that id as the transaction version of this writer's
   application id;
3. *confirm*: the registry adds them to what has landed;
4. the caller acknowledges.

After a crash, or an error whose outcome is not known, `resolve` asks the table for the id: it is there, then the commit
is confirmed, or it is not, then the table takes it no more, whoever may still be about to commit it, and it is
forgotten. What arrives again after a confirmed commit is trimmed; what arrives again after a forgotten one lands.

This module has no thread, clock, socket, disk or database of its own: `cloud.hub.lander` calls it from one thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from bridge.batch import encode
from bridge.hidden import hides
from cloud.lake.commits import CommitLog, Failpoint, GatewayStore, no_failpoint
from cloud.lake.faults import LakeError, StreamDamaged, StreamInDoubt
from cloud.lake.lake import Lake, Transaction
from cloud.lake.limits import HOLES_MAX, SLICE_BYTES_MAX
from cloud.lake.rebuild import Rebuild
from cloud.lake.rows import BatchSlice, ReceivedBatch, joined, records, slices_of, telemetry
from cloud.lake.sequences import SequenceRange, SequenceSet, Span, Stream

log = logging.getLogger(__name__)

QUARANTINED = "quarantined"
"""Reason in the ledger: the messages are in `quarantine`, as no rows could be made of them."""


Clock = Callable[[], float]
"""Seconds, of any clock that does not go back."""


def _no_clock() -> float:
    """Of whoever lets a landing take its time."""
    return 0.0


class Landed(NamedTuple):
    """What one landing did."""

    rows: int = 0
    duplicates: int = 0
    """Messages that had landed before."""
    gaps: int = 0
    """Ranges that began later than the sequence expected; what is missing is in the ledger, on its way, or lost."""
    holes_closed: int = 0
    """Holes given up to keep `HOLES_MAX`; what would have filled them is taken for a duplicate from now on."""
    by_gateway: Mapping[tuple[str, str], int] = {}
    """New messages of each (tenant, gateway)."""
    held: Mapping[int, str] = {}
    """Index of each batch that has not landed whole, because a stream of it is in doubt, and why."""
    left: int = 0
    """Batches, the last ones, that were not tried: the time was over."""
    spent_s: Mapping[tuple[str, str], float] = {}
    """Seconds it took to make the rows of each (tenant, gateway)."""

    def plus(self, other: Landed) -> Landed:
        """The counts of both together; `held` and `left` are of batches of one landing, so neither's."""
        spent_s = {**self.spent_s}
        for key, seconds in other.spent_s.items():
            spent_s[key] = spent_s.get(key, 0.0) + seconds
        return Landed(
            self.rows + other.rows,
            self.duplicates + other.duplicates,
            self.gaps + other.gaps,
            self.holes_closed + other.holes_closed,
            Counter(self.by_gateway) + Counter(other.by_gateway),
            spent_s=spent_s,
        )


class LandedRanges(NamedTuple):
    """What one landing of ledger documents did."""

    new: int
    left: int
    """Documents, the last ones, that were not tried: the time was over."""


class LedgerRange(NamedTuple):
    """Sequences a gateway gave up, as it reported them; `decided_at` is UTC microseconds."""

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
class Unreadable(NamedTuple):
    """What a gateway sent and nobody can read: kept as it came. `received_at` is UTC microseconds."""

    tenant: str
    gateway: str
    link: str
    delivery: int | None
    """Number of the delivery on its link; None for what was readable when it came."""
    reason: str
    content: bytes
    received_at: int


class Plan(NamedTuple):
    """What of some batches is new."""

    slices: list[BatchSlice]
    ranges: list[SequenceRange]
    landed: Landed


class Known:
    """What has landed of streams, including what is about to; None for one in doubt."""

    def __init__(self, landed_of: Callable[[Stream], SequenceSet]) -> None:
        self._landed_of = landed_of
        self._sets: dict[Stream, SequenceSet | None] = {}
        self.doubts: dict[Stream, StreamInDoubt] = {}

    @property
    def damaged(self) -> dict[tuple[str, str], StreamDamaged]:
        """(tenant, gateway) of streams whose record cannot be gone by, and why."""
        return {
            (stream.tenant, stream.gateway): why
            for stream, why in self.doubts.items()
            if isinstance(why, StreamDamaged)
        }

    def of(self, stream: Stream) -> SequenceSet | None:
        if stream not in self._sets:
            try:
                self._sets[stream] = self._landed_of(stream).copy()
            except StreamInDoubt as error:
                self._sets[stream], self.doubts[stream] = None, error
        return self._sets[stream]


def plan(batches: Iterable[ReceivedBatch], known: Known) -> Plan:
    """Trim batches, in order, against what has landed and against each other."""
    slices: list[BatchSlice] = []
    ranges: list[SequenceRange] = []
    held: dict[int, str] = {}
    total = gaps = closed = 0
    for index, received in enumerate(batches):
        wanted: list[Sequence[Span]] = []
        whose = received.tenant, received.gateway, received.batch.epoch
        for part in received.batch.ranges:
            stream = Stream(*whose, part.address)
            landed = known.of(stream)
            if landed is None:
                held[index] = str(known.doubts[stream])
                wanted.append(())
                continue
            gaps += part.first > max(landed.mark + 1, part.base)
            spans = landed.missing(part.first, part.first + part.count - 1)
            for span in spans:
                closed += landed.add(*span, HOLES_MAX)
                ranges.append(SequenceRange(*stream, *span))
            wanted.append(spans)
            total += part.count
        slices += slices_of(received, wanted)
    by_gateway: Counter[tuple[str, str]] = Counter()
    for new in slices:
        by_gateway[new.received.tenant, new.received.gateway] += new.stop - new.start
    rows = by_gateway.total()
    return Plan(slices, ranges, Landed(rows, total - rows, gaps, closed, by_gateway, held))


class Landing:
    """The one committer of its writer's commits. For one thread."""

    def __init__(self, lake: Lake, commits: CommitLog, *, failpoint: Failpoint = no_failpoint) -> None:
        """Settle what a crash left open. Raises `CannotLand`."""
        self._lake = lake
        self._commits = commits
        self._failpoint = failpoint
        self._unsettled: set[str] = set()
        """Tables to which something may have been committed, or not."""
        self._rebuilds: dict[tuple[str, str], Rebuild] = {}
        self.resolve()

    @property
    def versions(self) -> Mapping[str, int]:
        """The version of each table as this committer left it."""
        return self._lake.versions

    def resolve(self) -> None:
        """Confirm or forget every prepared commit. Raises `CannotLand`, after it has tried all: a table that refuses
        keeps back nothing that belongs into another. May be called again."""
        fault: LakeError | None = None
        unsettled: set[str] = set()
        for prepared in self._commits.unresolved():
            transaction = Transaction(self._commits.application(prepared), prepared.commit)
            try:
                landed = self._lake.settled(prepared.table, transaction)
            except LakeError as error:
                fault = error
                unsettled.add(prepared.table)
                continue
            if landed:
                self._commits.confirm(prepared, self._lake.versions[prepared.table])
            else:
                self._commits.forget(prepared)
        self._unsettled = unsettled
        if fault is not None:
            raise fault

    def land(
        self, batches: Sequence[ReceivedBatch], now_us: int, *, clock: Clock = _no_clock, seconds: float = 1.0
    ) -> Landed:
        """Land batches; on return every message of them is in `telemetry`, once, on the medium, but those of `held`,
        and those of the last batches that were `left` as it took `seconds` by `clock` to make the rows before them.

        `now_us`: UTC microseconds, becomes `ingested_at`. Raises `ContentError` when no rows can be made of them, or
        whatever kept the hub from landing them: then nothing may be acknowledged.
        """
        self._settle("telemetry")
        known = Known(self._commits.landed)
        began = clock()
        tables: list[pa.Table] = []
        ranges: list[SequenceRange] = []
        landed, held, done = Landed(), dict[int, str](), 0
        for piece in _in_slices(batches):
            at_s = clock()
            if done and at_s - began >= seconds:
                break
            new = plan(piece, known)
            if new.slices:
                tables.append(telemetry(new.slices, now_us))
            ranges += new.ranges
            held |= {done + index: why for index, why in new.landed.held.items()}
            landed = landed.plus(new.landed._replace(spent_s=_shares(piece, clock() - at_s)))
            done += len(piece)
        if tables:
            self._commit("telemetry", joined(tables), ranges, _reached(batches[:done]))
        for key, why in known.damaged.items():
            self._rebuild(*key, why)
        return landed._replace(held=held, left=len(batches) - done)

    def land_ledger(
        self, documents: Sequence[Sequence[LedgerRange]], now_us: int, *, clock: Clock = _no_clock, seconds: float = 1.0
    ) -> LandedRanges:
        """Land ledger ranges, each once, of as many documents as it takes `seconds` by `clock` to look up in the
        registry, and at least of one. Raises as `land`."""
        self._settle("ledger")
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
            self._commit("ledger", records("ledger", rows, now_us), list(new))
        return LandedRanges(len(new), len(documents) - done)

    def compact(self) -> int:
        """Put small files of the lake together, where there are many; returns how many. Raises `LakeError`."""
        return self._lake.compact()

    def land_records(self, table: str, rows: Sequence[Mapping[str, Any]], now_us: int) -> None:
        """Append rows that may be there twice after a crash (states, manifests: each says when it was made)."""
        if rows:
            self._lake.append(table, records(table, rows, now_us))

    def quarantine(self, unreadable: Sequence[Unreadable], now_us: int) -> None:
        """Keep bytes nobody can read. They have no name, so what is sent again is there again: `digest` tells."""
        self.land_records("quarantine", [_quarantine_row(entry) for entry in unreadable], now_us)

    def quarantine_batch(self, received: ReceivedBatch, reason: str, now_us: int) -> None:
        """Keep a batch of which no rows can be made, as a batch, and say in the ledger which messages are in it.

        Raises `CannotLand`, and ValueError for a batch that cannot be encoded.
        """
        self._settle("telemetry")
        tenant, gateway, batch = received.tenant, received.gateway, received.batch
        content = encode(batch.stored(), space=batch.space, epoch=batch.epoch, lane=batch.lane)
        self.quarantine([Unreadable(tenant, gateway, "telemetry", None, reason, content, now_us)], now_us)
        new = plan([received], Known(self._commits.landed))
        entries = [LedgerRange(*names, 0, QUARANTINED, now_us) for names in new.ranges]
        self.land_ledger([entries], now_us)

    def _rebuild(self, tenant: str, gateway: str, why: StreamDamaged) -> None:
        """Go on with reading from the lake what has landed of a gateway. Raises `CannotLand`."""
        rebuild = self._rebuilds.pop((tenant, gateway), None)
        if rebuild is None:
            log.error("%s: it is read from the lake", why)
            rebuild = Rebuild(self._lake, tenant, gateway)
        if rebuild.advance():
            self._commits.restore(tenant, gateway, rebuild.landed)
            log.warning("gateway %s: what has landed is known again, from %d data files", gateway, rebuild.files)
        else:
            self._rebuilds[tenant, gateway] = rebuild

    def _settle(self, table: str) -> None:
        """Know what is in this table. Raises `CannotLand`."""
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
        """The steps of the module's description. After an error the outcome is looked up before the next landing."""
        self._unsettled.add(name)
        prepared = self._commits.prepare(name, ranges, rows.num_rows, reached)
        self._failpoint("prepared")
        try:
            version = self._lake.append(name, rows, Transaction(self._commits.application(prepared), prepared.commit))
        except LakeError:
            with contextlib.suppress(LakeError):  # then it is looked up again
                self.resolve()
            raise
        self._commits.confirm(prepared, version)
        self._failpoint("confirmed")
        self._unsettled.discard(name)


def _in_slices(batches: Sequence[ReceivedBatch]) -> Iterator[Sequence[ReceivedBatch]]:
    """Consecutive batches whose rows are made together: of those with messages that are looked at one by one no more
    than `SLICE_BYTES_MAX`, of others all."""
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
    """The time it took to make rows of these, by gateway as far as it has to be known: by bytes."""
    sizes: Counter[tuple[str, str]] = Counter()
    for received in batches:
        sizes[received.tenant, received.gateway] += received.batch.expanded
    total = sizes.total() or 1
    return {key: seconds * size / total for key, size in sizes.items()}


def _reached(batches: Iterable[ReceivedBatch]) -> dict[GatewayStore, dict[int, int]]:
    """How far the logs of the gateways' stores reach at least."""
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


def _quarantine_row(entry: Unreadable) -> dict[str, Any]:
    return {**entry._asdict(), "digest": hashlib.sha256(entry.content).hexdigest()}
