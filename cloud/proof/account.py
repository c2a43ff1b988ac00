"""Proof for a gateway behind another one: its store's account, compared with the rows that name it as their origin.

Such a gateway sends no statements to the hub, and its name in the lake is claimed by the gateway above. An epoch is
random and created with the store, so the account finds its rows by their `origin_epoch`.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Set
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from bridge.store_account import StoreAccount
from cloud.lake.sequences import SequenceStream
from cloud.place.place import LakeLocation
from cloud.proof.judgement import ReportedBacklog, SendingState, judge_account
from cloud.proof.lake import ProofLakeReader, ReadScope
from cloud.proof.landed import LandedSequences, runs_of
from cloud.proof.proof import Gateway, Proof, Total, read_backlogs

_ORIGIN: Final = ("origin_gateway", "origin_epoch", "origin_address", "origin_sequence")
_COLUMNS: Final = ("tenant", "gateway", "lane", *_ORIGIN)


class _Relayed:
    """Rows of some epochs, by (epoch, address) of their origin."""

    def __init__(self, epochs: Set[str]) -> None:
        self._epochs = pa.array(sorted(epochs), pa.string())
        self.landed: dict[tuple[str, str], LandedSequences] = {}
        self.gateways: dict[str, str] = {}
        """Name of the origin gateway, by epoch."""
        self.above: set[Gateway] = set()
        """Gateways that sent the rows to the hub."""
        self.lanes = False
        """True if some came in the backlog lane."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of `telemetry`; a file of an older program has no origins."""
        if any(name not in batch.schema.names for name in _ORIGIN):
            return
        mine = batch.filter(pc.is_in(batch.column("origin_epoch"), self._epochs))
        if not mine.num_rows:
            return
        self.above |= set(zip(mine.column("tenant").to_pylist(), mine.column("gateway").to_pylist(), strict=True))
        self.lanes = self.lanes or "backlog" in mine.column("lane").unique().to_pylist()
        named = [mine.column(name) for name in ("tenant", *_ORIGIN)]
        names = ["tenant", "gateway", "epoch", "address", "sequence"]
        for stream, first, last in runs_of(pa.RecordBatch.from_arrays(named, names)):
            self.gateways.setdefault(stream.epoch, stream.gateway)
            self.landed.setdefault((stream.epoch, stream.address), LandedSequences()).add(first, last)

    def sending(self, backlogs: Mapping[Gateway, ReportedBacklog]) -> SendingState:
        """Return the state of the gateways above: the largest backlog, and the oldest of their statuses. It is unknown
        without any row."""
        backlogs_above = [backlogs.get(gateway) for gateway in self.above]
        known = [backlog for backlog in backlogs_above if backlog is not None]
        if not known or len(known) < len(backlogs_above):
            return SendingState(None, self.lanes)
        backlog = ReportedBacklog(max(one.messages for one in known), min(one.reported_at for one in known))
        return SendingState(backlog, self.lanes)


def prove_account(lake: LakeLocation, account: StoreAccount) -> Proof:
    """Check the account of a store. Raises `LakeError`."""
    reader, window = ProofLakeReader(lake), ReadScope()
    backlogs = read_backlogs(reader, window)  # first, because the statuses refer to messages that are read after them
    relayed = _Relayed({one.epoch for one in account.addresses})
    for batch in reader.batches("telemetry", _COLUMNS, window):
        relayed.add(batch)
    sending = relayed.sending(backlogs)
    taken_at = datetime.datetime.fromtimestamp(account.taken_at / 1e9, datetime.UTC)
    proof = Proof(accounts=1, bytes_read=reader.bytes)
    for one in account.addresses:
        stream = SequenceStream("", relayed.gateways.get(one.epoch, "?"), one.epoch, one.address)
        landed = relayed.landed.get((one.epoch, one.address)) or LandedSequences()
        judged = judge_account(stream, one, landed, taken_at, sending)
        total = Total(stream)
        for line in judged.lines:
            total.add(line)
        total.unstated = 0
        proof.totals.append(total)
        proof.find(judged.findings)
    return proof
