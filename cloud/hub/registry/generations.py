"""Generations of gateways: each connection gets the next number. A hub without the newest one must not land for the
gateway."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.registry.schema import PARAMETERS_MAX, gateways


class Generations:
    """Generations of the newest connections to this hub."""

    def __init__(self) -> None:
        self._given: dict[Key, int] = {}

    def give(self, given: Mapping[Key, int]) -> None:
        """Record the generations of new connections."""
        self._given.update(given)

    def of(self, key: Key) -> int | None:
        """Return the generation of the gateway's newest connection to this hub; None without one."""
        return self._given.get(key)

    def moved(self, tx: sa.Connection, who: Iterable[Key]) -> set[Key]:
        """Return the gateways that have connected to another hub since they last connected here."""
        current = current_generations(tx, who)
        return {key for key, generation in current.items() if self._given.get(key, generation) != generation}


def current_generations(tx: sa.Connection, who: Iterable[Key]) -> dict[Key, int]:
    """Return the newest generation of each known gateway."""
    names = sorted(set(who))
    found: dict[Key, int] = {}
    for start in range(0, len(names), PARAMETERS_MAX // 2):
        part = names[start : start + PARAMETERS_MAX // 2]
        mine = sa.tuple_(gateways.c.tenant, gateways.c.name).in_(part)
        rows = tx.execute(sa.select(gateways.c.tenant, gateways.c.name, gateways.c.generation).where(mine))
        found.update({(row.tenant, row.name): row.generation for row in rows})
    return found
