"""Keys of gateways as rows of one statement, so that its size and number do not depend on the number of gateways."""

from __future__ import annotations

import json
from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from cloud.hub.groups import Key


def key_rows(tx: sa.Connection, keys: Iterable[Key]) -> sa.Subquery:
    """Return the keys as rows with the columns `tenant` and `name`, in order and each once."""
    whole = sorted(set(keys))
    if tx.dialect.name == "sqlite":
        each = sa.func.json_each(json.dumps(whole)).table_valued("value")
        of_pair = (sa.func.json_extract(each.c.value, f"$[{at}]") for at in range(2))
        return sa.select(
            *(column.label(name) for column, name in zip(of_pair, ("tenant", "name"), strict=True))
        ).subquery()
    columns = (sa.literal([key[at] for key in whole], ARRAY(sa.Text)) for at in range(2))
    rows = sa.func.unnest(*columns).table_valued(sa.column("tenant", sa.Text), sa.column("name", sa.Text))
    return sa.select(*rows.render_derived().c).subquery()
