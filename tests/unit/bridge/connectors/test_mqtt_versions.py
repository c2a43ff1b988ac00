"""A connector and its broker agree on a version of MQTT."""

from __future__ import annotations

import asyncio

import pytest

from bridge.connectors.mqtt.client import MqttClient
from bridge.connectors.mqtt.dialects import DIALECTS
from bridge.connectors.settings import ClientIdentity, MqttSettings
from bridge.publish_properties import read
from edge.broker.message.translation import mqtt_runs
from edge.broker.model.topics import matches
from tests.support.feeding import NOW_NS, Bench, running
from tests.support.loop_wait import until
from tests.support.mqtt_peer import CONNACK, SUBACK, Link, MqttPeer, puback, publish
from tests.unit.bridge.connectors.inbox import StubInbox

CONNACK_5 = b"\x20\x03\x00\x00\x00"
SUBACK_5 = b"\x90\x04\xff\xff\x00\x01"


def client(first: int = 0) -> MqttClient:
    return MqttClient(
        ClientIdentity("me"),
        MqttSettings(),
        translate=mqtt_runs,
        matches=matches,
        now_ns=lambda: NOW_NS,
        dialects=DIALECTS[first:],
    )


async def refused(peer: MqttPeer, answer: bytes) -> int:
    """Refuse the next CONNECT with this answer and hang up; return its protocol level."""
    link = await peer.link()
    level = (await link.take()).body[6]
    link.writer.write(answer)
    link.writer.close()
    return level


async def answered(link: Link, answer: bytes) -> bytes:
    """Answer the next packet; return its body."""
    packet = await link.take()
    link.writer.write(answer)
    return packet.body


class TestFallback:
    @pytest.mark.parametrize("answer", [b"\x20\x02\x00\x01", b"\x20\x03\x00\x84\x00", CONNACK, b""])
    @running
    async def test_connector_falls_back_to_a_version_that_the_broker_accepts(self, answer: bytes) -> None:
        """Brokers refuse an unknown version, answer in their own, or hang up."""
        bench = Bench()
        bench.feed(b"1")
        async with MqttPeer().serving() as peer, bench.connected(client(), peer.port):
            assert await refused(peer, answer) == 5
            if answer != CONNACK:
                assert await refused(peer, b"\x20\x02\x00\x01") == 0x84
            link = await peer.link()
            assert (await answered(link, CONNACK))[6] == (0x84 if answer == CONNACK else 4)
            assert (await link.take()).payload == b"1"
        assert bench.errors == []

    @running
    async def test_connector_does_not_fall_back_below_mqtt_3_1_1(self) -> None:
        bench = Bench()
        async with MqttPeer().serving() as peer, bench.connected(client(), peer.port) as task:
            assert [await refused(peer, b"\x20\x02\x00\x01") for _ in range(3)] == [5, 0x84, 4]
            await task
        assert "speaks neither MQTT 5 nor MQTT 3.1.1" in str(bench.errors[0])

    @pytest.mark.parametrize(
        ("answer", "why"),
        [
            (b"\x20\x03\x00\x86\x00", "check the connector's credentials"),
            (b"\x20\x08\x00\x97\x05\x1f\x00\x02no", "no"),
            (b"\x20\x05\x00\x00\x02\x24\x00", "QoS 1"),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak MQTT"),
        ],
    )
    @running
    async def test_other_refusals_are_final(self, answer: bytes, why: str) -> None:
        bench = Bench()
        async with MqttPeer().serving() as peer, bench.connected(client(), peer.port) as task:
            assert await refused(peer, answer) == 5
            await task
        assert why in str(bench.errors[0])


