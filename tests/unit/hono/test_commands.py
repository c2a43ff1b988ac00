"""Commands as applications send them and as devices get them; request identifiers."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.amqp_values import encode
from bridge.message import AMQP, Run
from edge.broker.hono.addresses import HonoAddresses
from edge.broker.hono.commands import amqp_message, find_queue, mqtt_run, read_command, topic_rest
from edge.broker.hono.errors import DeviceError
from edge.broker.hono.limits import COMMAND_CHARACTERS_MAX, CORRELATION_BYTES_MAX
from edge.broker.hono.requests import CommandRequest, CommandRequests
from edge.broker.message.mqtt_properties import Properties, decode_run, encode_run
from edge.broker.message.translation import parse_message

ADDRESSES = HonoAddresses("T")
REQUESTS = CommandRequests(b"k" * 32)


def message(body: bytes = b"{}", **fields: Any) -> bytes:
    names = ("message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type")
    values = [fields.get(name) for name in names]
    return b"\x00\x53\x73" + encode(values) + b"\x00\x53\x75" + encode(body)


def command_of(**fields: Any) -> Any:
    run = Run("command/T/4711", "app", AMQP | 1, b"", [message(**fields)])
    return read_command(run, 0, ADDRESSES)


class TestIntake:
    """Immediate answers to an application."""

    def test_well_formed_command_is_accepted(self) -> None:
        to = "command/T/4711"
        assert find_queue(message(to=to, subject="on"), ADDRESSES) == to
        reply = {"reply_to": "command_response/T/app", "message_id": 7}
        assert find_queue(message(to=to, subject="x" * COMMAND_CHARACTERS_MAX, **reply), ADDRESSES) == to

    @pytest.mark.parametrize(
        "fields",
        [
            {"to": "command/T/4711"},
            {"to": "command/T/", "subject": "on"},
            {"to": "command/OTHER/4711", "subject": "on"},
            {"to": "command/T/47/11", "subject": "on"},
            {"subject": "on"},
            {"to": "command/T/4711", "subject": ""},
            {"to": "command/T/4711", "subject": "a#"},
            {"to": "command/T/4711", "subject": "x" * (COMMAND_CHARACTERS_MAX + 1)},
            {"to": "command/T/4711", "subject": "on", "reply_to": "command_response/T/app"},
            {"to": "command/T/4711", "subject": "on", "reply_to": "command_response/OTHER/a", "message_id": 1},
            {"to": "command/T/4711", "subject": "on", "reply_to": "command_response/T/", "message_id": 1},
            {
                "to": "command/T/4711",
                "subject": "on",
                "reply_to": "command_response/T/app",
                "correlation_id": "x" * (CORRELATION_BYTES_MAX + 1),
            },
        ],
    )
    def test_malformed_command_is_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(DeviceError) as caught:
            find_queue(message(**fields), ADDRESSES)
        assert caught.value.status == 400

    def test_invalid_message_is_refused(self) -> None:
        with pytest.raises(DeviceError):
            find_queue(b"\x00\x53\x73\xc0", ADDRESSES)


class TestDelivery:
    """Commands in the form that a device gets."""

    def test_one_way_command_is_delivered_over_mqtt(self) -> None:
        command = command_of(subject="on", content_type="text/plain")
        assert topic_rest(command, REQUESTS) == "/on"
        run = mqtt_run(command, "c///q//on", 5, AMQP | 1)
        assert (run.address, run.bodies, run.flags & AMQP, run.qos, run.received_at) == ("c///q//on", [b"{}"], 0, 1, 5)
        assert decode_run(run.properties).content_type == "text/plain"

    def test_request_is_delivered_over_mqtt_and_amqp(self) -> None:
        command = command_of(subject="ask", reply_to="command_response/T/app/1", correlation_id="c/1")
        identifier, name = topic_rest(command, REQUESTS).split("/")
        assert name == "ask"
        assert REQUESTS.read("4711", identifier) == CommandRequest("app/1", "c/1")
        original = message(subject="ask", reply_to="command_response/T/app/1", correlation_id="c/1")
        found = parse_message(amqp_message(command, original, "command_response/T/4711/id", "id", names_device=True))
        assert list(found.properties) == [None, None, None, "ask", "command_response/T/4711/id", "id"]
        assert (found.application, found.body) == ({"device_id": "4711"}, b"{}")

    def test_command_sent_over_mqtt_is_delivered(self) -> None:
        properties = Properties(
            user_property=(("subject", "on"),), response_topic="command_response/T/app", correlation_data=b"\x01"
        )
        run = Run("command/T/4711", "app", 1, encode_run(properties), [b"now"])
        command = read_command(run, 0, ADDRESSES)
        assert (command.name, command.payload, command.request) == ("on", b"now", CommandRequest("app", b"\x01"))
        with pytest.raises(DeviceError):
            read_command(Run("command/T/4711", "app", 1, b"", [b"now"]), 0, ADDRESSES)


class TestRequests:
    """Identifiers that devices return."""

    def test_identifier_is_bound_to_device_and_key(self) -> None:
        identifier = REQUESTS.identifier("4711", CommandRequest("app", 1))
        assert REQUESTS.read("4711", identifier) == CommandRequest("app", 1)
        for requests, device in ((REQUESTS, "4712"), (CommandRequests(b"other" * 7), "4711")):
            with pytest.raises(DeviceError) as caught:
                requests.read(device, identifier)
            assert caught.value.status == 400

    @pytest.mark.parametrize("text", ["", "a", "äöü", "....", "AAAA", "=" * 8])
    def test_invalid_identifier_is_refused(self, text: str) -> None:
        with pytest.raises(DeviceError) as caught:
            REQUESTS.read("4711", text)
        assert caught.value.status == 400
