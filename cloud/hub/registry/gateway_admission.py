"""Admission of new gateways: the quota `gateways` of their tenants, counted from the registry.

The count is read on a connection that only reads: within the transaction that adds gateways, PostgreSQL would take
every change of another hub for a conflict. While it fails, new gateways wait; known ones need no count. A connection
that was lost is made again at once. Hubs that admit
at the same time may exceed a quota together, by the gateways that the other hubs admit within `COUNT_FRESH_S` and one
write: about a thousand from each of them (`cloud.hub.limits.HANDSHAKES_PER_S`), or all that have waited while the
registry was away. One hub alone never exceeds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from cloud.hub.groups import Key, Presence
from cloud.hub.registry.database import Database
from cloud.hub.registry.gateway_rows import select_gateways
from cloud.hub.registry.schema import gateways
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

COUNT_FRESH_S: Final = 5.0
"""Age up to which a count is used again while it leaves room. That of 100 000 gateways takes some 10 ms."""
FULL_FRESH_S: Final = 1.0
"""Age up to which a count is used again to refuse gateways: a forgotten one gives its place to another within that."""
FULL_REST: Final = 20.0
"""The same in multiples of the time that the count took: a full tenant takes a twentieth of the thread at most."""
FULL_FRESH_S_MAX: Final = 60.0
"""Longest age of that count: one that stood still for 30 s with its server does not refuse gateways for ten minutes."""
LOST_REST_S: Final = 5.0
"""Pause after the connection was lost and could not be made again, which takes some seconds at most: the server may be
back any moment, and new gateways wait."""
COUNT_S_MAX: Final = 5.0
"""Longest time of a statement of the count, on PostgreSQL. The landing waits for it; new gateways wait for the next
one, a minute later."""
REFUSED_MAX: Final = 10_000
"""Refused gateways that are remembered, besides those of the last decision: hubs take 200 new connections a second."""


class _TenantCount(NamedTuple):
    gateways: int
    at_s: float
    took_s: float


class _Asked(NamedTuple):
    """New ones among gateways that connect, and counts of their tenants."""

    new: Mapping[str, Sequence[Key]]
    """New gateways by tenant, in the order of their last change."""
    counts: Mapping[str, _TenantCount]
    """Tenants that were counted again."""


class GatewayAdmission:
    """Decides about new gateways. For the registry's thread."""

    def __init__(self, reading: Database, clock: Callable[[], float]) -> None:
        """`reading`: connection that only reads; `clock`: monotonic seconds."""
        self._limit: Callable[[str], int] | None = None
        """Returns the most gateways of a tenant; None without a limit."""
        self._reading = reading
        self._clock = clock
        self._counted: dict[str, _TenantCount] = {}
        """Known gateways of tenants."""
        self._refused: dict[Key, None] = {}
        self.undecided: frozenset[Key] = frozenset()
        """New gateways of the last decision that could not be counted. They are neither admitted nor refused."""
        self.trouble = ""
        """Reason why the last count failed; empty if it did not."""
        self._rests_until_s = 0.0
        """End of the pause after a failed count, in monotonic seconds."""

    @property
    def is_limited(self) -> bool:
        """Return whether each gateway has to be admitted."""
        return self._limit is not None

    def limit_to(self, limit: Callable[[str], int]) -> None:
        """Refuse new gateways above a limit from now on. `limit` returns the most gateways of a tenant."""
        self._limit = limit

    def decide(self, changes: Mapping[Key, Presence], known_of: Callable[[Sequence[Key]], set[Key]]) -> set[Key]:
        """Return the gateways to refuse: the new ones that their tenants have no room for, those that came last. One
        that was forgotten is new. If they cannot be counted now, the new ones are `undecided`.

        `known_of` returns the known ones of some gateways, by the connection that writes. Raises what it raises; then
        nothing has changed.
        """
        limit = self._limit
        asked = [key for key, presence in changes.items() if presence.connects]
        self.undecided = frozenset()
        if limit is None or not asked:
            return set()
        refused: list[Key] = []
        found = self._ask(asked, changes, limit)
        if found is None:
            self.undecided = frozenset(asked) - known_of(asked)
        else:
            self._counted.update(found.counts)
            refused = [key for tenant, keys in found.new.items() for key in self._beyond(tenant, keys, limit(tenant))]
        for key in asked:
            self._refused.pop(key, None)
        self._refused.update(dict.fromkeys(refused))
        while len(self._refused) > max(REFUSED_MAX, len(refused)):
            del self._refused[next(iter(self._refused))]
        return set(refused)

    def refused(self, who: Iterable[Key]) -> set[Key]:
        """Return which of these gateways were refused at their last connect, as far as that is remembered."""
        return {key for key in who if key in self._refused}

    def forget_counts(self) -> None:
        """Count again before the next decision, as an admission was not stored."""
        self._counted.clear()

    def _ask(self, asked: Sequence[Key], changes: Mapping[Key, Presence], limit: Callable[[str], int]) -> _Asked | None:
        """Read what a decision needs; None if that is not possible now. After a failure it rests as after a count."""
        began_s = self._clock()
        if began_s < self._rests_until_s:
            return None
        try:
            found = self._read_again_if_lost(lambda tx: self._read(tx, asked, changes, limit))
        except RegistryError as error:
            ended_s = self._clock()
            rest_s = _rest_s(ended_s - began_s)
            self._rests_until_s = ended_s + (min(rest_s, LOST_REST_S) if _is_lost(error) else rest_s)
            if not self.trouble:
                log.warning("new gateways cannot be counted, and wait; known ones do not: %s", error)
            self.trouble = str(error)
            return None
        if self.trouble:
            log.info("new gateways are counted again")
        self.trouble, self._rests_until_s = "", 0.0
        return found

    def _read_again_if_lost(self, work: Callable[[sa.Connection], _Asked]) -> _Asked:
        """Read, and once more if the connection had been lost, perhaps since long ago. Raises `RegistryError`."""
        try:
            return self._reading.transaction(work)
        except RegistryError as error:
            if not (isinstance(error.__cause__, DBAPIError) and error.__cause__.connection_invalidated):
                raise
        return self._reading.transaction(work)

    def _read(
        self, tx: sa.Connection, asked: Sequence[Key], changes: Mapping[Key, Presence], limit: Callable[[str], int]
    ) -> _Asked:
        """Read in one snapshot: a gateway that another hub admits at this moment is known, or does not count."""
        self._reading.dialect.limit_statements(tx, COUNT_S_MAX)
        known = known_gateways(tx, asked)
        new: dict[str, list[Key]] = {}
        for key in sorted(set(asked) - known, key=lambda each: changes[each].at_us):
            new.setdefault(key[0], []).append(key)
        counts = {}
        for tenant, keys in new.items():
            if not self._may_use_count(tenant, len(keys), limit(tenant)):
                began = self._clock()
                count = _count(tx, tenant, limit(tenant))
                counts[tenant] = _TenantCount(count, self._clock(), self._clock() - began)
        return _Asked(new, counts)

    def _may_use_count(self, tenant: str, more: int, most: int) -> bool:
        """Return whether the last count of a tenant is new enough to admit, or to refuse, more gateways."""
        last = self._counted.get(tenant)
        if last is None:
            return False
        fresh_s = COUNT_FRESH_S
        if last.gateways >= most:
            fresh_s = _rest_s(last.took_s)
        elif last.gateways + more > most:
            fresh_s = FULL_FRESH_S
        return self._clock() - last.at_s < fresh_s

    def _beyond(self, tenant: str, keys: Sequence[Key], most: int) -> Sequence[Key]:
        """Return the gateways without room, and count the others."""
        last = self._counted[tenant]
        room = max(0, most - last.gateways)
        self._counted[tenant] = last._replace(gateways=last.gateways + min(room, len(keys)))
        return keys[room:]


def _is_lost(error: RegistryError) -> bool:
    """Return whether a connection was lost, or could not be made."""
    cause = error.__cause__
    return isinstance(cause, DBAPIError) and (cause.connection_invalidated or cause.statement is None)


def _rest_s(took_s: float) -> float:
    """Return the time for which a count, or its failure, is not repeated."""
    return min(max(FULL_FRESH_S, FULL_REST * took_s), FULL_FRESH_S_MAX)


def known_gateways(tx: sa.Connection, keys: Iterable[Key]) -> set[Key]:
    """Return those of some gateways that have connected and were not forgotten since."""
    query = select_gateways(tx, keys).where(gateways.c.forgotten_at.is_(None))
    return {(row.tenant, row.name) for row in tx.execute(query)}


def _count(tx: sa.Connection, tenant: str, most: int) -> int:
    """Return the number of known gateways of a tenant, at most `most`."""
    mine = sa.select(gateways.c.name).where(gateways.c.tenant == tenant, gateways.c.forgotten_at.is_(None))
    return tx.execute(sa.select(sa.func.count()).select_from(mine.limit(most).subquery())).scalar_one()
