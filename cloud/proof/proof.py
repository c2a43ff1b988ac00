"""The proof of a lake: reads it once, or in parts where it is large, and judges every stream."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from bridge.manifest import ManifestStatement
from cloud.lake.faults import LakeError
from cloud.lake.sequences import Stream
from cloud.place.place import Somewhere
from cloud.proof import landed as telemetry
from cloud.proof import statements as manifests
from cloud.proof.judgement import Backlog, Circumstances, GivenUp, HourLine, Judged, judge
from cloud.proof.lake import LakeReader, Window
from cloud.proof.landed import Landed, LandedStreams
from cloud.proof.limits import EARLIER_DAYS, FINDINGS_MAX, HELD_MAX, PARTS_MAX
from cloud.proof.statements import Finding, Keys, Kind, Signed, chain_faults, closing_faults, doubt
from edge.output.amounts import counted, number, verb

_LEDGER: Final = ("tenant", "gateway", "epoch", "address", "first_sequence", "last_sequence", "reason")
_STATUS: Final = ("tenant", "gateway", "backlog_messages", "ingested_at")

Gateway = tuple[str, str]
"""(tenant, name)."""


@dataclass(slots=True)
class Total:
    """What became of the messages of a stream."""

    stream: Stream
    hours: int = 0
    """Statements."""
    accepted: int = 0
    landed: int = 0
    given_up: dict[str, int] = field(default_factory=dict)
    waiting: int = 0
    unexplained: int = 0
    twice: int = 0
    unstated: int = 0
    """Of `accepted`, above all statements: of an hour that is not over, or an address that is not stated."""

    def add(self, line: HourLine) -> None:
        """Count an hour's."""
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
    """What was found."""

    totals: list[Total] = field(default_factory=list)
    hours: list[HourLine] = field(default_factory=list)
    """Those of which not all has landed, or all when they were asked for."""
    findings: list[Finding] = field(default_factory=list)
    findings_left_out: int = 0
    statements: int = 0
    """Believed."""
    accounts: int = 0
    """Accounts of stores that were judged instead of statements."""
    keys: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """Public key by tenant, gateway and epoch of its store."""
    notes: list[str] = field(default_factory=list)
    bytes_read: int = 0

    @property
    def complete(self) -> bool:
        """Nothing is unexplained."""
        return not self.findings and not self.findings_left_out

    def find(self, findings: Iterable[Finding]) -> None:
        """Add these, as far as there is room."""
        for finding in findings:
            if len(self.findings) < FINDINGS_MAX:
                self.findings.append(finding)
            else:
                self.findings_left_out += 1


class TooMuch(Exception):
    """More than may be held at once: look at fewer gateways."""


def prove(
    lake: Somewhere,
    *,
    gateway: str | None = None,
    since: datetime.date | None = None,
    every_hour: bool = False,
    held_max: int = HELD_MAX,
) -> Proof:
    """Judge a lake. `since`: statements that landed from that day on; `every_hour`: keep hours that are whole, too.

    Raises `LakeError`.
    """
    reader = LakeReader(lake)
    parts = 1
    while True:
        try:
            proof = Proof()
            for part in range(parts):
                _Part(reader, proof, Window(gateway, since, part, parts), held_max, every_hour).judge()
            break
        except TooMuch:
            parts *= 4
            if gateway is not None or parts > PARTS_MAX:
                raise LakeError(
                    f"one gateway has more than {held_max} ranges and statements: ask for less with --since"
                ) from None
    proof.bytes_read = reader.bytes
    return proof


def read_backlogs(reader: LakeReader, window: Window) -> dict[Gateway, Backlog]:
    """Return the newest status of each gateway that says how much waits. Raises `LakeError`."""
    newest: dict[Gateway, Backlog] = {}
    for batch in reader.batches("gateway_status", _STATUS, window):
        said = pa.table(batch).filter(batch.column("backlog_messages").is_valid()).sort_by("ingested_at")
        last = said.group_by(["tenant", "gateway"], use_threads=False).aggregate(
            [("backlog_messages", "last"), ("ingested_at", "last")]
        )
        for row in last.to_pylist():
            key = (row["tenant"], row["gateway"])
            backlog = Backlog(row["backlog_messages_last"], row["ingested_at_last"])
            if key not in newest or newest[key].said_at < backlog.said_at:
                newest[key] = backlog
    return newest


