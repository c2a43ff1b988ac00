"""Values, sections and translations survive a round trip, and damage raises only `DecodeError`."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge import sections as s
from bridge.amqp_values import (
    DecodeError,
    DescribedValue,
    Symbol,
    Timestamp,
    Ubyte,
    Uint,
    Ulong,
    decode,
    encode,
)
from bridge.message import AMQP, DURABLE, RETAIN, Run
from bridge.sections import bare_message, sections, skip
from edge.broker.message.mqtt_properties import Properties, encode_run
from edge.broker.message.translation import amqp_messages, flags_of, mqtt_runs, parse_message, payload_of, read_header

EXAMPLES = 80

characters = st.characters(exclude_categories=("Cs",), exclude_characters="\0")
texts = st.text(characters, max_size=300)
ascii_names = st.text(st.characters(codec="ascii"), max_size=20)
scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    texts,
    st.binary(max_size=300),
    st.uuids(),
    st.integers(0, 255).map(Ubyte),
    st.integers(0, 2**32 - 1).map(Uint),
    st.integers(0, 2**64 - 1).map(Ulong),
    st.integers(-(2**63), 2**63 - 1).map(Timestamp),
    ascii_names.map(Symbol),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(texts, inner, max_size=5),
        inner.map(lambda value: DescribedValue(Symbol("d"), value)),
    ),
    max_leaves=12,
)


@given(values)
@settings(max_examples=EXAMPLES, deadline=None)
def test_values_survive_a_round_trip(value: Any) -> None:
    raw = encode(value)
    assert decode(raw) == (value, len(raw))
    assert skip(raw, 0) == len(raw)
    assert decode(raw + raw, len(raw)) == (value, 2 * len(raw))


@given(values, st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_truncated_values_are_detected(value: Any, data: st.DataObject) -> None:
    raw = encode(value)
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    for read in (decode, lambda bytes_: skip(bytes_, 0)):
        try:
            read(cut)
        except DecodeError:
            continue
        raise AssertionError(f"{cut!r} was read")


@given(st.binary(max_size=80))
@settings(max_examples=300, deadline=None)
def test_random_bytes_raise_no_other_error(raw: bytes) -> None:
    for read in (decode, bare_message, lambda bytes_: list(sections(bytes_)), payload_of, parse_message):
        with contextlib.suppress(DecodeError):
            read(raw)
    read_header(raw)
    mqtt_runs(Run("a", "d", AMQP, b"", [raw]))


def section(code: int, value: Any) -> bytes:
    return encode(DescribedValue(Ulong(code), value))


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    """Draw (header section, delivery annotations section, bare message); the first two may be empty."""
    keys = ascii_names.map(Symbol)
    header = draw(st.one_of(st.just(b""), st.lists(scalars, max_size=5).map(lambda fields: section(s.HEADER, fields))))
    delivery = draw(st.one_of(st.just(b""), st.dictionaries(keys, scalars).map(lambda m: section(0x71, m))))
    bare = draw(st.one_of(st.just(b""), st.dictionaries(keys, scalars).map(lambda m: section(0x72, m))))
    bare += draw(st.one_of(st.just(b""), st.lists(scalars, max_size=13).map(lambda fields: section(0x73, fields))))
    bare += draw(st.one_of(st.just(b""), st.dictionaries(texts, scalars).map(lambda m: section(0x74, m))))
    bare += draw(
        st.one_of(st.binary(max_size=300).map(lambda b: section(0x75, b)), values.map(lambda v: section(0x77, v)))
    )
    return header, delivery, bare


@given(messages())
@settings(max_examples=EXAMPLES, deadline=None)
def test_scanner_finds_the_bare_message(parts: tuple[bytes, bytes, bytes]) -> None:
    header, delivery, bare = parts
    whole = header + delivery + bare
    assert bare_message(whole) == (len(header), len(header) + len(delivery))
    assert b"".join(whole[found.start : found.end] for found in sections(whole)) == whole
    read_header(header)
    payload_of(bare)


@given(messages(), st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_truncated_messages_are_detected(parts: tuple[bytes, bytes, bytes], data: st.DataObject) -> None:
    bare = parts[2]
    edges = {found.end for found in sections(bare)}
    cut = data.draw(st.integers(0, len(bare) - 1))
    if cut in edges or cut == 0:
        return
    try:
        parse_message(bare[:cut])
    except DecodeError:
        return
    raise AssertionError(f"cut at {cut}, and read all the same")


topics = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="+#\0"), min_size=1, max_size=30)
mqtt_properties = st.builds(
    Properties,
    payload_format_indicator=st.none(),
    message_expiry_interval_s=st.none() | st.integers(0, 4_000_000),
    content_type=st.none() | st.text(st.characters(codec="ascii", exclude_categories=("Cc",)), max_size=40),
    response_topic=st.none() | topics,
    correlation_data=st.none() | st.binary(max_size=40),
    user_property=st.dictionaries(texts, texts, max_size=4).map(lambda pairs: tuple(pairs.items())),
)


@given(mqtt_properties, st.lists(st.binary(max_size=300), min_size=1, max_size=4), topics, st.booleans(), st.booleans())
@settings(max_examples=EXAMPLES, deadline=None)
def test_mqtt_survives_the_way_to_amqp_and_back(
    properties: Properties, bodies: list[bytes], address: str, qos1: bool, retain: bool
) -> None:
    flags = (1 | DURABLE if qos1 else 0) | (RETAIN if retain else 0)
    run = Run(address, "d", flags, encode_run(properties), bodies)
    out = amqp_messages(run)
    for message in out:
        end, start = bare_message(message)
        bare = message[start:]
        assert flags_of(bare, settled=not qos1) == flags & ~DURABLE
        durable = DURABLE if read_header(message[:end]).durable else 0
        back = mqtt_runs(Run(address, "d", AMQP | durable | flags_of(bare, settled=not qos1), message[:end], [bare]))
        assert len(back) == 1
        assert back[0].properties == run.properties
        assert back[0].flags == flags
    assert [body for message in out for part in mqtt_runs(_as_run(message)) for body in part.bodies] == bodies


def _as_run(message: bytes) -> Run:
    end, start = bare_message(message)
    return Run("a", "d", AMQP, message[:end], [message[start:]])


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5), st.booleans())
@settings(max_examples=50, deadline=None)
def test_amqp_is_never_encoded_again(payloads: list[bytes], durable: bool) -> None:
    header = section(s.HEADER, [durable])
    bodies = [section(s.DATA, payload) for payload in payloads]
    run = Run("a", "d", AMQP, header, bodies)
    assert amqp_messages(run) == [header + body for body in bodies]
