"""Compiled loops take changed, cut and joined bytes of several connections at once (README of this folder)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.fuzz.damage import damaged, damages
from tests.property.fuzz.lanes import CONNECTIONS, LaneTarget, Piece, encoded, lane_seeds, pieces
from tests.property.fuzz.target import Protocol

PROTOCOLS: tuple[Protocol, ...] = ("mqtt", "amqp")


@pytest.fixture(scope="module", params=PROTOCOLS)
def target(request: pytest.FixtureRequest) -> Iterator[LaneTarget]:
    made = LaneTarget(request.param)
    yield made
    made.close()


def test_input_consists_of_pieces() -> None:
    stream = [(0, b"one"), (2, bytes(300)), (1, b"")]
    found = list(pieces(encoded(stream)))
    assert found == [Piece(0, True, b"one"), Piece(2, True, bytes(255)), Piece(2, True, bytes(45))]
    assert list(pieces(b"\x02\x09cut\x00"[:5])) == [Piece(2, False, b"cut")]


def test_lanes_accept_the_seeds(target: LaneTarget) -> None:
    for seed in lane_seeds(target.protocol):
        assert target.take(seed) == CONNECTIONS


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2), damages)
def test_damaged_seeds_are_accepted(target: LaneTarget, seed: int, how: list[tuple[int, int, int]]) -> None:
    target.take(damaged(lane_seeds(target.protocol)[seed], how))
