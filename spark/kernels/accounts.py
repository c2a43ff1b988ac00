"""Account of each address, in plain Python: its ranges and statements in, the result of `judgement.judge` out.

Both are rows of Arrow, on Spark's workers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import groupby, islice
from typing import Any, Final, NamedTuple

import pyarrow as pa

from spark.kernels.judgement import AccountCondition, AccountLine, HourStatement, judge

KEY: Final = ("tenant", "gateway", "epoch", "address")
LANDED, GIVEN_UP, STATED, SETTLED = "landed", "given up", "stated", "settled"
"""Kinds of facts."""
LINE, GAP, ADDRESS = "line", "gap", "address"
"""Kinds of rows of an account: a statement; a dropped or missing range; the whole address."""
FACTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(KEY, "string"),
    "fact": "string",
    "first": "bigint",
    "last": "bigint",
    "rows": "bigint",
    "reason": "string",
    "hour": "timestamp",
    "until": "timestamp",
    "ingested_at": "timestamp",
    "waiting": "bigint",
    "said_at": "timestamp",
    "lanes": "boolean",
}
"""Range or statement of an address (columns and their types), with the state of its gateway."""
ORDER: Final = (*KEY, "fact", "reason", "first")
"""Sort order of facts."""
ACCOUNTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(KEY, "string"),
    "kind": "string",
    "hour": "timestamp",
    "first_sequence": "bigint",
    "last_sequence": "bigint",
    "accepted": "bigint",
    "landed": "bigint",
    "given_up": "string",
    "missing": "bigint",
    "explained": "bigint",
    "waiting": "bigint",
    "unexplained": "bigint",
    "unstated": "bigint",
    "rows": "bigint",
    "distinct_sequences": "bigint",
    "duplicates": "bigint",
    "reason": "string",
}
"""Row of an account; the columns that are set depend on its kind."""
_TYPES: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "boolean": pa.bool_(),
}
_BATCH_ROWS: Final = 10_000
"""Rows per batch: some 10 MB as objects."""


def arrow(columns: Mapping[str, str]) -> pa.Schema:
    """Return columns as a schema of Arrow."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])


def accounts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the accounts of all addresses as `ACCOUNTS`. `batches`: rows of `FACTS`, sorted by `ORDER`."""
    facts = (
        _Fact(*row) for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    by_address = groupby(facts, key=lambda fact: fact[: len(KEY)])
    rows = (dict(zip(KEY, key, strict=True)) | row for key, of_it in by_address for row in _account(list(of_it)))
    while some := list(islice(rows, _BATCH_ROWS)):
        yield pa.RecordBatch.from_pylist(some, schema=arrow(ACCOUNTS))


class _Fact(NamedTuple):
    """Row of `FACTS`."""

    tenant: str
    gateway: str
    epoch: str
    address: str
    fact: str
    first: int
    last: int
    rows: int | None
    reason: str | None
    hour: datetime | None
    until: datetime | None
    ingested_at: datetime | None
    waiting: int | None
    said_at: datetime | None
    lanes: bool | None


def _account(facts: list[_Fact]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one address: a line per statement, the gaps, and the totals."""
    one = facts[0]
    lines = judge(
        [(fact.first, fact.last) for fact in facts if fact.fact == LANDED],
        [(fact.first, fact.last, fact.reason or "") for fact in facts if fact.fact == GIVEN_UP],
        [
            HourStatement(fact.hour, fact.until or fact.hour, fact.first, fact.last, fact.ingested_at)
            for fact in facts
            if fact.fact == STATED and fact.hour is not None and fact.ingested_at is not None
        ],
        AccountCondition(one.waiting, one.said_at, one.lanes is True),
        [(fact.first, fact.last) for fact in facts if fact.fact == SETTLED],
    )
    for line in lines:
        yield _line(line)
        for first, last, reason in line.gaps:
            missing = last + 1 - first
            yield {"kind": GAP, "first_sequence": first, "last_sequence": last, "missing": missing, "reason": reason}
    yield _address(facts, lines)


def _line(line: AccountLine) -> dict[str, Any]:
    return {
        "kind": LINE,
        "hour": line.hour,
        "first_sequence": line.first,
        "last_sequence": line.last,
        "accepted": line.accepted,
        "landed": line.landed,
        "given_up": json.dumps(line.given_up, sort_keys=True),
        "waiting": line.waiting,
        "unexplained": line.unexplained,
    }


def _address(facts: list[_Fact], lines: list[AccountLine]) -> dict[str, Any]:
    rows = sum(fact.rows or 0 for fact in facts if fact.fact == LANDED)
    distinct, settled = _sequences(facts, LANDED), _sequences(facts, SETTLED)
    accepted = settled + sum(line.accepted for line in lines)
    landed = settled + sum(line.landed for line in lines)
    return {
        "kind": ADDRESS,
        "first_sequence": min([fact.first for fact in facts] + [line.first for line in lines]),
        "last_sequence": max([fact.last for fact in facts] + [line.last for line in lines]),
        "accepted": accepted,
        "landed": landed,
        "missing": accepted - landed,
        "explained": sum(sum(line.given_up.values()) for line in lines),
        "waiting": sum(line.waiting for line in lines),
        "unexplained": sum(line.unexplained for line in lines),
        "unstated": sum(line.accepted for line in lines if line.hour is None),
        "rows": rows,
        "distinct_sequences": distinct,
        "duplicates": rows - distinct,
    }


def _sequences(facts: list[_Fact], kind: str) -> int:
    return sum(fact.last + 1 - fact.first for fact in facts if fact.fact == kind)
