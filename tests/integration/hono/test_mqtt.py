"""Devices made for Eclipse Hono's MQTT adapter: Paho and Mosquitto's clients, with Proton's for applications."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from edge.broker.hono.limits import COMMAND_SUBSCRIPTIONS_MAX, PLANS_CACHED_MAX
from tests.support.hono import TENANT, WAIT_S, Application, HonoDevice, site
from tests.support.processes import Waypost
from tests.support.programs import mosquitto_clients


class TestTelemetry:
    """`t`, `telemetry`, gateways that publish for other devices, property bags."""

    @pytest.mark.parametrize("version", [4, 5])
    @pytest.mark.parametrize(
        ("topic", "qos"), [("t", 0), ("telemetry", 1), (f"t/{TENANT}/4711", 1), ("telemetry//4711", 0)]
    )
    def test_device_publishes(
        self, gateway: Waypost, application: Application, version: int, topic: str, qos: int
    ) -> None:
        receiver = application.receiver(f"telemetry/{TENANT}")
        with HonoDevice(gateway, "sensor1", version=version) as device:
            device.publish(f"{topic}/?content-type=application%2Fjson", b'{"temp": 5}', qos)
        message = receiver.receive(WAIT_S)  # already settled: a receiver that does not insist gets QoS 0
        assert message.properties == {
            "device_id": "4711",
            "orig_adapter": "hono-mqtt",
            "orig_address": f"{topic}/?content-type=application%2Fjson",
        }
        assert (bytes(message.body), message.content_type) == (b'{"temp": 5}', "application/json")
        assert message.address == f"telemetry/{TENANT}"
        assert abs(message.creation_time - time.time()) < 60

    def test_gateway_publishes_for_its_own_devices_only(self, gateway: Waypost, application: Application) -> None:
        receiver = application.receiver(f"telemetry/{TENANT}")
        with HonoDevice(gateway, "gw") as device:
            device.publish("t//4712", b"on behalf", 1)
            device.publish("t//lamp", b"by via", 1)
            messages = [receiver.receive(WAIT_S), receiver.receive(WAIT_S)]
            assert [message.properties["device_id"] for message in messages] == ["4712", "lamp"]
            assert messages[0].content_type == "application/octet-stream"
            device.send("t//4711", b"not mine", 1)
            assert device.ended.get(timeout=WAIT_S) is not None, "as in Hono an error ends the connection"

    def test_disabled_device_is_refused(self, gateway: Waypost) -> None:
        with HonoDevice(gateway, "broken", expect=135) as device:
            assert device.code == 135, "not authorized"

    def test_errors_are_published_on_the_error_topic_of_the_device(self, gateway: Waypost) -> None:
        with HonoDevice(gateway, "sensor1") as device:
            assert device.subscribe("error///#", 0) == [0]
            device.publish("t/OTHER/4711/?correlation-id=77", b"x", 1)
            message = device.received.get(timeout=WAIT_S)
            assert message.topic == "error///t/77/403"
            document = json.loads(message.payload)
            assert (document["code"], document["correlation-id"]) == (403, "77")
            device.publish("event/?hono-ttl=soon", b"x", 1)
            assert device.received.get(timeout=WAIT_S).topic == "error///event/3/400"
            device.publish("t", b"still there", 1)
            empty = "application%2Fvnd.eclipse-hono-empty-notification"
            device.publish(f"event/?content-type={empty}", b"not empty", 1)
            assert device.received.get(timeout=WAIT_S).topic.endswith("/400")
            device.publish(f"event/?content-type={empty}", b"", 1)
            device.publish("t", b"", 1)
            assert device.received.get(timeout=WAIT_S).topic.endswith("/400")

    def test_ignored_error_is_acknowledged(self, gateway: Waypost) -> None:
        with HonoDevice(gateway, "sensor1") as device:
            device.publish("t/OTHER/4711/?on-error=ignore", b"x", 1)
            device.publish("t", b"still there", 1)

    @mosquitto_clients
    def test_mosquitto_publishes_as_in_the_manual(self, gateway: Waypost, application: Application) -> None:
        receiver = application.receiver(f"telemetry/{TENANT}")
        arguments = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(gateway.port("mqtt")), "-u", f"sensor1@{TENANT}"]
        subprocess.run([*arguments, "-P", "sensor1-secret", "-t", "t", "-m", '{"temp": 5}'], check=True, timeout=WAIT_S)
        assert bytes(receiver.receive(WAIT_S).body) == b'{"temp": 5}'


class TestEvents:
    """`e`, `event`: stored until an application takes them."""

    def test_event_survives_a_kill_until_its_application_takes_it(self, tmp_path: Path) -> None:
        with site(tmp_path) as gateway:
            with HonoDevice(gateway, "sensor1") as device:
                device.publish("e/?hono-ttl=600", b'{"alarm": 1}', 1)
            gateway.kill()
        with gateway, Application(gateway) as application:
            receiver = application.receiver(f"event/{TENANT}")
            message = receiver.receive(WAIT_S)
            receiver.accept()
            assert bytes(message.body) == b'{"alarm": 1}'
            assert message.durable
            assert 500 < message.ttl <= 600
            assert message.properties["device_id"] == "4711"

    def test_event_of_qos_0_is_an_error(self, gateway: Waypost) -> None:
        with HonoDevice(gateway, "sensor1") as device:
            device.subscribe("e///#", 0)
            device.publish("e", b"x", 0)
            assert device.received.get(timeout=WAIT_S).topic == "e///e/-1/400"


class TestConnection:
    """Connection rules that differ for a device made for Hono."""

    @pytest.mark.parametrize("version", [4, 5])
    def test_no_session_is_kept(self, gateway: Waypost, version: int) -> None:
        """A device that learns of a kept session would not subscribe to its commands again."""
        options: dict[str, Any] = {"client_id": f"kept-{version}"}
        if version == 4:
            options["clean_session"] = False
        for _ in range(2):
            with HonoDevice(gateway, "sensor1", version=version, **options) as device:
                assert device.session_present is False
                device.subscribe("c///q/#", 1)

    def test_will_on_a_device_topic(self, gateway: Waypost, application: Application) -> None:
        receiver = application.receiver(f"telemetry/{TENANT}")
        device = HonoDevice(gateway, "sensor1", will=("t", b"gone", 1))
        device.cut()
        message = receiver.receive(WAIT_S)
        assert (bytes(message.body), message.properties["device_id"]) == (b"gone", "4711")

    def test_will_on_another_topic_does_not_refuse_the_connection(self, gateway: Waypost) -> None:
        with HonoDevice(gateway, "sensor1", will=("lwt/4711", b"gone", 1)) as device:
            device.publish("t", b"in", 1)

    def test_retain_flag_is_forwarded_and_no_message_is_retained(
        self, gateway: Waypost, application: Application
    ) -> None:
        receiver = application.receiver(f"telemetry/{TENANT}")
        with HonoDevice(gateway, "sensor1") as device:
            device.publish("t", b"kept?", 1, retain=True)
        message = receiver.receive(WAIT_S)
        assert message.annotations == {"x-opt-retain": True}
        assert (bytes(message.body), message.properties["device_id"]) == (b"kept?", "4711")
        with Application(gateway) as late:
            waiting = late.receiver(f"telemetry/{TENANT}")
            with HonoDevice(gateway, "sensor1") as device:
                device.publish("t", b"next", 1)
            assert bytes(waiting.receive(WAIT_S).body) == b"next"

    def test_addresses_of_applications_are_not_for_devices(self, gateway: Waypost) -> None:
        with HonoDevice(gateway, "sensor1") as device:
            for pattern in ("#", f"telemetry/{TENANT}", f"command/{TENANT}/4712", f"command_response/{TENANT}/#"):
                assert device.subscribe(pattern, 1) == [128]

    def test_more_topics_than_the_cache_holds_are_served(self, gateway: Waypost, application: Application) -> None:
        receiver = application.receiver(f"telemetry/{TENANT}", 2 * PLANS_CACHED_MAX)
        with HonoDevice(gateway, "hub") as device:
            for i in range(PLANS_CACHED_MAX + 2):
                device.publish(f"t//d{i}", b"x", 1)
        found = [receiver.receive(WAIT_S).properties["device_id"] for _ in range(PLANS_CACHED_MAX + 2)]
        assert found == [f"d{i}" for i in range(PLANS_CACHED_MAX + 2)]

    def test_subscription_above_the_limit_is_refused(self, gateway: Waypost) -> None:
        with HonoDevice(gateway, "hub") as device:
            for i in range(COMMAND_SUBSCRIPTIONS_MAX):
                assert device.subscribe(f"e//d{i}/#", 0) == [0]
            assert device.subscribe("c//more/q/#", 1) == [128]
            device.unsubscribe("e//d0/#")
            assert device.subscribe("c//more/q/#", 1) == [1]