class _Part:
    """Some of the gateways."""

    def __init__(
        self,
        reader: LakeReader,
        proof: Proof,
        window: Window,
        held_max: int,
        every_hour: bool,
    ) -> None:
        self._reader = reader
        self._proof = proof
        self._window = window
        self._held_max = held_max
        self._every_hour = every_hour
        self._held = 0
        self._backlogs: dict[Gateway, Backlog] = {}

    def judge(self) -> None:
        """Raises `LakeError`, `TooMuch`."""
        data = self._window
        if data.since is not None:
            data = Window(data.gateway, data.since - datetime.timedelta(EARLIER_DAYS), data.part, data.parts)
        self._backlogs = read_backlogs(self._reader, data)  # first: what they say has landed is read after them
        statements = self._statements()
        self._held = sum(map(len, statements.values()))
        found = self._landed(data)
        ledger = self._ledger(data)
        streams = sorted(statements.keys() | found.streams.keys())
        doubtful = data.since is not None and any(
            self._judge(stream, found, ledger, statements).findings for stream in streams
        )
        if doubtful:  # an older partition may have what seems to be missing
            earlier = Window(data.gateway, None, data.part, data.parts)
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
        stream: Stream,
        found: LandedStreams,
        ledger: Mapping[Stream, list[GivenUp]],
        statements: Mapping[Stream, list[Signed]],
    ) -> Judged:
        key = (stream.tenant, stream.gateway)
        circumstances = Circumstances(self._backlogs.get(key), key in found.backlogs)
        mine = [(signed.said, signed.ingested_at) for signed in statements.get(stream, ())]
        return judge(stream, found.streams.get(stream) or Landed(), ledger.get(stream, ()), mine, circumstances)

    def _compare(self, waiting: Mapping[Gateway, int]) -> None:
        """No more can be at a gateway than it says."""
        for (tenant, gateway), messages in sorted(waiting.items()):
            backlog = self._backlogs.get((tenant, gateway))
            if backlog is not None and messages > backlog.messages > 0:
                missing = f"{counted(messages, 'message')} {verb(messages, 'is', 'are')} missing"
                there = f"{number(backlog.messages)} {verb(backlog.messages, 'waits', 'wait')} there"
                words = f"{missing}, and the gateway says that {there}"
                self._proof.notes.append(f"gateway {gateway}: {words}: its statement may be newer than its status")

    # --- reading ----------------------------------------------------------------------------------------------

    def _landed(self, window: Window) -> LandedStreams:
        found = LandedStreams()
        for batch in self._reader.batches("telemetry", telemetry.COLUMNS, window):
            found.add(batch)
            self._hold(found.spans)
        self._held += found.spans
        return found

    def _hold(self, more: int) -> None:
        if self._held + more > self._held_max:
            raise TooMuch

    def _ledger(self, window: Window) -> dict[Stream, list[GivenUp]]:
        ranges: dict[Stream, list[GivenUp]] = {}
        count = 0
        for row in self._reader.rows("ledger", _LEDGER, window):
            stream = Stream(row["tenant"], row["gateway"], row["epoch"], row["address"])
            ranges.setdefault(stream, []).append(GivenUp(row["first_sequence"], row["last_sequence"], row["reason"]))
            count += 1
            self._hold(count)
        self._held += count
        return ranges

    def _statements(self) -> dict[Stream, list[Signed]]:
        """Those that are believed; what is wrong with others, and with their chains, is found."""
        read: dict[tuple[Stream, str], Signed] = {}
        keys = Keys()
        for row in self._reader.rows("manifests", manifests.COLUMNS, self._window):
            signed = manifests.read(row)
            if isinstance(signed, str):
                name = (row["tenant"], row["gateway"], row["epoch"], row["address"])
                words = f"no gateway makes such a statement: {signed}"
                self._proof.find([Finding(Kind.FORGED, *name, row["first_sequence"], row["last_sequence"], words)])
                continue
            keys.learn(signed)
            before = read.get((signed.stream, signed.said.digest))
            if before is None or doubt(before, keys):  # after a crash of the hub it is there twice
                read[signed.stream, signed.said.digest] = signed
            self._hold(len(read))
        return self._believed(read.values(), keys)

    def _believed(self, read: Iterable[Signed], keys: Keys) -> dict[Stream, list[Signed]]:
        proof, believed = self._proof, dict[Stream, list[Signed]]()
        gateways: dict[Gateway, list[ManifestStatement]] = {}
        for signed in read:
            why = doubt(signed, keys)
            if why is not None:
                said = signed.said
                proof.find([Finding(Kind.FORGED, *signed.stream, said.first_sequence, said.last_sequence, why)])
                continue
            proof.statements += 1
            believed.setdefault(signed.stream, []).append(signed)
            gateways.setdefault((signed.stream.tenant, signed.stream.gateway), []).append(signed.said)
        whole = self._window.since is None
        for stream, chain in believed.items():
            proof.find(chain_faults(stream, [signed.said for signed in chain], whole=whole))
        for (tenant, gateway), made in gateways.items():
            proof.find(closing_faults(tenant, gateway, made, whole=whole))
        proof.keys.update((name, key) for name, (_, key) in keys.of.items())
        return believed
