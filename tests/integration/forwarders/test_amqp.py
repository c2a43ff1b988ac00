"""Forwarders over AMQP between gateways: both ways, remapped, over breaks and changes of configuration."""

from __future__ import annotations

import asyncio

import msgspec

from bridge import plain
from bridge.message import AMQP, Run
from bridge.publisher import device_of
from edge.broker.configuration import AddressConfiguration, Forwarder, Only
from edge.broker.message.translation import read_header
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressRule, AddressType
from tests.integration.forwarders.gateways import (
    ADDRESSES,
    Receiver,
    Sender,
    amqp_to,
    eventually,
    gateways,
    into,
    out,
    payloads,
    scenario,
)
from tests.support.processes import free_port


@scenario
async def test_outgoing_forwarder_renames_addresses() -> None:
    async with gateways("gw1", "gw2") as (near, far):
        await near.configure(amqp_to(far.port), out("f", "plant/#", "queue/of/#"))
        reader = Receiver(far.broker, "queue/of/7")
        Sender(near.broker).publish("plant/7", *[b"%d" % i for i in range(2_000)])
        await eventually(lambda: len(payloads(reader)) == 2_000)
        assert payloads(reader) == [b"%d" % i for i in range(2_000)]
        await eventually(lambda: near.connector().backlog == 0)
        assert near.connector().figures.messages_accepted == 2_000


@scenario
async def test_incoming_forwarder_empties_a_queue_of_the_peer() -> None:
    async with gateways("gw1", "gw2") as (near, far):
        reader = Receiver(near.broker, "queue/here")
        await near.configure(amqp_to(far.port), into("f", "queue/here", "queue/there"))
        Sender(far.broker).publish("queue/there", *[b"%d" % i for i in range(2_000)])
        await eventually(lambda: len(payloads(reader)) == 2_000)
        assert payloads(reader) == [b"%d" % i for i in range(2_000)]
        await eventually(lambda: near.connector().inboxes[0].figures.accepted == 2_000)
        await eventually(lambda: far.store.info().messages == 0, "the far side has forgotten them")


@scenario
async def test_addresses_and_devices_survive_a_queue_between_two_gateways() -> None:
    """Each message carries its origin; a forwarder with a pattern writes it to the same address again."""
    async with gateways("gw1", "broker", "gw2") as (one, broker, two):
        reader = Receiver(two.broker, "plant/#", "reader")
        await one.configure(amqp_to(broker.port), out("f", "plant/#", "queue/all"))
        await two.configure(amqp_to(broker.port), into("f", "plant/#", "queue/all"))
        sender = Sender(one.broker)
        for address in ("plant/7", "plant/8/temp"):
            sender.publish(address, b"of " + address.encode())
        await eventually(lambda: len(payloads(reader)) == 2)
        found = {(run.address, device_of(run.device)) for run in reader.runs}
        assert found == {("plant/7", "dev"), ("plant/8/temp", "dev")}
        assert all(plain.hops_of(run) == ["gw1"] for run in reader.runs)


@scenario
async def test_incoming_forwarder_maps_a_pattern_of_the_peer_to_its_own() -> None:
    async with gateways("gw1", "gw2") as (near, far):
        reader = Receiver(near.broker, "site/#", "reader")
        await near.configure(amqp_to(far.port), into("f", "site/+/x/#", "plant/+/#"))
        await eventually(lambda: near.connector().dialer.state.connected)
        await eventually(lambda: len(far.broker.router.durable_subscriptions) == 1, "it is kept while we are away")
        body = plain.messages(plain.Hop("other", "e"), 0, Run("plant/9/a", "d", 1, b"", [b"body"]))[0]
        Sender(far.broker).publish("plant/9/a", body[8:], flags=AMQP | 1)
        await eventually(lambda: len(reader.runs) == 1)
        assert reader.runs[0].address == "site/9/x/a"


@scenario
async def test_messages_do_not_circle_in_a_ring_of_gateways() -> None:
    async with gateways("gw1", "broker", "gw2") as (one, broker, two):
        readers = [Receiver(gateway.broker, "plant/#", "reader") for gateway in (one, two)]
        for gateway, here, there in ((one, "queue/a", "queue/b"), (two, "queue/b", "queue/a")):
            await gateway.configure(amqp_to(broker.port), out("out", "plant/#", here), into("in", "plant/#", there))
        senders = [Sender(gateway.broker) for gateway in (one, two)]
        for i in range(50):
            for sender in senders:
                sender.publish("plant/7", b"%d" % i)
        await eventually(lambda: all(gateway.connector().inboxes[0].figures.looped == 50 for gateway in (one, two)))
        await eventually(
            lambda: all(
                gateway.connector().backlog == 0
                for gateway in (
                    one,
                    two,
                )
            )
        )
        for reader in readers:
            assert sum(len(run) for run in reader.runs) == 100, "its own, and the other's once"


