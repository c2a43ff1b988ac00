"""Settlement, outcomes, limits and refusals of AMQP 1.0 against a running gateway, with Proton's own Python API."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import ConnectionException, Delivery, Described, Link, Message, Terminus, Timeout, symbol, ulong
from proton.reactor import AtLeastOnce, AtMostOnce, Copy, LinkOption
from proton.utils import BlockingConnection, BlockingReceiver, LinkDetached, SendException

from bridge.amqp_values import decode
from bridge.engine import Engine, Event, Transfers
from bridge.sasl import SaslClient
from edge.broker.mqtt.packets import Publish
from tests.support.amqp_client import connect_amqp, detached_with
from tests.support.hostile import Raw
from tests.support.machines import take_all
from tests.support.processes import Waypost, edge

WAIT_S = 20.0

OPEN = b"\x00\x00\x00\x12\x02\x00\x00\x00\x00\x53\x10\xc0\x05\x01\xa1\x02me"
"""Open frame (AMQP 1.0 section 2.7.1) of container `me`, without further fields."""

GATEWAY = """
apiVersion: waypost/v1
kind: Gateway
metadata: {name: limits}
spec:
  limits: {packetBytesMax: 1048576}
---
apiVersion: waypost/v1
kind: Address
metadata: {name: queues}
spec: {address: 'queue/#', type: queue, messageRedelivery: {maximumDeliveryAttempts: 3}, deadletter: dead}
---
apiVersion: waypost/v1
kind: Address
metadata: {name: dead}
spec: {address: dead, type: deadletter}
---
apiVersion: waypost/v1
kind: AddressSpace
metadata: {name: default}
spec: {authenticationService: {name: none}}
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    folder = tmp_path_factory.mktemp("delivery")
    (folder / "gateway.yaml").write_text(GATEWAY)
    with edge(folder, "gw", "--config", str(folder / "gateway.yaml")) as running:
        yield running


@pytest.fixture
def connect(gateway: Waypost) -> Iterator[Callable[..., BlockingConnection]]:
    opened: list[BlockingConnection] = []

    def one(**options: Any) -> BlockingConnection:
        connection = connect_amqp(gateway, **{"heartbeat": 20, **options})
        opened.append(connection)
        return connection

    yield one
    for connection in opened:
        with contextlib.suppress(ConnectionException, Timeout):
            connection.close()


class Modes(LinkOption):
    """Settlement modes of a link."""

    def __init__(self, snd: int | None = None, rcv: int | None = None) -> None:
        self.snd, self.rcv = snd, rcv

    def apply(self, link: Any) -> None:
        if self.snd is not None:
            link.snd_settle_mode = self.snd
        if self.rcv is not None:
            link.rcv_settle_mode = self.rcv


def count(connection: BlockingConnection, address: str) -> int:
    """Count the messages of a queue by browsing it."""
    browser = connection.create_receiver(address, credit=0, options=Copy(), name=f"browse {address}")
    browser.link.drain(100)
    connection.wait(lambda: browser.link.credit == 0 or not browser.link.draining(), timeout=WAIT_S)
    found = len(browser.fetcher.incoming)
    browser.close()
    return found


def delivery_of(receiver: BlockingReceiver) -> Any:
    """Return the delivery of the last message."""
    return receiver.fetcher.unsettled[-1]


def answer(connection: BlockingConnection, receiver: BlockingReceiver, state: int, **local: Any) -> None:
    delivery = receiver.fetcher.unsettled.pop()
    for name, value in local.items():
        setattr(delivery.local, name, value)
    delivery.update(state)
    delivery.settle()
    connection.create_sender("queue/round-trip").close()  # earlier frames have been read


