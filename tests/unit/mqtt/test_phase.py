"""Every packet type in every phase, over every version: the connection follows the table."""

from __future__ import annotations

import pytest

from edge.broker.limits import Limits
from edge.broker.message.mqtt_errors import LocalError, MalformedPacket, ProtocolError
from edge.broker.message.mqtt_properties import NONE, Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.message.mqtt_wire import PacketType
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.authentication import FOLLOWS, AuthenticationExchange, AuthenticationState
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.events import DisconnectedEvent, SubscriptionRequest
from edge.broker.mqtt.phase import ENDED, PACKETS, STEPS, ConnectionPhase, ConnectionStep, Violation, after_step
from edge.broker.mqtt.state import SessionState
from tests.support.mqtt_connection import VERSIONS, split

METHOD = "m"
PATHS = {
    ConnectionPhase.CONNECTING: (),
    ConnectionPhase.DECIDING: ("connect",),
    ConnectionPhase.AUTHENTICATING: ("connect", "challenge"),
    ConnectionPhase.OPEN: ("connect", "accept"),
    ConnectionPhase.REFUSED: ("connect", "refuse"),
    ConnectionPhase.CLOSED: ("connect", "accept", "disconnect"),
}
"""Steps that lead into each phase."""


def packet(kind: PacketType, version: int) -> bytes:
    """Return a well-formed packet of this type, of either side."""
    method = Properties(authentication_method=METHOD) if version == 5 else NONE
    made: dict[PacketType, p.Packet] = {
        PacketType.CONNECT: p.Connect("c", version, properties=method),
        PacketType.CONNACK: p.ConnAck(),
        PacketType.PUBLISH: p.Publish("t", b"x", 1, packet_id=1),
        PacketType.PUBACK: p.PubAck(1),
        PacketType.PUBREC: p.PubRec(1),
        PacketType.PUBREL: p.PubRel(1),
        PacketType.PUBCOMP: p.PubComp(1),
        PacketType.SUBSCRIBE: p.Subscribe(1, (SubscriptionRequest("t", 0),)),
        PacketType.SUBACK: p.SubAck(1, (0,)),
        PacketType.UNSUBSCRIBE: p.Unsubscribe(1, ("t",)),
        PacketType.UNSUBACK: p.UnsubAck(1, (0,) if version == 5 else ()),
        PacketType.PINGREQ: p.PingReq(),
        PacketType.PINGRESP: p.PingResp(),
        PacketType.DISCONNECT: p.Disconnect(),
    }
    if kind is PacketType.WILL:
        return b"\x00\x00"
    if kind is PacketType.AUTH:
        return p.Auth(R.CONTINUE_AUTHENTICATION, Properties(authentication_method=METHOD)).encode(5)
    return made[kind].encode(version)


def reach(phase: ConnectionPhase, version: int) -> MqttConnection:
    connection = MqttConnection(Limits(), 0.0)
    for step in PATHS[phase]:
        match step:
            case "connect":
                connection.receive_data(packet(PacketType.CONNECT, version), 0.0)
            case "accept":
                connection.accept(SessionState(), False)
            case "challenge":
                connection.challenge(b"?")
            case "refuse":
                connection.refuse(R.NOT_AUTHORIZED)
            case "disconnect":
                connection.disconnect(R.SERVER_SHUTTING_DOWN)
    connection.data_to_send()
    assert connection._phase is phase
    return connection


def phases(version: int) -> list[ConnectionPhase]:
    """Return all phases of a version; only MQTT 5 has enhanced authentication."""
    return [phase for phase in ConnectionPhase if version == 5 or phase is not ConnectionPhase.AUTHENTICATING]


CASES = [(version, phase, kind) for version in VERSIONS for phase in phases(version) for kind in PacketType]


