"""Connectors to Azure Service Bus and Event Hubs, against a peer that follows their documented rules."""

from __future__ import annotations

import pytest

import bridge.forwarders.conditions as conditions
from bridge import plain
from bridge.connectors.settings import AmqpSettings, PartitionKey, TokenKind
from bridge.message import AMQP
from edge.broker.configuration import Connector, ConnectorType, EndpointHost, PeerCredentials
from tests.integration.forwarders.gateways import Sender, eventually, gateways, into, out, scenario
from tests.support.azure import KEY, MESSAGE_BYTES_MAX, POLICY, ServiceBus


def azure(bus: ServiceBus, key: str = KEY, lifetime_s: float = 600.0, **settings: object) -> Connector:
    return Connector(
        name="peer",
        type=ConnectorType.AMQP,
        hosts=(EndpointHost(host="127.0.0.1", port=bus.port),),
        credentials=PeerCredentials(username=POLICY, password=key),
        amqp=AmqpSettings(token=TokenKind.SHARED_ACCESS, token_lifetime_s=lifetime_s, **settings),  # type: ignore[arg-type]
    )


@scenario
async def test_each_entity_gets_a_token_and_each_message_a_partition_key() -> None:
    with ServiceBus().running() as bus:
        async with gateways("gw1") as (near,):
            peer = azure(bus, partition_key=PartitionKey.DEVICE)
            await near.configure(peer, out("f", "plant/#", "readings"), out("g", "site/#", "alarms"))
            sender = Sender(near.broker)
            sender.publish("plant/7", *[b"%d" % i for i in range(500)], device="pump")
            sender.publish("site/1", b"hot")
            await eventually(lambda: near.connector().figures.messages_accepted == 501)
        assert sorted(bus.tokens) == ["sb://127.0.0.1/alarms", "sb://127.0.0.1/readings"]
        assert (bus.unauthorized, bus.refused) == (0, [])
        keys = {(message.address, message.annotations["x-opt-partition-key"]) for message in bus.messages}
        assert keys == {("readings", "pump"), ("alarms", "dev")}
        assert all(message.durable for message in bus.messages)


@scenario
async def test_all_messages_arrive_although_tokens_expire() -> None:
    with ServiceBus().running() as bus:
        async with gateways("gw1") as (near,):
            await near.configure(azure(bus, lifetime_s=2.0), out("f", "plant/#", "readings"))
            sender = Sender(near.broker)
            sender.publish("plant/7", b"1")
            await eventually(lambda: len(bus.tokens) == 2, "a second token")
            sender.publish("plant/7", b"2")
            await eventually(lambda: len(bus.messages) == 2)


@scenario
async def test_wrong_key_sends_and_loses_no_message() -> None:
    with ServiceBus().running() as bus:
        async with gateways("gw1") as (near,):
            await near.configure(azure(bus, key="wrong"), out("f", "plant/#", "readings"), into("i", "site/1", "down"))
            Sender(near.broker).publish("plant/7", b"1")
            await eventually(lambda: len(bus.refused) == 2)
            assert near.connector().dialer.state.connected
            assert (near.connector().backlog, bus.messages, bus.unauthorized) == (1, [], 0)
            await near.configure(azure(bus), out("f", "plant/#", "readings"))
            await eventually(lambda: len(bus.messages) == 1)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    """Shorten the pause after a busy answer; it stays longer than the first backoff."""
    monkeypatch.setattr(conditions, "_PASSING", {"com.microsoft:server-busy": 1.0})
    return 1.0


def test_throttled_message_is_retried_later(impatient: float) -> None:
    """A throttled message is rejected, but its error condition leads to a later retry."""

    @scenario
    async def run() -> None:
        with ServiceBus().running() as bus:
            async with gateways("gw1") as (near,):
                bus.throttled.append("com.microsoft:server-busy")
                await near.configure(azure(bus), out("f", "plant/#", "readings"))
                Sender(near.broker).publish("plant/7", b"1")
                await eventually(lambda: len(bus.messages) == 1 and near.connector().backlog == 0)
                assert near.connector().figures.messages_rejected == 0
                assert bus.arrived_at[0] - bus.throttled_at[0] >= impatient, "it was left alone for a while"

    run()


@scenario
async def test_detached_idle_link_is_attached_again_for_the_next_message() -> None:
    with ServiceBus().running() as bus:
        async with gateways("gw1") as (near,):
            await near.configure(azure(bus), out("f", "plant/#", "readings"))
            Sender(near.broker).publish("plant/7", b"1")
            await eventually(lambda: near.connector().figures.messages_accepted == 1)
            bus.detach_idle_links()
            await eventually(lambda: bus.forced)
            Sender(near.broker).publish("plant/7", b"2")
            await eventually(lambda: near.connector().figures.messages_accepted == 2)
            assert len(bus.messages) == 2
            assert near.connector().dialer.state.connected


@scenario
async def test_message_above_the_size_of_the_entity_becomes_a_dead_letter() -> None:
    with ServiceBus().running() as bus:
        async with gateways("gw1") as (near,):
            await near.configure(azure(bus), out("f", "plant/#", "readings"))
            bodies = [plain.data_section(body) for body in (bytes(MESSAGE_BYTES_MAX), b"small")]
            Sender(near.broker).publish("plant/7", *bodies, flags=AMQP | 1)
            figures = near.connector()
            await eventually(lambda: figures.figures.messages_accepted == figures.figures.messages_rejected == 1)
            assert len(bus.messages) == 1
