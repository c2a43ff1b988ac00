"""The machine from its first byte to its CONNACK (sections 3.1 and 3.2), and its deadlines."""

from __future__ import annotations

import pytest

from bridge.limits import LOGIN_WAIT_S_MAX
from bridge.message import DURABLE, RETAIN
from edge.broker.limits import Limits
from edge.broker.message.mqtt_errors import LocalError
from edge.broker.message.mqtt_properties import Properties, decode_run
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.mqtt import events, packets
from edge.broker.mqtt.connect import NEVER_EXPIRES
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.limits import CONNECT_BYTES_MAX, EARLY_BYTES_MAX
from edge.broker.mqtt.state import SessionState
from tests.support.mqtt_connection import VERSIONS, Opened, split
from tests.unit.mqtt.cases import BAD


def start(data: bytes, limits: Limits | None = None) -> tuple[MqttConnection, list[object]]:
    connection = MqttConnection(limits or Limits(), 0.0)
    return connection, list(connection.receive_data(data, 1.0))


class TestConnect:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_connect_becomes_an_event_and_waits(self, version: int) -> None:
        packet = packets.Connect("dev", version, keep_alive_s=9, username="u", password=b"p")
        connection, (event,) = start(packet.encode())
        assert isinstance(event, events.ConnectEvent)
        assert (event.version, event.client_id, event.keep_alive_s) == (version, "dev", 9)
        assert (event.username, event.password, event.will) == ("u", b"p", None)
        assert connection.data_to_send() == b""
        assert not connection.closed

    def test_session_expiry_of_each_version(self) -> None:
        def expiry(packet: packets.Connect) -> int:
            (event,) = start(packet.encode())[1]
            assert isinstance(event, events.ConnectEvent)
            return event.session_expiry_s

        assert expiry(packets.Connect("a", 4, clean_start=True)) == 0
        assert expiry(packets.Connect("a", 4, clean_start=False)) == NEVER_EXPIRES
        assert expiry(packets.Connect("a", 5, clean_start=False)) == 0
        assert expiry(packets.Connect("a", 5, properties=Properties(session_expiry_interval_s=7))) == 7

    def test_properties_of_mqtt_5_are_read(self) -> None:
        block = Properties(
            receive_maximum=3,
            maximum_packet_size=100,
            topic_alias_maximum=4,
            request_problem_information=0,
            request_response_information=1,
        )
        (event,) = start(packets.Connect("a", 5, properties=block).encode())[1]
        assert isinstance(event, events.ConnectEvent)
        assert (event.receive_maximum, event.maximum_packet_size, event.topic_alias_maximum) == (3, 100, 4)
        assert not event.request_problem_information
        assert event.request_response_information

    def test_will_is_read(self) -> None:
        block = Properties(will_delay_interval_s=4, content_type="text/plain", user_property=(("b", "1"), ("a", "2")))
        will = packets.WillMessage("w/a", b"gone", 1, True, block)
        (event,) = start(packets.Connect("dev", 5, will=will).encode())[1]
        assert isinstance(event, events.ConnectEvent)
        assert event.will is not None
        assert event.will.delay_s == 4
        run = event.will.run
        assert (run.address, run.device, run.bodies) == ("w/a", "dev", [b"gone"])
        assert run.flags == 1 | RETAIN | DURABLE
        assert decode_run(run.properties) == Properties(
            content_type="text/plain", user_property=(("b", "1"), ("a", "2"))
        )

    def test_will_topic_with_a_wildcard_is_refused(self) -> None:
        packet = packets.Connect("a", 5, will=packets.WillMessage("w/#", b""))
        connection, (event,) = start(packet.encode())
        assert isinstance(event, events.DisconnectedEvent)
        (answer,) = split(connection.data_to_send(), 5)
        assert isinstance(answer, packets.ConnAck)
        assert answer.reason is R.TOPIC_NAME_INVALID