@pytest.mark.parametrize(
    ("version", "phase", "kind"), CASES, ids=[f"{v}-{phase.name}-{kind.name}" for v, phase, kind in CASES]
)
def test_each_packet_in_each_phase_follows_the_table(version: int, phase: ConnectionPhase, kind: PacketType) -> None:
    connection = reach(phase, version)
    events = connection.receive_data(packet(kind, version), 1.0)
    if phase not in PACKETS:
        assert (connection._phase, list(events), connection.data_to_send()) == (phase, [], b"")
        return
    follows = PACKETS[phase][kind]
    if phase is ConnectionPhase.OPEN and kind is PacketType.AUTH:
        # No exchange is open that an AUTH could continue; versions before MQTT 5 lack the packet.
        follows = Violation("MQTT-4.12.0-3", "", ProtocolError if version == 5 else MalformedPacket)
    if isinstance(follows, Violation):
        assert connection.closed
        assert isinstance(events[-1], DisconnectedEvent)
        told = split(connection.data_to_send(), version)
        if (
            phase is ConnectionPhase.CONNECTING or version < 5
        ):  # a client gets no answer before its CONNECT, nor before MQTT 5
            assert told == []
        elif phase is ConnectionPhase.AUTHENTICATING:
            assert [(type(each), each.reason) for each in told] == [(p.ConnAck, follows.error.reason)]
        else:
            assert [(type(each), each.reason) for each in told] == [(p.Disconnect, follows.error.reason)]
    else:
        assert connection._phase is follows
        assert connection.closed == (follows in ENDED)


def test_table_is_complete() -> None:
    assert all(set(row) == set(PacketType) for row in PACKETS.values())
    assert set(STEPS) == set(ConnectionPhase)
    assert {phase for phase in ConnectionPhase if phase not in PACKETS} == {ConnectionPhase.DECIDING, *ENDED}


def test_every_phase_is_entered_and_left() -> None:
    follows = {
        phase: {each for each in PACKETS.get(phase, {}).values() if isinstance(each, ConnectionPhase)}
        | set(STEPS[phase].values())
        for phase in ConnectionPhase
    }
    assert set().union(*follows.values()) | {ConnectionPhase.CONNECTING} == set(ConnectionPhase)
    assert all(set(ENDED) & follows[phase] for phase in ConnectionPhase if phase not in ENDED)
    assert all(not follows[phase] for phase in ENDED)


@pytest.mark.parametrize("phase", ConnectionPhase)
@pytest.mark.parametrize("step", ConnectionStep)
def test_each_step_follows_the_table(phase: ConnectionPhase, step: ConnectionStep) -> None:
    if step in STEPS[phase]:
        assert after_step(phase, step) is STEPS[phase][step]
    else:
        with pytest.raises(LocalError):
            after_step(phase, step)


@pytest.mark.parametrize("phase", ConnectionPhase)
def test_calls_of_the_session_follow_the_table(phase: ConnectionPhase) -> None:
    """A call that the phase does not allow is an error of the session; after the end of the connection calls have no
    effect."""
    calls = {
        ConnectionStep.ACCEPT: lambda connection: connection.accept(SessionState(), False),
        ConnectionStep.REFUSE: lambda connection: connection.refuse(R.NOT_AUTHORIZED),
        ConnectionStep.CHALLENGE: lambda connection: connection.challenge(b"?"),
    }
    for step, call in calls.items():
        connection = reach(phase, 5)
        if step in STEPS[phase] or phase in ENDED:
            call(connection)
            assert connection._phase is STEPS[phase].get(step, phase)
        else:
            with pytest.raises(LocalError):
                call(connection)
            assert connection._phase is phase


@pytest.mark.parametrize("stands", AuthenticationState)
@pytest.mark.parametrize("reason", [R.SUCCESS, R.CONTINUE_AUTHENTICATION, R.RE_AUTHENTICATE])
def test_auth_follows_the_table(stands: AuthenticationState, reason: R) -> None:
    dialogue = AuthenticationExchange(METHOD)
    if stands is AuthenticationState.CHALLENGED:
        dialogue.challenge(b"")
    elif stands is AuthenticationState.AUTHENTICATED:
        dialogue.end()
    auth = p.Auth(reason, Properties(authentication_method=METHOD, authentication_data=b"x"))
    if (stands, reason) in FOLLOWS:
        assert dialogue.take(auth).again is (reason is R.RE_AUTHENTICATE)
    else:
        with pytest.raises(ProtocolError):
            dialogue.take(auth)
