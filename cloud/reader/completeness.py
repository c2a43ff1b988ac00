"""Completeness for pages: days of tenants, hours of a gateway, faults of statements, and the proof of a gateway.

The judgement is that of `cloud.proof`. The hours of a gateway need no analytics: its statements are compared with the
sequences that the hub's registry knows as landed, and with the ledger.
"""

from __future__ import annotations

import contextlib
import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cloud.lake.faults import LakeError
from cloud.lake.sequences import SequenceStream, Span
from cloud.place.place import LakePlace
from cloud.proof import statements as manifests
from cloud.proof.document import proof_document
from cloud.proof.judgement import DiscardedRange, HourLine, ReportedBacklog, SendingState, judge
from cloud.proof.lake import ProofLakeReader, ReadScope
from cloud.proof.landed import LandedSequences
from cloud.proof.proof import prove
from cloud.proof.statement_check import StatementCheck
from cloud.proof.statements import ProofFinding
from cloud.reader.documents import (
    BalanceDays,
    BalanceHour,
    GatewayBalance,
    OpenBalance,
    StatementFaultList,
    StatementFinding,
)
from cloud.reader.limits import FINDINGS_SHOWN_MAX, STATEMENTS_CHECKED_MAX
from cloud.reader.requests import CompletenessDays, GatewayHours, GatewayProof, StatementFaults
from cloud.reader.tables import EPOCH, LakeTableUnreadable, OpenTable, ReadBudget, ReadRefused, RowFilter, moment_of

_SUMS: Final = ("accepted", "landed", "waiting", "unexplained")
_LEDGER: Final = ("tenant", "gateway", "epoch", "address", "first_sequence", "last_sequence", "reason")
_HOUR_MS: Final = 3_600_000


@dataclass(slots=True)
class FoundFaults:
    """Findings up to `FINDINGS_SHOWN_MAX`, and the number of the others."""

    shown: list[ProofFinding] = field(default_factory=list)
    left_out: int = 0

    def find(self, findings: Iterable[ProofFinding]) -> None:
        """Add findings."""
        for finding in findings:
            if len(self.shown) < FINDINGS_SHOWN_MAX:
                self.shown.append(finding)
            else:
                self.left_out += 1

    def rows(self) -> list[StatementFinding]:
        """Return the findings as JSON objects."""
        return [
            StatementFinding(
                kind=each.kind.value,
                tenant=each.tenant,
                gateway=each.gateway,
                epoch=each.epoch,
                address=each.address,
                first=each.first,
                last=each.last,
                words=each.words,
            )
            for each in self.shown
        ]


def read_days(table: OpenTable, read: CompletenessDays) -> BalanceDays:
    """Return the balance of each tenant and day of the table `completeness_hourly`. Raises `ReadRefused`."""
    wanted = RowFilter({"tenant": read.tenant} if read.tenant is not None else {}, "hour", moment_of(read.begin))
    days: defaultdict[tuple[str, datetime.date], Counter[str]] = defaultdict(Counter)
    budget = ReadBudget()
    for batch in table.batches(["tenant", "hour", *_SUMS], wanted, budget):
        budget.held = 0  # only the sums are kept
        rows = pa.table(batch).append_column(
            "day", pc.cast(pc.floor_temporal(batch.column("hour"), unit="day"), pa.date32())
        )
        sums = rows.group_by(["tenant", "day"], use_threads=False).aggregate([(name, "sum") for name in _SUMS])
        for row in sums.to_pylist():
            days[row["tenant"], row["day"]].update({name: row[f"{name}_sum"] or 0 for name in _SUMS})
    return {
        "days": [
            {
                "tenant": tenant,
                "day": day.isoformat(),
                "accepted": found["accepted"],
                "landed": found["landed"],
                "waiting": found["waiting"],
                "unexplained": found["unexplained"],
                "given_up": _discarded(found),
            }
            for (tenant, day), found in sorted(days.items(), key=lambda item: (item[0][1], item[0][0]), reverse=True)
        ],
        "version": table.delta.version(),
        "written_at": table.written_at(),
    }


def _discarded(found: Counter[str]) -> int:
    return found["accepted"] - found["landed"] - found["waiting"] - found["unexplained"]


