"""Minimum ends of the logs of gateways' stores, as their messages show. They detect older copies of a store."""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

import msgspec
import sqlalchemy as sa

from cloud.hub.limits import LOGS_KEPT
from cloud.hub.registry.database import execute_many
from cloud.hub.registry.keys import key_rows
from cloud.hub.registry.packing import pack_checked, unpack_ends
from cloud.hub.registry.schema import lineages
from cloud.lake.commits import GatewayStore

log = logging.getLogger(__name__)

Reached = Mapping[GatewayStore, Mapping[int, int]]
"""Minimum ends of the logs of stores."""

_Packed = list[tuple[GatewayStore, list[tuple[int, int]]]]


def pack_reached(reached: Reached) -> bytes | None:
    """Pack minimum ends for a commit; None without any."""
    found = [(store, list(ends.items())) for store, ends in reached.items() if ends]
    return pack_checked(found) if found else None


def unpack_reached(packed: bytes | None, commit: int) -> dict[GatewayStore, dict[int, int]]:
    """Unpack the minimum ends of a commit. Damaged ones are dropped, so that no store is taken for an older copy by
    mistake."""
    if packed is None:
        return {}
    with contextlib.suppress(msgspec.DecodeError):
        checksum, content = msgspec.msgpack.decode(packed, type=tuple[int, bytes])
        if zlib.crc32(content) == checksum:
            return {store: dict(ends) for store, ends in msgspec.msgpack.decode(content, type=_Packed)}
    log.error("registry: the log ends of commit %d are damaged; continuing without them", commit)
    return {}


def raise_minimum_ends(tx: sa.Connection, reached: Iterable[Reached]) -> None:
    """Raise the minimum ends in the rows of lineages, in the order given."""
    whole = list(reached)
    keys = {(store.tenant, store.gateway) for each in whole for store in each}
    if not keys:
        return
    mine = key_rows(tx, keys)
    rows = tx.execute(
        sa.select(lineages.c.tenant, lineages.c.gateway, lineages.c.epoch, lineages.c.ends).select_from(
            mine.join(lineages, (lineages.c.tenant == mine.c.tenant) & (lineages.c.gateway == mine.c.name))
        )
    ).all()
    known = {GatewayStore(*row[:3]): unpack_ends(row.ends, row.gateway) for row in rows}
    moved: dict[GatewayStore, dict[int, int]] = {}
    for each in whole:
        for store, ends in each.items():
            before = moved.get(store, known.get(store))
            if before is not None and (after := _raised(before, ends)) != before:
                moved[store] = after
    if moved:
        changes = [
            {
                **{f"of_{name}": value for name, value in store._asdict().items()},
                "ends": pack_checked(list(ends.items())),
            }
            for store, ends in moved.items()
        ]
        execute_many(tx, _RAISE, changes)


_RAISE: Final = (
    lineages.update()
    .where(*(lineages.c[name] == sa.bindparam(f"of_{name}") for name in GatewayStore._fields))
    .values(ends=sa.bindparam("ends"))
)


def _raised(known: dict[int, int], ends: Mapping[int, int]) -> dict[int, int]:
    """Return `known` with larger ends from `ends`, moved logs last; only the most recently moved logs are kept."""
    further = {log_id: end for log_id, end in ends.items() if end > known.get(log_id, 0)}
    whole = {**{log_id: end for log_id, end in known.items() if log_id not in further}, **further}
    for log_id in list(islice(whole, max(0, len(whole) - LOGS_KEPT))):
        del whole[log_id]  # the log that has not moved for the longest time
    return whole