class TestSettlement:
    @pytest.mark.parametrize("rcv", [Link.RCV_FIRST, Link.RCV_SECOND])
    @pytest.mark.parametrize("snd", [Link.SND_UNSETTLED, Link.SND_SETTLED, Link.SND_MIXED])
    def test_every_mode_of_a_sender(self, connect: Any, snd: int, rcv: int) -> None:
        connection, address = connect(), f"queue/send-{snd}-{rcv}"
        sender = connection.create_sender(address, options=Modes(snd, rcv))
        assert sender.link.remote_rcv_settle_mode == Link.RCV_FIRST
        message = Message(body="m", durable=True)
        if snd == Link.SND_SETTLED:
            delivery = sender.link.send(message)
            delivery.settle()
        else:
            delivery = sender.send(message)
            assert delivery.remote_state == Delivery.ACCEPTED
            assert delivery.settled
        receiver = connection.create_receiver(address, credit=1)
        assert receiver.receive(timeout=WAIT_S).body == "m"
        receiver.accept()

    @pytest.mark.parametrize("rcv", [Link.RCV_FIRST, Link.RCV_SECOND])
    @pytest.mark.parametrize("snd", [Link.SND_UNSETTLED, Link.SND_SETTLED, Link.SND_MIXED])
    def test_every_mode_of_a_receiver(self, connect: Any, snd: int, rcv: int) -> None:
        connection, address = connect(), f"queue/receive-{snd}-{rcv}"
        connection.create_sender(address).send(Message(body="m", durable=True))
        receiver = connection.create_receiver(address, credit=1, options=Modes(snd, rcv))
        assert receiver.link.remote_snd_settle_mode == snd
        assert receiver.link.remote_rcv_settle_mode == rcv
        assert receiver.receive(timeout=WAIT_S).body == "m"
        if snd == Link.SND_SETTLED:
            assert not receiver.fetcher.unsettled
        elif rcv == Link.RCV_SECOND:
            delivery = receiver.fetcher.unsettled.popleft()
            delivery.update(Delivery.ACCEPTED)  # the sender settles first
            connection.wait(lambda: delivery.settled, timeout=WAIT_S)
            delivery.settle()
        else:
            receiver.accept()
        receiver.close()
        assert count(connection, address) == 0

    def test_presettled_message_is_lost_with_its_receiver(self, connect: Any) -> None:
        connection, other = connect(), connect()
        for address, options in (("queue/at-most", AtMostOnce()), ("queue/at-least", AtLeastOnce())):
            connection.create_sender(address).send(Message(body="m", durable=True))
            receiver = other.create_receiver(address, credit=1, options=options)
            assert receiver.receive(timeout=WAIT_S).body == "m"
        other.close()
        again = connection.create_receiver("queue/at-least", credit=1)
        assert again.receive(timeout=WAIT_S).body == "m"
        assert count(connection, "queue/at-most") == 0


class TestOutcomes:
    def test_released_and_modified(self, connect: Any) -> None:
        connection = connect()
        connection.create_sender("queue/outcomes").send(Message(body="m", durable=True, annotations={"x-opt-kept": 1}))
        receiver = connection.create_receiver("queue/outcomes", credit=5)
        first = receiver.receive(timeout=WAIT_S)
        assert first.delivery_count == 0
        answer(connection, receiver, Delivery.RELEASED)
        second = receiver.receive(timeout=WAIT_S)
        assert (second.delivery_count, second.first_acquirer) == (0, False)
        answer(connection, receiver, Delivery.MODIFIED, failed=True, annotations={symbol("x-opt-why"): "busy"})
        third = receiver.receive(timeout=WAIT_S)
        assert (third.delivery_count, third.first_acquirer) == (1, False)
        assert third.annotations == {"x-opt-kept": 1, "x-opt-why": "busy"}
        answer(connection, receiver, Delivery.MODIFIED, annotations={symbol("x-opt-kept"): 2})
        fourth = receiver.receive(timeout=WAIT_S)
        assert (fourth.delivery_count, fourth.annotations["x-opt-kept"]) == (1, 2)
        receiver.accept()

    def test_message_undeliverable_here_goes_to_another_consumer(self, connect: Any) -> None:
        connection, other = connect(), connect()
        connection.create_sender("queue/elsewhere").send(Message(body="m", durable=True))
        receiver = connection.create_receiver("queue/elsewhere", credit=5)
        receiver.receive(timeout=WAIT_S)
        answer(connection, receiver, Delivery.MODIFIED, undeliverable=True)
        elsewhere = other.create_receiver("queue/elsewhere", credit=5)
        assert elsewhere.receive(timeout=WAIT_S).delivery_count == 1
        elsewhere.accept()
        assert not receiver.fetcher.incoming

    def test_rejected_message_becomes_a_dead_letter(self, connect: Any) -> None:
        connection = connect()
        connection.create_sender("queue/rejected").send(Message(body="bad", durable=True))
        receiver = connection.create_receiver("queue/rejected", credit=5)
        receiver.receive(timeout=WAIT_S)
        answer(connection, receiver, Delivery.REJECTED)
        dead = connection.create_receiver("dead", credit=1)
        message = dead.receive(timeout=WAIT_S)
        assert message.body == "bad"
        assert message.annotations["x-opt-waypost-dead-reason"] == "rejected"
        dead.accept()


