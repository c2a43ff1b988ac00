"""Numbers of a report, as they are added up. No JVM."""

from __future__ import annotations

import pyarrow as pa

from spark.report.tables import total

LARGEST = (1 << 63) - 1


def test_a_sum_is_exact_however_much_one_gateway_states() -> None:
    table = pa.table({"accepted": pa.array([LARGEST, LARGEST, None, 5], pa.int64())})
    assert total(table, "accepted") == 2 * LARGEST + 5
    assert total(table.slice(0, 0), "accepted") == 0
