"""Gateways that the alert rules judge: those that are connected to this hub, and those that are connected to none.

The first are in memory, the others in the registry. Each hub of a registry judges those that are away: an alert is
opened once, whoever finds it (``cloud/decisions/0014-acts-happen-once.md``). Labels are read of gateways with a trouble
only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol

import sqlalchemy as sa

from cloud.hub.alerts.limits import AWAY_GATEWAYS_MAX, MEASURED_LABELS_S, SLICE
from cloud.hub.fleet import FleetState, GatewayState
from cloud.hub.groups import Key
from cloud.hub.labels import Labels
from cloud.hub.observed import NO_TIME_US
from cloud.hub.registry.away_gateways import AwayGateway, AwayGateways, read_away
from cloud.hub.registry.database import Database
from cloud.hub.registry.fleet_pages import labels_of_keys
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry_thread import RegistryThread, database_of
from cloud.hub.seen_gateway import SeenGateway, classify


class JudgedGateways(NamedTuple):
    """Gateways to judge, without their labels."""

    seen: Sequence[SeenGateway]
    unknown: AbstractSet[Key]
    """Known gateways with open alerts that this hub cannot judge now: these alerts stay as they are."""


class AlertGateways(Protocol):
    """Source of the gateways that the rules judge. Every read raises `RegistryError`."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def read(self, members: Collection[Key]) -> JudgedGateways:
        """Return the gateways to judge. `members`: gateways with open alerts."""
        ...

    async def labels(self, keys: Collection[Key]) -> Mapping[Key, Labels]:
        """Return the labels of gateways."""
        ...


class MeasuredGateways:
    """Reads and classifies the gateways in slices, between which gateways are served. `open`, later `close`."""

    def __init__(
        self,
        fleet: FleetState,
        registry: sa.URL,
        *,
        now_us: Callable[[], int],
        clock: Callable[[], float],
        hint: ChangeHint,
    ) -> None:
        """`now_us`: UTC microseconds; `clock`: monotonic seconds; `hint` is given when labels change."""
        self._fleet = fleet
        self._thread = RegistryThread("gateways of alerts", database_of(registry, reading=True))
        self._now_us = now_us
        self._clock = clock
        self._hint = hint
        self._labels: dict[Key, Labels] = {}
        self._labels_at = float("-inf")

    async def open(self) -> None:
        """Open the registry. Raises `RegistryError`."""
        await self._thread.open()

    async def close(self) -> None:
        """Close the registry. Idempotent."""
        await self._thread.close()

    async def read(self, members: Collection[Key]) -> JudgedGateways:
        """Return the gateways to judge. Raises `RegistryError`."""
        hub = self._fleet.hub
        work = partial(_read, hub=hub, asked=members, now_us=self._now_us())
        away, others = await self._thread.run(work)
        self._fleet.drop_left(self._now_us())
        seen: list[SeenGateway] = []
        keys = iter(list(self._fleet.gateways))
        while some := list(islice(keys, SLICE)):
            there = (self._fleet.gateways[key] for key in some if key in self._fleet.gateways)
            seen += [classify(each, {}, self._now_us()) for each in there if each.session is not None]
            await asyncio.sleep(0)
        judged = {one.key for one in seen}
        # Some have come or gone during this read, so their rows do not count; the next evaluation judges them.
        unknown = set(others)
        left = dict(self._left())
        for one in away:
            if self._is_here(one.key):
                unknown.add(one.key)
                continue
            if (before := left.pop(one.key, None)) is not None:
                one.gateway.dropped = before.dropped
            seen.append(one)
        return JudgedGateways(seen, (unknown | left.keys()) - judged)

    async def labels(self, keys: Collection[Key]) -> Mapping[Key, Labels]:
        """Return the labels of gateways, as they were `MEASURED_LABELS_S` ago or later. Raises `RegistryError`."""
        if self._hint.take() or self._clock() - self._labels_at >= MEASURED_LABELS_S:
            self._labels, self._labels_at = {}, self._clock()
        missing = [key for key in keys if key not in self._labels]
        if missing:
            found = await self._thread.run(partial(_read_labels, keys=missing))
            self._labels.update((key, found.get(key, {})) for key in missing)
        return {key: self._labels[key] for key in keys}

    def _is_here(self, key: Key) -> bool:
        known = self._fleet.gateways.get(key)
        return known is not None and known.session is not None

    def _left(self) -> Iterator[tuple[Key, GatewayState]]:
        """Yield the gateways that were last connected to this hub, as far as it knows, and are not now."""
        for key, gateway in self._fleet.gateways.items():
            if gateway.session is None and gateway.hub == self._fleet.hub:
                yield key, gateway


def _read(
    database: Database, *, hub: str, asked: Collection[Key], now_us: int
) -> tuple[list[SeenGateway], frozenset[Key]]:
    work = partial(read_away, hub=hub, asked=asked, most=AWAY_GATEWAYS_MAX)
    found: AwayGateways = database.transaction(work)
    return [_seen(each, now_us) for each in found.away], found.others


def _read_labels(database: Database, *, keys: Sequence[Key]) -> Mapping[Key, Labels]:
    return database.transaction(partial(labels_of_keys, keys=keys))


def _seen(away: AwayGateway, now_us: int) -> SeenGateway:
    """Return a gateway away with what the rules need. The end of its room is that of the order by danger, which lags a
    twentieth behind the reports at most."""
    hub = away.writer or ""
    found = classify(GatewayState(away.tenant, away.name, away.first_seen, away.last_seen, hub=hub), {}, now_us)
    if away.full_at >= NO_TIME_US:
        return found
    return replace(found, room_hours=max(0.0, (away.full_at - now_us) / 3.6e9))