class TestNotAConnect:
    @pytest.mark.parametrize("case", [case for case in BAD if case.name.startswith("CONNECT")], ids=lambda c: c.name)
    def test_invalid_connect_closes(self, case: object) -> None:
        connection, found = start(case.data)  # type: ignore[attr-defined]
        assert [type(event) for event in found] == [events.DisconnectedEvent]
        assert connection.closed
        data = connection.data_to_send()
        answers = split(data, 5 if data[2:] and data[0] == 0x20 and data[1] > 2 else 4)
        assert all(isinstance(answer, packets.ConnAck) and answer.reason.failed for answer in answers)

    @pytest.mark.parametrize(
        ("level", "answer"), [(0, b"\x20\x02\x00\x01"), (2, b"\x20\x02\x00\x01"), (0x85, b"\x20\x02\x00\x01")]
    )
    def test_protocol_levels_of_old_clients_and_unknown_bridges_are_answered(self, level: int, answer: bytes) -> None:
        data = bytes((0x10, 13)) + b"\0\4MQTT" + bytes((level, 2, 0, 0, 0, 1)) + b"a"
        assert start(data)[0].data_to_send() == answer

    @pytest.mark.parametrize(("name", "version"), [(b"\0\6MQIsdp", 3), (b"\0\4MQTT", 4)])
    def test_protocol_level_of_a_bridge_is_accepted(self, name: bytes, version: int) -> None:
        body = name + bytes((0x80 | version, 2, 0, 0, 0, 1)) + b"a"
        (event,) = start(bytes((0x10, len(body))) + body)[1]
        assert isinstance(event, events.ConnectEvent)
        assert (event.version, event.bridge) == (version, True)
        assert packets.Connect("a", version, bridge=True).encode()[2:] == body

    def test_future_protocol_level_is_refused(self) -> None:
        data = bytes((0x10, 13)) + b"\0\4MQTT" + bytes((6, 2, 0, 0, 0, 1)) + b"a"
        (answer,) = split(start(data)[0].data_to_send(), 5)
        assert isinstance(answer, packets.ConnAck)
        assert answer.reason is R.UNSUPPORTED_PROTOCOL_VERSION

    def test_empty_client_id_of_a_persistent_session_gets_return_code_2(self) -> None:
        connection, _ = start(packets.Connect("", 4, clean_start=False).encode())
        assert connection.data_to_send() == b"\x20\x02\x00\x02"
        assert connection.closed

    @pytest.mark.parametrize("first", [0x00, 0x20, 0x30, 0xC0, 0xE0, 0x16, 0x47])
    def test_invalid_first_byte_closes_at_once(self, first: int) -> None:
        connection, (event,) = start(bytes((first,)))
        assert isinstance(event, events.DisconnectedEvent)
        assert connection.closed
        assert connection.data_to_send() == b""

    def test_too_large_connect_closes(self) -> None:
        will = packets.WillMessage("w", b"x" * 65_000)
        connect = packets.Connect("a" * 65_000, will=will, username="u" * 2_000).encode()
        assert len(connect) > CONNECT_BYTES_MAX
        connection, found = start(connect[:100])
        assert [type(event) for event in found] == [events.DisconnectedEvent]
        assert connection.closed


