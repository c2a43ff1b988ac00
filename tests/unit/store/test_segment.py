"""The codec of a segment: round trip, every truncation, every bit."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.message import Run, Stored
from edge.broker.store.limits import PACKED_BYTES_MIN
from edge.broker.store.segment import (
    SegmentDamaged,
    SegmentRow,
    SegmentRunName,
    _checksum,
    decode,
    encode,
    is_packed,
    run_names,
    split,
)
from tests.support.stored_runs import stored_from

RUNS = st.lists(
    st.builds(
        Run,
        address=st.text(min_size=1, max_size=12),
        device=st.text(max_size=8),
        flags=st.integers(0, 0xFFFF),
        properties=st.binary(max_size=8),
        bodies=st.lists(
            st.one_of(st.binary(max_size=6), st.binary(min_size=250, max_size=260)), min_size=1, max_size=5
        ),
        received_at=st.integers(0, 2**62),
    ),
    max_size=5,
)


def sample() -> SegmentRow:
    runs = [Run("plant/7", "sensor", 1, b"\x01\x02", [b"21.5", b"", b"22"], 7), Run("é", "d", 2, b"", [b"z" * 300], 8)]
    return encode(5 << 44 | 3, 2, 99, stored_from(3, runs))


@settings(max_examples=200, deadline=None)
@given(RUNS, st.integers(0, 2**40), st.booleans())
def test_segment_survives_a_round_trip(runs: list[Run], position: int, packed: bool) -> None:
    stored = stored_from(position, runs)
    row = encode(1 << 44 | position, 1, 2, stored, packed=packed)
    assert decode(row, position) == stored
    assert run_names(row) == [SegmentRunName(s.run.address, s.sequence, len(s.run)) for s in stored]
    assert row.messages == sum(map(len, runs))
    assert row.body_bytes == sum(len(body) for run in runs for body in run.bodies)


@pytest.mark.parametrize("longest", [0, 1, 255, 256, 65_535, 65_536])
def test_lengths_are_as_wide_as_the_longest_body_needs(longest: int) -> None:
    stored = [Stored(0, 0, Run("a", "d", 0, b"", [b"x" * longest, b"y"], 0))]
    row = encode(0, 1, 2, stored)
    assert decode(row, 0) == stored
    assert row.data[1] == (1 if longest < 256 else 2 if longest < 65_536 else 4)


def test_every_truncation_and_extension_is_detected() -> None:
    row = sample()
    for size in range(len(row.data)):
        with pytest.raises(SegmentDamaged):
            decode(row._replace(data=row.data[:size]), 3)
    with pytest.raises(SegmentDamaged):
        decode(row._replace(data=row.data + b"\0"), 3)


def test_every_flipped_bit_is_detected() -> None:
    row = sample()
    for index in range(len(row.data) * 8):
        rotten = bytearray(row.data)
        rotten[index // 8] ^= 1 << index % 8
        with pytest.raises(SegmentDamaged):
            run_names(row._replace(data=bytes(rotten)))
    for name in ("key", "messages", "body_bytes", "boot", "monotonic_ns", "crc"):
        for bit in range(32):
            with pytest.raises(SegmentDamaged):
                decode(row._replace(**{name: getattr(row, name) ^ 1 << bit}), 3)


def test_inconsistent_structure_with_a_valid_checksum_is_detected() -> None:
    row = sample()
    for size in range(len(row.data)):
        short = _sealed_again(row._replace(data=row.data[:size]))
        with pytest.raises(SegmentDamaged):
            decode(short, 3)
    with pytest.raises(SegmentDamaged):
        decode(_sealed_again(row._replace(messages=row.messages + 1)), 3)
    with pytest.raises(SegmentDamaged):
        decode(_sealed_again(row._replace(data=b"\x02" + row.data[1:])), 3)


class TestCompressed:
    def row(self, *, span: int | None = None) -> SegmentRow:
        runs = [Run(f"plant/{i}/temperature", f"sensor-{i}", 1, b"", [os.urandom(100)], i * 977) for i in range(100)]
        return encode(3, 1, 2, stored_from(3, runs), span=span, packed=True)

    def test_repeated_fields_compress_although_bodies_are_noise(self) -> None:
        row = self.row()
        assert is_packed(row)
        assert row.body_bytes == 10_000
        assert len(row.data) < 11_300  # 17 700 without compression

    def test_thinned_messages_keep_their_positions(self) -> None:
        row = self.row(span=250)
        assert is_packed(row)
        assert row.messages == 250
        assert [stored.position for stored in decode(row, 3)] == list(range(3, 103))

    def test_incompressible_segment_is_stored_unchanged(self) -> None:
        noise = stored_from(0, [Run("a", "d", 0, b"", [os.urandom(4000)], 0)])
        small = stored_from(0, [Run("a", "d", 0, b"", [b"x" * (PACKED_BYTES_MIN - 50)], 0)])
        for stored in (noise, small):
            row = encode(0, 1, 2, stored, packed=True)
            assert not is_packed(row)
            assert decode(row, 0) == stored
        at_the_limit = encode(
            0, 1, 2, stored_from(0, [Run("a", "d", 0, b"", [b"x" * PACKED_BYTES_MIN], 0)]), packed=True
        )
        assert is_packed(at_the_limit)

    def test_damage_is_detected_with_and_without_the_checksum(self) -> None:
        row = self.row()
        for size in range(0, len(row.data), 97):
            short = row._replace(data=row.data[:size])
            for damaged in (short, _sealed_again(short)):
                with pytest.raises(SegmentDamaged):
                    decode(damaged, 3)
        for rotten in (b"\x03", row.data + b"\0", b"\x03" + row.data, row.data[:1] + row.data[2:]):
            with pytest.raises(SegmentDamaged):
                run_names(_sealed_again(row._replace(data=rotten)))


def _sealed_again(row: SegmentRow) -> SegmentRow:
    return row._replace(crc=_checksum(row))


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=30), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_split_keeps_order_names_and_limit(bodies: list[bytes], bytes_max: int) -> None:
    whole = Stored(10, 20, Run("a", "d", 1, b"p", bodies, 5))
    parts = list(split(whole, bytes_max))
    assert [body for part in parts for body in part.run.bodies] == bodies
    for part in parts:
        offset = part.position - 10
        assert part.sequence - 20 == offset
        assert part.run.bodies == bodies[offset : offset + len(part.run)]
        assert sum(map(len, part.run.bodies)) <= bytes_max or sum(1 for body in part.run.bodies if body) == 1
