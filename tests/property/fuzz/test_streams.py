"""Any byte stream against a whole broker: briefly here, for minutes with atheris (README of this folder)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.broker.mqtt import packets
from tests.property.amqp.conversation import TURNS
from tests.property.fuzz.corpus import AMQP_STREAM, mqtt_rich, mqtt_seeds, mqtt_steps
from tests.property.fuzz.damage import damaged, damages
from tests.property.fuzz.parser import in_pieces
from tests.property.fuzz.target import Target
from tests.support.mqtt_connection import split

MQTT_SEEDS = mqtt_seeds()
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
piece_sizes = st.sampled_from([0, 0, 1, 7, 100])


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    made = Target()
    yield made
    made.close()


@pytest.mark.parametrize("version", [3, 4, 5])
def test_seed_is_understood(target: Target, version: int) -> None:
    sent = target.feed("mqtt", iter(mqtt_steps(version)))
    assert b"kept" in sent, "the queue's message came back"
    assert len(target.feed("amqp", iter(TURNS))) > 100


def test_rich_seed_is_understood(target: Target) -> None:
    found = split(target.feed("mqtt", iter(mqtt_rich())), 5)
    answers = [packet for packet in found if isinstance(packet, packets.PubAck | packets.PubRec)]
    said = [(each.packet_id, int(each.reason)) for each in answers]
    assert said == [(1, 0), (2, 0x99), (3, 0x80), (4, 0), (5, 0x87)], "in order, though a consumer answers the third"
    assert sum(isinstance(packet, packets.SubAck) for packet in found) == 3


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MQTT_SEEDS), damages, piece_sizes)
def test_damaged_mqtt_is_accepted(target: Target, seed: bytes, how: list[tuple[int, int, int]], size: int) -> None:
    target.feed("mqtt", in_pieces(damaged(seed, how), size))


@settings(max_examples=40, deadline=None)
@given(damages, piece_sizes)
def test_damaged_amqp_is_accepted(target: Target, how: list[tuple[int, int, int]], size: int) -> None:
    target.feed("amqp", in_pieces(damaged(AMQP_STREAM, how), size))


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=400), st.sampled_from([None, 3, 4, 5]), piece_sizes)
def test_random_bytes_are_accepted(target: Target, data: bytes, version: int | None, size: int) -> None:
    opening = packets.Connect("fuzz", version).encode() if version else b""
    target.feed("mqtt", in_pieces(opening + data, size))
    target.feed("amqp", in_pieces((AMQP_HEADER if version else b"") + data, size))
