"""Deletion of old rows of a table with numbers, times and tenants: by age, by rows of a tenant, and by rows of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import sqlalchemy as sa


class DeletedRows(NamedTuple):
    """Rows that were deleted."""

    rows: int
    last: Mapping[str, int]
    """Highest number that was deleted, by tenant."""


def delete_old(tx: sa.Connection, table: sa.Table, before_us: int, most: int, all_most: int) -> DeletedRows:
    """Delete rows of before a time, and all but the latest `most` of each tenant and `all_most` of all. The latest row
    of all stays: it holds the place of the next number when the rows are copied to another database."""
    newest = tx.execute(sa.select(sa.func.max(table.c.number))).scalar()
    if newest is None:
        return DeletedRows(0, {})
    old = (table.c.at < before_us, table.c.number < newest)
    ends = sa.select(table.c.tenant, sa.func.max(table.c.number)).where(*old).group_by(table.c.tenant)
    last = {str(tenant): int(number) for tenant, number in tx.execute(ends)}
    deleted = tx.execute(table.delete().where(*old)).rowcount if last else 0
    counting = sa.select(table.c.tenant, sa.func.count()).group_by(table.c.tenant)
    counts = {tenant: min(count, most) for tenant, count in tx.execute(counting).all()}
    share = min(most, fair_share(counts.values(), all_most))
    for tenant, count in counts.items():
        if count < share:
            continue
        mine = table.c.tenant == tenant
        numbers = sa.select(table.c.number).where(mine).order_by(table.c.number.desc())
        number = tx.execute(numbers.offset(share).limit(1)).scalar()
        if number is not None:
            deleted += tx.execute(table.delete().where(mine, table.c.number <= number)).rowcount
            last[tenant] = max(number, last.get(tenant, 0))
    return DeletedRows(deleted, last)


def fair_share(counts: Iterable[int], most: int) -> int:
    """Return how many of its rows each owner keeps, so that all of them keep `most` together."""
    left, ascending = most, sorted(counts)
    for place, count in enumerate(ascending):
        share = left // (len(ascending) - place)
        if count > share:
            return share
        left -= count
    return most
