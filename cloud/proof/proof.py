"""Proof of a lake: read it once, or in parts if it is large, and check every stream."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from cloud.lake.faults import LakeError
from cloud.lake.sequences import SequenceStream
from cloud.place.place import LakeLocation
from cloud.proof import landed as telemetry
from cloud.proof import statements as manifests
from cloud.proof.judgement import DiscardedRange, HourLine, ReportedBacklog, SendingState, StreamJudgement, judge
from cloud.proof.lake import ProofLakeReader, ReadScope
from cloud.proof.landed import LandedSequences, LandedStreams
from cloud.proof.limits import EARLIER_DAYS, FINDINGS_MAX, HELD_MAX, PARTS_MAX
from cloud.proof.statement_check import StatementCheck
from cloud.proof.statements import LandedStatement, ProofFinding
from edge.output.amounts import counted, number, verb

_LEDGER: Final = ("tenant", "gateway", "epoch", "address", "first_sequence", "last_sequence", "reason")
_STATUS: Final = ("tenant", "gateway", "backlog_messages", "ingested_at")

Gateway = tuple[str, str]
"""(tenant, name)."""


@dataclass(slots=True)
class Total:
    """Balance of a stream."""

    stream: SequenceStream
    hours: int = 0
    """Number of statements."""
    accepted: int = 0
    landed: int = 0
    given_up: dict[str, int] = field(default_factory=dict)
    waiting: int = 0
    unexplained: int = 0
    twice: int = 0
    unstated: int = 0
    """Part of `accepted` without statement: the current hour, or an address without statements."""

    def add(self, line: HourLine) -> None:
        """Add the balance of an hour."""
        self.hours += line.hour is not None
        self.unstated += 0 if line.hour is not None else line.accepted
        self.accepted += line.accepted
        self.landed += line.landed
        self.waiting += line.waiting
        self.unexplained += line.unexplained
        self.twice += line.twice
        for reason, messages in line.given_up.items():
            self.given_up[reason] = self.given_up.get(reason, 0) + messages


@dataclass(slots=True)
class Proof:
    """Result of a proof."""

    totals: list[Total] = field(default_factory=list)
    hours: list[HourLine] = field(default_factory=list)
    """Hours with missing or repeated messages, or all hours on request."""
    findings: list[ProofFinding] = field(default_factory=list)
    findings_left_out: int = 0
    statements: int = 0
    """Valid statements."""
    accounts: int = 0
    """Accounts of stores checked instead of statements."""
    keys: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """Public key by tenant, gateway and epoch of its store."""
    notes: list[str] = field(default_factory=list)
    bytes_read: int = 0

    @property
    def complete(self) -> bool:
        """True without any finding."""
        return not self.findings and not self.findings_left_out

    def find(self, findings: Iterable[ProofFinding]) -> None:
        """Add findings up to the limit, and count the others."""
        for finding in findings:
            if len(self.findings) < FINDINGS_MAX:
                self.findings.append(finding)
            else:
                self.findings_left_out += 1


class TooManySpans(Exception):
    """Too many spans for the memory limit: process fewer gateways at a time."""


def prove(
    lake: LakeLocation,
    *,
    gateway: str | None = None,
    tenant: str | None = None,
    since: datetime.date | None = None,
    every_hour: bool = False,
    held_max: int = HELD_MAX,
) -> Proof:
    """Check a lake. `since`: statements that landed from that day on; `every_hour`: also keep hours without a
    difference.

    Raises `LakeError`.
    """
    reader = ProofLakeReader(lake)
    parts = 1
    while True:
        try:
            proof = Proof()
            for part in range(parts):
                _Part(reader, proof, ReadScope(gateway, since, part, parts, tenant), held_max, every_hour).judge()
            break
        except TooManySpans:
            parts *= 4
            if gateway is not None or parts > PARTS_MAX:
                raise LakeError(
                    f"one gateway has more than {held_max} ranges and statements: limit it with --since"
                ) from None
    proof.bytes_read = reader.bytes
    return proof


def read_backlogs(reader: ProofLakeReader, scope: ReadScope) -> dict[Gateway, ReportedBacklog]:
    """Return the newest reported backlog of each gateway. Raises `LakeError`."""
    newest: dict[Gateway, ReportedBacklog] = {}
    for batch in reader.batches("gateway_status", _STATUS, scope):
        reported = pa.table(batch).filter(batch.column("backlog_messages").is_valid()).sort_by("ingested_at")
        last = reported.group_by(["tenant", "gateway"], use_threads=False).aggregate(
            [("backlog_messages", "last"), ("ingested_at", "last")]
        )
        for row in last.to_pylist():
            key = (row["tenant"], row["gateway"])
            backlog = ReportedBacklog(row["backlog_messages_last"], row["ingested_at_last"])
            if key not in newest or newest[key].reported_at < backlog.reported_at:
                newest[key] = backlog
    return newest


class _Part:
    """Proof of a part of the gateways."""

    def __init__(
        self,
        reader: ProofLakeReader,
        proof: Proof,
        scope: ReadScope,
        held_max: int,
        every_hour: bool,
    ) -> None:
        self._reader = reader
        self._proof = proof
        self._scope = scope
        self._held_max = held_max
        self._every_hour = every_hour
        self._held = 0
        self._backlogs: dict[Gateway, ReportedBacklog] = {}

    def judge(self) -> None:
        """Check all streams of the part. Raises `LakeError`, `TooManySpans`."""
        data = self._scope
        if data.since is not None:
            data = replace(data, since=data.since - datetime.timedelta(EARLIER_DAYS))
        self._backlogs = read_backlogs(
            self._reader, data
        )  # first, because the statuses refer to messages that are read after them
        statements = self._statements()
        self._held = sum(map(len, statements.values()))
        found = self._landed(data)
        ledger = self._ledger(data)
        streams = sorted(statements.keys() | found.streams.keys())
        doubtful = data.since is not None and any(
            self._judge(stream, found, ledger, statements).findings for stream in streams
        )
        if doubtful:  # an older partition may have the missing messages
            earlier = replace(data, since=None)
            found, ledger = self._landed(earlier), self._ledger(earlier)
        waiting: defaultdict[Gateway, int] = defaultdict(int)
        for stream in streams:
            judged = self._judge(stream, found, ledger, statements)
            total = Total(stream)
            for line in judged.lines:
                total.add(line)
                if self._every_hour or line.landed < line.accepted or line.twice:
                    self._proof.hours.append(line)
            waiting[stream.tenant, stream.gateway] += total.waiting
            self._proof.totals.append(total)
            self._proof.find(judged.findings)
        self._compare(waiting)

    def _judge(
        self,
        stream: SequenceStream,
        found: LandedStreams,
        ledger: Mapping[SequenceStream, list[DiscardedRange]],
        statements: Mapping[SequenceStream, list[LandedStatement]],
    ) -> StreamJudgement:
        key = (stream.tenant, stream.gateway)
        sending = SendingState(self._backlogs.get(key), key in found.backlogs)
        mine = [(signed.statement, signed.ingested_at) for signed in statements.get(stream, ())]
        return judge(stream, found.streams.get(stream) or LandedSequences(), ledger.get(stream, ()), mine, sending)

    def _compare(self, waiting: Mapping[Gateway, int]) -> None:
        """Note gateways with more messages missing than they report as waiting."""
        for (tenant, gateway), messages in sorted(waiting.items()):
            backlog = self._backlogs.get((tenant, gateway))
            if backlog is not None and messages > backlog.messages > 0:
                missing = f"{counted(messages, 'message')} {verb(messages, 'is', 'are')} missing"
                there = f"{number(backlog.messages)} {verb(backlog.messages, 'waits', 'wait')} there"
                words = f"{missing}, and the gateway reports that {there}"
                self._proof.notes.append(f"gateway {gateway}: {words}: its statement may be newer than its status")

    # --- reading ----------------------------------------------------------------------------------------------

    def _landed(self, scope: ReadScope) -> LandedStreams:
        found = LandedStreams()
        for batch in self._reader.batches("telemetry", telemetry.COLUMNS, scope):
            found.add(batch)
            self._hold(found.spans)
        self._held += found.spans
        return found

    def _hold(self, more: int) -> None:
        if self._held + more > self._held_max:
            raise TooManySpans

    def _ledger(self, scope: ReadScope) -> dict[SequenceStream, list[DiscardedRange]]:
        ranges: dict[SequenceStream, list[DiscardedRange]] = {}
        count = 0
        for row in self._reader.rows("ledger", _LEDGER, scope):
            stream = SequenceStream(row["tenant"], row["gateway"], row["epoch"], row["address"])
            ranges.setdefault(stream, []).append(
                DiscardedRange(row["first_sequence"], row["last_sequence"], row["reason"])
            )
            count += 1
            self._hold(count)
        self._held += count
        return ranges

    def _statements(self) -> dict[SequenceStream, list[LandedStatement]]:
        """Read the statements; return the valid ones, and report faults of others and of their chains."""
        check = StatementCheck(self._proof.find)
        for row in self._reader.rows("manifests", manifests.COLUMNS, self._scope):
            check.add(row)
            self._hold(len(check.read))
        valid = check.valid(whole=self._scope.since is None)
        self._proof.statements += sum(map(len, valid.values()))
        self._proof.keys.update((name, key) for name, (_, key) in check.keys.of.items())
        return valid
