"""Commands of Hono's applications to devices over MQTT and AMQP, and their responses."""

from __future__ import annotations

import json
import queue
import time
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Message
from proton.reactor import AtMostOnce
from proton.utils import BlockingReceiver, LinkDetached, SendException

from tests.support.amqp_client import connect_amqp
from tests.support.hono import TENANT, WAIT_S, Application, HonoDevice, flush, site
from tests.support.processes import Waypost


class TestCommands:
    """Commands and their responses."""

    def test_request_and_response(self, gateway: Waypost, application: Application) -> None:
        with HonoDevice(gateway, "sensor1") as device:
            assert device.subscribe("c///q/#", 1) == [1]
            application.until_ttd("4711", -1)
            replies = application.receiver(f"command_response/{TENANT}/app-1")
            application.command("4711", "setBrightness", b'{"b": 79}', reply="app-1", correlation="corr/1")
            message = device.received.get(timeout=WAIT_S)
            prefix, request, name = message.topic.rsplit("/", 2)
            assert (prefix, name, message.payload) == ("c///q", "setBrightness", b'{"b": 79}')
            sent = device.send(f"c///s/{request}/200", b'{"lumen": 200}', 1)
            answer = replies.receive(WAIT_S)
            assert not sent.is_published(), "acknowledged when the application has it"
            replies.accept()
            flush(application.connection)
            sent.wait_for_publish(WAIT_S)
            assert sent.is_published()
            assert (answer.correlation_id, bytes(answer.body)) == ("corr/1", b'{"lumen": 200}')
            assert answer.properties == {"device_id": "4711", "tenant_id": TENANT, "status": 200}
            device.unsubscribe("c///q/#")
            application.until_ttd("4711", 0)

    def test_command_waits_for_an_absent_device(self, gateway: Waypost, application: Application) -> None:
        application.command("4711", "switchOn", b"")
        with HonoDevice(gateway, "sensor1", version=5) as device:
            device.subscribe(f"command/{TENANT}/4711/req/#", 1)
            message = device.received.get(timeout=WAIT_S)
            assert (message.topic, message.payload) == (f"command/{TENANT}/4711/req//switchOn", b"")

    @pytest.mark.parametrize(
        ("device", "name", "reply", "correlation"),
        [("", "on", None, None), ("4711", None, None, None), ("4711", "on", "app", None), ("4711", "a+b", None, None)],
    )
    def test_malformed_command_is_rejected(
        self, application: Application, device: str, name: str | None, reply: str | None, correlation: str | None
    ) -> None:
        with pytest.raises(SendException) as caught:
            application.command(device, name, b"", reply=reply, correlation=correlation)
        assert caught.value.state == Delivery.REJECTED

    def test_gateway_gets_commands_of_all_its_devices(self, gateway: Waypost, application: Application) -> None:
        with HonoDevice(gateway, "gw") as device:
            assert device.subscribe(f"c/{TENANT}/+/q/#", 1) == [1]
            for target in ("4712", "lamp", "gw-1"):
                application.command(target, "on", target.encode())
            topics = sorted(device.received.get(timeout=WAIT_S).topic for _ in range(3))
            assert topics == [f"c/{TENANT}/{target}/q//on" for target in ("", "4712", "lamp")]
            assert device.subscribe("c//4711/q/#", 1) == [128], "not a device of this gateway"
            application.command("4712", "ask", b"", reply="app-2", correlation=7)
            request = device.received.get(timeout=WAIT_S).topic.split("/")[4]
            replies = application.receiver(f"command_response/{TENANT}/app-2")
            device.send(f"c//4712/s/{request}/503", b"", 1)
            answer = replies.receive(WAIT_S)
            replies.accept()
            flush(application.connection)
            assert (answer.correlation_id, answer.properties["status"]) == (7, 503)
            device.send(f"c//lamp/s/{request}/200", b"", 1)
            device.ended.get(timeout=WAIT_S)  # a response to another application's command

    def test_device_takes_its_commands_before_its_gateway(self, gateway: Waypost, application: Application) -> None:
        with HonoDevice(gateway, "hub") as general:
            general.subscribe("command//+/req/#", 1)
            with HonoDevice(gateway, "sensor1") as device:
                device.subscribe("c///q/#", 1)
                for i in range(5):
                    application.command("4711", "on", str(i).encode())
                assert [device.received.get(timeout=WAIT_S).payload for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
            application.until_ttd("4711", 0)
            application.command("4711", "off", b"")
            assert general.received.get(timeout=WAIT_S).topic == "command//4711/req//off"
            with pytest.raises(queue.Empty):
                general.received.get_nowait()

    def test_response_without_a_request_is_an_error(self, gateway: Waypost, application: Application) -> None:
        with HonoDevice(gateway, "sensor1") as device:
            device.subscribe("c///q/#", 1)
            device.subscribe("e///#", 0)
            application.command("4711", "ask", b"", reply="gone", correlation="c")
            request = device.received.get(timeout=WAIT_S).topic.split("/")[4]
            device.publish(f"c///s/{request}/200/?correlation-id=mine", b"x", 1)
            assert device.received.get(timeout=WAIT_S).topic == "e///c-s/mine/503"

    def test_command_survives_a_kill(self, tmp_path: Path) -> None:
        with site(tmp_path) as gateway:
            with Application(gateway) as application:
                application.command("4711", "on", b"kept", reply="app", correlation="c1")
            gateway.kill()
        with gateway, HonoDevice(gateway, "sensor1") as device:
            device.subscribe("c///q/#", 1)
            message = device.received.get(timeout=WAIT_S)
            assert message.payload == b"kept"
            with Application(gateway) as application:
                replies = application.receiver(f"command_response/{TENANT}/app")
                device.send(f"c///s/{message.topic.split('/')[4]}/200", b"done", 1)
                assert replies.receive(WAIT_S).correlation_id == "c1"


class AmqpDevice:
    """Device of Hono's AMQP adapter: one anonymous sender, one receiver for commands."""

    def __init__(self, gateway: Waypost, auth_id: str) -> None:
        self.connection = connect_amqp(
            gateway,
            timeout_s=WAIT_S,
            allow_insecure_mechs=True,
            allowed_mechs="PLAIN",
            user=f"{auth_id}@{TENANT}",
            password=f"{auth_id}-secret",
        )
        self.sender = self.connection.create_sender(None)

    def __enter__(self) -> AmqpDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()


class TestAmqpDevice:
    """Hono's AMQP adapter."""

    def test_telemetry_and_events(self, gateway: Waypost, application: Application) -> None:
        receiver = application.receiver(f"telemetry/{TENANT}")
        with AmqpDevice(gateway, "sensor1") as device:
            device.sender.send(Message(body=b"5", address="telemetry", content_type="text/plain", inferred=True))
            message = receiver.receive(WAIT_S)
            assert message.properties == {"device_id": "4711", "orig_adapter": "hono-amqp", "orig_address": "telemetry"}
            assert (message.content_type, bytes(message.body)) == ("text/plain", b"5")
            assert message.address == f"telemetry/{TENANT}"
            assert message.creation_time > 0
            device.sender.send(Message(body="alarm", address=f"e/{TENANT}/4711", properties={"device_id": "forged"}))
        events = application.receiver(f"event/{TENANT}")
        while bytes((event := events.receive(WAIT_S)).body) != b"alarm":
            events.accept()
        events.accept()
        assert event.properties["device_id"] == "4711"
        assert event.durable

    @pytest.mark.parametrize(
        ("message", "condition"),
        [
            (Message(body=b"x", address="t//4712"), "amqp:unauthorized-access"),  # addressed to another device
            (Message(body=b"x", address="t//lamp"), "amqp:unauthorized-access"),
            (Message(body=b"x", address="t/OTHER/4711"), "amqp:unauthorized-access"),
            (Message(body=b"", address="telemetry", inferred=True), "hono:bad-request"),
            (Message(body=b"x", address="telemetry/too/many/levels"), "hono:bad-request"),
            (Message(body=b"x", address="plant/7"), "amqp:unauthorized-access"),
            (Message(body=b"x", address=f"command_response/{TENANT}/4711/forged"), "hono:bad-request"),
        ],
    )
    def test_invalid_message_is_rejected(self, gateway: Waypost, message: Message, condition: str) -> None:
        with AmqpDevice(gateway, "sensor1") as device:
            delivery = device.sender.link.send(message)
            device.connection.wait(lambda: delivery.settled or delivery.remote_state, timeout=WAIT_S)
            assert delivery.remote.condition.name == condition

    def test_command_and_response(self, gateway: Waypost, application: Application) -> None:
        replies = application.receiver(f"command_response/{TENANT}/app-3")
        application.command("4711", "ask", b"now", reply="app-3", correlation="c-3")
        with AmqpDevice(gateway, "sensor1") as device:
            commands = device.connection.create_receiver("command")
            command = commands.receive(WAIT_S)
            commands.accept()
            assert (command.subject, bytes(command.body), command.properties) == ("ask", b"now", None)
            answer = Message(body=b"yes", address=command.reply_to, correlation_id=command.correlation_id)
            answer.properties = {"status": 200}
            delivery = device.sender.link.send(answer)
            flush(device.connection)
            message = replies.receive(WAIT_S)
            replies.accept()
            flush(application.connection)
            device.connection.wait(lambda: delivery.remote_state == Delivery.ACCEPTED, timeout=WAIT_S)
            assert (message.correlation_id, bytes(message.body)) == ("c-3", b"yes")
            assert message.properties == {"device_id": "4711", "tenant_id": TENANT, "status": 200}

    def test_gateway_reads_the_device_of_a_command(self, gateway: Waypost, application: Application) -> None:
        with AmqpDevice(gateway, "gw") as device:
            commands = device.connection.create_receiver("command")
            application.command("lamp", "on", b"")
            command = commands.receive(WAIT_S)
            assert command.properties == {"device_id": "lamp"}
            commands.accept()
            with pytest.raises(LinkDetached):
                device.connection.create_receiver("command//4711")

    def test_commands_are_not_sent_settled(self, gateway: Waypost) -> None:
        with AmqpDevice(gateway, "sensor1") as device, pytest.raises(LinkDetached):
            device.connection.create_receiver("command", options=AtMostOnce())

    def test_released_command_is_delivered_again(self, gateway: Waypost, application: Application) -> None:
        with AmqpDevice(gateway, "sensor1") as device:
            commands = device.connection.create_receiver("command", credit=1)
            application.command("4711", "on", b"again")
            assert bytes(commands.receive(WAIT_S).body) == b"again"
            commands.release(delivered=False)
        with HonoDevice(gateway, "sensor1") as other:
            other.subscribe("c///q/#", 1)
            assert other.received.get(timeout=WAIT_S).payload == b"again"


def test_unacknowledged_command_is_delivered_again(gateway: Waypost, application: Application) -> None:
    device = HonoDevice(gateway, "sensor1", manual_ack=True)
    device.subscribe("c///q/#", 1)
    application.command("4711", "on", b"twice")
    assert device.received.get(timeout=WAIT_S).payload == b"twice"
    device.cut()
    with HonoDevice(gateway, "sensor1") as again:
        again.subscribe("c///q/#", 1)
        assert again.received.get(timeout=WAIT_S).payload == b"twice"


class TestNotDelivered:
    """An application that waits for a response gets the reason why none arrives."""

    def failure(self, receiver: BlockingReceiver, application: Application) -> tuple[Any, int, dict[str, str]]:
        message = receiver.receive(WAIT_S)
        receiver.accept()
        flush(application.connection)
        assert message.content_type == "application/vnd.eclipse-hono-delivery-failure-notification+json"
        assert message.properties["device_id"] == "4711"
        return message.correlation_id, message.properties["status"], json.loads(bytes(message.body))

    def test_command_that_the_device_rejects(self, gateway: Waypost, application: Application) -> None:
        replies = application.receiver(f"command_response/{TENANT}/app-4")
        application.command("4711", "explode", b"", reply="app-4", correlation="c-4")
        with AmqpDevice(gateway, "sensor1") as device:
            commands = device.connection.create_receiver("command")
            assert commands.receive(WAIT_S).subject == "explode"
            commands.reject()
            flush(device.connection)
            assert self.failure(replies, application) == ("c-4", 400, {"error": "rejected"})

    def test_command_that_expires(self, gateway: Waypost, application: Application) -> None:
        replies = application.receiver(f"command_response/{TENANT}/app-5")
        application.command("4711", "late", b"", reply="app-5", correlation="c-5", ttl_s=0.001)
        time.sleep(0.01)  # longer than the command lives
        with HonoDevice(gateway, "sensor1") as device:
            device.subscribe("c///q/#", 1)
            assert self.failure(replies, application) == ("c-5", 503, {"error": "expired"})
            assert device.received.empty()