def read_hours(place: LakePlace, read: GatewayHours) -> GatewayBalance:
    """Return the balance of each hour of a gateway, and the faults of its statements. Raises `ReadRefused`."""
    faults = FoundFaults()
    with _lake_errors():
        reader, scope = ProofLakeReader(place), ReadScope(read.gateway, _day(read.since), tenant=read.tenant)
        check = StatementCheck(faults.find)
        for row in reader.rows("manifests", manifests.COLUMNS, scope):
            check.add(row)
            if len(check.read) > STATEMENTS_CHECKED_MAX:
                raise ReadRefused(f"more than {STATEMENTS_CHECKED_MAX} statements: choose fewer days")
        ledger: defaultdict[tuple[str, str], list[DiscardedRange]] = defaultdict(list)
        for row in reader.rows("ledger", _LEDGER, scope):
            gone = DiscardedRange(row["first_sequence"], row["last_sequence"], row["reason"])
            ledger[row["epoch"], row["address"]].append(gone)
    valid = check.valid(whole=False)
    landed = {(each.epoch, each.address): each.spans for each in read.landed}
    hours: defaultdict[int | None, Counter[str]] = defaultdict(Counter)
    reasons: defaultdict[int | None, Counter[str]] = defaultdict(Counter)
    for line in _lines(read, valid, landed, ledger):
        at = None if line.hour is None else line.hour // 1_000_000
        discarded = sum(line.given_up.values())
        hours[at].update(
            accepted=line.accepted,
            landed=line.landed,
            waiting=line.waiting,
            unexplained=line.unexplained,
            given_up=discarded,
        )
        reasons[at].update(line.given_up)
    rows: list[BalanceHour] = [
        {"hour": at, **_counts(found, reasons[at]), "state": _state(found)}
        for at, found in sorted(hours.items(), key=lambda item: item[0] or 0)
        if at is not None
    ]
    return {
        "hours": rows,
        "open": _counts(hours[None], reasons[None]) if None in hours else None,
        "statements": sum(map(len, valid.values())),
        "faults": faults.rows(),
        "faults_left_out": faults.left_out,
    }


def _lines(
    read: GatewayHours,
    valid: dict[SequenceStream, list[manifests.LandedStatement]],
    landed: dict[tuple[str, str], list[Span]],
    ledger: dict[tuple[str, str], list[DiscardedRange]],
) -> Iterator[HourLine]:
    reported_at = moment_of(read.reported_at)
    backlog = (
        ReportedBacklog(read.backlog, reported_at) if read.backlog is not None and reported_at is not None else None
    )
    for stream, signed in valid.items():
        key, there = (stream.epoch, stream.address), LandedSequences()
        for span in landed.get(key, ()):
            there.add(*span)
        lowest = min(one.statement.first_sequence for one in signed)
        mine = [gone for gone in ledger.get(key, ()) if gone.last >= lowest]
        stated = [(one.statement, one.ingested_at) for one in signed]
        # The lane of a gateway is in its messages, which are not read: missing ones may wait while it reports any.
        yield from judge(stream, there, mine, stated, SendingState(backlog, lanes=True)).lines


def _counts(found: Counter[str], reasons: Counter[str]) -> OpenBalance:
    return {
        "accepted": found["accepted"],
        "landed": found["landed"],
        "waiting": found["waiting"],
        "unexplained": found["unexplained"],
        "given_up": found["given_up"],
        "reasons": dict(reasons),
    }


def _state(found: Counter[str]) -> str:
    if found["unexplained"]:
        return "unexplained"
    return "open" if found["waiting"] else "proven"


def read_faults(place: LakePlace, read: StatementFaults) -> StatementFaultList:
    """Return missing and forged statements since a day. Raises `ReadRefused`.

    Of a large fleet a part of the gateways is checked in each hour.
    """
    faults, since = FoundFaults(), _day(read.since)
    with _lake_errors():
        parts = 1 if read.gateway is not None else 1 + _statements_since(place, since) // STATEMENTS_CHECKED_MAX
        part = read.since // _HOUR_MS % parts
        check, reader = StatementCheck(faults.find), ProofLakeReader(place)
        for row in reader.rows(
            "manifests", manifests.COLUMNS, ReadScope(read.gateway, since, part, parts, read.tenant)
        ):
            check.add(row)
            if len(check.read) > 2 * STATEMENTS_CHECKED_MAX:
                raise ReadRefused(f"one gateway has more than {STATEMENTS_CHECKED_MAX} statements: choose fewer days")
    valid = check.valid(whole=False)
    return {
        "faults": faults.rows(),
        "faults_left_out": faults.left_out,
        "statements": sum(map(len, valid.values())),
        "gateways": len({stream[:2] for stream in valid}),
        "parts": parts,
    }


def _statements_since(place: LakePlace, since: datetime.date) -> int:
    """Return the number of rows of `manifests` from a day on, by the log."""
    table = OpenTable(place, "manifests")
    days = ((file.get("partition.ingest_date"), file.get("num_records") or 0) for file in table.files())
    return sum(rows for day, rows in days if day is None or str(day) >= since.isoformat())


def read_proof(place: LakePlace, read: GatewayProof) -> dict[str, Any]:
    """Return the proof of one gateway, every hour included. Raises `ReadRefused`."""
    since = _day(read.since) if read.since is not None else None
    with _lake_errors():
        proof = prove(place, gateway=read.gateway, tenant=read.tenant, since=since, every_hour=True)
    return {"gateway": read.gateway, "tenant": read.tenant, "since": since, **proof_document(proof)}


@contextlib.contextmanager
def _lake_errors() -> Iterator[None]:
    """Turn `LakeError` into `LakeTableUnreadable`."""
    try:
        yield
    except LakeError as error:
        raise LakeTableUnreadable(str(error)) from error


def _day(milliseconds_utc: int) -> datetime.date:
    return (EPOCH + datetime.timedelta(milliseconds=milliseconds_utc)).date()
