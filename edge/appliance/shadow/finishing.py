"""Beginning and end of a mirror: check both brokers; take its last messages, move retained ones, ask what is left.

At the end the connector of the mirror is paused. Messages of its session at the old broker are published to the
gateway, and acknowledged there after its acknowledgement. Then the session is removed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from bridge.connectors.mqtt.packets import PublishReceived
from edge.appliance.shadow.broker_session import BRIDGE_STATES, FAILURES, BrokerAccess, session_at
from edge.appliance.shadow.limits import QUIET_S, RECONNECT_S
from edge.appliance.shadow.retained_reading import read_retained

COUNTS: Final = {
    "$SYS/broker/clients/connected": "connected",
    "$SYS/broker/clients/disconnected": "disconnected",
    "$SYS/broker/store/messages/count": "stored",
    "$SYS/broker/retained messages/count": "retained",
}
"""Counts of Mosquitto by topic. Other brokers may lack them."""
APPLIED_S: Final = 20.0
"""Longest time in which a running gateway applies a change of its configuration."""
SHOWN_MAX: Final = 20
"""Addresses that a message names."""


class LeftAtOldBroker(msgspec.Struct, frozen=True):
    """Counts of the old broker about itself, up to 10 seconds old; None: it does not tell."""

    connected: int | None = None
    """Connected clients, ours included."""
    disconnected: int | None = None
    """Sessions of clients that are not connected."""
    waiting: int | None = None
    """Stored messages without the retained ones: about the messages that wait for sessions."""


class FinishedShadow(msgspec.Struct, frozen=True):
    """Result of the end of a mirror."""

    last_messages: int
    """Messages that were taken from the mirror's session."""
    retained_moved: int
    retained_differing: Sequence[str]
    """Addresses with another retained message here, which was kept."""
    left: LeftAtOldBroker


async def published_at(old: BrokerAccess, filters: Sequence[str], seconds: float) -> dict[str, int]:
    """Return the messages that are published at the old broker within this time, by address. Raises one of
    `FAILURES`."""
    found: dict[str, int] = {}
    async with session_at(old) as session:
        await session.subscribe(filters, qos=0, retained=False)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for each in await session.read(left):
                if session.is_wanted(each):
                    found[each.topic] = found.get(each.topic, 0) + 1
    return found


async def refused_at(old: BrokerAccess, filters: Sequence[str]) -> list[str]:
    """Return the filters to which the broker refuses a subscription. Raises one of `FAILURES`."""
    async with session_at(old) as session:
        return await session.subscribe(filters, qos=1, retained=False)


async def connected_bridges(here: BrokerAccess) -> list[str]:
    """Return the names of bridges of other brokers that are connected to the gateway. Its user is new: the gateway may
    need a moment to know it. Raises one of `FAILURES`."""
    until = time.monotonic() + APPLIED_S
    while True:
        try:
            return await _connected_bridges(here)
        except FAILURES:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(RECONNECT_S)


async def _connected_bridges(here: BrokerAccess) -> list[str]:
    states: dict[str, bytes] = {}
    async with session_at(here) as session:
        await session.subscribe([BRIDGE_STATES], qos=0, retained=True)
        last = time.monotonic()
        while time.monotonic() - last < QUIET_S:
            for each in await session.read(QUIET_S):
                if isinstance(each, PublishReceived):
                    states[each.topic.split("/")[3]] = each.payload
    return sorted(name for name, state in states.items() if state == b"1")


async def take_session(mirror: BrokerAccess, here: BrokerAccess) -> int:
    """Publish what waits in the session of the mirror to the gateway, and remove the session; return the messages.

    `mirror`: with the client identifier of the connector. Raises one of `FAILURES`; the session then stays.
    """
    count = 0
    async with session_at(mirror, clean=False) as source, session_at(here) as target:
        last = time.monotonic()
        while source.present and time.monotonic() - last < QUIET_S:
            for each in await source.read(QUIET_S):
                last = time.monotonic()
                if isinstance(each, PublishReceived):
                    await target.publish(each.topic, each.payload, retain=each.retain)
                    count += 1
                source.acknowledge([each])
    async with session_at(mirror):
        pass  # a clean session removes the earlier one
    return count


async def move_retained(old: BrokerAccess, here: BrokerAccess, filters: Sequence[str]) -> tuple[int, list[str]]:
    """Publish retained messages to the gateway that only the old broker has; return their number, and the addresses
    where both have one and they differ. A value of the gateway stays: it may be of a client that has moved.

    Raises one of `FAILURES`.
    """
    moved = 0
    while True:
        theirs, ours = await read_retained(old, filters), await read_retained(here, filters)
        missing = theirs.digests.keys() - ours.digests.keys()
        differing = sorted(name for name in theirs.digests.keys() & ours.digests.keys()
                           if theirs.digests[name] != ours.digests[name])  # fmt: skip
        if not missing:
            return moved, differing
        payloads = (await read_retained(old, filters, missing)).payloads
        async with session_at(here) as target:
            for name, payload in payloads.items():
                await target.publish(name, payload, retain=True)
        moved += len(payloads)
        if not payloads:
            return moved, differing


async def left_at(old: BrokerAccess) -> LeftAtOldBroker:
    """Return what the old broker tells about its clients and messages."""
    found: dict[str, int] = {}
    try:
        async with session_at(old) as session:
            await session.subscribe(list(COUNTS), qos=0, retained=True)
            last = time.monotonic()
            while len(found) < len(COUNTS) and time.monotonic() - last < QUIET_S:
                for each in await session.read(QUIET_S):
                    if isinstance(each, PublishReceived) and each.topic in COUNTS and each.payload.isdigit():
                        found[COUNTS[each.topic]] = int(each.payload[:18])
    except FAILURES:
        return LeftAtOldBroker()
    waiting = max(0, found["stored"] - found["retained"]) if {"stored", "retained"} <= found.keys() else None
    return LeftAtOldBroker(found.get("connected"), found.get("disconnected"), waiting)


def shown(addresses: Sequence[str]) -> str:
    """Return addresses for people, up to a number."""
    further = len(addresses) - SHOWN_MAX
    return ", ".join(addresses[:SHOWN_MAX]) + (f" and {further} others" if further > 0 else "")
