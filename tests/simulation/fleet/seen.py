"""Content of the registry for the checker, read with plain SQL after each transaction that changed something."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import sqlalchemy as sa

from tests.simulation.desired import mark_in


class Wants(NamedTuple):
    """Version that is requested for a gateway."""

    version: int
    mark: int
    rollout: str | None


class Rolling(NamedTuple):
    """Roll-out; `members`: (gateway, wave, phase)."""

    mark: int
    state: str
    members: tuple[tuple[str, int, str], ...]


class Seen(NamedTuple):
    """Relevant content of the registry, in an order of its own."""

    known: tuple[str, ...]
    """Gateways that have enrolled or connected, and were not forgotten since."""
    labels: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    selectors: tuple[tuple[str, int], ...]
    """(selector, mark)"""
    wanted: tuple[tuple[str, Wants], ...]
    rollouts: tuple[tuple[str, Rolling], ...]
    commands: tuple[tuple[str, str, str, str], ...]
    """(command, gateway, state, reason)"""


def see(tx: sa.Connection) -> Seen:
    """Read the present content."""

    def rows(text: str) -> list[Any]:
        return list(tx.exec_driver_sql(text))

    gone = {row.name for row in rows("SELECT name FROM gateways WHERE forgotten_at IS NOT NULL")}
    there = {row.name for row in rows("SELECT name FROM gateways UNION SELECT gateway FROM certificates")}
    labels: dict[str, list[tuple[str, str]]] = {}
    for row in rows("SELECT gateway, key, value FROM labels ORDER BY gateway, key"):
        labels.setdefault(row.gateway, []).append((row.key, row.value))
    wanted = rows(
        "SELECT v.gateway, v.version, v.content, v.rollout FROM configurations v JOIN configured c"
        " ON v.gateway = c.gateway AND v.version = c.wanted ORDER BY v.gateway"
    )
    members: dict[str, list[tuple[str, int, str]]] = {}
    for row in rows("SELECT rollout, gateway, wave, phase FROM rollout_members ORDER BY rollout, gateway"):
        members.setdefault(row.rollout, []).append((row.gateway, row.wave, row.phase))
    return Seen(
        tuple(sorted(there - gone - {""})),
        tuple((gateway, tuple(mine)) for gateway, mine in labels.items()),
        tuple((row.selector, _mark(row.resources)) for row in rows("SELECT * FROM selectors ORDER BY selector")),
        tuple((row.gateway, Wants(row.version, _mark(row.content), row.rollout)) for row in wanted),
        tuple(
            (row.id, Rolling(_mark(row.resources), row.state, tuple(members.get(row.id, ()))))
            for row in rows("SELECT id, resources, state FROM rollouts ORDER BY made_at, id")
        ),
        tuple(tuple(row) for row in rows("SELECT id, gateway, state, reason FROM commands ORDER BY number")),
    )


def _mark(text: str) -> int:
    found = json.loads(text)
    return mark_in(found if isinstance(found, list) else found["resources"])
