"""Sequences that have landed, and those given up, as ranges made in this process: what `spark.transforms.ranges` makes
of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark import schemas
from spark.here.groups import Groups, key, numbers
from spark.here.islands import islands
from spark.transforms.ranges import KEY

MESSAGE: Final = (*KEY, "sequence")
"""Columns of messages that are looked at."""
_ENDS: Final = ("first_sequence", "last_sequence")


def landed(messages: pa.Table) -> pa.Table:
    """The sequences of these messages as ranges, as table `landed_ranges` has them."""
    sequence = messages["sequence"]
    one_each = {
        "first_sequence": sequence,
        "last_sequence": sequence,
        "rows": pa.array(np.ones(len(messages), np.int64)),
    }
    return joined(pa.table({name: messages[name] for name in KEY} | one_each))


def joined(ranges: pa.Table) -> pa.Table:
    """Ranges as in table `landed_ranges`, in which some may touch or overlap, as the fewest that cover the same."""
    return _merged(ranges, schemas.LANDED_RANGES, KEY)


def given_up(ranges: pa.Table) -> pa.Table:
    """Ranges of the ledger as table `given_up_ranges` has them: by reason, without overlaps."""
    return _merged(ranges, schemas.GIVEN_UP_RANGES, (*KEY, "reason"))


def settled(ranges: pa.Table) -> pa.Table:
    """Ranges as in table `settled_ranges`, in which some may touch or overlap, as the fewest that cover the same."""
    return _merged(ranges, schemas.SETTLED_RANGES, KEY)


def are_within(ranges: pa.Table, others: pa.Table) -> NDArray[np.bool_]:
    """Of each range whether one of `others` covers all of it; these neither touch nor overlap."""
    if not len(others):
        return np.zeros(len(ranges), bool)
    both = pa.concat_tables([table.select((*KEY, *_ENDS)) for table in (others, ranges)], promote_options="default")
    first, last = (numbers(both[name]) for name in _ENDS)
    group, at = key(both, KEY), key(both, KEY, first)
    there, wanted = np.arange(len(others)), np.arange(len(others), len(both))
    there = there[np.argsort(at[there])]
    # Only the last that begins where a range does, or before it, can cover that.
    before = there[np.searchsorted(at[there], at[wanted], side="right") - 1]
    covers = (group[before] == group[wanted]) & (first[before] <= first[wanted]) & (last[wanted] <= last[before])
    found: NDArray[np.bool_] = covers
    return found


def _merged(ranges: pa.Table, table: schemas.Table, names: Sequence[str]) -> pa.Table:
    first, last = (numbers(ranges[name]) for name in _ENDS)
    groups = Groups(islands(key(ranges, names), first, last, 1))
    columns = {name: ranges[name].take(pa.array(groups.first)) for name in names} | {
        "first_sequence": pa.array(groups.least(first)),
        "last_sequence": pa.array(groups.greatest(last)),
    }
    if "rows" in table.columns.names:
        columns["rows"] = pa.array(groups.sum(numbers(ranges["rows"])))
    return pa.table({name: columns[name] for name in table.columns.names})
