"""SCRAM under attack: replay, downgrade, modification; and isolation between users."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from proton import Message
from proton.utils import BlockingConnection, LinkDetached, SendException

from bridge.sasl import scram
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt import packets
from edge.broker.mqtt.handshake import WillMessage
from tests.fault.hostile.web import ask, gateway_of
from tests.support.amqp_client import amqp_client
from tests.support.configured_gateway import gateway_with, user
from tests.support.hostile import Raw, accepts
from tests.support.processes import Waypost

USERS = "".join(
    (
        user("alice", "send, recv", '"plant/alice/#", "queue/alice"'),
        user("bob", "send, recv", '"plant/bob/#", "queue/bob"'),
        user("boss", "view"),
    )
)
LISTENERS = ', amqp: "127.0.0.1:0"'
QUEUES = "".join(
    f"---\napiVersion: enmasse.io/v1beta1\nkind: Address\nmetadata: {{name: default.q{name}}}\n"
    f"spec: {{address: queue/{name}, type: queue}}\n"
    for name in ("alice", "bob")
)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    folder: Path = tmp_path_factory.mktemp("logins")
    with gateway_with(folder, gateway_of(listeners=LISTENERS, extra=USERS + QUEUES)) as running:
        yield running


def block(data: bytes) -> Properties:
    return Properties(authentication_method=scram.MECHANISM, authentication_data=data)


class Exchange:
    """Connection that starts SCRAM with bytes of the attacker's choice."""

    def __init__(self, gateway: Waypost, first: bytes) -> None:
        self.peer = Raw(gateway, 5)
        self.peer.send(packets.Connect("scram", 5, properties=block(first)))
        self.answer = self.peer.receive()

    @property
    def challenge(self) -> bytes:
        assert isinstance(self.answer, packets.Auth), self.answer
        return self.answer.properties.authentication_data or b""

    def go_on(self, final: bytes) -> packets.Packet | None:
        self.peer.send(packets.Auth(ReasonCode.CONTINUE_AUTHENTICATION, block(final)))
        self.answer = self.peer.receive()
        return self.answer

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.peer.close()


class TestScram:
    """RFC 5802 against an eavesdropper."""

    def test_scram_login_is_accepted(self, gateway: Waypost) -> None:
        client = scram.ScramClient("alice", "alice")
        with Exchange(gateway, client.first()) as exchange:
            assert accepts(exchange.go_on(client.answer(exchange.challenge)))

    def test_replayed_exchange_is_refused(self, gateway: Waypost) -> None:
        client = scram.ScramClient("alice", "alice", nonce="fixed-nonce-of-the-client")
        with Exchange(gateway, client.first()) as exchange:
            first, final = client.first(), client.answer(exchange.challenge)
            recorded = exchange.challenge
            assert accepts(exchange.go_on(final))
        with Exchange(gateway, first) as again:
            assert again.challenge != recorded, "the gateway's nonce is new each time"
            assert not accepts(again.go_on(final))

    def test_answer_to_another_connections_challenge_is_refused(self, gateway: Waypost) -> None:
        client = scram.ScramClient("alice", "alice", nonce="fixed-nonce-of-the-client")
        with Exchange(gateway, client.first()) as one, Exchange(gateway, client.first()) as other:
            final = client.answer(one.challenge)
            assert not accepts(other.go_on(final))
            assert accepts(one.go_on(final)), "it was good where it belongs"

    @pytest.mark.parametrize(
        "first",
        [
            b"p=tls-unique,,n=alice,r=abc", b"p=tls-exporter,,n=alice,r=abc", b"n,a=boss,n=alice,r=abc",
            b"n,,n=alice,r=", b"n,,n=,r=abc", b"n,,m=ext,n=alice,r=abc", b"n,,n=ali=ce,r=abc", b"", b"n", b"n,,",
            b"\xff\xfe,,n=alice,r=abc", b"n,,n=alice,r=abc" + b"x" * 60_000,
        ],
    )  # fmt: skip
    def test_invalid_first_message_is_refused(self, gateway: Waypost, first: bytes) -> None:
        with Exchange(gateway, first) as exchange:
            if isinstance(exchange.answer, packets.Auth):  # a long nonce is valid too
                assert not accepts(exchange.go_on(b"c=biws,r=abc,p=AAAA"))
            else:
                assert not accepts(exchange.answer)

    def test_channel_binding_flag_cannot_be_changed(self, gateway: Waypost) -> None:
        """The channel binding flag cannot be changed.

        A client that began with `y` (the client supports it, the server does not) must not end with `n` or another
        binding.
        """
        for binding in (b"n,,", b"p=tls-unique,,"):
            client = scram.ScramClient("alice", "alice")
            with Exchange(gateway, client.first().replace(b"n,,", b"y,,", 1)) as exchange:
                final = client.answer(exchange.challenge)
                bent = final.replace(base64.b64encode(b"n,,"), base64.b64encode(binding), 1)
                assert not accepts(exchange.go_on(bent))

    def test_iteration_count_is_the_same_for_unknown_users(self, gateway: Waypost) -> None:
        def iterations(name: str) -> int:
            client = scram.ScramClient(name, "x")
            with Exchange(gateway, client.first()) as exchange:
                return int(exchange.challenge.rpartition(b"i=")[2])

        assert iterations("alice") >= 4096, "RFC 7677 section 4"
        assert iterations("nobody-of-that-name") == iterations("alice"), "and who exists cannot be told by them"

    def test_client_refuses_extreme_iteration_counts(self) -> None:
        client = scram.ScramClient("alice", "alice", nonce="n")
        for count in (b"999999999", b"0", b"-1", b"1e9", b"10000001"):
            with pytest.raises(scram.ScramError):
                client.answer(b"r=nx,s=AAAA,i=" + count)

    def test_second_final_message_is_a_protocol_error(self, gateway: Waypost) -> None:
        client = scram.ScramClient("alice", "alice")
        with Exchange(gateway, client.first()) as exchange:
            final = client.answer(exchange.challenge)
            assert accepts(exchange.go_on(final))
            answer = exchange.go_on(final)
            assert isinstance(answer, packets.Disconnect)
            assert answer.reason is ReasonCode.PROTOCOL_ERROR


