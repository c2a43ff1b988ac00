"""Numbers of a report, as they are added up. No JVM."""

from __future__ import annotations

import pyarrow as pa

from spark.report.tables import by_gateway, total

LARGEST = (1 << 63) - 1


def test_a_sum_is_exact_however_much_one_gateway_states() -> None:
    table = pa.table({"accepted": pa.array([LARGEST, LARGEST, None, 5], pa.int64())})
    assert total(table, "accepted") == 2 * LARGEST + 5
    assert total(table.slice(0, 0), "accepted") == 0


def test_the_sums_of_a_gateway_are_as_exact() -> None:
    names = {"tenant": ["t", "t", "t"], "gateway": ["a", "a", "b"]}
    table = pa.table(names | {"missing": pa.array([LARGEST, LARGEST, 5], pa.int64()), "p95_s": [1.0, 2.0, None]})
    found = by_gateway(table, ("missing", "sum"), ("p95_s", "max"))
    assert {key[1]: (row["missing_sum"], row["p95_s_max"]) for key, row in found.items()} == {
        "a": (2 * LARGEST, 2.0),
        "b": (5, None),
    }
