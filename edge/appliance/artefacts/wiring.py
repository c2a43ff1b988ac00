"""Artefacts of a running gateway: their keeper, and what serves them to devices, which is imported when it is used."""

from __future__ import annotations

import asyncio
import importlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edge.appliance.artefacts.keeper import ArtefactKeeper, CardRoom, HubLink, OfferSource
from edge.broker.configuration import BrokerConfiguration
from edge.broker.router.uplinks import Uplinks, is_to_hub
from edge.broker.server import Broker
from edge.broker.store.contract import Store

if TYPE_CHECKING:
    from edge.appliance.artefacts.mounting import MountedArtefacts

log = logging.getLogger(__name__)

_MOUNTING: Final = "edge.appliance.artefacts.mounting"


def keeper_of(
    data: Path,
    store: Store,
    uplinks: Uplinks,
    clock_good: Callable[[], bool],
    configuration: Callable[[], BrokerConfiguration],
    offers: OfferSource,
) -> ArtefactKeeper:
    """Return what keeps the software for the devices of a gateway with this data directory. `offers`: of its hub."""
    return ArtefactKeeper(
        data,
        connectors=lambda: configuration().connectors,
        link=lambda connector: link_of(uplinks, connector),
        room=lambda: CardRoom(_free_bytes(data, store), configuration().limits.free_floor_bytes),
        clock_good=clock_good,
        offers=offers,
    )


def _free_bytes(data: Path, store: Store) -> int | None:
    """Return the free bytes of the card: those of its file system, or those for messages if they are fewer.

    Pages that are free within the store's file are room for messages, and not for images.
    """
    try:
        on_card = shutil.disk_usage(data).free
    except OSError:
        return store.retention.free_bytes()
    for_messages = store.retention.free_bytes()
    return on_card if for_messages is None else min(on_card, for_messages)


def link_of(uplinks: Uplinks, connector: str) -> HubLink:
    """Return the link of a connector to a hub."""
    for uplink in uplinks:
        if uplink.connector.name == connector and is_to_hub(uplink):
            return HubLink(uplink.dialer.state.connected, uplink.uplink.pacer)
    return HubLink(connected=False, pacer=None)


class DeviceArtefacts:
    """Artefacts of a gateway for its devices. Their modules take 10 MiB, and are imported for the first request or the
    first configuration with artefacts."""

    def __init__(self, data: Path, keeper: ArtefactKeeper, broker: Broker) -> None:
        self._data = data
        self._keeper = keeper
        self._broker = broker
        self._mounted: MountedArtefacts | None = None
        self._wanted = False
        self._importing: asyncio.Task[None] | None = None
        keeper.call_when_configured(self._configured)

    @property
    def mounted(self) -> MountedArtefacts:
        """Routes and topics, made at the first use."""
        if self._mounted is None:
            from edge.appliance.artefacts.mounting import MountedArtefacts  # noqa: PLC0415 - see the class

            self._mounted = MountedArtefacts(self._data, self._keeper)
        return self._mounted

    def _configured(self, wanted: bool) -> None:
        """Serve topics of MQTT and nodes of AMQP while the gateway has artefacts, and no device API: its clients use
        HTTP."""
        self._wanted = wanted
        if not wanted:
            self._broker.serve_own_addresses(None, None)
        elif self._broker.devices is None:
            self._importing = asyncio.get_running_loop().create_task(self._serve_topics())

    async def _serve_topics(self) -> None:
        try:
            await asyncio.to_thread(importlib.import_module, _MOUNTING)  # the loop does not wait for it
        except Exception:  # the gateway serves its messages without it
            log.exception("artefacts are not served over MQTT and AMQP")
            return
        if self._wanted:
            router = self._broker.router
            self._broker.serve_own_addresses(self.mounted.topics(router), self.mounted.nodes(router))