@scenario
async def test_broken_connections_lose_and_repeat_no_message() -> None:
    async with gateways("gw1", "broker", "gw2") as (one, broker, two):
        reader = Receiver(two.broker, "plant/#", "reader")
        await one.configure(amqp_to(broker.port), out("f", "plant/#", "queue/all"))
        await two.configure(amqp_to(broker.port), into("f", "plant/#", "queue/all"))
        sender = Sender(one.broker)
        for start in range(0, 10_000, 500):
            sender.publish("plant/7", *[b"%d" % i for i in range(start, start + 500)])
            await asyncio.sleep(0.01)
            if start in (2_000, 5_000, 8_000):
                for driver in list(broker.broker.listeners.drivers()):
                    driver.abort()
        await eventually(lambda: len(set(payloads(reader))) == 10_000)
        await eventually(lambda: one.connector().backlog == 0 and broker.store.info().messages == 0)
        resent = one.connector().outbox.outlets[0].figures.resent
        got = payloads(reader)
        assert len(got) - 10_000 <= resent, "the broker has what was sent again twice, and nobody else"
        first = list(dict.fromkeys(got))
        assert first == [b"%d" % i for i in range(10_000)], "in order"


@scenario
async def test_full_quota_stops_credit_and_loses_no_message() -> None:
    async with gateways("gw1", "gw2") as (near, far):
        small = AddressConfiguration(AddressRule("queue/small", AddressType.QUEUE), AddressPolicy(quota_bytes=20_000))
        await near.configure(amqp_to(far.port), into("f", "queue/small", "queue/there"), addresses=(*ADDRESSES, small))
        Sender(far.broker).publish("queue/there", *[b"%04d" % i + bytes(96) for i in range(1_000)])
        inbound = near.connector().inboxes[0]
        await eventually(lambda: inbound.credit == 0)
        kept = far.store.info().messages
        assert kept >= 500, "what there is no room for stays there"
        reader = Receiver(near.broker, "queue/small")
        await eventually(lambda: len(payloads(reader)) == 1_000)
        assert [body[:4] for body in payloads(reader)] == [b"%04d" % i for i in range(1_000)], "in order"
        assert inbound.figures.rejected == inbound.figures.duplicates == 0


@scenario
async def test_changed_forwarder_continues_at_its_position() -> None:
    async with gateways("gw1", "gw2") as (near, far):
        first, second = Receiver(far.broker, "queue/1"), Receiver(far.broker, "queue/2")
        await near.configure(amqp_to(far.port), out("f", "plant/#", "queue/1"))
        sender = Sender(near.broker)
        sender.publish("plant/7", b"a")
        await eventually(lambda: payloads(first) == [b"a"] and near.connector().backlog == 0)
        await near.configure(None)
        sender.publish("plant/7", b"b")
        await near.configure(amqp_to(far.port), out("f", "plant/#", "queue/2"))
        sender.publish("plant/7", b"c")
        await eventually(lambda: payloads(second) == [b"b", b"c"])
        assert payloads(first) == [b"a"]


@scenario
async def test_each_forwarder_of_an_address_has_its_own_position() -> None:
    async with gateways("gw1", "gw2", "gw3") as (near, far, other):
        readers = [Receiver(far.broker, "queue/1"), Receiver(far.broker, "queue/2"), Receiver(other.broker, "queue/3")]
        near.configuration = msgspec.structs.replace(
            near.configuration,
            connectors=(amqp_to(far.port), amqp_to(other.port, name="third")),
            forwarders=(
                out("one", "plant/#", "queue/1"),
                out("hot", "plant/#", "queue/2", only=Only(body="$.t > 30")),
                Forwarder(name="third", filter="plant/#", connector="third", remote_address="queue/3"),
            ),
        )
        near.uplinks.configure(near.configuration)
        near.connector("third").dialer.pause()
        bodies = [b'{"t": %d}' % t for t in (20, 31, 40, 5)]
        Sender(near.broker).publish("plant/7", *bodies)
        await eventually(lambda: payloads(readers[0]) == bodies and payloads(readers[1]) == [bodies[1], bodies[2]])
        assert near.connector("third").backlog == 4
        near.connector("third").dialer.resume()
        await eventually(lambda: payloads(readers[2]) == bodies)
        await eventually(lambda: near.uplinks.backlog == 0)
        hot = next(each for each in near.connector().outbox.outlets if each.rule.name == "hot")
        assert hot.figures.filtered == 2


