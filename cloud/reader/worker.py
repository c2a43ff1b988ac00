"""Process that reads the lake: one request at a time from its standard input, the answer on its standard output.

It ends with its input, so it does not outlive the hub. The hub kills it when a read takes too long.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Final, TypeAlias

import msgspec

from cloud.place.place import LakePlace, parse
from cloud.reader import completeness, gold, lake_state
from cloud.reader.limits import READ_BYTES_MAX, READER_NICE
from cloud.reader.requests import (
    LENGTH_BYTES,
    CompletenessDays,
    GatewayHours,
    GatewayProof,
    GoldRows,
    LakeAnswer,
    LakeRead,
    LakeRequest,
    LakeTables,
    QuarantineSample,
    SeriesList,
    StatementFaults,
    TableList,
)
from cloud.reader.tables import GOLD, LakeTableUnreadable, OpenTable, ReadRefused, TableMissing

Document: TypeAlias = Mapping[str, Any] | bytes
"""JSON object, or the bytes of a file."""


def answer(place: LakePlace, request: LakeRequest) -> LakeAnswer:
    """Answer one request."""
    try:
        table = _table_of(place, request.read)
        state = table.state if table is not None else ""
        if state and state == request.known:
            return LakeAnswer(state)
        found = _read(place, request.read, table)
    except TableMissing as missing:
        return LakeAnswer(refused=str(missing), missing=True)
    except LakeTableUnreadable as error:
        return LakeAnswer(refused=str(error), unreadable=True)
    except ReadRefused as refused:
        return LakeAnswer(refused=str(refused))
    body = found if isinstance(found, bytes) else msgspec.json.encode(found)
    if len(body) > READ_BYTES_MAX:
        return LakeAnswer(refused=f"the answer has more than {READ_BYTES_MAX // 1_048_576} MB: choose a shorter span")
    return LakeAnswer(state, body)


def _table_of(place: LakePlace, read: LakeRead) -> OpenTable | None:
    """Return the one table that a read needs; None if it needs several. Raises `ReadRefused`."""
    if isinstance(read, GoldRows) and read.table not in GOLD:
        raise ReadRefused(f"there is no gold table {read.table[:60]!r}: {', '.join(GOLD)}")
    name = read.table if isinstance(read, GoldRows) else _TABLES.get(type(read))
    return OpenTable(place, name) if name is not None else None


_TABLES: Final[Mapping[type[LakeRead], str]] = {
    CompletenessDays: "completeness_hourly",
    QuarantineSample: "quarantine",
}
_OF_TABLE: Final[Mapping[type[LakeRead], Callable[[OpenTable, Any], Document]]] = {
    GoldRows: gold.read_rows,
    CompletenessDays: completeness.read_days,
    QuarantineSample: lake_state.read_quarantine,
}
_OF_LAKE: Final[Mapping[type[LakeRead], Callable[[LakePlace, Any], Document]]] = {
    SeriesList: gold.read_series,
    TableList: lambda place, _: gold.list_tables(place),
    LakeTables: lambda place, _: lake_state.read_tables(place),
    GatewayHours: completeness.read_hours,
    StatementFaults: completeness.read_faults,
    GatewayProof: completeness.read_proof,
}


def _read(place: LakePlace, read: LakeRead, table: OpenTable | None) -> Document:
    """Return the document, or CSV. Raises `ReadRefused`."""
    if table is not None:
        return _OF_TABLE[type(read)](table, read)
    return _OF_LAKE[type(read)](place, read)


def serve(place: LakePlace, source: IO[bytes], target: IO[bytes]) -> None:
    """Answer requests until the input ends."""
    requests = msgspec.msgpack.Decoder(LakeRequest)
    while length := source.read(LENGTH_BYTES):
        request = requests.decode(source.read(int.from_bytes(length, "big")))
        encoded = msgspec.msgpack.encode(answer(place, request))
        target.write(len(encoded).to_bytes(LENGTH_BYTES, "big") + encoded)
        target.flush()


def main(arguments: Sequence[str]) -> None:
    """Serve the lake that the argument names."""
    os.nice(READER_NICE)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a library that prints must not break the answers
    serve(parse(arguments[0]), sys.stdin.buffer, answers)


if __name__ == "__main__":
    main(sys.argv[1:])
