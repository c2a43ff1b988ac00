"""Sums of a report's numbers. No JVM."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from spark.report import tables
from spark.report.tables import group, group_by_gateway, take_worst, total

LARGEST = (1 << 63) - 1


def test_a_sum_is_exact_however_much_one_gateway_states() -> None:
    table = pa.table({"accepted": pa.array([LARGEST, LARGEST, None, 5], pa.int64())})
    assert total(table, "accepted") == 2 * LARGEST + 5
    assert total(table.slice(0, 0), "accepted") == 0


def test_the_sums_of_a_gateway_are_as_exact() -> None:
    names = {"tenant": ["t", "t", "t"], "gateway": ["a", "a", "b"]}
    table = pa.table(names | {"missing": pa.array([LARGEST, LARGEST, 5], pa.int64()), "p95_s": [1.0, 2.0, None]})
    found = group_by_gateway([table], ("missing", "sum"), ("p95_s", "max"))
    assert {key[1]: (row["missing_sum"], row["p95_s_max"]) for key, row in found.items()} == {
        "a": (2 * LARGEST, 2.0),
        "b": (5, None),
    }


@pytest.mark.parametrize("partly", [1, 40, 10_000])
def test_parts_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch, partly: int) -> None:
    monkeypatch.setattr(tables, "_PARTLY_GROUPED_ROWS", partly)
    chosen = random.Random(partly)
    size = 500
    rows = pa.table(
        {
            "tenant": ["t"] * size,
            "gateway": [chosen.choice("abc") for _ in range(size)],
            "reason": [chosen.choice(["x", "y", None]) for _ in range(size)],
            "missing": pa.array([chosen.choice([LARGEST, None, chosen.randrange(9)]) for _ in range(size)], pa.int64()),
            "p95_s": [chosen.choice([None, chosen.random()]) for _ in range(size)],
        }
    )
    parts = [rows.slice(first, 7) for first in range(0, size, 7)]
    aggregates = ("missing", "sum"), ("missing", "count"), ("p95_s", "max")
    for names in (("tenant", "gateway"), ("reason",), ("gateway", "reason")):
        found = group(parts, names, *aggregates)
        assert sorted(map(str, found)) == sorted(map(str, group([rows], names, *aggregates)))
        of = rows.to_pylist()
        for row in found:
            same = [each for each in of if all(each[name] == row[name] for name in names)]
            assert row["missing_sum"] == sum(each["missing"] or 0 for each in same)
            assert row["missing_count"] == sum(each["missing"] is not None for each in same)
            assert row["p95_s_max"] == max((each["p95_s"] for each in same if each["p95_s"] is not None), default=None)
    order = ("p95_s", "descending"), ("gateway", "ascending"), ("missing", "descending")
    assert take_worst(parts, 20, *order) == take_worst([rows], 20, *order)
    assert take_worst(parts, 20, *order).total == size
    assert group([], ("reason",), *aggregates) == []
    assert take_worst([], 20, *order) == ([], 0)
