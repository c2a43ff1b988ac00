"""Completeness: accepted = landed + discarded, by reason + waiting at the gateway + unexplained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from spark.report import limits
from spark.report.tables import Gateway, ReportTables, group, group_by_gateway, seconds, take_worst, total

_ADDRESS = ("tenant", "gateway", "epoch", "address", "first_sequence", "last_sequence")
_COUNTS = ("rows", "accepted", "missing", "explained", "waiting", "unexplained", "duplicates", "unstated")


class Balance(msgspec.Struct):
    """Sums of messages: `accepted` = `landed` + `given_up` of all reasons + `waiting` + `unexplained`.

    `rows` counts the rows in the lake, including `duplicates`. `unstated` is the part of `accepted` that no gateway has
    stated yet.
    """

    rows: int = 0
    accepted: int = 0
    landed: int = 0
    given_up: dict[str, int] = {}
    waiting: int = 0
    unexplained: int = 0
    duplicates: int = 0
    unstated: int = 0


class Accounts(msgspec.Struct):
    """Balances and their worst details.

    `known`: the job has run. `addresses` and `ranges` are the worst rows of `completeness` and `gaps`; `hours` are the
    statements with unexplained messages. `by_gateway` has the sums of each gateway.
    """

    known: bool
    balance: Balance
    addresses: list[dict[str, Any]]
    addresses_total: int
    ranges: list[dict[str, Any]]
    ranges_total: int
    hours: list[dict[str, Any]]
    hours_total: int
    by_gateway: dict[Gateway, dict[str, int]]


def read(tables: ReportTables) -> Accounts:
    """Return the balance of the fleet, or of one gateway."""
    table = _fill_missing(tables.read("completeness", (*_ADDRESS, "distinct_sequences", *_COUNTS)))
    ranges = take_worst(
        tables.parts("gaps", (*_ADDRESS, "missing", "explained", "reason")),
        limits.ROWS_MAX,
        ("explained", "ascending"),
        ("missing", "descending"),
    )
    why = ("explained", "reason")
    reasons = group(tables.parts("gaps", (*why, "missing")), why, ("missing", "sum"))
    sums = {name: total(table, name) for name in _COUNTS}
    landed = sums["accepted"] - sums["missing"]
    counted = {name: sums[name] for name in ("rows", "accepted", "waiting", "unexplained", "duplicates", "unstated")}
    rows = group_by_gateway([table], *((name, "sum") for name in _COUNTS))
    columns = (*_ADDRESS, "hour", "accepted", "landed", "waiting", "unexplained")
    wrong = tables.parts("completeness_hourly", columns, ("unexplained", ">", 0))
    hours = take_worst(wrong, limits.ROWS_MAX, ("unexplained", "descending"))
    return Accounts(
        known=table.num_rows > 0,
        balance=Balance(landed=landed, given_up=_count_reasons(reasons, sums["explained"]), **counted),
        addresses=_worst_addresses(table),
        addresses_total=table.num_rows,
        ranges=ranges.rows,
        ranges_total=ranges.total,
        hours=[row | {"hour": seconds(row["hour"])} for row in hours.rows],
        hours_total=hours.total,
        by_gateway={key: {name: row[f"{name}_sum"] for name in _COUNTS} for key, row in rows.items()},
    )


def _fill_missing(table: pa.Table) -> pa.Table:
    """Add the column of accepted messages to a table of an earlier Waypost: accepted is what was expected."""
    if not table.num_rows:
        return table
    should = pc.add(table["distinct_sequences"], table["missing"])
    filled = {"accepted": pc.coalesce(table["accepted"], should)}
    filled |= {name: pc.fill_null(table[name], 0) for name in ("waiting", "unstated")}
    for name, column in filled.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


def _worst_addresses(table: pa.Table) -> list[dict[str, Any]]:
    if not table.num_rows:
        return []
    table = table.append_column("wrong", pc.add(table["unexplained"], table["duplicates"]))
    order = [("wrong", "descending"), ("missing", "descending"), ("gateway", "ascending"), ("address", "ascending")]
    return take_worst([table], limits.ROWS_MAX, *order).rows


def _count_reasons(gaps: Iterable[Mapping[str, Any]], explained: int) -> dict[str, int]:
    """Return discarded messages by reason, the most frequent first. They add up to the explained ones of
    `completeness`.
    """
    found = {row["reason"] or "no reason": row["missing_sum"] for row in gaps if row["explained"]}
    if explained > sum(found.values()):
        found["not listed"] = explained - sum(found.values())
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))
