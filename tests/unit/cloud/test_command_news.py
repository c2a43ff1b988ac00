"""Receipts of gateways for commands, read from batches in every encoding; invalid ones are ignored."""

from __future__ import annotations

import pytest

from bridge.batch import Batch, decode, encode
from bridge.command import Receipt, receipt_body
from bridge.message import AMQP, Run, Stored
from cloud.hub.commands.limits import RESPONSE_BYTES_MAX
from cloud.hub.commands.news import has_news, read_news
from cloud.hub.registry.commands import CommandNews, CommandState
from edge.broker.hono import messages
from edge.broker.message.mqtt_properties import Properties, encode_run
from edge.broker.message.translation import amqp_from_run

WHERE = ("acme", "hall")


def batch(*runs: Run) -> Batch:
    return decode(encode([Stored(i, i, run) for i, run in enumerate(runs)], space="s", epoch="e" * 32))


def run(address: str, body: bytes, properties: Properties | None = None, device: str = "pump7") -> Run:
    return Run(address, device, 1, encode_run(properties or Properties()), [body], 5)


def news(*runs: Run) -> list[CommandNews]:
    return read_news(*WHERE, batch(*runs), 7)


def test_receipt_is_read() -> None:
    body = receipt_body("a1", Receipt.EXPIRED, "expired")
    assert news(run("plant/7", b"1"), run("command-receipt/pump7", body)) == [
        CommandNews("a1", *WHERE, "pump7", 7, CommandState.EXPIRED, "expired", moves=0)
    ]


RESPONSE = run(
    "command-response/pump7",
    b"yes",
    Properties(correlation_data=b"a1", content_type="text/plain", user_property=(("status", "204"),)),
)


def test_response_is_read_over_mqtt_and_amqp() -> None:
    expected = [CommandNews("a1", *WHERE, "pump7", 7, status=204, content_type="text/plain", response=b"yes")]
    assert news(RESPONSE) == expected
    message = amqp_from_run(RESPONSE, 0)
    assert news(Run("command-response/pump7", "pump7", AMQP | 1, b"", [message], 5)) == expected


def test_response_of_a_hono_device_is_read() -> None:
    answer = messages.response(
        "command_response/ACME/hub", "ACME", "4711", status=200, correlation="a1", content_type=None, body=b"ok",
        now_ns=5,
    )  # fmt: skip
    (found,) = news(Run("command_response/ACME/hub", "4711", AMQP | 1, b"", [answer], 5))
    assert (found.id, found.device, found.status, found.response) == ("a1", "4711", 200, b"ok")
    assert news(Run("command_response/ACME/app", "4711", AMQP | 1, b"", [answer], 5)) == [], "another application's"


@pytest.mark.parametrize(
    "nothing",
    [
        run("command-receipt/pump7", b"{}"),
        run("command-receipt/pump7", b"\xff"),
        run("command-receipt/pump7", b'{"command": "a1", "receipt": "eaten"}'),
        run("command-response/pump7", b"x"),
        run("command-response/pump7", b"x", Properties(correlation_data=b"\xff\xfe")),
        run("command-response/pump7", b"x", Properties(correlation_data=b"a1\0")),
        run("command-receipt/pump7", b'{"command": "a1\\u0000", "receipt": "delivered"}'),
        Run("command-response/pump7", "pump7", AMQP | 1, b"", [b"\x00\x53"], 5),
    ],
)
def test_messages_without_a_command_are_ignored(nothing: Run) -> None:
    assert has_news(batch(nothing))
    assert news(nothing, RESPONSE)[0].id == "a1", "and what came with it counts"


def test_content_type_is_valid_for_a_database() -> None:
    answer = amqp_from_run(run("command-response/pump7", b"x", Properties(correlation_data=b"a1")), 0)
    said = amqp_from_run(RESPONSE, 0).replace(b"text/plain", b"text\0\r\nain")
    (found, without) = (
        news(Run("command-response/pump7", "pump7", AMQP | 1, b"", [body], 5))[0] for body in (said, answer)
    )
    assert (found.content_type, without.content_type) == ("text\\x00\\r\\nain", None)


@pytest.mark.parametrize("status", ["", "-1", "1000", "a", "²"])
def test_invalid_status_is_dropped(status: str) -> None:
    said = Properties(correlation_data=b"a1", user_property=(("status", status),))
    assert news(run("command-response/pump7", b"x", said))[0].status is None


def test_long_response_is_cut() -> None:
    said = Properties(correlation_data=b"a1")
    (found,) = news(run("command-response/pump7", b"x" * (RESPONSE_BYTES_MAX + 1), said))
    assert len(found.response or b"") == RESPONSE_BYTES_MAX


def test_other_messages_are_not_parsed() -> None:
    assert not has_news(batch(run("plant/7", b"1"), run("command/pump7", b"1"), run("commands", b"1")))


def test_a_returned_command_is_named_as_it_was_sent() -> None:
    body = receipt_body("a1~2", Receipt.REJECTED, "its device left", returned=True)
    [found] = news(run("command-receipt/pump7", body))
    assert (found.id, found.moves, found.returned, found.state) == ("a1", 2, True, CommandState.REJECTED)