class TestAccept:
    @pytest.mark.parametrize(("version", "present"), [(3, b"\x20\x02\x00\x00"), (4, b"\x20\x02\x01\x00")])
    def test_session_present_is_sent(self, version: int, present: bytes) -> None:
        connection, _ = start(packets.Connect("a", version, clean_start=False).encode())
        assert list(connection.accept(SessionState(), True)) == []
        assert connection.data_to_send() == present

    def test_properties_of_mqtt_5_are_sent(self) -> None:
        limits = Limits(packet_bytes_max=1000, receive_maximum=20)
        opened = Opened(
            5,
            packets.Connect("", 5),
            limits=limits,
            assigned_client_id="auto-1",
            session_expiry_s=60,
            server_keep_alive_s=30,
        )
        (connack,) = opened.first
        assert isinstance(connack, packets.ConnAck)
        assert connack.properties == Properties(
            session_expiry_interval_s=60,
            receive_maximum=20,
            maximum_packet_size=1000,
            assigned_client_identifier="auto-1",
            topic_alias_maximum=16,
            server_keep_alive_s=30,
        )
        assert opened.connection.deadline == opened.now + 45

    def test_assigned_client_id_names_the_device(self) -> None:
        packet = packets.Connect("", 4, will=packets.WillMessage("w", b""))
        opened = Opened(4, packet, assigned_client_id="auto-1")
        (published,) = opened.send(packets.Publish("t"))
        assert published.run.device == "auto-1"
        assert opened.connect.will.run.device == "auto-1"

    def test_client_id_is_required(self) -> None:
        connection, _ = start(packets.Connect("", 4).encode())
        with pytest.raises(LocalError):
            connection.accept(SessionState(), False)

    def test_packets_behind_connect_are_events_of_accept(self) -> None:
        data = packets.Connect("a").encode() + packets.Publish("t", b"1").encode(4) + packets.PingReq().encode(4)
        connection, found = start(data + packets.Publish("t", b"2").encode(4)[:3])
        assert len(found) == 1
        (published,) = connection.accept(SessionState(), False)
        assert isinstance(published, events.PublishEvent)
        assert published.run.bodies == [b"1"]
        assert [type(each) for each in split(connection.data_to_send(), 4)] == [packets.ConnAck, packets.PingResp]
        (rest,) = connection.receive_data(packets.Publish("t", b"2").encode(4)[3:], 1.0)
        assert isinstance(rest, events.PublishEvent)
        assert rest.run.bodies == [b"2"]

    def test_packets_during_the_decision_wait(self) -> None:
        connection, _ = start(packets.Connect("a").encode())
        for byte in packets.Publish("t", b"1").encode(4):
            assert not connection.receive_data(bytes((byte,)), 1.0)
        (published,) = connection.accept(SessionState(), False)
        assert isinstance(published, events.PublishEvent)

    def test_waiting_bytes_are_bounded(self) -> None:
        connection, _ = start(packets.Connect("a").encode())
        found = list(connection.receive_data(bytes(EARLY_BYTES_MAX + 1), 1.0))
        assert [type(event) for event in found] == [events.DisconnectedEvent]
        assert connection.closed

    def test_accept_after_the_client_left_does_nothing(self) -> None:
        connection, _ = start(packets.Connect("a").encode())
        assert [type(event) for event in connection.receive_eof(1.0)] == [events.DisconnectedEvent]
        assert list(connection.accept(SessionState(), False)) == []
        connection.refuse(R.SERVER_BUSY)
        assert connection.data_to_send() == b""

    @pytest.mark.parametrize("size", range(1, 60))
    @pytest.mark.parametrize("assigned", [None, "auto-0123456789"])
    def test_connack_above_the_maximum_packet_size_closes(self, size: int, assigned: str | None) -> None:
        """The first packet is CONNACK or none, and not larger than the client's maximum."""
        packet = packets.Connect("" if assigned else "a", 5, properties=Properties(maximum_packet_size=size))
        connection, _ = start(packet.encode())
        found = connection.accept(SessionState(), False, assigned_client_id=assigned)
        data = connection.data_to_send()
        assert len(data) <= size
        (connack,) = split(data, 5) or [None]
        assert connack is None if size < 5 else isinstance(connack, packets.ConnAck)
        if connack is not None and connack.reason is R.SUCCESS:
            assert not connection.closed
        else:
            assert connack is None or connack.reason is R.PACKET_TOO_LARGE
            assert connection.closed
            assert [type(event) for event in found] == [events.DisconnectedEvent]

    def test_connack_omits_default_values(self) -> None:
        connection, _ = start(packets.Connect("a", 5).encode())
        connection.accept(SessionState(), False)
        assert len(connection.data_to_send()) == 16

    @pytest.mark.parametrize("call", ["accept", "refuse", "deliver", "acknowledge", "subscribed", "unsubscribed"])
    def test_accept_before_connect_raises(self, call: str) -> None:
        connection = MqttConnection(Limits(), 0.0)
        arguments = {
            "accept": (SessionState(), False),
            "refuse": (R.SERVER_BUSY,),
            "deliver": (None,),
            "acknowledge": (1, [1]),
            "subscribed": (1, [0]),
            "unsubscribed": (1, [0]),
        }
        with pytest.raises(LocalError):
            getattr(connection, call)(*arguments[call])


