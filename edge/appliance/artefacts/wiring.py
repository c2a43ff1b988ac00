"""Keeper of artefacts of a running gateway."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edge.appliance.artefacts.keeper import ArtefactKeeper, CardRoom, HubLink
from edge.broker.configuration import BrokerConfiguration
from edge.broker.router.uplinks import Uplinks, is_to_hub
from edge.broker.store.contract import Store


def keeper_of(
    data: Path,
    store: Store,
    uplinks: Uplinks,
    clock_good: Callable[[], bool],
    configuration: Callable[[], BrokerConfiguration],
) -> ArtefactKeeper:
    """Return what keeps the software for the devices of a gateway with this data directory."""
    return ArtefactKeeper(
        data,
        connectors=lambda: configuration().connectors,
        link=lambda connector: link_of(uplinks, connector),
        room=lambda: CardRoom(store.retention.free_bytes(), configuration().limits.free_floor_bytes),
        clock_good=clock_good,
    )


def link_of(uplinks: Uplinks, connector: str) -> HubLink:
    """Return the link of a connector to a hub."""
    for uplink in uplinks:
        if uplink.connector.name == connector and is_to_hub(uplink):
            return HubLink(uplink.dialer.state.connected, uplink.uplink.pacer)
    return HubLink(connected=False, pacer=None)
