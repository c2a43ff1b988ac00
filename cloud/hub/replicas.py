"""Hubs of one registry as each of them shows them: which there are, and which are silent.

Runs on the event loop. The registry work runs in a thread with a connection of its own. A hub writes at intervals that
it is there, and reads what the others have written. A hub counts as silent when what it wrote has not changed for
`HUB_SILENT_S` by the clock of the reader, so clocks of hubs are never compared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import sqlalchemy as sa

from bridge.periodic_task import PeriodicTask
from cloud.hub.fleet import FleetState
from cloud.hub.limits import (
    HUB_SILENT_S,
    HUBS_CLEANUP_S,
    HUBS_DELETED_MAX,
    HUBS_INTERVAL_S,
    HUBS_PAUSE_S_MIN,
    HUBS_REST,
    HUBS_SHOWN_S,
)
from cloud.hub.registry.hubs import HubRecord, Hubs, HubState
from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.schema import SCHEMA_VERSION
from cloud.hub.registry_thread import RegistryThread
from cloud.lake.faults import RegistryError

log = logging.getLogger(__name__)

_THERE = frozenset((HubState.SERVING.value, HubState.DRAINING.value))


class KnownHub(NamedTuple):
    """Hub of the registry, as this one knows it."""

    record: HubRecord
    silent_s: float
    """Time since it wrote last, as this hub has noticed it."""

    @property
    def there(self) -> bool:
        """Return whether it serves gateways, as far as this hub knows."""
        return self.record.state in _THERE and self.silent_s < HUB_SILENT_S


class HubReplicas:
    """Follows the other hubs. `open`, then `start`, later `close`."""

    def __init__(
        self,
        registry: sa.URL,
        hub: str,
        fleet: FleetState,
        *,
        describe: Callable[[], HubRecord],
        returned: Callable[[], None],
        hint: ChangeHint,
        clock: Callable[[], float],
    ) -> None:
        """`hub`: writer id of this hub; `describe` returns its record now; `returned` is called when another hub had
        counted the gateways of this one as disconnected; `hint` is given when gateways connect or disconnect at other
        hubs; `clock`: monotonic seconds."""
        self.known: Mapping[str, KnownHub] = {}
        """Hubs of the registry by writer id, this one too."""
        self._hub = hub
        self._fleet = fleet
        self._describe = describe
        self._returned = returned
        self._hint = hint
        self._clock = clock
        self._noticed: dict[str, tuple[int, float]] = {}
        """Time that each hub wrote, and when it was first read, on this hub's clock."""
        self._looked_s = float("-inf")
        self._cleaned_s = float("-inf")
        self._schema = SCHEMA_VERSION
        self._thread = RegistryThread("hubs", lambda: Hubs(registry, hub))
        self._following = PeriodicTask(
            "hubs of the registry", self._follow, HUBS_PAUSE_S_MIN,
            log=log, failed="other hubs are not seen", expected=(RegistryError,), wait=self._rest,
        )  # fmt: skip

    @property
    def trouble(self) -> str | None:
        """Reason why other hubs are not seen; None if they are."""
        return self._following.trouble

    async def open(self) -> None:
        """Open the registry, and read the other hubs. Raises `RegistryError`."""
        await self._thread.open()
        await self.look()

    def start(self) -> None:
        """Start to follow the other hubs."""
        self._following.start()

    async def close(self) -> None:
        """Write that this hub has stopped, and close the registry. Idempotent."""
        await self._following.stop()
        if self._thread.is_open:
            try:
                await self._thread.run(Hubs.stop)
            except RegistryError as error:
                log.warning("other hubs see the end of this one later: %s", error)
        await self._thread.close()

    @property
    def count(self) -> int:
        """Hubs that are there, this one too, as far as it knows."""
        return max(1, sum(hub.there for hub in self.known.values()))

    @property
    def others_serve(self) -> bool:
        """Return whether another hub takes connections, as far as this one knows."""
        return any(
            hub.there and hub.record.state == HubState.SERVING.value
            for identifier, hub in self.known.items()
            if identifier != self._hub
        )

    @property
    def schema_fits(self) -> bool:
        """Return whether the registry has the tables of this program, when it was last read. A newer one has them too:
        schema changes only add."""
        return self._schema >= SCHEMA_VERSION

    def leads(self) -> bool:
        """Return whether this hub does what one hub is enough for. Two may believe it for a moment, or none."""
        return self._hub == min((each for each, hub in self.known.items() if hub.there), default=self._hub)

    def shown(self, now_us: int) -> list[KnownHub]:
        """Return the hubs to show, those that are there first."""
        recent_us = now_us - int(HUBS_SHOWN_S * 1e6)
        shown = [each for each in self.known.values() if each.there or each.record.seen_at >= recent_us]
        return sorted(shown, key=lambda each: (not each.there, each.record.name, each.record.id))

    async def look(self) -> None:
        """Write that this hub is there, and read the others. Raises `RegistryError`."""
        known, record = self.known, self._describe()
        found = await self._thread.run(partial(_exchange, record=record))
        if found.gone:
            log.warning("other hubs counted this one as gone, because it wrote nothing for long; it is back")
            self._returned()
        self._schema = found.schema
        self.known = self._judge(found.hubs)
        self._fleet.hub_names = {each.record.id: each.record.name for each in self.known.values()}
        for identifier, each in self.known.items():
            if each.record.state in _THERE and not each.there:
                await self._count_gone(each)
            elif identifier not in known and known:
                log.info("hub %s has started", each.record.name)

        if self._clock() - self._cleaned_s >= HUBS_CLEANUP_S:
            self._cleaned_s = self._clock()
            before_us = record.seen_at - int(HUBS_SHOWN_S * 1e6)
            await self._thread.run(lambda registry: registry.clean_up(before_us, HUBS_DELETED_MAX))

    def _judge(self, records: Sequence[HubRecord]) -> dict[str, KnownHub]:
        """Return the hubs with their silence by the clock of this one. Time in which this hub did not look counts for
        no silence: it stood still, or no hub could write."""
        now, before = self._clock(), self._noticed
        if now - self._looked_s > HUB_SILENT_S / 2:
            before = {}
        self._noticed, self._looked_s = {}, now
        for record in records:
            at, noticed_s = before.get(record.id, (None, now))
            self._noticed[record.id] = (record.seen_at, noticed_s if at == record.seen_at else now)
        return {each.id: KnownHub(each, now - self._noticed[each.id][1]) for each in records}

    async def _count_gone(self, hub: KnownHub) -> None:
        record = hub.record
        count = await self._thread.run(lambda registry: registry.count_gone(record.id, record.seen_at))
        words = "hub %s has written nothing for %.0f s; its %d gateways count as disconnected"
        log.warning(words, record.name, hub.silent_s, count)

    async def _follow(self) -> float:
        """Look, and return the seconds to rest: longer after a slow look."""
        began = self._clock()
        await self.look()
        return max(HUBS_PAUSE_S_MIN, HUBS_REST * (self._clock() - began))

    async def _rest(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, HUBS_INTERVAL_S))
        await self._hint.wait(HUBS_INTERVAL_S)


class _Exchanged(NamedTuple):
    """Result of one look."""

    gone: bool
    """Another hub had counted the gateways of this one as disconnected."""
    hubs: Sequence[HubRecord]
    schema: int
    """Schema version of the registry."""


def _exchange(registry: Hubs, *, record: HubRecord) -> _Exchanged:
    """Write the record of this hub and read the others, on the registry's thread."""
    return _Exchanged(registry.write(record), registry.hubs(), registry.schema())