class TestRefuse:
    @pytest.mark.parametrize(
        ("reason", "code"),
        [
            (R.UNSUPPORTED_PROTOCOL_VERSION, 1),
            (R.CLIENT_IDENTIFIER_NOT_VALID, 2),
            (R.SERVER_BUSY, 3),
            (R.SERVER_UNAVAILABLE, 3),
            (R.BAD_USER_NAME_OR_PASSWORD, 4),
            (R.NOT_AUTHORIZED, 5),
        ],
    )
    def test_return_codes_of_each_version(self, reason: R, code: int) -> None:
        connection, _ = start(packets.Connect("a").encode())
        connection.refuse(reason)
        assert connection.data_to_send() == bytes((0x20, 2, 0, code))
        assert connection.closed
        (event,) = connection.receive_eof(2.0)
        assert isinstance(event, events.DisconnectedEvent)
        assert not event.publish_will
        assert not connection.receive_eof(2.0)

    def test_nothing_is_sent_without_a_return_code(self) -> None:
        connection, _ = start(packets.Connect("a").encode())
        connection.refuse(R.PACKET_TOO_LARGE)
        assert connection.data_to_send() == b""
        assert connection.closed

    def test_mqtt_5_client_gets_the_reason(self) -> None:
        connection, _ = start(packets.Connect("a", 5).encode() + packets.Publish("t").encode(5))
        connection.refuse(R.NOT_AUTHORIZED)
        (answer,) = split(connection.data_to_send(), 5)
        assert isinstance(answer, packets.ConnAck)
        assert answer.reason is R.NOT_AUTHORIZED
        assert [type(event) for event in connection.receive_eof(1.0)] == [events.DisconnectedEvent]


class TestDeadlines:
    def test_connect_has_a_deadline(self) -> None:
        connection = MqttConnection(Limits(handshake_s=10.0), 5.0)
        assert connection.deadline == 15.0
        connection.receive_data(b"\x10", 14.0)
        assert connection.deadline == 15.0
        assert not connection.handle_timeout(14.9)
        assert [type(event) for event in connection.handle_timeout(15.0)] == [events.DisconnectedEvent]
        assert connection.closed
        assert connection.deadline is None

    def test_time_of_the_decision_does_not_count_against_the_client(self) -> None:
        connection, _ = start(packets.Connect("a").encode())
        assert connection.deadline == 10.0 + LOGIN_WAIT_S_MAX
        assert not connection.handle_timeout(10.0)
        connection.accept(SessionState(), False)
        assert not connection.closed

    def test_decision_has_its_own_deadline(self) -> None:
        connection, _ = start(packets.Connect("a").encode())
        late = 10.0 + LOGIN_WAIT_S_MAX
        assert [type(event) for event in connection.handle_timeout(late)] == [events.DisconnectedEvent]

    @pytest.mark.parametrize("version", VERSIONS)
    def test_keep_alive_closes_silent_clients(self, version: int) -> None:
        will = packets.WillMessage("w", b"")
        opened = Opened(version, packets.Connect("a", version, keep_alive_s=10, will=will))
        assert opened.connection.deadline == opened.now + 15
        opened.now += 14
        opened.send(packets.PingReq())
        assert opened.connection.deadline == opened.now + 15
        assert not opened.connection.handle_timeout(opened.now + 14.9)
        (event,) = opened.connection.handle_timeout(opened.now + 15)
        assert isinstance(event, events.DisconnectedEvent)
        assert event.publish_will
        pong, *rest = opened.sent()
        assert isinstance(pong, packets.PingResp)
        assert [packet.reason for packet in rest] == ([R.KEEP_ALIVE_TIMEOUT] if version == 5 else [])  # type: ignore[attr-defined]

    def test_paused_connection_is_not_silent(self) -> None:
        opened = Opened(4, packets.Connect("a", 4, keep_alive_s=10))
        now = opened.now
        for _ in range(3):
            now += 15
            assert not opened.connection.handle_timeout(now, listening=False)
            assert opened.connection.deadline == now + 15
        (event,) = opened.connection.handle_timeout(now + 15)
        assert isinstance(event, events.DisconnectedEvent)

    def test_connect_deadline_applies_to_paused_connections(self) -> None:
        connection = MqttConnection(Limits(handshake_s=10.0), 5.0)
        assert [type(event) for event in connection.handle_timeout(15.0, listening=False)] == [events.DisconnectedEvent]

    def test_keep_alive_zero_never_closes(self) -> None:
        assert Opened().connection.deadline is None

    def test_late_decision_restarts_keep_alive(self) -> None:
        connection, _ = start(packets.Connect("a", keep_alive_s=2).encode())
        connection.accept(SessionState(), False, now=8.0)
        assert connection.deadline == 11.0
