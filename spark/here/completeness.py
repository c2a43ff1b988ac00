"""Accepted = landed + given up + waiting + unexplained, worked out in this process: as `spark.transforms.completeness`
does it of rows."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark import schemas
from spark.here.groups import Groups, key, numbers
from spark.transforms import accounts
from spark.transforms.accounts import KEY

GATEWAY: Final = ("tenant", "gateway")
STATUS: Final = (*GATEWAY, "backlog_messages", "ingested_at")
"""Columns of statuses that are looked at."""
_BATCH_ROWS: Final = 10_000
"""Facts that are objects at once, but for those of an address that has more."""


def backlog(statuses: pa.Table) -> pa.Table:
    """The newest status of each gateway that says how much waits there, as table `gateway_backlog` has it."""
    said = statuses.filter(pc.is_valid(statuses["backlog_messages"]))
    named = dict(zip(STATUS, schemas.GATEWAY_BACKLOG.columns.names, strict=True))
    return backlogs(said.select(STATUS).rename_columns(named))


def backlogs(rows: pa.Table) -> pa.Table:
    """Rows of `gateway_backlog`, those of one gateway made one, as `spark.transforms.completeness.BACKLOG_FOLD` has it:
    the newest, of those told of at the same time the last."""
    groups = Groups(key(rows, GATEWAY))
    return rows.take(pa.array(groups.newest(numbers(rows["said_at"]), np.arange(len(rows)))))


def lines(rows: pa.Table) -> pa.Table:
    """Rows of `completeness_hourly` that are settled, those of one line made one: the last."""
    hour, first = numbers(rows["hour"]), numbers(rows["first_sequence"])
    return rows.take(pa.array(Groups(key(rows, KEY, hour, first)).greatest(np.arange(len(rows)))))


def gateways(rows: pa.Table) -> pa.Table:
    """The gateways of these rows, each once."""
    texts = pa.schema([(name, pa.string()) for name in GATEWAY])
    return rows.select(GATEWAY).take(pa.array(Groups(key(rows, GATEWAY)).first)).cast(texts)


def judged(
    landed: pa.Table,
    given_up: pa.Table,
    statements: pa.Table,
    settled: pa.Table,
    backlog: pa.Table,
    outages: pa.Table,
) -> pa.Table:
    """The account of every address, as `accounts.ACCOUNTS`, which `gaps`, `hourly` and `completeness` divide; see
    `spark.transforms.completeness.judged`. Columns of texts are no dictionaries."""
    lanes = gateways(outages)
    lanes = lanes.append_column("lanes", pa.repeat(True, len(lanes)))
    circumstances = backlog.join(lanes, GATEWAY, join_type="full outer")
    facts = pa.concat_tables(
        [
            _facts(landed, accounts.LANDED),
            _facts(given_up, accounts.GIVEN_UP),
            _facts(statements, accounts.STATED),
            _facts(settled, accounts.SETTLED),
        ],
        promote_options="default",
    )
    whole = facts.join(circumstances, GATEWAY).select(list(accounts.FACTS))
    ordered = whole.take(pc.sort_indices(whole, [(name, "ascending") for name in accounts.ORDER]))
    found = accounts.accounts(ordered.to_batches(max_chunksize=_BATCH_ROWS))
    return pa.Table.from_batches(found, accounts.arrow(accounts.ACCOUNTS))


def gaps(judged: pa.Table) -> pa.Table:
    """Sequences that were given up or that nothing explains, as table `gaps` has them."""
    found = judged.filter(pc.equal(judged["kind"], accounts.GAP))
    return _table(found, schemas.GAPS, explained=pc.is_valid(found["reason"]))


def hourly(judged: pa.Table, *, settled: bool = False) -> pa.Table:
    """What became of the messages of each statement, as table `completeness_hourly` has it."""
    found = judged.filter(pc.equal(judged["kind"], accounts.LINE))
    return _table(found, schemas.COMPLETENESS_HOURLY, settled=pa.repeat(settled, len(found)))


def completeness(judged: pa.Table) -> pa.Table:
    """One row per address, as table `completeness` has them."""
    return _table(judged.filter(pc.equal(judged["kind"], accounts.ADDRESS)), schemas.COMPLETENESS)


def _facts(rows: pa.Table, fact: str) -> pa.Table:
    named = rows.rename_columns({"first_sequence": "first", "last_sequence": "last"})
    return named.append_column("fact", pa.repeat(fact, len(rows)))


def _table(rows: pa.Table, table: schemas.Table, **more: pa.Array) -> pa.Table:
    return pa.table({name: more[name] if name in more else rows[name] for name in table.columns.names})
