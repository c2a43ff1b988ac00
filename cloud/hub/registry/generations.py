"""Generations: each connection of a gateway is one, and a hub that does not have the newest must not land for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.registry.schema import PARAMETERS_MAX, gateways


class Generations:
    """Those of the newest connections to this hub."""

    def __init__(self) -> None:
        self._given: dict[Key, int] = {}

    def give(self, given: Mapping[Key, int]) -> None:
        """Gateways have connected."""
        self._given.update(given)

    def of(self, key: Key) -> int | None:
        """Of the gateway's newest connection to this hub; None when it had none."""
        return self._given.get(key)

    def moved(self, tx: sa.Connection, who: Iterable[Key]) -> set[Key]:
        """Those of these gateways that have connected to another hub since they last did here."""
        current = current_generations(tx, who)
        return {key for key, generation in current.items() if self._given.get(key, generation) != generation}


def current_generations(tx: sa.Connection, who: Iterable[Key]) -> dict[Key, int]:
    """The newest generation of each of these gateways that is known."""
    names = sorted(set(who))
    found: dict[Key, int] = {}
    for start in range(0, len(names), PARAMETERS_MAX // 2):
        part = names[start : start + PARAMETERS_MAX // 2]
        mine = sa.tuple_(gateways.c.tenant, gateways.c.name).in_(part)
        rows = tx.execute(sa.select(gateways.c.tenant, gateways.c.name, gateways.c.generation).where(mine))
        found.update({(row.tenant, row.name): row.generation for row in rows})
    return found
