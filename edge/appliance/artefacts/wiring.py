"""Keeper of artefacts of a running gateway."""

from __future__ import annotations

import shutil
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
        room=lambda: CardRoom(_free_bytes(data, store), configuration().limits.free_floor_bytes),
        clock_good=clock_good,
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
