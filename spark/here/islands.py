"""Stretches joined to islands, as columns. The rule is that of `spark.transforms.islands`."""

from __future__ import annotations

import numpy as np

from spark.here.groups import Numbers


def islands(group: Numbers, first: Numbers, last: Numbers, reach: int) -> Numbers:
    """The number of each row's island, from 0 on, each of which has rows of one group.

    Rows are stretches from `first` to `last`, both included; those of a group that overlap, or are at most `reach`
    apart, are one island. All are whole numbers of up to 2^63 - 1, and no `first` is below -2^63 + `reach`.
    """
    order = np.lexsort((last, first, group))
    group, first, last = group[order], first[order], last[order]
    begins = np.ones(len(order), bool)
    begins[1:] = group[1:] != group[:-1]
    # Taken from the first, not added to the last: a sequence may be the highest there is.
    begins[1:] |= first[1:] - reach > _highest_so_far(begins, last)[:-1]
    found = np.empty(len(order), np.int64)
    found[order] = np.cumsum(begins) - 1
    return found


def _highest_so_far(begins: Numbers, column: Numbers) -> Numbers:
    """The highest value of each row's group up to that row. `begins`: where the rows of another group begin."""
    if np.all((column[1:] >= column[:-1]) | begins[1:]):  # they rise where none lies within another
        return column
    # By their places among all values: groups times rows stay below 2^63, groups times values would not.
    values, places = np.unique(column, return_inverse=True)
    highest = np.maximum.accumulate(np.cumsum(begins) * len(values) + places)
    found: Numbers = values[highest % len(values)] if len(values) else values
    return found