class TestMqtt5:
    @running
    async def test_refused_message_is_rejected_or_repeated_by_its_reason(self) -> None:
        bench = Bench()
        feed = bench.feed(b"1", b"2", bytes(500), b"4")
        async with MqttPeer().serving() as peer, bench.connected(client(), peer.port) as task:
            link = await peer.link()
            # Receive Maximum 2, Maximum Packet Size 500: the names take some 300 bytes.
            await answered(link, b"\x20\x0b\x00\x00\x08\x21\x00\x02\x27\x00\x00\x01\xf4")
            first, second = await link.take(), await link.take()
            assert bench.outbox.in_flight >= 2
            link.writer.write(b"\x40\x03" + first.packet_id.to_bytes(2) + b"\x87")
            await until(lambda: 0 in feed.rejected, "not authorized")
            link.writer.write(puback(second.packet_id))
            await until(lambda: feed.accepted == [1], "the second")
            await until(lambda: feed.rejected == [0, 2], "one that is too large for the broker")
            link.writer.write(b"\x40\x03" + (await link.take()).packet_id.to_bytes(2) + b"\x97")
            await task
        assert "cannot accept a message now" in str(bench.errors[0])
        assert 3 not in feed.outcomes, "it goes again over the next connection"

    @running
    async def test_message_names_are_sent_as_user_properties(self) -> None:
        bench = Bench()
        bench.feed(b"1")
        async with MqttPeer().serving() as peer, bench.connected(client(), peer.port):
            link = await peer.link()
            await answered(link, CONNACK_5)
            block = (await link.take()).payload[2:-1]  # follows a length of two bytes
        names = {name.removeprefix("x-opt-waypost-"): value for name, value in read(block).users}
        assert names.pop("received-at").isdecimal()
        expected = {
            "gateway": "gw",
            "epoch": "e1",
            "address": "plant/7",
            "sequence": "0",
            "device": "dev",
            "hops": "gw",
        }
        assert names == expected

    @running
    async def test_reason_of_a_disconnect_is_reported(self) -> None:
        bench = Bench()
        async with MqttPeer().serving() as peer, bench.connected(client(), peer.port) as task:
            link = await peer.link()
            await answered(link, CONNACK_5 + b"\xe0\x0a\x8e\x08\x1f\x00\x05taken")
            await task
        assert "the broker ends the connection: taken" in str(bench.errors[0])

    @running
    async def test_resumed_session_sends_no_subscribe(self) -> None:
        """A kept session gets no retained messages again, as the client subscribes with Retain Handling 1."""
        bench, inbox = Bench(), StubInbox()
        bench.inboxes.append(inbox)
        async with MqttPeer().serving() as peer:
            for present in (False, True):
                async with bench.connected(client(), peer.port):
                    link = await peer.link()
                    await answered(link, b"\x20\x03" + bytes((present,)) + b"\x00\x00")
                    assert (await answered(link, SUBACK_5))[-1] == 0x1D
                    link.writer.write(b"\x31\x0a\x00\x05far/1\x00hi")
                    await until(lambda present=present: len(inbox.got) == 1 + present, "arrived")
        assert [each.again for each in inbox.got] == [True, False]


class TestMqtt311:
    @pytest.mark.parametrize("first", [1, 2])
    @running
    async def test_resumed_session_sends_no_subscribe(self, first: int) -> None:
        bench, inbox, using = Bench(), StubInbox(), client(first)
        bench.inboxes.append(inbox)
        async with MqttPeer().serving() as peer:
            for present in (False, True, False):
                async with bench.connected(using, peer.port):
                    link = await peer.link()
                    await answered(link, b"\x20\x02" + bytes((present,)) + b"\x00")
                    if not present:
                        assert (await link.take()).kind == 8
                        link.writer.write(SUBACK)
                    link.writer.write(publish(5, b"far/1", b"hi", flags=3))
                    before = len(inbox.got)
                    await until(lambda before=before: len(inbox.got) == before + 1, "arrived")
                    inbox.commit(before)
                    assert (await link.take()).kind == 4, "no other packet came before"
        assert [each.again for each in inbox.got] == [True, False, True]

    @running
    async def test_changed_filter_is_subscribed(self) -> None:
        bench, using = Bench(), client(2)
        bench.inboxes.append(StubInbox("far/a"))
        async with MqttPeer().serving() as peer:
            async with bench.connected(using, peer.port):
                link = await peer.link()
                await answered(link, CONNACK)
                await answered(link, SUBACK)
            bench.inboxes.append(StubInbox("far/b"))
            async with bench.connected(using, peer.port):
                link = await peer.link()
                await answered(link, b"\x20\x02\x01\x00")
                async with asyncio.timeout(10):
                    assert (await link.take()).kind == 8
