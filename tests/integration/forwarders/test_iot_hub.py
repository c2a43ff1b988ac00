"""A gateway as a device of Azure IoT Hub, against a server that follows the documented rules."""

from __future__ import annotations

import time

from bridge.connectors.settings import MqttService, MqttSettings
from bridge.publish_properties import read
from tests.integration.forwarders.gateways import Receiver, Sender, eventually, gateways, into, mqtt_to, out, scenario
from tests.support.iot_hub import HOST, KEY, MESSAGE_BYTES_MAX, IotHub

EVENTS, INBOUND = "devices/gw1/messages/events", "devices/gw1/messages/devicebound/#"


@scenario
async def test_messages_go_to_the_hub_and_come_from_it_while_tokens_are_renewed() -> None:
    settings = MqttSettings(
        service=MqttService.AZURE_IOT_HUB, device="gw1", hub_host=HOST, shared_access_key=KEY, token_lifetime_s=2.0
    )
    hub = IotHub()
    async with hub.serving(), gateways("gw1") as (near,):
        reader = Receiver(near.broker, "queue/commands", name="reader")
        await near.configure(
            mqtt_to(hub.port, mqtt=settings), out("up", "plant/#", EVENTS), into("down", "queue/commands", INBOUND)
        )
        sender = Sender(near.broker)
        sender.publish("plant/7", b"1", bytes(MESSAGE_BYTES_MAX))
        await eventually(lambda: near.connector().figures.messages_rejected == 1, "one is too large")
        await eventually(lambda: hub.connects >= 2, "a token was renewed")
        hub.send(b"stop", "%24.ct=text%2Fplain")
        sender.publish("plant/7", b"2")
        await eventually(lambda: {each.body for each in hub.messages} == {b"1", b"2"}, "both came")
        await eventually(lambda: hub.unsettled == 0 and reader.runs, "the command is on disk")
        assert near.connector().backlog == 0
        near.connector().dialer.pause()
    assert reader.runs[0].bodies == [b"stop"]
    assert read(reader.runs[0].properties).content_type == "text/plain"
    assert len(set(hub.passwords)) == len(hub.passwords) >= 2
    assert all(int(password.rpartition("=")[2]) > time.time() - 60 for password in hub.passwords)
