"""A gateway as a client of AWS IoT Core, against a server that follows the documented rules."""

from __future__ import annotations

import pytest

pytest.importorskip("botocore", reason="it signs what the server expects")

from bridge.connectors.settings import MqttService, MqttSettings
from edge.broker.configuration import Connector, ConnectorType, EndpointHost, PeerCredentials
from tests.integration.forwarders.gateways import Sender, eventually, gateways, out, scenario
from tests.support.aws_iot import KEY_ID, REGION, SECRET, AwsIotCore


@scenario
async def test_signed_connection_carries_messages_and_rejects_those_beyond_the_limits() -> None:
    core = AwsIotCore(websocket=True)
    async with core.serving(), gateways("gw1") as (near,):
        peer = Connector(
            name="peer",
            type=ConnectorType.MQTT,
            hosts=(EndpointHost(host="127.0.0.1", port=core.port, websocket="/mqtt"),),
            credentials=PeerCredentials(username=KEY_ID, password=SECRET),
            mqtt=MqttSettings(service=MqttService.AWS_IOT_CORE, region=REGION),
        )
        await near.configure(peer, out("f", "plant/#", "site/9/#"))
        sender = Sender(near.broker)
        sender.publish("plant/7", b"1")
        sender.publish("plant/a/b/c/d/e/f/g", b"2")
        figures = near.connector()
        await eventually(lambda: figures.figures.messages_accepted == figures.figures.messages_rejected == 1)
        assert figures.dialer.state.peer == "AWS IoT Core"
        figures.dialer.pause()
        await eventually(lambda: not figures.dialer.state.connected)
    assert [(each.topic, each.body) for each in core.messages] == [("site/9/7", b"1")]
    assert (core.connects, core.violations) == ([5], [])
