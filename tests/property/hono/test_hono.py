"""Any request of a device or an application gets an answer in Hono's terms, and no other exception escapes."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from bridge.amqp_values import DecodeError, encode
from edge.broker.hono.addresses import HonoAddresses
from edge.broker.hono.commands import find_queue
from edge.broker.hono.errors import DeviceError
from edge.broker.hono.messages import MessageSource, complete_message, mqtt_properties
from edge.broker.hono.requests import CommandRequest, CommandRequests
from edge.broker.hono.topics import is_level, read_bag, read_filter, read_upload, split_bag
from edge.broker.message.mqtt_properties import Properties, decode_run, encode_run
from edge.broker.message.translation import parse_message

WORDS = ("t", "e", "telemetry", "event", "c", "command", "", "s", "res", "q", "+", "#", "200")
LEVELS = st.one_of(st.sampled_from(WORDS), st.text(max_size=4))
TOPICS = st.lists(LEVELS, max_size=7).map("/".join)
SOURCE = MessageSource("4711", "hono-mqtt", "t")


@given(TOPICS, st.text(max_size=40))
def test_any_topic_is_answered(name: str, bag: str) -> None:
    found, rest = split_bag(f"{name}/?{bag}")
    with suppress(DeviceError):
        read_upload(found)
    with suppress(DeviceError):
        read_bag(rest)
    device_filter = read_filter(name)
    if device_filter is not None:
        assert device_filter.topic("other", "own", "rest").endswith("/rest")


@given(st.text(max_size=600))
def test_any_property_bag_is_answered(text: str) -> None:
    with suppress(DeviceError):
        bag = read_bag(text)
        assert bag.correlation is None or is_level(bag.correlation)


@given(
    st.text(min_size=1, max_size=20),
    st.one_of(st.text(max_size=20), st.binary(max_size=20), st.integers(0, 2**64 - 1), st.uuids()),
)
def test_identifiers_survive_a_round_trip(reply: str, correlation: str | bytes | int | UUID) -> None:
    requests = CommandRequests(b"k" * 32)
    identifier = requests.identifier("4711", CommandRequest(reply, correlation))
    assert is_level(identifier) or len(identifier) > 255
    assert requests.read("4711", identifier) == CommandRequest(reply, correlation)


@given(st.text(max_size=80))
def test_foreign_identifiers_are_refused(text: str) -> None:
    with suppress(DeviceError):
        raise AssertionError(CommandRequests(b"k" * 32).read("4711", text))


@given(st.binary(max_size=80))
def test_commands_of_any_bytes_are_answered(data: bytes) -> None:
    with suppress(DeviceError):
        raise AssertionError(find_queue(data, HonoAddresses("T")))


@given(
    st.lists(st.tuples(st.text(max_size=8), st.one_of(st.text(max_size=8), st.booleans())), max_size=4).map(dict),
    st.binary(min_size=1, max_size=40),
)
def test_claims_of_a_device_about_itself_do_not_count(application: dict[str, object], body: bytes) -> None:
    said = {key: value for key, value in application.items() if key != "ttd"}
    application = {**said, "device_id": "forged", "ttd": "forged"}
    message = b"\x00\x53\x74" + encode(application) + b"\x00\x53\x75" + encode(body)
    found = parse_message(complete_message(message, "telemetry/T", SOURCE, 5_000_000))
    assert found.body == body
    assert found.application == {**said, "device_id": "4711", "orig_adapter": "hono-mqtt", "orig_address": "t"}
    assert [found.properties[2], found.properties[6], found.properties[9]] == [
        "telemetry/T",
        "application/octet-stream",
        5,
    ]


@given(st.binary(max_size=60))
def test_messages_of_any_bytes_are_answered(data: bytes) -> None:
    with suppress(DecodeError, DeviceError):
        complete_message(data, "telemetry/T", SOURCE, 0)


@given(st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), max_size=4), st.none() | st.integers(0, 2**32 - 1))
def test_metadata_of_any_bytes_over_mqtt_is_answered(users: list[tuple[str, str]], ttl_s: int | None) -> None:
    kept = tuple(pair for pair in users if "\0" not in pair[0] + pair[1])
    raw = encode_run(Properties(user_property=(*kept, ("device_id", "forged"))))
    found = decode_run(mqtt_properties(raw, SOURCE, None, ttl_s))
    ours = (("device_id", "4711"), ("orig_adapter", "hono-mqtt"), ("orig_address", "t"))
    theirs = tuple(pair for pair in kept if pair[0] not in {*dict(ours), "ttd", "tenant_id"})
    assert found.user_property == theirs + ours
    assert (found.content_type, found.message_expiry_interval_s) == ("application/octet-stream", ttl_s)