class TestPoison:
    """A message goes to the dead letter address after `maximumDeliveryAttempts` failures of its consumers."""

    def test_over_amqp(self, connect: Any, gateway: Waypost) -> None:
        connect().create_sender("queue/poison-amqp").send(Message(body="poison", durable=True))
        for number in range(3):
            client = Engine(container_id="dies", server=False, sasl=SaslClient())
            with socket.create_connection(("127.0.0.1", gateway.port("amqp")), timeout=WAIT_S) as peer:
                client.open()
                link = client.attach_receiver("r", "queue/poison-amqp")
                client.grant(link, 5)
                events: list[Event] = []
                while not any(isinstance(event, Transfers) for event in events):
                    peer.sendall(client.data_to_send())
                    events += take_all(client, peer.recv(65_536), time.monotonic())
                [message] = [m for event in events if isinstance(event, Transfers) for m in event.messages]
                fields = list(decode(message, 3)[0])
                assert (fields[4] if len(fields) > 4 else 0) == number
        self.dead(connect, "poison")

    def test_over_mqtt(self, connect: Any, gateway: Waypost) -> None:
        connect().create_sender("queue/poison-mqtt").send(Message(body=b"poison", durable=True))
        for _ in range(3):
            with Raw(gateway, 5).connect("dies") as client:
                client.subscribe("queue/poison-mqtt", qos=1)
                assert isinstance(client.receive(), Publish)
        self.dead(connect, b"poison")

    @staticmethod
    def dead(connect: Any, body: object) -> None:
        receiver = connect().create_receiver("dead", credit=1)
        message = receiver.receive(timeout=WAIT_S)
        found = bytes(message.body) if isinstance(body, bytes) else message.body
        assert found == body
        assert message.annotations["x-opt-waypost-dead-reason"] == "delivery attempts exceeded"
        receiver.accept()


class TestCredit:
    def test_drain_with_and_without_messages(self, connect: Any) -> None:
        connection = connect()
        receiver = connection.create_receiver("queue/drain", credit=0)
        receiver.link.drain(10)
        connection.wait(lambda: receiver.link.credit == 0, timeout=WAIT_S)
        assert not receiver.fetcher.incoming
        sender = connection.create_sender("queue/drain")
        for i in range(3):
            sender.send(Message(body=i, durable=True))
        receiver.link.drain(10)
        connection.wait(lambda: receiver.link.credit == 0, timeout=WAIT_S)
        assert [message.body for message, _ in receiver.fetcher.incoming] == [0, 1, 2]


class TestSizes:
    def test_a_large_message_in_small_frames(self, connect: Any) -> None:
        connection = connect(max_frame_size=512)
        body = bytes(range(256)) * 2000
        connection.create_sender("queue/large").send(Message(body=body, durable=True))
        assert bytes(connection.create_receiver("queue/large", credit=1).receive(timeout=WAIT_S).body) == body

    def test_message_above_the_limit_is_refused(self, connect: Any) -> None:
        connection = connect()
        sender = connection.create_sender("queue/too-large")
        assert sender.link.remote_max_message_size == 1 << 20
        with detached_with("amqp:link:message-size-exceeded"):
            sender.send(Message(body=b"x" * (2 << 20), durable=True))

    def test_message_above_the_limit_of_a_receiver_waits_for_another(self, connect: Any) -> None:
        class Small(LinkOption):
            def apply(self, link: Any) -> None:
                link.max_message_size = 1000

        connection, other = connect(), connect()
        sender = connection.create_sender("queue/small")
        sender.send(Message(body="x" * 5000, durable=True))
        sender.send(Message(body="little", durable=True))
        small = connection.create_receiver("queue/small", credit=5, options=Small())
        assert small.receive(timeout=WAIT_S).body == "little"
        small.accept()
        assert len(other.create_receiver("queue/small", credit=5).receive(timeout=WAIT_S).body) == 5000


