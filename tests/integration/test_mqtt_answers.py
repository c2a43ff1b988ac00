"""Negative answers of a gateway over real sockets: their order and texts, by protocol version."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from tests.support.configured_gateway import address, gateway_with, resources, user
from tests.support.hostile import WAIT_S, Raw
from tests.support.processes import Waypost
from tests.support.programs import mosquitto_clients

RESOURCES = resources(
    address("job", "plant/job", "anycast"),
    user("joe", "send, recv", '"plant/#"', password="secret"),
    listeners=("mqtt", "amqp"),
)
KEPT = Properties(session_expiry_interval_s=100)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with gateway_with(tmp_path_factory.mktemp("answers"), RESOURCES) as running:
        yield running


def joe(gateway: Waypost, client_id: str, version: int = 5, **fields: object) -> Raw:
    return Raw(gateway, version).connect(client_id, username="joe", password=b"secret", **fields)


def test_refusal_follows_earlier_answers(gateway: Waypost) -> None:
    """A refusal follows earlier answers, which wait for their commit [MQTT-4.6.0-2] [MQTT-4.6.0-3]."""
    with joe(gateway, "order") as client, joe(gateway, "keeper", properties=KEPT) as keeper:
        assert keeper.subscribe("plant/#", qos=1) == [1]
        for qos, answer in ((1, packets.PubAck), (2, packets.PubRec)):
            sent = [("plant/a", 0), ("elsewhere", 0x87), ("plant/b", 0), ("elsewhere", 0x87), ("$SYS/x", 0x87)]
            for turn in range(20):
                first = turn * 5 + 1 + qos * 1_000
                client.send(
                    *(packets.Publish(each, b"x", qos, packet_id=first + i) for i, (each, _) in enumerate(sent))
                )
                answers = [client.receive() for _ in sent]
                assert all(isinstance(each, answer) for each in answers), answers
                told = [(each.packet_id, each.reason) for each in answers if isinstance(each, answer)]
                assert told == [(first + i, reason) for i, (_, reason) in enumerate(sent)]


def test_later_answers_wait_for_the_consumer_of_an_anycast_message(gateway: Waypost) -> None:
    """Until the consumer answers, the client gets no answer to its later messages."""
    with (
        joe(gateway, "order") as client,
        joe(gateway, "taker") as merged_subscription,
        joe(gateway, "keeper", properties=KEPT) as keeper,
    ):
        assert keeper.subscribe("plant/kept", qos=1) == [1]
        assert merged_subscription.subscribe("plant/job", qos=1) == [1]
        topics = ["plant/kept", "plant/job", "plant/kept", "plant/nobody", "elsewhere", "plant/job"]
        client.send(*(packets.Publish(topic, b"x", 1, packet_id=i + 1) for i, topic in enumerate(topics)))
        jobs = [merged_subscription.receive(), merged_subscription.receive()]
        assert client.receive() == packets.PubAck(1)
        kept = [keeper.receive(), keeper.receive()]  # all others are on disk and could be answered
        client.send(packets.PingReq())
        assert isinstance(client.receive(), packets.PingResp)
        for job in reversed(jobs):
            assert isinstance(job, packets.Publish)
            merged_subscription.send(packets.PubAck(job.packet_id))
        answers = [client.receive() for _ in topics[1:]]
        told = [(each.packet_id, each.reason) for each in answers if isinstance(each, packets.PubAck)]
        assert told == [(2, 0), (3, 0), (4, 0x10), (5, 0x87), (6, 0)]
        keeper.send(*(packets.PubAck(each.packet_id) for each in kept if isinstance(each, packets.Publish)))


def test_closing_an_older_client_follows_earlier_answers(gateway: Waypost) -> None:
    """MQTT 3.1.1 has only the end of its connection as a refusal; earlier messages are acknowledged first."""
    with joe(gateway, "keeper-4", 4, clean_start=False) as keeper, joe(gateway, "older", 4) as client:
        assert keeper.subscribe("plant/#", qos=1) == [1]
        client.send(packets.Publish("plant/a", b"x", 1, packet_id=7), packets.Publish("no", b"x", 1, packet_id=8))
        assert client.receive() == packets.PubAck(7)
        assert client.receive() is None


def test_reason_strings_are_sent_on_request_only(gateway: Waypost) -> None:
    """PUBACK, SUBACK and DISCONNECT carry Reason Strings only if the client allows them [MQTT-3.1.2-29]."""
    refused = packets.Subscribe(3, (SubscriptionRequest("plant/a", 1), SubscriptionRequest("#", 1)))
    for asked in (1, 0):
        with joe(gateway, "words", properties=Properties(request_problem_information=asked)) as client:
            client.send(packets.Publish("elsewhere", b"x", 1, packet_id=1), refused)
            puback, suback = client.receive(), client.receive()
            disconnect = client.send(b"\x36\x00").receive()
            assert isinstance(puback, packets.PubAck)
            assert isinstance(suback, packets.SubAck)
            assert isinstance(disconnect, packets.Disconnect)
            assert (puback.reason, suback.codes, disconnect.reason) == (R.NOT_AUTHORIZED, (1, 0x87), R.MALFORMED_PACKET)
            words = [each.properties.reason_string for each in (puback, suback, disconnect)]
            if asked:
                assert words == ["not authorized", "#: no right to receive all matching messages", words[2]]
                assert "QoS 3" in (words[2] or "")
            else:
                assert words == [None, None, None]


@mosquitto_clients
@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_mosquitto_continues_after_a_refused_subscription(gateway: Waypost, version: str) -> None:
    """One filter of two is refused in the way of its version (MQTT 3.1 reads QoS 0); the other works."""
    with joe(gateway, "retainer") as client:
        client.send(packets.Publish("plant/works", b"heard", 1, retain=True, packet_id=1))
        assert client.receive() == packets.PubAck(1)
    address = ("-h", "127.0.0.1", "-p", str(gateway.port("mqtt")), "-u", "joe", "-P", "secret", "-V", version)
    command = ["mosquitto_sub", *address, "-t", "elsewhere", "-t", "plant/works", "-q", "1", "-C", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr
