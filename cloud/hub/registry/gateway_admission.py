"""Admission of new gateways: the quota `gateways` of their tenants, counted from the registry.

The count is read on a connection that only reads: within the transaction that adds gateways, PostgreSQL would take
every change of another hub for a conflict. So hubs that admit at the same time may exceed a quota together, by the
gateways that the other hubs admit within `COUNT_FRESH_S` and one write: about a thousand from each of them
(`cloud.hub.limits.HANDSHAKES_PER_S`). One hub alone never exceeds it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import sqlalchemy as sa

from cloud.hub.groups import Key, Presence
from cloud.hub.registry.database import Database
from cloud.hub.registry.keys import key_rows
from cloud.hub.registry.schema import gateways

COUNT_FRESH_S: Final = 5.0
"""Age up to which a count is used again while it leaves room. That of 100 000 gateways takes some 10 ms."""
REFUSED_MAX: Final = 10_000
"""Refused gateways that are remembered until their connections have ended; hubs take 200 a second."""


class GatewayAdmission:
    """Decides about new gateways. For the registry's thread."""

    def __init__(self, reading: Database, clock: Callable[[], float]) -> None:
        """`reading`: connection that only reads; `clock`: monotonic seconds."""
        self._limit: Callable[[str], int] | None = None
        """Returns the most gateways of a tenant; None without a limit."""
        self._reading = reading
        self._clock = clock
        self._counted: dict[str, tuple[int, float]] = {}
        """Known gateways of tenants, and the time of the count."""
        self._refused: dict[Key, None] = {}

    def limit_to(self, limit: Callable[[str], int]) -> None:
        """Refuse new gateways above a limit from now on. `limit` returns the most gateways of a tenant."""
        self._limit = limit

    def decide(self, changes: Mapping[Key, Presence]) -> None:
        """Refuse the new gateways that their tenants have no room for, those that came last. One that was forgotten is
        new. Raises `RegistryError`; then nothing has changed."""
        limit = self._limit
        if limit is None:
            return
        asked = [key for key, presence in changes.items() if presence.connects]
        if not asked:
            return
        known = self._reading.transaction(lambda tx: _known(tx, asked))
        new: dict[str, list[Key]] = {}
        for key in sorted(set(asked) - known, key=lambda each: changes[each].at_us):
            new.setdefault(key[0], []).append(key)
        refused = [key for tenant, keys in new.items() for key in self._beyond(tenant, keys, limit(tenant))]
        for key in asked:
            self._refused.pop(key, None)
        self._refused.update(dict.fromkeys(refused))
        while len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]

    def refused(self, who: Iterable[Key]) -> set[Key]:
        """Return which of these gateways were refused at their last connect: nothing lands for them."""
        return {key for key in who if key in self._refused}

    def _beyond(self, tenant: str, keys: Collection[Key], most: int) -> list[Key]:
        count, at_s = self._counted.get(tenant, (0, float("-inf")))
        if self._clock() - at_s >= COUNT_FRESH_S or count + len(keys) > most:
            count, at_s = self._reading.transaction(lambda tx: _count(tx, tenant)), self._clock()
        room = max(0, most - count)
        self._counted[tenant] = count + min(room, len(keys)), at_s
        return list(keys)[room:]


def _known(tx: sa.Connection, keys: Iterable[Key]) -> set[Key]:
    mine = key_rows(tx, keys)
    same = (gateways.c.tenant == mine.c.tenant) & (gateways.c.name == mine.c.name)
    query = sa.select(gateways.c.tenant, gateways.c.name).select_from(mine.join(gateways, same))
    return {(row.tenant, row.name) for row in tx.execute(query.where(gateways.c.forgotten_at.is_(None)))}


def _count(tx: sa.Connection, tenant: str) -> int:
    query = sa.select(sa.func.count()).select_from(gateways)
    return tx.execute(query.where(gateways.c.tenant == tenant, gateways.c.forgotten_at.is_(None))).scalar_one()
