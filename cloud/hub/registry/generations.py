"""Generations of gateways: each connection gets the next number. A hub without the newest one must not land for the
gateway.

A registry that became an older copy of itself gives numbers out again, so a number counts for the hub that has it only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from cloud.hub.groups import Key
from cloud.hub.limits import LEFT_GATEWAYS_MAX, LEFT_KEPT_S
from cloud.hub.registry.gateway_rows import select_gateways
from cloud.hub.registry.schema import gateways
from cloud.hub.registry.writer import RegistryWriter


class Generations:
    """Generations of the newest connections to this hub: of gateways that are connected to it, or left it lately."""

    def __init__(self, writer: RegistryWriter, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self.dropped: list[Callable[[Collection[Key]], None]] = []
        """Called with gateways that have no generation any more: what the landing caches of them is dropped too."""
        self._writer = writer
        self._clock = clock
        self._given: dict[Key, int] = {}
        self._left: dict[Key, float] = {}
        """Gateways that are not connected any more, with the time when that was stored; the oldest first."""
        self._has_dropped = False

    def give(self, given: Mapping[Key, int]) -> None:
        """Record the generations of new connections."""
        self._given.update(given)
        for key in given:
            self._left.pop(key, None)

    def leave(self, who: Iterable[Key]) -> None:
        """Record that gateways are not connected to this hub any more, after that was stored."""
        now_s = self._clock()
        for key in who:
            if key in self._given:
                self._left.setdefault(key, now_s)

    def drop(self, who: Collection[Key]) -> None:
        """Drop the generations of gateways. Nothing of them lands here before they connect again."""
        self._has_dropped = True
        for key in who:
            self._given.pop(key, None)
            self._left.pop(key, None)
        for listener in self.dropped:
            listener(who)

    def drop_left(self) -> Sequence[Key]:
        """Drop the gateways that left more than `LEFT_KEPT_S` ago, and the oldest ones above `LEFT_GATEWAYS_MAX`.
        Return them."""
        before_s = self._clock() - LEFT_KEPT_S
        surplus = len(self._left) - LEFT_GATEWAYS_MAX
        due: list[Key] = []
        for key, left_s in self._left.items():
            if left_s > before_s and len(due) >= surplus:
                break
            due.append(key)
        if due:
            self.drop(due)
        return due

    def of(self, key: Key) -> int | None:
        """Return the generation of the gateway's newest connection to this hub; None without one."""
        return self._given.get(key)

    def moved(self, tx: sa.Connection, who: Iterable[Key]) -> set[Key]:
        """Return the gateways that have connected to another hub since they last connected here, or may have: those
        without a generation, once some were dropped."""
        there = connections_of(tx, who)
        without = {key for key in there if key not in self._given} if self._has_dropped else set()
        return without | {key for key, each in there.items() if key in self._given and not self.is_newest(key, each)}

    def is_newest(self, key: Key, found: GatewayConnection) -> bool:
        """Return whether this connection, the newest one of a gateway, is that to this hub."""
        return found.generation == self._given.get(key) and (found.writer is None or found.writer in self._writer.own)


class GatewayConnection(NamedTuple):
    """Newest connection of a gateway."""

    generation: int
    writer: str | None
    """Hub; None if an older program wrote the row."""


def connections_of(tx: sa.Connection, who: Iterable[Key]) -> dict[Key, GatewayConnection]:
    """Return the newest connection of each known gateway."""
    rows = tx.execute(select_gateways(tx, who, gateways.c.generation, gateways.c.writer))
    return {(row.tenant, row.name): GatewayConnection(row.generation, row.writer) for row in rows}