class TestConnections:
    def test_limits_are_announced(self, connect: Any) -> None:
        transport = connect().conn.transport
        assert transport.remote_channel_max == 255
        assert transport.remote_max_frame_size == 65_536

    def test_heartbeats_keep_an_idle_connection_open_and_silence_ends_it(self, tmp_path: Path) -> None:
        """Both sides expect a frame every three seconds."""
        (tmp_path / "gateway.yaml").write_text(GATEWAY.replace("1048576", "1048576, idleTimeoutS: 3"))
        with edge(tmp_path, "gw", "--config", str(tmp_path / "gateway.yaml")) as gateway:
            connection = connect_amqp(gateway, heartbeat=3)
            receiver = connection.create_receiver("queue/idle", credit=1)
            with pytest.raises(Timeout):
                receiver.receive(timeout=8)
            connection.create_sender("queue/idle").send(Message(body="still here"))
            assert receiver.receive(timeout=WAIT_S).body == "still here"
            connection.close()
            with socket.create_connection(("127.0.0.1", gateway.port("amqp")), WAIT_S) as silent:
                silent.sendall(b"AMQP\x00\x01\x00\x00" + OPEN)
                said = b""
                while chunk := silent.recv(4096):
                    said += chunk
            assert b"amqp:resource-limit-exceeded" in said

    def test_link_above_the_limit_is_refused(self, connect: Any) -> None:
        connection = connect()
        session = connection.conn.session()
        session.open()
        for i in range(1025):
            link = session.sender(f"many-{i}")
            link.target.address = "queue/many"
            link.open()
        with pytest.raises(LinkDetached, match="more than 1024 links") as caught:
            connection.wait(lambda: False, timeout=WAIT_S)
        assert caught.value.condition == "amqp:resource-limit-exceeded"


class TestTermini:
    def test_dynamic_node_ends_with_its_link(self, connect: Any) -> None:
        class Lifetime(LinkOption):
            def apply(self, link: Any) -> None:
                link.source.properties.put_dict({symbol("lifetime-policy"): Described(ulong(0x2C), [])})

        connection, other = connect(), connect()
        receiver = connection.create_receiver(None, dynamic=True, credit=5, options=Lifetime())
        address = receiver.link.remote_source.address
        data = receiver.link.remote_source.properties
        data.rewind()
        data.next()
        policy = data.get_dict()[symbol("lifetime-policy")]
        assert policy.descriptor == 0x2B  # delete-on-close: the effective policy, not the requested one
        other.create_sender(address).send(Message(body="hello"))
        assert receiver.receive(timeout=WAIT_S).body == "hello"

    def test_anonymous_relay_refuses_a_message_without_an_address(self, connect: Any) -> None:
        sender = connect().create_sender(None)
        for message in (Message(body="lost"), Message(body="lost", address="queue/#"), Message(address="$management")):
            with pytest.raises(SendException) as caught:
                sender.send(message)
            assert caught.value.state == Delivery.REJECTED
        assert sender.send(Message(body="found", address="queue/relay")).remote_state == Delivery.ACCEPTED


class TestRecovery:
    def test_detached_durable_subscription_keeps_unsettled_messages(self, connect: Any) -> None:
        """Proton's engine carries no unsettled map, so unsettled messages are delivered again."""

        class Durable(LinkOption):
            def apply(self, link: Any) -> None:
                link.source.durability = Terminus.DELIVERIES
                link.source.expiry_policy = Terminus.EXPIRE_NEVER

        first = connect(container=None)
        container_id = first.conn.container
        receiver = first.create_receiver("topic/recovery", credit=2, name="link", options=Durable())
        sender = connect().create_sender("topic/recovery")
        for i in range(4):
            sender.send(Message(body=i, durable=True))
        assert receiver.receive(timeout=WAIT_S).body == 0
        receiver.accept()
        assert receiver.receive(timeout=WAIT_S).body == 1  # not settled
        receiver.link.detach()
        first.create_sender("queue/round-trip").close()
        receiver.link.free()  # otherwise Proton takes the old end for the new one
        sender.send(Message(body=4, durable=True))
        assert first.conn.container == container_id
        again = first.create_receiver("topic/recovery", credit=10, name="link", options=Durable())
        got = []
        for _ in range(4):
            got.append(again.receive(timeout=WAIT_S).body)
            again.accept()
        assert got == [1, 2, 3, 4]