@scenario
async def test_queue_is_forwarded_to_the_next_endpoint_when_one_is_down() -> None:
    async with gateways("gw1", "gw2") as (near, far):
        reader = Receiver(far.broker, "queue/there")
        await near.configure(amqp_to(free_port(), far.port), out("f", "queue/here", "queue/there"))
        Sender(near.broker).publish("queue/here", b"a", b"b")
        await eventually(lambda: payloads(reader) == [b"a", b"b"])
        await eventually(lambda: near.store.info().messages == 0)


@scenario
async def test_refused_address_does_not_delay_other_forwarders() -> None:
    async with gateways("gw1", "gw2") as (near, far):
        reader = Receiver(far.broker, "queue/1")
        await near.configure(
            amqp_to(far.port), out("bad", "plant/#", "nothing::here", priority=9), out("good", "plant/#", "queue/1"),
            into("none", "site/#", "$nothing"),
        )  # fmt: skip
        Sender(near.broker).publish("plant/7", b"a")
        await eventually(lambda: payloads(reader) == [b"a"])
        bad = next(each for each in near.connector().outbox.outlets if each.rule.name == "bad")
        assert bad.flow.held_bytes
        assert near.connector().dialer.state.connected


@scenario
async def test_what_a_forwarder_says_of_its_messages() -> None:
    async with gateways("gw1", "gw2") as (near, far):
        reader = Receiver(far.broker, "queue/1")
        await near.configure(amqp_to(far.port), out("f", "plant/#", "queue/1", ttl_s=60.0, message_priority=7, qos=0))
        await eventually(lambda: near.connector().dialer.state.connected)
        Sender(near.broker).publish("plant/7", b"a")
        await eventually(lambda: len(reader.runs) == 1)
        header = read_header(reader.runs[0].properties)
        assert (header.priority, reader.runs[0].qos) == (7, 0)
        assert header.ttl_ms is not None
        assert 50_000 < header.ttl_ms <= 60_000
        await eventually(lambda: near.connector().backlog == 0, "nobody waits for an answer")


@scenario
async def test_messages_that_grow_too_old_for_a_forwarder_are_in_the_loss_ledger() -> None:
    async with gateways("gw1", "gw2") as (near, far):
        reader = Receiver(far.broker, "queue/1")
        forwarder = out("f", "plant/#", "queue/1", ttl_s=0.001)
        await near.configure(amqp_to(free_port()), forwarder)
        Sender(near.broker).publish("plant/7", b"1", b"2")
        await eventually(lambda: near.connector().backlog == 2)
        await asyncio.sleep(0.002)
        await near.configure(amqp_to(far.port), forwarder)
        await eventually(lambda: near.connector().backlog == 0)
        await eventually(lambda: near.store.ledger.entries(0, 10))
        [lost] = near.store.ledger.entries(0, 10)
        assert (lost.address, lost.messages, lost.reason) == ("plant/7", 2, "expired")
        assert reader.runs == []


@scenario
async def test_removed_incoming_forwarder_accepts_no_more_messages() -> None:
    async with gateways("gw1", "gw2") as (near, far):
        stays, ends = into("stays", "queue/1", "queue/a"), into("ends", "queue/2", "queue/b")
        readers = [Receiver(near.broker, "queue/1"), Receiver(near.broker, "queue/2")]
        await near.configure(amqp_to(far.port), stays, ends)
        sender = Sender(far.broker)
        for address in ("queue/a", "queue/b"):
            sender.publish(address, b"1")
        await eventually(lambda: all(payloads(reader) == [b"1"] for reader in readers))
        await near.configure(amqp_to(far.port), stays)
        for address in ("queue/a", "queue/b"):
            sender.publish(address, b"2")
        await eventually(lambda: payloads(readers[0]) == [b"1", b"2"])
        assert payloads(readers[1]) == [b"1"]
        await near.configure(amqp_to(far.port), stays, ends)
        await eventually(lambda: payloads(readers[1]) == [b"1", b"2"])
