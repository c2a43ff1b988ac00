"""Move of a registry to another database, with everything that it knows.

1. The rows are copied in a transaction of the source that lets nothing else change it; the copy is *arriving*, and no
   hub uses it yet.
2. That transaction marks the source as left and ends its writers: a hub that still runs there cannot prepare a commit.
3. The copy may be used.

An interrupted move is repeated: before step 2 the source is as it was, after it only step 3 is left.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from cloud.hub.registry.database import Database
from cloud.hub.registry.faults import RegistryForeign
from cloud.hub.registry.location import redact_url
from cloud.hub.registry.portable import finish_arrival, parts_of, require_present, write_registry
from cloud.hub.registry.schema import SCHEMA_VERSION, RegistryState, mark, registry_marks, state_of, writers


def move_registry(source: sa.URL, target: sa.URL) -> Mapping[str, int]:
    """Move a registry; return the rows of each table, as counted in the new place. No hub may run. Raises
    `RegistryError`."""
    if redact_url(source) == redact_url(target):
        raise RegistryForeign(f"{redact_url(target)} is the registry itself: name an empty database")
    old, new = Database(source), Database(target)
    try:
        counts: Mapping[str, int] = {}
        if not (old.transaction(lambda tx: _is_left_for(tx, new.where)) and new.transaction(_is_arriving)):
            counts = old.transaction(lambda tx: _copy(tx, old.where, new))
        finish_arrival(new)
    finally:
        old.close()
        new.close()
    return counts


def _is_arriving(tx: sa.Connection) -> bool:
    found = state_of(tx)
    return found is not None and found[0] is RegistryState.ARRIVING


def _is_left_for(tx: sa.Connection, where: str) -> bool:
    """Return whether a registry was moved to this place."""
    found = state_of(tx)
    if found is None or found[0] is not RegistryState.LEFT:
        return False
    return bool(tx.execute(sa.select(registry_marks.c.place)).scalar_one() == where)


def _copy(tx: sa.Connection, where: str, new: Database) -> Mapping[str, int]:
    if tx.dialect.name == "postgresql":  # the new place may take long to count its rows, while this one is idle
        tx.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
    registry_id = require_present(tx, where)
    counts = write_registry(new, registry_id, SCHEMA_VERSION, parts_of(tx), is_move=True)
    mark(tx, RegistryState.LEFT, new.where)
    tx.execute(writers.delete())
    return counts
