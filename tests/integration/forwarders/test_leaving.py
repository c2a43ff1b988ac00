"""Connectors that are removed, changed, paused and restored during traffic: each message arrives once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from bridge import plain
from bridge.connectors.settings import MqttSettings
from bridge.message import AMQP
from edge.broker.configuration import Connector, Forwarder
from tests.integration.forwarders.gateways import (
    Gateway,
    Receiver,
    Sender,
    amqp_to,
    eventually,
    gateways,
    into,
    mqtt_to,
    scenario,
)

ROUNDS = 3
RUN = 200
WAITING_MAX = 2_000
"""Most messages that wait at the peer; publishing pauses above it."""

Leave = Callable[[Gateway, Connector, Forwarder], Awaitable[None]]


async def removed(near: Gateway, peer: Connector, forwarder: Forwarder) -> None:
    await near.configure(None)
    await near.configure(peer, forwarder)


async def changed(near: Gateway, peer: Connector, forwarder: Forwarder) -> None:
    """Replace the connector; the next one dials immediately."""
    now = next(one.connector for one in near.uplinks)
    await near.configure(msgspec.structs.replace(peer, container=None if now.container else "other"), forwarder)


async def changed_settings(near: Gateway, peer: Connector, forwarder: Forwarder) -> None:
    """Change settings, as `changed` does, for a connector that has to keep its name at the peer."""
    now = next(one.connector for one in near.uplinks)
    mqtt = MqttSettings(keep_alive_s=30.0 if now.mqtt else 20.0)
    await near.configure(msgspec.structs.replace(peer, mqtt=None if now.mqtt else mqtt), forwarder)


async def another_forwarder(near: Gateway, peer: Connector, forwarder: Forwarder) -> None:
    """Replace the forwarder; the connector stays and reconnects."""
    (now,) = near.connector().inboxes
    await near.configure(peer, msgspec.structs.replace(forwarder, qos=None if now.forwarder.qos else 1))
    near.connector().dialer.resume()


async def paused(near: Gateway, peer: Connector, forwarder: Forwarder) -> None:
    near.connector().dialer.pause()
    await eventually(lambda: not near.connector().dialer.state.connected)
    near.connector().dialer.resume()


async def each_once(
    far: Gateway,
    members: list[Gateway],
    publish_to: str,
    peer: Connector,
    forwarder: Forwarder,
    leave: Leave,
) -> None:
    """Remove and restore the first of `members` during traffic, several times; each message arrives once."""
    readers = [Receiver(member.broker, forwarder.filter) for member in members]
    for member in members:
        await member.configure(peer, forwarder)
        await eventually(lambda member=member: member.connector().dialer.state.connected)
    sent: list[bytes] = []

    def got() -> list[bytes]:
        runs = [run for reader in readers for run in reader.runs]
        return [plain.body_of(body) if run.flags & AMQP else body for run in runs for body in run.bodies]

    async def publish() -> None:
        sender = Sender(far.broker)
        while True:
            if len(sent) - len(got()) < WAITING_MAX:
                more = [b"%d" % i for i in range(len(sent), len(sent) + RUN)]
                sent.extend(more)
                sender.publish(publish_to, *more)
            await asyncio.sleep(0.001)

    load = asyncio.ensure_future(publish())
    try:
        for _ in range(ROUNDS):
            before = len(got())
            await eventually(lambda before=before: len(got()) > before, "they come")
            await leave(members[0], peer, forwarder)
            await eventually(lambda: members[0].connector().dialer.state.connected, "it is back")
    finally:
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
    await eventually(lambda: len(got()) >= len(sent) and set(got()) == set(sent), "each of them is there")
    await eventually(lambda: far.store.info().messages == 0, "the peer has heard so")
    twice = {body: count for body, count in Counter(got()).items() if count > 1}
    assert not twice


@pytest.mark.parametrize("leave", [removed, changed, another_forwarder, paused])
def test_queue_that_two_gateways_share_over_amqp_loses_no_message_when_one_leaves(leave: Leave) -> None:
    @scenario
    async def run() -> None:
        async with gateways("far", "gw1", "gw2") as (far, one, two):
            peer, forwarder = amqp_to(far.port), into("f", "queue/here", "queue/all")
            await each_once(far, [one, two], "queue/all", peer, forwarder, leave)

    run()


@pytest.mark.parametrize("leave", [removed, changed_settings, another_forwarder, paused])
def test_mqtt_session_loses_no_message_when_its_gateway_leaves(leave: Leave) -> None:
    """Messages of an MQTT session have no names, so a repeated one is stored twice."""

    @scenario
    async def run() -> None:
        async with gateways("far", "gw1") as (far, near):
            peer, forwarder = mqtt_to(far.mqtt_port), into("f", "queue/here", "plant/#")
            await each_once(far, [near], "plant/7", peer, forwarder, leave)

    run()
