"""Rows of gateways by their keys, in one statement."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.registry.keys import key_rows
from cloud.hub.registry.schema import gateways


def select_gateways(tx: sa.Connection, keys: Iterable[Key], *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Return a query of `tenant`, `name` and further columns of those of these gateways that have a row."""
    mine = key_rows(tx, keys)
    same = (gateways.c.tenant == mine.c.tenant) & (gateways.c.name == mine.c.name)
    return sa.select(gateways.c.tenant, gateways.c.name, *columns).select_from(mine.join(gateways, same))
