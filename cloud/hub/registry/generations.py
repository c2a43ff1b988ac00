"""Generations of gateways: each connection gets the next number. A hub without the newest one must not land for the
gateway.

A registry that became an older copy of itself gives numbers out again, so a number counts for the hub that has it only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.registry.gateway_rows import select_gateways
from cloud.hub.registry.schema import gateways
from cloud.hub.registry.writer import RegistryWriter


class Generations:
    """Generations of the newest connections to this hub."""

    def __init__(self, writer: RegistryWriter) -> None:
        self._writer = writer
        self._given: dict[Key, int] = {}

    def give(self, given: Mapping[Key, int]) -> None:
        """Record the generations of new connections."""
        self._given.update(given)

    def of(self, key: Key) -> int | None:
        """Return the generation of the gateway's newest connection to this hub; None without one."""
        return self._given.get(key)

    def moved(self, tx: sa.Connection, who: Iterable[Key]) -> set[Key]:
        """Return the gateways that have connected to another hub since they last connected here."""
        there = connections_of(tx, who)
        return {key for key, each in there.items() if key in self._given and not self._is_newest(key, each)}

    def _is_newest(self, key: Key, found: GatewayConnection) -> bool:
        return found.generation == self._given[key] and (found.writer is None or found.writer in self._writer.own)


class GatewayConnection(NamedTuple):
    """Newest connection of a gateway."""

    generation: int
    writer: str | None
    """Hub; None if an older program wrote the row."""


def connections_of(tx: sa.Connection, who: Iterable[Key]) -> dict[Key, GatewayConnection]:
    """Return the newest connection of each known gateway."""
    rows = tx.execute(select_gateways(tx, who, gateways.c.generation, gateways.c.writer))
    return {(row.tenant, row.name): GatewayConnection(row.generation, row.writer) for row in rows}


def current_generations(tx: sa.Connection, who: Iterable[Key]) -> dict[Key, int]:
    """Return the newest generation of each known gateway."""
    return {key: each.generation for key, each in connections_of(tx, who).items()}
