"""Clients that read slowly or not at all, never acknowledge, reconnect all the time or come in crowds.

Each must leave others unharmed: their round trips stay below `ROUND_TRIP_S_MAX`, and the gateway's memory is bounded.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.amqp_values import Uint
from edge.broker.limits import LIVE_HOLD_S_MAX
from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from tests.support.configured_gateway import gateway_with
from tests.support.frames import ATTACH, BEGIN, DETACH, HEADER, OPEN, RECEIVER, ROOM, SOURCE, TARGET, frame, terminus
from tests.support.hostile import WAIT_S, Raw, unharmed
from tests.support.processes import Waypost, resident_mib, wait_until

ROUND_TRIP_S_MAX = 5.0
"""Longest round trip of an unrelated client, on a machine with two busy cores; alone it takes 1 ms."""
RESIDENT_MIB_MAX = 220.0
"""Limit of a gateway that starts at 35 MiB.

All live subscribers may have 64 MiB waiting, 32 MiB may be gathered for the store and as much be on its way to the
disk, and Python keeps some freed memory.
"""
BODY = bytes(10_000)


def publish_all(gateway: Waypost, name: str, topic: str, mib: int, *, qos: int = 0) -> float:
    """Send this many MiB and wait until they are taken; return the seconds."""
    with Raw(gateway).connect(name) as client:
        begin = time.monotonic()
        for i in range(mib * 100):
            client.send(packets.Publish(topic, BODY, qos=qos, packet_id=i % 60_000 + 1 if qos else 0))
        client.send(packets.PingReq())
        while not isinstance(client.receive(), packets.PingResp):
            pass
        return time.monotonic() - begin


def pings() -> tuple[str, bytes, bytes]:
    """Return the protocol, the start of a client, and 1 MiB of its requests."""
    return "mqtt", packets.Connect("deaf", 4).encode(), packets.PingReq().encode(4) * (1 << 19)


def subscribes() -> tuple[str, bytes, bytes]:
    asked = packets.Subscribe(1, (SubscriptionRequest("a", 0),)).encode(4)
    return "mqtt", packets.Connect("deaf", 4).encode(), asked * ((1 << 20) // len(asked))


def attaches() -> tuple[str, bytes, bytes]:
    opening = HEADER + frame(OPEN, "deaf") + frame(BEGIN, None, Uint(0), ROOM, ROOM)
    asked = frame(ATTACH, "x", Uint(0), RECEIVER, None, None, terminus(SOURCE, "queue/a"), terminus(TARGET, None))
    asked += frame(DETACH, Uint(0), True)
    return "amqp", opening, asked * ((1 << 20) // len(asked))


def ask_and_ask(client: Raw, asked: bytes) -> None:
    """Send 60 MiB; each of them may take as long as the socket's timeout."""
    for _ in range(60):
        client.send(asked)


