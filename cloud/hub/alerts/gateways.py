"""Gateways that the alert rules measure: those that the hub knows, with their labels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from cloud.hub.alerts.limits import MEASURED_LABELS_S, SLICE
from cloud.hub.committer import Committer
from cloud.hub.fleet import FleetState
from cloud.hub.groups import Key
from cloud.hub.labels import Labels
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.seen_gateway import SeenGateway, classify


class MeasuredGateways:
    """Classifies the gateways in slices, between which gateways are served."""

    def __init__(
        self,
        fleet: FleetState,
        committer: Committer,
        *,
        now_us: Callable[[], int],
        clock: Callable[[], float],
        hint: ChangeHint,
    ) -> None:
        """`committer` reads the labels; `now_us`: UTC microseconds; `clock`: monotonic seconds; `hint` is given when
        labels change."""
        self._fleet = fleet
        self._committer = committer
        self._now_us = now_us
        self._clock = clock
        self._hint = hint
        self._labels: Mapping[Key, Labels] = {}
        self._labels_at = float("-inf")

    async def read(self) -> Sequence[SeenGateway]:
        """Return the gateways. Raises `RegistryError`."""
        if self._hint.take() or self._clock() - self._labels_at >= MEASURED_LABELS_S:
            self._labels = await self._committer.read(lambda registry: registry.directory.labels())
            self._labels_at = self._clock()
        keys = iter(list(self._fleet.gateways))
        seen: list[SeenGateway] = []
        while some := list(islice(keys, SLICE)):
            there = ((key, self._fleet.gateways[key]) for key in some if key in self._fleet.gateways)
            seen += [classify(gateway, self._labels.get(key, {}), self._now_us()) for key, gateway in there]
            await asyncio.sleep(0)
        return seen
