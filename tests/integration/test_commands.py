"""Commands end to end with independent clients: hub or gateway is killed between any two steps."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from proton import Message
from proton.utils import SendException

from tests.support.amqp_client import amqp_client, detached_with
from tests.support.command import items_in, run_waypost
from tests.support.http_client import Answer, ask
from tests.support.http_fields import INERT
from tests.support.paho_client import PahoClient, mqtt_client
from tests.support.processes import Waypost, edge, free_port, hub, wait_until
from tests.support.programs import mosquitto_clients

WAIT_S = 40.0
JSON = "application/json"


class Fleet:
    """A hub and one of its gateways."""

    def __init__(self, folder: Path) -> None:
        port, http = free_port(), free_port()
        self.hub = hub(folder, f"--amqp=127.0.0.1:{port}", f"--http=127.0.0.1:{http}")
        self.edge = edge(folder, "gw1", f"--hub=amqp://127.0.0.1:{port}", "--gateway=gw1", "--forward=load/#")
        self.data = folder / "hub"

    def request(self, method: str, path: str, document: dict[str, Any] | None = None, *, key: str = "") -> Answer:
        """Send a request to the hub; `key`: the idempotency key."""
        body = json.dumps(document).encode() if document is not None else None
        headers = {"Idempotency-Key": key} if key else {}
        return ask(self.hub, method, f"/api/v1/{path}", body, headers, timeout_s=WAIT_S + 10)

    def ask(self, method: str, path: str, document: dict[str, Any] | None = None, *, key: str = "") -> Any:
        """Return the document that the hub answers with."""
        answer = self.request(method, path, document, key=key)
        assert answer.status < 400, answer
        return answer.document

    def send(self, device: str = "pump7", **said: Any) -> str:
        sent = self.ask("POST", "commands", {"gateway": "gw1", "device": device, "name": "on", **said})
        assert sent["state"] == "waiting"
        return str(sent["id"])

    def state(self, identifier: str) -> str:
        return str(self.ask("GET", f"commands/{identifier}")["state"])

    def wait(self, identifier: str, state: str) -> dict[str, Any]:
        wait_until(lambda: self.state(identifier) == state, timeout_s=WAIT_S, what=f"{identifier} is {state}")
        found: dict[str, Any] = self.ask("GET", f"commands/{identifier}")
        return found

    def up(self) -> None:
        """Start both and wait until the gateway is known and connected."""
        wait_until(lambda: is_connected(self), timeout_s=WAIT_S, what="the gateway is connected")


class CommandDevice(PahoClient):
    """Device that receives its commands, and acknowledges and answers them on demand."""

    def __init__(self, gateway: Waypost, name: str = "pump7") -> None:
        super().__init__(
            paho.Client(paho.CallbackAPIVersion.VERSION2, f"device-{name}", protocol=paho.MQTTv5, manual_ack=True)
        )
        self.connect(gateway.port("mqtt"))
        self.subscribe(f"command/{name}")

    def take(self) -> paho.MQTTMessage:
        message = super().take()
        self.client.ack(message.mid, message.qos)
        return message

    def respond(self, to: paho.MQTTMessage, payload: bytes, status: int) -> None:
        properties = Properties(PacketTypes.PUBLISH)
        properties.CorrelationData = to.properties.CorrelationData
        properties.ContentType = "text/plain"
        properties.UserProperty = [("status", str(status))]
        info = self.client.publish(to.properties.ResponseTopic, payload, 1, properties=properties)
        info.wait_for_publish(WAIT_S)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    found = Fleet(tmp_path_factory.mktemp("fleet"))
    with found.hub, found.edge:
        found.up()
        yield found


def test_device_takes_a_command_and_responds(fleet: Fleet) -> None:
    with CommandDevice(fleet.edge) as device:
        identifier = fleet.send(payload={"speed": 3}, response=True, correlation_id="c7", ttl_s=60)
        message = device.received.get(timeout=WAIT_S)
        assert (message.topic, json.loads(message.payload)) == ("command/pump7", {"speed": 3})
        assert ("subject", "on") in message.properties.UserProperty
        assert message.properties.ContentType == "application/json"
        assert fleet.wait(identifier, "queued")["correlation_id"] == "c7"
        device.client.ack(message.mid, message.qos)
        fleet.wait(identifier, "delivered")
        device.respond(message, b"as you say", 200)
        over = fleet.ask("GET", f"commands/{identifier}?wait=40")
    assert (over["state"], over["response"]["payload"], over["response"]["status"]) == ("delivered", "as you say", 200)


def test_device_takes_a_command_over_http_and_responds(fleet: Fleet) -> None:
    identifier = fleet.send("tap", name="open/half", payload={"by": 5}, response=True, ttl_s=60)
    taken = ask(fleet.edge, "GET", "/c/command/tap?wait=30", timeout_s=WAIT_S)
    fields = taken.headers
    assert (taken.document, fields["waypost-subject"], fields["content-type"]) == ({"by": 5}, "open/half", JSON)
    assert fields["content-security-policy"] == "sandbox; default-src 'none'"
    fleet.wait(identifier, "queued")  # it was not settled
    assert ask(fleet.edge, "DELETE", f"/c/command/tap?lock={taken.lock}").status == 204
    fleet.wait(identifier, "delivered")
    correlation = fields["waypost-correlation-data"]
    headers = {"Content-Type": "text/plain", "Waypost-Correlation-Data": correlation, "Waypost-Status": "207"}
    response = ask(fleet.edge, "POST", f"/t/{fields['waypost-response-address']}", b"done", headers)
    assert response.status == 202
    over = fleet.ask("GET", f"commands/{identifier}?wait=40")
    assert (over["state"], over["response"]["payload"], over["response"]["status"]) == ("delivered", "done", 207)
    shown = fleet.request("GET", f"commands/{identifier}")
    assert shown.headers.items() >= INERT.items(), "a device wrote a part of it"


def test_device_rejects_a_command_over_http(fleet: Fleet) -> None:
    identifier = fleet.send("valve", ttl_s=60)
    taken = ask(fleet.edge, "GET", "/c/command/valve?wait=30", timeout_s=WAIT_S)
    assert ask(fleet.edge, "PUT", f"/c/command/valve?lock={taken.lock}&outcome=rejected").status == 204
    fleet.wait(identifier, "rejected")


@pytest.mark.parametrize("level", ["+", "#"])
def test_device_of_mqtt_3_1_1_gets_the_name_in_the_topic(fleet: Fleet, level: str) -> None:
    """MQTT 3.1.1 clients have no user properties, so the topic names the command."""
    device = f"old{ord(level)}"
    with mqtt_client(fleet.edge, f"device-{device}") as client:
        client.subscribe(f"command/{device}/{level}")
        sent = [fleet.send(device, name=name, payload="x", ttl_s=60) for name in ("speed", "open/half")]
        topics = [client.take().topic for _ in sent]
        for identifier in sent:
            fleet.wait(identifier, "delivered")
    assert topics == [f"command/{device}/speed", f"command/{device}/open%2Fhalf"]


def test_session_of_one_name_gets_commands_sent_while_its_client_was_away(fleet: Fleet) -> None:
    with mqtt_client(fleet.edge, "one", clean=False) as first:
        first.subscribe("command/one/speed")
        stop, speed = [fleet.send("one", name=name, payload=name, ttl_s=60) for name in ("stop", "speed")]
        assert first.take().topic == "command/one/speed"
        fleet.wait(speed, "delivered")
    later = fleet.send("one", name="speed", payload="later", ttl_s=60)
    fleet.wait(later, "queued")
    with mqtt_client(fleet.edge, "one", clean=False) as second:
        assert second.take().payload == b"later"
        fleet.wait(later, "delivered")
        assert fleet.state(stop) == "queued", "no client has subscribed to its name"
        second.subscribe("command/one/#")
        assert second.take().topic == "command/one/stop"
        fleet.wait(stop, "delivered")


@mosquitto_clients
def test_absent_device_gets_its_command_when_it_connects(fleet: Fleet) -> None:
    """mosquitto_sub speaks MQTT 3.1.1 and knows nothing about commands."""
    text, raw = (
        fleet.send("valve1", payload="open"),
        fleet.send("valve1", payload_base64=base64.b64encode(b"\0\xff").decode()),
    )
    fleet.wait(raw, "queued")
    fleet.edge.stop()
    fleet.edge.start()
    said = subprocess.run(
        ["mosquitto_sub", "-p", str(fleet.edge.port("mqtt")), "-t", "command/valve1", "-q", "1", "-C", "2", "-F", "%x"],
        capture_output=True,
        timeout=WAIT_S,
        check=True,
    )
    assert said.stdout.split() == [b"open".hex().encode(), b"00ff"]
    fleet.wait(text, "delivered")
    fleet.wait(raw, "delivered")


def test_expired_command_is_dropped_and_reported(fleet: Fleet) -> None:
    """An expired command is in the ledger of the gateway; the hub reports one that its gateway never fetched."""
    at_gateway = fleet.send(device="absent", ttl_s=3)
    assert fleet.wait(at_gateway, "expired")["reason"] == "expired"
    fleet.edge.stop()
    at_hub = fleet.send("pump8", ttl_s=0.5)
    assert fleet.wait(at_hub, "expired")["reason"] == "its gateway did not connect in time"
    fleet.edge.start()
    last = fleet.send("pump8", ttl_s=60)
    with CommandDevice(fleet.edge, "pump8") as device:
        device.take()
        fleet.wait(last, "delivered")
        assert device.received.empty(), "what is over is not delivered"
    assert fleet.state(at_hub) == "expired"


def test_online_command_is_taken_now_or_refused_with_a_reason(fleet: Fleet) -> None:
    """The device is connected, away with a persistent session, or its gateway is away; over HTTP, AMQP and the CLI."""
    now = {"gateway": "gw1", "device": "winch", "name": "stop", "payload": "x", "delivery": "online"}
    stop = Message(body=b"x", inferred=True, subject="stop", ttl=20, properties={"delivery": "online"})
    with amqp_client(fleet.hub, timeout_s=WAIT_S) as connection:
        sender = connection.create_sender("command/gw1/winch")
        with mqtt_client(fleet.edge, "winch", clean=False) as device:
            device.subscribe("command/winch")
            taken = fleet.ask("POST", "commands?wait=40", now)
            assert (taken["state"], taken["delivery"], taken["reason_code"]) == ("delivered", "online", None)
            sender.send(stop)
            assert [device.take().payload for _ in range(2)] == [b"x", b"x"]
        wait_until(lambda: not is_client_connected(fleet, "winch"), timeout_s=WAIT_S, what="the client is away")
        away = fleet.ask("POST", "commands?wait=40", now)
        assert (away["state"], away["reason_code"]) == ("rejected", "device-not-connected")
        with pytest.raises(SendException):
            sender.send(stop)
        later = fleet.send("winch", payload="later", ttl_s=60)
        fleet.wait(later, "queued")
        fleet.edge.stop()
        wait_until(lambda: not is_connected(fleet), timeout_s=WAIT_S, what="the hub knows that the gateway is away")
        refused = fleet.request("POST", "commands", now)
        assert (refused.status, refused.document["code"]) == (409, "gateway-not-connected")
        with pytest.raises(SendException):
            sender.send(stop)
    fleet.edge.start()
    with mqtt_client(fleet.edge, "winch", clean=False) as device:
        last = fleet.send("winch", payload="last", ttl_s=60)
        assert [device.take().payload for _ in range(2)] == [b"later", b"last"], "none of the refused ones"
        fleet.wait(last, "delivered")
    fleet.up()


def is_client_connected(fleet: Fleet, name: str) -> bool:
    shown = ask(fleet.edge, "GET", "/api/v1/clients").document["clients"]
    return any(each["name"] == name and each["connected_at"] is not None for each in shown)


def is_connected(fleet: Fleet) -> bool:
    return any(one["connected"] for one in fleet.ask("GET", "gateways")["gateways"])


def test_invalid_command_is_refused(fleet: Fleet) -> None:
    def refused(document: dict[str, Any]) -> tuple[int, str]:
        answer = fleet.request("POST", "commands", document)
        return answer.status, answer.document["error"]

    good = {"gateway": "gw1", "device": "pump7", "name": "on"}
    assert refused({**good, "gateway": "gw9"})[0] == 404
    assert refused({**good, "ttl_s": 0}) == (400, "the time to live must be more than 0 s and at most 30 days")
    assert refused({**good, "device": "a/b"})[0] == 400
    assert refused({**good, "urgent": True}) == (400, "invalid command: Object contains unknown field `urgent`")
    assert refused({"gateway": "gw1"})[0] == 400
    assert fleet.request("GET", "commands/nonesuch").status == 404


def test_repeated_request_is_one_command(fleet: Fleet) -> None:
    document = {"gateway": "gw1", "device": "away", "name": "on", "payload": "a"}
    first = fleet.ask("POST", "commands", document, key="k1")
    assert fleet.ask("POST", "commands", document, key="k1")["id"] == first["id"]
    assert fleet.ask("POST", "commands", document, key="k2")["id"] != first["id"]
    assert fleet.request("POST", "commands", {**document, "payload": "b"}, key="k1").status == 422


def test_command_that_has_reached_its_gateway_is_not_cancelled(fleet: Fleet) -> None:
    identifier = fleet.send("asleep")
    fleet.wait(identifier, "queued")
    answer = fleet.request("DELETE", f"commands/{identifier}")
    assert (answer.status, answer.document["command"]["state"]) == (409, "queued")
    assert "cannot be cancelled any more" in command(fleet, "cancel", identifier, code=1)
    assert "no command nonesuch" in command(fleet, "cancel", "nonesuch", code=1)


def hub_killed(fleet: Fleet) -> None:
    fleet.hub.kill()
    fleet.hub.start()


def gateway_killed(fleet: Fleet) -> None:
    fleet.edge.kill()
    fleet.edge.start()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kill", [gateway_killed, pytest.param(hub_killed, marks=pytest.mark.slow)])
def test_command_survives_a_kill_of_either_side_between_any_two_steps(
    tmp_path: Path, kill: Callable[[Fleet], None]
) -> None:
    """A command is never forgotten; it is delivered once if its device was connected and acknowledged it."""
    fleet = Fleet(tmp_path)
    with fleet.hub, fleet.edge:
        fleet.up()
        killed_between(fleet, kill)


def killed_between(fleet: Fleet, kill: Callable[[Fleet], None]) -> None:
    sent = fleet.send(payload="first", ttl_s=300)
    kill(fleet)
    fleet.wait(sent, "queued")
    kill(fleet)
    with CommandDevice(fleet.edge) as device:
        message = device.take()
        assert message.payload == b"first"
        fleet.wait(sent, "delivered")
        kill(fleet)
        fleet.up()
        assert fleet.state(sent) == "delivered"
    asking = fleet.send(payload="second", response=True, ttl_s=300)
    with CommandDevice(fleet.edge) as device:
        message = device.take()
        device.respond(message, b"yes", 200)
        kill(fleet)
    over = fleet.ask("GET", f"commands/{asking}?wait=40")
    assert (over["state"], over["response"]["payload"]) == ("delivered", "yes")
    fleet.up()
    last = fleet.send(payload="last", ttl_s=300)
    with CommandDevice(fleet.edge) as device:
        assert device.take().payload == b"last", "nothing is delivered again that was acknowledged"
        fleet.wait(last, "delivered")


class TestApplications:
    """Applications over AMQP, with the C library of Qpid Proton."""

    def test_application_sends_a_command_and_reads_its_outcome(self, fleet: Fleet) -> None:
        with amqp_client(fleet.hub, timeout_s=WAIT_S) as connection, CommandDevice(fleet.edge, "fan1") as device:
            every = connection.create_receiver("command-receipt/gw1/fan1")
            own = connection.create_receiver("command-reply/console")
            sender = connection.create_sender("command/gw1/fan1")
            said = Message(
                body=b"{}", inferred=True, subject="spin", correlation_id="c9", ttl=60,
                reply_to="command-reply/console", content_type="application/json",
            )  # fmt: skip
            sender.send(said)
            message = device.take()
            assert (message.payload, dict(message.properties.UserProperty)["subject"]) == (b"{}", "spin")
            device.respond(message, b"spinning", 200)
            heard = {}
            for _ in range(2):
                reply = own.receive(timeout=WAIT_S)
                own.accept()
                assert (reply.correlation_id, reply.properties["device"]) == ("c9", "fan1")
                heard[reply.subject] = bytes(reply.body)
            assert heard.keys() == {"delivered", "response"}
            assert heard["response"] == b"spinning"
            assert json.loads(heard["delivered"])["state"] == "delivered"
            assert every.receive(timeout=WAIT_S).subject == "delivered"
            every.accept()

    def test_repeated_message_is_one_command(self, fleet: Fleet) -> None:
        with amqp_client(fleet.hub, timeout_s=WAIT_S) as connection:
            sender = connection.create_sender("command/gw1/twice")
            for identifier, key in (("m1", None), ("m1", None), ("m2", "m1"), ("m2", None)):
                own = {"idempotency-key": key} if key is not None else None
                sender.send(Message(body=b"{}", inferred=True, subject="spin", id=identifier, properties=own))
        assert len(fleet.ask("GET", "commands?device=twice")["commands"]) == 2

    @pytest.mark.parametrize(
        ("address", "subject", "reply_to", "condition"),
        [
            ("command/gw9/fan1", "spin", None, "amqp:precondition-failed"),
            ("command/gw1/fan1", None, None, "amqp:invalid-field"),
            ("command/gw1/fan1", "spin", "queue/jobs", "amqp:invalid-field"),
            ("command/gw1", "spin", None, "amqp:invalid-field"),
        ],
    )
    def test_message_that_is_no_command_is_rejected(
        self, fleet: Fleet, address: str, subject: str | None, reply_to: str | None, condition: str
    ) -> None:
        with amqp_client(fleet.hub, timeout_s=WAIT_S) as connection:
            sender = connection.create_sender(address)
            with pytest.raises(SendException):
                sender.send(Message(body=b"", inferred=True, subject=subject, reply_to=reply_to))

    def test_applications_cannot_receive_commands(self, fleet: Fleet) -> None:
        with (
            amqp_client(fleet.hub, timeout_s=WAIT_S) as connection,
            detached_with("amqp:not-allowed"),
        ):
            connection.create_receiver("command/#")


QUOTAS = """
apiVersion: waypost/v1
kind: Hub
metadata: {name: hub}
spec: {tenantQuota: {commands: 1}}
"""


def command(fleet: Fleet, *words: str, code: int = 0) -> Any:
    """Run `waypost command`; return its item, or those of `list`."""
    done = run_waypost("command", *words, "--data", str(fleet.data), "--json")
    assert done.returncode == code, done.stdout + done.stderr
    if not done.stdout:
        return done.stderr
    found = items_in(done.stdout)
    return found if words[0] == "list" else found[0]


def test_commands_are_sent_and_followed_on_the_command_line(fleet: Fleet) -> None:
    with CommandDevice(fleet.edge, "lamp") as device:
        sent = command(fleet, "send", "lamp@gw1", "on", "bright", "--response", "--correlation-id", "c1")
        message = device.take()
        assert message.payload == b"bright"
        device.respond(message, b"it is", 204)
    over = command(fleet, "status", sent["id"], "--wait", "40s")
    assert (over["state"], over["response"]["payload"], over["response"]["status"]) == ("delivered", "it is", 204)
    assert command(fleet, "list", "--device", "lamp")[0]["correlation_id"] == "c1"
    assert command(fleet, "send", "absent@gw1", "on", "--ttl", "1s", "--wait", "30s", code=1)["state"] == "expired"
    twice = [command(fleet, "send", "absent@gw1", "on", "--idempotency-key", "k")["id"] for _ in range(2)]
    assert twice[0] == twice[1]
    assert "use a new key" in command(fleet, "send", "absent@gw1", "off", "--idempotency-key", "k", code=1)
    configured = fleet.data.parent / "quotas.yaml"
    configured.write_text(QUOTAS)
    assert "`commands`" in command(fleet, "send", "absent@gw1", "on", "--config", str(configured), code=1)
    assert "absent does not name a gateway" in command(fleet, "send", "absent", "on", code=2)
    assert "has no gateway gw9" in command(fleet, "send", "lamp@gw9", "on", code=1)
