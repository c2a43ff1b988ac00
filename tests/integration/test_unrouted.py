"""A topic without a subscriber stores nothing; every protocol, the status and the problems report it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt import packets
from tests.support.command import output_of
from tests.support.hostile import Raw
from tests.support.http_client import ask
from tests.support.processes import Waypost, edge, gateway_at, wait_until

RESOURCES = """
apiVersion: waypost/v1
kind: Gateway
metadata: {name: hall}
spec:
  listeners: {mqtt: "127.0.0.1:0", http: "127.0.0.1:0"}
  hub: {url: "amqp://127.0.0.1:9"}
---
apiVersion: enmasse.io/v1beta1
kind: AddressSpace
metadata: {name: default}
spec: {authenticationService: {name: none}}
"""


def publish(client: Raw, topic: str, qos: int) -> packets.Packet | None:
    properties = b"\0" if client.version == 5 else b""
    head = len(topic).to_bytes(2, "big") + topic.encode() + b"\0\x07" + properties
    return client.send(bytes((0x30 | qos << 1, len(head) + 2)) + head + b"20").receive()


@pytest.mark.parametrize(
    ("version", "reason"),
    [(5, ReasonCode.NO_MATCHING_SUBSCRIBERS), (4, ReasonCode.SUCCESS), (3, ReasonCode.SUCCESS)],
)
def test_mqtt_answers_with_the_reason_that_its_version_has(gateway: Waypost, version: int, reason: ReasonCode) -> None:
    with Raw(gateway, version) as client, Raw(gateway, 5) as other:
        client.connect(f"unrouted-{version}")
        assert publish(client, "sensors/temp", 1) == packets.PubAck(7, reason)
        assert publish(client, "sensors/temp", 2) == packets.PubRec(7, reason)
        assert client.send(packets.PubRel(7)).receive() == packets.PubComp(7)
        other.connect(f"subscriber-{version}").subscribe("sensors/temp")
        assert publish(client, "sensors/temp", 1) == packets.PubAck(7, ReasonCode.SUCCESS)


def test_http_answers_that_there_is_no_subscriber(gateway: Waypost) -> None:
    answer = ask(gateway, "POST", "/t/sensors/http", b"20")
    assert (answer.status, answer.headers["waypost-subscribers"]) == (202, "0")
    answer = ask(gateway, "POST", "/t/queue/http", b"20")
    assert (answer.status, answer.headers.get("waypost-subscribers")) == (202, None)
    messages = json.dumps([{"address": "queue/http", "body": 1}, {"address": "sensors/http", "body": 2}]).encode()
    answer = ask(gateway, "POST", "/t", messages, {"content-type": "application/json"})
    assert (answer.status, answer.document) == (202, {"accepted": 2, "unrouted": 1})


def notice(gateway: Waypost) -> dict[str, Any] | None:
    answer = ask(gateway, "GET", "/healthz")
    assert answer.status == 200, answer.document
    found = [one for one in answer.document["problems"] if one["name"] == "no subscriber"]
    return found[0] if found else None


def test_status_counts_stored_and_unrouted_messages_separately(tmp_path: Path) -> None:
    with edge(tmp_path, "gw") as gateway, Raw(gateway, 5) as client:
        client.connect("c")
        publish(client, "sensors/temp", 1)
        publish(client, "queue/a", 1)
        status = ask(gateway, "GET", "/api/v1/status").document
        assert status["messages"] == {
            "received": 2,
            "stored": 1,
            "unrouted": 1,
            "acknowledged": 2,
            "refused": 0,
            "delivered": 0,
        }
        found = notice(gateway)
        assert found is not None
        assert (found["severity"], "sensors/temp" in found["what"]) == ("notice", True)
        assert "--forward 'sensors/#'" in found["next_step"]


def test_the_command_of_the_notice_forwards_the_topic(tmp_path: Path) -> None:
    file, data = tmp_path / "gateway.yaml", tmp_path / "gw"
    file.write_text(RESOURCES)
    output_of("apply", "--data", str(data), "-f", str(file))
    with gateway_at(data) as gateway, Raw(gateway, 5) as client:
        client.connect("c")
        assert publish(client, "sensors/temp", 1) == packets.PubAck(7, ReasonCode.NO_MATCHING_SUBSCRIBERS)
        found = notice(gateway)
        assert found is not None
        command = f"bridge forward 'sensors/#' --data {data}"
        assert command in found["next_step"]
        assert "created" in output_of("bridge", "forward", "sensors/#", "--data", str(data))
        wait_until(lambda: notice(gateway) is None, timeout_s=20, what="the notice is over")
        assert publish(client, "sensors/temp", 1) == packets.PubAck(7, ReasonCode.SUCCESS)