class TestReaders:
    """Subscribers that do not keep up."""

    def test_stalled_subscriber_delays_its_publisher_briefly(self, gateway: Waypost) -> None:
        """A subscriber that reads nothing delays its publisher once and briefly; then the excess is dropped."""
        with (
            unharmed(gateway, round_trip_s_max=ROUND_TRIP_S_MAX, resident_mib_max=RESIDENT_MIB_MAX),
            Raw(gateway, receive_bytes=4096).connect("stalled") as stalled,
        ):
            stalled.subscribe("flood/#")
            took = publish_all(gateway, "flooder", "flood/a", 60)
            assert took < LIVE_HOLD_S_MAX + WAIT_S / 2

    def test_many_stalled_subscribers_stay_within_memory_limit(self, gateway: Waypost) -> None:
        """Many stalled sockets together hold at most the memory of the pool."""
        with (
            unharmed(gateway, round_trip_s_max=ROUND_TRIP_S_MAX, resident_mib_max=RESIDENT_MIB_MAX),
            contextlib.ExitStack() as stack,
        ):
            for i in range(40):
                stalled = stack.enter_context(Raw(gateway, receive_bytes=4096).connect(f"stalled-{i}"))
                stalled.subscribe(f"flood/{i}")
            for i in range(40):
                publish_all(gateway, f"flooder-{i}", f"flood/{i}", 2)

    def test_slow_subscriber_gets_everything(self, gateway: Waypost) -> None:
        """A slow subscriber that keeps reading gets everything: its publisher is held back."""
        count = 3_000
        with (
            unharmed(gateway, round_trip_s_max=ROUND_TRIP_S_MAX, resident_mib_max=RESIDENT_MIB_MAX),
            Raw(gateway, receive_bytes=64 * 1024).connect("slow") as slow,
        ):
            slow.subscribe("flood/#")
            sender = threading.Thread(target=publish_all, args=(gateway, "fast", "flood/a", count // 100))
            sender.start()
            received = 0
            while received < count:
                packet = slow.receive()
                assert packet is not None
                received += isinstance(packet, packets.Publish)
                if received % 100 == 0:
                    time.sleep(0.01)  # some 50 MiB/s: it reads, and is slower than its publisher
            sender.join(WAIT_S)
            assert not sender.is_alive()

    @pytest.mark.parametrize("kept", [False, True])
    def test_subscriber_without_acknowledgements_has_bounded_window(self, gateway: Waypost, kept: bool) -> None:
        """In-flight messages are bounded by the window; the rest waits on disk, or is dropped if it is not stored."""
        with (
            unharmed(gateway, round_trip_s_max=ROUND_TRIP_S_MAX, resident_mib_max=RESIDENT_MIB_MAX),
            Raw(gateway).connect("mute", clean_start=not kept) as mute,
        ):
            mute.subscribe("flood/#", qos=1)
            publish_all(gateway, "flooder", "flood/a", 40, qos=1)

    @pytest.mark.parametrize(
        "question", [attaches, *(pytest.param(each, marks=pytest.mark.slow) for each in (pings, subscribes))]
    )
    def test_client_that_reads_no_answers_is_paused(
        self, gateway: Waypost, question: Callable[[], tuple[str, bytes, bytes]]
    ) -> None:
        """Some MiB of answers are kept for a client that does not read them; then the gateway stops reading from it."""
        protocol, opening, asked = question()
        with (
            unharmed(gateway, round_trip_s_max=ROUND_TRIP_S_MAX, resident_mib_max=RESIDENT_MIB_MAX),
            Raw(gateway, protocol=protocol, receive_bytes=4096) as deaf,
        ):
            deaf.send(opening)
            deaf.socket.settimeout(5)
            with pytest.raises(TimeoutError):
                ask_and_ask(deaf, asked)

    def test_unacknowledged_messages_are_freed_with_their_session(self, gateway: Waypost) -> None:
        """A session's messages are freed with it: 200 clients in turn leave 1.2 MB un-acknowledged each."""
        for i in range(200):
            with Raw(gateway).connect(f"leaver-{i}") as client:
                client.subscribe("flood/#", qos=1)
                publish_all(gateway, "flooder", "flood/a", 1, qos=1)
        with unharmed(gateway, round_trip_s_max=ROUND_TRIP_S_MAX, resident_mib_max=RESIDENT_MIB_MAX):
            pass


class TestCrowds:
    """Many connections."""

    @pytest.mark.parametrize("times", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
    def test_quick_reconnects_do_not_harm_others(self, gateway: Waypost, times: int) -> None:
        """A hundred clients reconnect and subscribe again and again, half of them without a DISCONNECT."""
        with unharmed(gateway, round_trip_s_max=ROUND_TRIP_S_MAX, resident_mib_max=80):
            for i in range(times):
                client = Raw(gateway, 5 if i % 3 else 4).connect(f"again-{i % 100}")
                client.subscribe(f"again/{i % 100}/#", qos=1)
                if i % 2:
                    client.send(packets.Disconnect())
                client.close()

    def test_silent_connections_do_not_harm_others(self, gateway: Waypost) -> None:
        """500 silent connections cost little, and are not in the way."""
        with unharmed(gateway, round_trip_s_max=ROUND_TRIP_S_MAX, resident_mib_max=80), contextlib.ExitStack() as stack:
            for i in range(500):
                stack.enter_context(Raw(gateway, protocol="mqtt" if i % 2 else "amqp"))

    def test_flood_of_connections_leaves_room_for_other_addresses(self, tmp_path: Path) -> None:
        """A flood of silent sockets leaves room for other addresses.

        The newest ones stay and may log in, up to the places reserved for other addresses. Connected clients stay
        connected, and there is room later.
        """
        with limited(tmp_path, "connectionsMax: 50") as gateway:
            with (
                unharmed(gateway, round_trip_s_max=ROUND_TRIP_S_MAX, resident_mib_max=80),
                contextlib.ExitStack() as stack,
            ):
                flood = [stack.enter_context(Raw(gateway)) for _ in range(200)]
                stayed = flood[-49:]  # the witness is one of the fifty
                assert all(client.rest() == b"" for client in flood[:-49])
                for i, client in enumerate(stayed[:44]):  # five places are for addresses with few connections
                    client.connect(f"in-{i}")
            wait_until(lambda: accepts(gateway), timeout_s=WAIT_S, what="there is room again")


def accepts(gateway: Waypost) -> bool:
    with Raw(gateway) as client:
        client.send(packets.Connect("late", 4))
        return client.receive() is not None


def limited(folder: Path, limits: str) -> Waypost:
    """Return a gateway with these limits, started by entering it."""
    listeners = '{mqtt: "127.0.0.1:0", amqp: "127.0.0.1:0"}'
    spec = f"{{listeners: {listeners}, limits: {{{limits}}}}}"
    return gateway_with(folder, f"{{apiVersion: waypost/v1, kind: Gateway, metadata: {{name: hostile}}, spec: {spec}}}")


def is_ended(client: Raw) -> bool:
    """Return whether the gateway has ended the connection. Discards the bytes that it sent before."""
    client.socket.settimeout(0.0)
    try:
        while client.socket.recv(4_096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        client.socket.settimeout(WAIT_S)
    return True


def test_slow_connect_ends_at_its_time_limit(tmp_path: Path) -> None:
    """Sending a CONNECT byte by byte does not extend its time limit."""
    with (
        limited(tmp_path, "handshakeS: 1.0") as gateway,
        unharmed(gateway, round_trip_s_max=ROUND_TRIP_S_MAX, resident_mib_max=80),
        contextlib.ExitStack() as stack,
    ):
        lorises = [
            (stack.enter_context(Raw(gateway, protocol=protocol)), opening)
            for protocol, opening in (
                ("mqtt", b"\x10\x80\x80\x01"),
                ("amqp", b"AMQP\x00\x01\x00\x00\x00\x00\x10\x00\x02"),
            )
            for _ in range(25)
        ]
        ended: set[Raw] = set()
        begin = time.monotonic()
        for place in range(40):
            for client, opening in lorises:
                with contextlib.suppress(OSError):  # closed altogether
                    client.socket.send(opening[place : place + 1] or b"\0")
                if is_ended(client):
                    ended.add(client)
            time.sleep(0.1)  # the attack itself: a byte now and then
            if len(ended) == len(lorises):
                break
        assert len(ended) == len(lorises), "all were ended while they still sent"
        assert time.monotonic() - begin < 15


def test_pipelined_data_after_connect_is_bounded(gateway: Waypost) -> None:
    """Data after CONNECT waits for the answer up to 1 MiB; a client that pipelines is served nevertheless."""
    with Raw(gateway) as client:
        publish = packets.Publish("early/a", BODY).encode(4)
        client.send(packets.Connect("early", 4).encode() + publish * 90, packets.PingReq())
        assert isinstance(client.receive(), packets.ConnAck)
        assert isinstance(client.receive(), packets.PingResp)
    assert resident_mib(gateway.pid) < 100


def test_port_scan_harms_no_client(gateway: Waypost) -> None:
    with unharmed(gateway, round_trip_s_max=ROUND_TRIP_S_MAX, resident_mib_max=80):
        for _ in range(300):
            with socket.create_connection(("127.0.0.1", gateway.port("mqtt"))) as scanner:
                scanner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset at the end
