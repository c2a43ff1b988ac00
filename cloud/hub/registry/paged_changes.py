"""Changes of all rows of a table, a page of rows in each statement: no statement grows with the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa


def change_in_pages(tx: sa.Connection, change: sa.Update, key: Sequence[sa.Column[Any]], rows: int) -> None:
    """Run a change for all rows of its table, `rows` of them in a statement, in the order of its key."""
    low: Sequence[Any] | None = None
    while True:
        after = [] if low is None else [sa.tuple_(*key) > _literals(key, low)]
        end = sa.select(*key).where(*after).order_by(*key).offset(rows - 1).limit(1)
        high = tx.execute(end).first()
        until = [] if high is None else [sa.tuple_(*key) <= _literals(key, high)]
        tx.execute(change.where(*after, *until))
        if high is None:
            return
        low = high


def _literals(key: Sequence[sa.Column[Any]], values: Sequence[Any]) -> sa.Tuple:
    return sa.tuple_(*(sa.literal(value, column.type) for value, column in zip(values, key, strict=True)))