def amqp(gateway: Waypost, name: str) -> AbstractContextManager[BlockingConnection]:
    return amqp_client(gateway, user=name, password=name, allowed_mechs="PLAIN", allow_insecure_mechs=True)


class TestOthers:
    """Bob has alice's names, ids, queues and reply addresses, but no rights to them."""

    @pytest.fixture
    def alice(self, gateway: Waypost) -> Iterator[Raw]:
        with Raw(gateway, 5).connect("sensor", username="alice", password=b"alice", clean_start=False) as client:
            assert client.subscribe("plant/alice/#", qos=1) == [1]
            client.send(packets.Publish("plant/alice/kept", b"hers", qos=1, packet_id=7, retain=True))
            while not isinstance(client.receive(), packets.PubAck):
                pass
            yield client

    @pytest.mark.parametrize(
        "pattern",
        ["plant/alice/#", "plant/+/kept", "#", "+/alice/#", "$share/group/plant/alice/#", "$share/group/#", "$SYS/#",
         "queue/alice", "plant/alice/kept"],
    )  # fmt: skip
    def test_mqtt_subscription_gets_nothing_of_another_user(self, gateway: Waypost, alice: Raw, pattern: str) -> None:
        with Raw(gateway, 5).connect("bob-1", username="bob", password=b"bob") as bob:
            codes = bob.subscribe(pattern, qos=1)
            alice.send(packets.Publish("plant/alice/live", b"hers", qos=1, packet_id=8))
            bob.send(packets.Publish("plant/bob/x", b"his", qos=1, packet_id=9))
            seen = []
            while not isinstance(packet := bob.receive(), packets.PubAck):
                seen.append(packet)
            assert not [one for one in seen if isinstance(one, packets.Publish) and one.payload == b"hers"]
            assert all(code >= 0x80 for code in codes), "and it is told so"

    def test_client_id_gives_no_access_to_session_of_another_user(self, gateway: Waypost, alice: Raw) -> None:
        alice.send(packets.Disconnect())
        alice.close()
        with Raw(gateway, 5) as bob:
            bob.send(packets.Connect("sensor", 5, username="bob", password=b"bob", clean_start=False))
            answer = bob.receive()
            if isinstance(answer, packets.ConnAck) and not answer.reason:
                assert not answer.session_present, "another user's session"

    @pytest.mark.parametrize("topic", ["plant/alice/x", "queue/alice", "$SYS/x"])
    def test_will_and_publish_to_address_of_another_user_are_refused(
        self, gateway: Waypost, alice: Raw, topic: str
    ) -> None:
        with Raw(gateway, 5) as bob:
            will = WillMessage(topic, b"his will", 1)
            bob.send(packets.Connect("bob-2", 5, username="bob", password=b"bob", will=will))
            answer = bob.receive()
            if accepts(answer):
                bob.send(packets.Publish(topic, b"his", qos=1, packet_id=3))
                refused = bob.receive()
                assert isinstance(refused, packets.PubAck | packets.Disconnect)
                assert refused.reason >= 0x80
        alice.send(packets.Publish("plant/alice/end", b"end", qos=1, packet_id=9))
        while not (isinstance(packet := alice.receive(), packets.Publish) and packet.payload == b"end"):
            assert not isinstance(packet, packets.Publish) or packet.payload.startswith(b"hers"), packet

    @pytest.mark.parametrize("source", ["queue/alice", "plant/alice/#", "plant/alice/kept", "topic::sensor", "#"])
    def test_amqp_receiver_gets_nothing_of_another_user(self, gateway: Waypost, alice: Raw, source: str) -> None:
        with amqp(gateway, "bob") as connection, pytest.raises(LinkDetached):
            connection.create_receiver(source, credit=1).receive(timeout=2)

    def test_amqp_sender_to_address_of_another_user_is_refused(self, gateway: Waypost, alice: Raw) -> None:
        with amqp(gateway, "bob") as connection:
            with pytest.raises((LinkDetached, SendException)):
                connection.create_sender("queue/alice").send(Message(body="his"))
            relay = connection.create_sender(None)
            with pytest.raises((LinkDetached, SendException)):
                relay.send(Message(address="queue/alice", body="his"))

    def test_reply_address_belongs_to_its_connection(self, gateway: Waypost) -> None:
        with amqp(gateway, "alice") as hers, amqp(gateway, "bob") as his:
            replies = hers.create_receiver(None, dynamic=True, credit=1)
            address = replies.link.remote_source.address
            assert len(address) >= 32, "it is not guessed"
            with pytest.raises((LinkDetached, SendException)):
                his.create_receiver(address, credit=1).receive(timeout=2)

    def test_http_reaches_no_address_of_another_user(self, gateway: Waypost) -> None:
        for path in ("/c/queue/alice", "/c/plant/alice/x", "/c/queue%2Falice"):
            assert ask(gateway.port("http"), "GET", path, user="bob:bob").status in (403, 404)
        for path in ("/t/queue/alice", "/t/plant/alice/x", "/t/plant%2Falice/x", "/t//plant/alice/x"):
            assert ask(gateway.port("http"), "POST", path, user="bob:bob", body=b"his").status in (400, 403, 404), path
