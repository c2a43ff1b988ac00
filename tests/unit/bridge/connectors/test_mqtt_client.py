"""The MQTT client against a broker that may do anything between two packets."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest

from bridge.client_attempt import ConnectorError
from bridge.connectors.limits import MQTT_PACKET_COST_BYTES
from bridge.connectors.mqtt import client as mqtt_client
from bridge.connectors.mqtt import packets
from bridge.connectors.mqtt.client import MqttClient
from bridge.connectors.mqtt.dialects import DIALECTS
from bridge.connectors.settings import ClientIdentity, MqttSettings
from bridge.forwarders.outcome import ForwardOutcome
from edge.broker.message.translation import mqtt_runs
from edge.broker.model.topics import matches
from tests.support.feeding import NOW_NS, Bench, running
from tests.support.loop_wait import until
from tests.support.mqtt_peer import MqttPeer, puback, publish
from tests.unit.bridge.connectors.inbox import StubInbox


def client(**settings: Any) -> MqttClient:
    """Return a client that speaks MQTT 3.1.1 only."""
    return MqttClient(
        ClientIdentity("me"),
        MqttSettings(**settings),
        translate=mqtt_runs,
        matches=matches,
        now_ns=lambda: NOW_NS,
        dialects=DIALECTS[-1:],
    )


class TestOut:
    @running
    async def test_only_its_puback_settles_a_message(self) -> None:
        bench = Bench()
        feed = bench.feed(b"1", b"2", b"3")
        async with MqttPeer().serving() as peer, bench.connected(client(), peer.port):
            link = await peer.link()
            connect = await link.opened()
            assert connect.body == b"\x00\x04MQTT\x04\x02\x00\x1e\x00\x02me"
            sent = [await link.take() for _ in range(3)]
            assert [(each.topic, each.payload, each.flags) for each in sent] == [
                ("cloud/7", b"1", 2), ("cloud/7", b"2", 2), ("cloud/7", b"3", 2),
            ]  # fmt: skip
            link.writer.write(puback(sent[1].packet_id) + puback(999) + b"\xd0\x00")
            link.writer.write(puback(sent[0].packet_id))
            await until(lambda: feed.accepted == [0, 1], "the first two")
            link.writer.write(puback(sent[0].packet_id))  # a second answer is ignored
            link.writer.write(puback(sent[2].packet_id))
            await until(lambda: feed.accepted == [0, 1, 2], "all")
            assert bench.outbox.in_flight == 0

    @running
    async def test_unacknowledged_messages_are_repeated_under_their_identifiers_before_new_ones(self) -> None:
        bench, using = Bench(), client()
        feed = bench.feed(*(b"%d" % n for n in range(6)))
        async with MqttPeer().serving() as peer:
            async with bench.connected(using, peer.port) as task:
                link = await peer.link()
                await link.opened()
                first = [await link.take() for _ in range(6)]
                link.writer.write(puback(first[0].packet_id) + puback(first[1].packet_id) + puback(first[3].packet_id))
                await until(lambda: feed.accepted == [0, 1], "what is acknowledged without a gap")
                link.writer.transport.abort()
                await task
            later = bench.feed(b"new", address="plant/8", remote="cloud/8")
            async with bench.connected(using, peer.port):
                link = await peer.link()
                await link.opened()
                again = [await link.take() for _ in range(5)]
                old = [each for each in again if each.topic == "cloud/7"]
                assert [each.payload for each in old] == [b"2", b"3", b"4", b"5"]
                assert [each.again for each in old] == [True, False, True, True]
                assert [each.packet_id for each in old if each.again] == [first[i].packet_id for i in (2, 4, 5)]
                assert len({each.packet_id for each in again}) == 5
                link.writer.write(b"".join(puback(each.packet_id) for each in again))
                await until(lambda: len(feed.accepted) == 6 and later.accepted == [0], "all")

    @running
    async def test_messages_in_flight_are_bounded(self) -> None:
        bench = Bench()
        feed = bench.feed(*(b"%d" % n for n in range(50)))
        async with MqttPeer().serving() as peer, bench.connected(client(in_flight_max=7), peer.port):
            link = await peer.link()
            await link.opened()
            taken = 0
            while taken < 50:
                sent = [await link.take() for _ in range(min(7, 50 - taken))]
                assert bench.outbox.in_flight == len(sent)
                taken += len(sent)
                link.writer.write(b"".join(puback(each.packet_id) for each in sent))
                await until(lambda taken=taken: len(feed.accepted) == taken, "this window")

    @running
    async def test_message_that_no_packet_can_carry_is_rejected_and_others_are_sent(self) -> None:
        bench = Bench()
        bad = bench.feed(b"1", address="plant/9", remote="a\0b")
        good = bench.feed(b"2")
        async with MqttPeer().serving() as peer, bench.connected(client(), peer.port):
            link = await peer.link()
            await link.opened()
            link.writer.write(puback((await link.take()).packet_id))
            await until(lambda: good.accepted == [0] and bad.rejected == [0], "both have their outcome")

    @running
    async def test_puback_for_a_removed_forwarder_is_ignored(self) -> None:
        bench = Bench()
        feed = bench.feed(b"1")
        async with MqttPeer().serving() as peer, bench.connected(client(), peer.port):
            link = await peer.link()
            await link.opened()
            sent = await link.take()
            feed.end()
            link.writer.write(puback(sent.packet_id))
            await until(lambda: bench.outbox.in_flight == 0, "the ticket is over")
        assert feed.outcomes == {}

    @running
    async def test_peer_may_close_during_a_write(self) -> None:
        """The peer closes without reading while megabytes are being written."""
        bench, using = Bench(), client()
        feed = bench.feed(*(bytes(100_000) for _ in range(100)))
        async with MqttPeer().serving() as peer:
            async with bench.connected(using, peer.port) as task:
                link = await peer.link()
                await link.opened()
                first = await link.take()
                link.writer.write(puback(first.packet_id))
                await until(lambda: feed.accepted == [0], "the first")
                link.writer.transport.abort()
                await task
            async with bench.connected(using, peer.port):
                link = await peer.link()
                await link.opened()
                for _ in range(99):
                    link.writer.write(puback((await link.take()).packet_id))
                await until(lambda: len(feed.accepted) == 100, "all")

    @running
    async def test_disconnect_is_sent_at_the_end(self) -> None:
        bench = Bench()
        async with MqttPeer().serving() as peer:
            async with bench.connected(client(), peer.port):
                link = await peer.link()
                await link.opened()
                await until(lambda: bench.outbox.open, "it is up")
            assert [sent.kind for sent in await link.left()] == [14]


class TestIn:
    @running
    async def test_acknowledgement_waits_for_the_commit_and_for_earlier_ones(self) -> None:
        bench, inbox = Bench(), StubInbox()
        bench.inboxes.append(inbox)
        async with MqttPeer().serving() as peer, bench.connected(client(), peer.port):
            link = await peer.link()
            connect = await link.opened(subscribed=True)
            assert connect.body[7] == 0, "the session is kept at the broker"
            link.writer.write(b"".join(publish(n, b"far/%d" % n, b"hi") for n in (1, 2, 3)))
            link.writer.write(publish(0, b"far/0", b"qos 0", flags=0))
            await until(lambda: len(inbox.got) == 4, "all arrived")
            assert [each.addresses for each in inbox.got] == [("far/1",), ("far/2",), ("far/3",), ("far/0",)]
            assert inbox.got[3].token is None
            inbox.commit(1, 2)
            link.writer.write(publish(4, b"far/4", b"hi"))
            await until(lambda: len(inbox.got) == 5, "the next arrived")
            inbox.commit(0)
            assert [(await link.take()).packet_id for _ in range(3)] == [1, 2, 3]
            inbox.commit(4, outcome=ForwardOutcome.REJECTED)  # the broker would send it again for ever
            assert (await link.take()).packet_id == 4

    @running
    async def test_uncommitted_messages_are_not_acknowledged_at_the_end(self) -> None:
        bench, inbox = Bench(), StubInbox()
        bench.inboxes.append(inbox)
        async with MqttPeer().serving() as peer:
            async with bench.connected(client(), peer.port):
                link = await peer.link()
                await link.opened(subscribed=True)
                link.writer.write(publish(1, b"far/1", b"hi"))
                await until(lambda: len(inbox.got) == 1, "arrived")
            assert [sent.kind for sent in await link.left()] == [14]

    @running
    async def test_message_without_room_ends_the_connection_unacknowledged(self) -> None:
        bench, inbox = Bench(), StubInbox()
        bench.inboxes.append(inbox)
        async with MqttPeer().serving() as peer, bench.connected(client(), peer.port) as task:
            link = await peer.link()
            await link.opened(subscribed=True)
            link.writer.write(publish(1, b"far/1", b"hi"))
            await until(lambda: len(inbox.got) == 1, "arrived")
            inbox.commit(0, outcome=ForwardOutcome.RELEASED)
            await task
            assert 4 not in [sent.kind for sent in await link.left()]
        assert "not accepted here" in str(bench.errors[0])

    @running
    async def test_reading_pauses_without_room(self) -> None:
        bench, inbox = Bench(), StubInbox(credit=2)
        bench.inboxes.append(inbox)
        async with MqttPeer().serving() as peer, bench.connected(client(), peer.port):
            link = await peer.link()
            await link.opened(subscribed=True)
            link.writer.write(b"".join(publish(n, b"far/1", b"hi") for n in range(1, 6)))
            await until(lambda: len(inbox.got) == 2, "what there is room for")
            inbox.credit = 3
            assert inbox.credit_changed is not None
            inbox.credit_changed()
            await until(lambda: len(inbox.got) == 5, "the rest")

    @running
    async def test_message_that_no_forwarder_takes_is_in_the_ledger_before_its_acknowledgement(self) -> None:
        bench, inbox = Bench(), StubInbox()
        bench.inboxes.append(inbox)
        async with MqttPeer().serving() as peer, bench.connected(client(), peer.port):
            link = await peer.link()
            await link.opened(subscribed=True)
            link.writer.write(publish(9, b"other/1", b"hi"))
            await until(lambda: len(inbox.got) == 1, "reported")
            (message,) = inbox.got
            assert (message.code, message.bytes, message.run.bodies) == ("no-address", 2, [])
            assert "other/1" in message.fault
            inbox.commit(0, outcome=ForwardOutcome.REJECTED)
            assert (await link.take()).packet_id == 9

    @running
    async def test_shared_subscription_takes_its_messages(self) -> None:
        bench, inbox = Bench(), StubInbox("$share/g/far/#")
        bench.inboxes.append(inbox)
        async with MqttPeer().serving() as peer, bench.connected(client(), peer.port):
            link = await peer.link()
            await link.opened(subscribed=True)
            link.writer.write(publish(9, b"far/1", b"hi"))
            await until(lambda: len(inbox.got) == 1, "arrived")
            assert not inbox.got[0].fault
            inbox.commit(0)
            assert (await link.take()).packet_id == 9


class TestTrouble:
    @pytest.mark.parametrize(
        ("said", "why"),
        [
            (b"\x20\x02\x00\x05", "check the rights of this user"),
            (b"\x20\x02\x00\x04", "check the connector's credentials"),
            (b"\x20\x02\x00\x02", "set the connector's container"),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak MQTT"),
            (b"\x20\x02\x00\x00\x20\x02\x00\x00", "an unexpected packet"),
            (b"\x20\x02\x00\x00\x34\x07\x00\x03a/b\x00\x01", "QoS 2"),
            (b"", "closed the connection"),
        ],
    )
    @running
    async def test_each_error_is_one_line(self, said: bytes, why: str) -> None:
        bench = Bench()
        feed = bench.feed(b"1")
        async with MqttPeer().serving() as peer, bench.connected(client(), peer.port) as task:
            link = await peer.link()
            await link.take()
            link.writer.write(said)
            if not said:
                link.writer.close()
            await task
        (error,) = bench.errors
        assert isinstance(error, ConnectorError)
        assert why in str(error)
        assert "\n" not in str(error)
        assert feed.outcomes == {}

    @running
    async def test_messages_before_the_suback_are_bounded(self) -> None:
        bench = Bench()
        bench.inboxes += [StubInbox()]
        with mock.patch.object(mqtt_client, "MQTT_EARLY_BYTES_MAX", 100 * MQTT_PACKET_COST_BYTES):
            async with MqttPeer().serving() as peer, bench.connected(client(), peer.port) as task:
                link = await peer.link()
                await link.opened()
                for number in range(1, 101):
                    link.writer.write(publish(number, b"far/1", b"x"))
                await task
        assert "before its answer to our subscription" in str(bench.errors[0])

    @running
    async def test_peer_that_does_not_read_acknowledgements_is_disconnected(self) -> None:
        bench = Bench()
        with mock.patch.object(mqtt_client, "DIALED_UNREAD_BYTES_MAX", 1 << 10):
            async with MqttPeer().serving() as peer, bench.connected(client(), peer.port) as task:
                link = await peer.link()
                await link.opened()
                link.writer.transport.pause_reading()  # type: ignore[attr-defined]
                bench.feed(*(bytes(1 << 16) for _ in range(200)))
                while not task.done():
                    link.writer.write(b"\xd0\x00")
                    await asyncio.sleep(0.001)
                link.writer.transport.abort()
        assert "does not read its data" in str(bench.errors[0])

    @running
    async def test_read_of_many_packets_is_processed_in_slices(self) -> None:
        """A broker that answers 32 000 pings at once does not block the event loop."""
        bench = Bench()
        others = 0
        decoded: list[int] = []
        decode = packets.decode

        def noted(frame: bytes) -> packets.Packet:
            decoded.append(others)
            return decode(frame)

        async with MqttPeer().serving() as peer, bench.connected(client(), peer.port) as task:
            link = await peer.link()
            await link.opened()
            with (
                mock.patch.object(mqtt_client, "SLICE_S", 0.0),
                mock.patch.object(packets, "decode", noted),
            ):
                link.writer.write(b"\xd0\x00" * 500)
                while len(decoded) < 500:
                    others += 1
                    await asyncio.sleep(0)
                    assert not task.done()
        assert len(set(decoded)) > 250, "others have their turns in between"

    @running
    async def test_refused_subscription_is_named(self) -> None:
        bench = Bench()
        bench.inboxes += [StubInbox("far/a"), StubInbox("far/b")]
        async with MqttPeer().serving() as peer, bench.connected(client(), peer.port) as task:
            link = await peer.link()
            await link.opened()
            await link.take()
            link.writer.write(b"\x90\x04\xff\xff\x01\x80")
            await task
        assert "refuses a subscription to far/b" in str(bench.errors[0])

    @running
    async def test_silent_broker_is_disconnected(self) -> None:
        bench = Bench()
        async with MqttPeer().serving() as peer, bench.connected(client(keep_alive_s=1), peer.port) as task:
            link = await peer.link()
            await link.opened()
            async with asyncio.timeout(10):
                await task
            assert {sent.kind for sent in await link.left()} == {12, 14}
        assert "silent for 1 s" in str(bench.errors[0])

    @running
    async def test_paused_broker_is_not_silent(self) -> None:
        bench, inbox = Bench(), StubInbox(credit=1)
        bench.inboxes.append(inbox)
        async with MqttPeer().serving() as peer, bench.connected(client(keep_alive_s=1), peer.port) as task:
            link = await peer.link()
            await link.opened(subscribed=True)
            link.writer.write(publish(1, b"far/a", b"1") + publish(2, b"far/a", b"2"))
            for _ in range(3 * mqtt_client.PINGS_UNHEARD_MAX):
                assert (await link.take()).kind == 12
                link.writer.write(b"\xd0\x00")
            assert not task.done()
            assert len(inbox.got) == 1
            inbox.credit = 1
            assert inbox.credit_changed is not None
            inbox.credit_changed()
            await until(lambda: len(inbox.got) == 2, "the message that waited for room")
            async with asyncio.timeout(10):
                await task
        assert "silent for 1 s" in str(bench.errors[0])
