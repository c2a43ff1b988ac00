"""The WebSocket machine and the HTTP parsers raise only documented exceptions, for any bytes of a peer."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.transport.websocket import MQTT, WebSocketConnection
from edge.broker.http.messages import BadRequest, parse_batch, parse_single, runs_of
from edge.broker.limits import Limits
from edge.broker.mqtt.connection import MqttConnection
from tests.support.websocket_frames import UPGRADE, EchoMachine, frame

FRAMES = st.builds(
    frame,
    st.integers(0, 15),
    st.binary(max_size=200),
    final=st.booleans(),
    masked=st.booleans(),
    size=st.none() | st.integers(0, 1 << 62),
)


@settings(max_examples=300)
@given(st.lists(FRAMES | st.binary(max_size=50), max_size=12), st.integers(1, 64))
def test_any_frames_are_accepted(parts: list[bytes], step: int) -> None:
    found = WebSocketConnection(MqttConnection(Limits(), 0.0), MQTT, message_bytes_max=1000)
    data = UPGRADE + b"".join(parts)
    for start in range(0, len(data), step):
        found.receive_data(data[start : start + step], 1.0)
        found.data_to_send()
    found.receive_eof(2.0)
    assert found.closed


@settings(max_examples=300)
@given(st.binary(max_size=300), st.integers(0, len(UPGRADE)), st.integers(0, 40))
def test_any_requests_are_answered(noise: bytes, start: int, cut: int) -> None:
    inner = EchoMachine()
    found = WebSocketConnection(inner, MQTT, message_bytes_max=1000)
    found.receive_data(UPGRADE[:start] + noise + UPGRADE[start + cut :], 1.0)
    found.data_to_send()
    assert found.closed == bool(inner.ended)


@settings(max_examples=300)
@given(
    st.binary(max_size=300)
    | st.lists(st.from_regex(rb'\{"address": "[a-z/#+$]{0,9}", "body": .{0,9}\}')).map(b"\n".join),
    st.sampled_from(["application/json", "application/x-ndjson", "text/plain", ""]),
)
def test_any_batches_are_answered(body: bytes, content_type: str) -> None:
    with contextlib.suppress(BadRequest):
        messages = parse_batch(body, content_type)
        runs = list(runs_of(messages, "d"))
        assert [place for _, places in runs for place in places] == list(range(len(messages)))
        assert [body for run, _ in runs for body in run.bodies] == [message.body for message in messages]


@settings(max_examples=300)
@given(st.text(), st.dictionaries(st.sampled_from(["qos", "ttl", "hono-ttl", "retain", "content-type"]), st.text()))
def test_any_single_messages_are_answered(address: str, query: dict[str, str]) -> None:
    with contextlib.suppress(BadRequest):
        message = parse_single(address, b"", query, {})
        assert 0 <= message.qos <= 2
        assert isinstance(message.properties, bytes)
