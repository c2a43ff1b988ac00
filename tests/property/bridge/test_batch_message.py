"""Message with a batch: the fast path for the usual form gives the same result as the general path."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge import plain
from bridge.amqp_values import Ulong, encode
from bridge.plain import MessageError

NUMBERS = st.one_of(st.integers(0, 3), st.integers(250, 260), st.integers(0, 2**64 - 1))
ENDS = st.dictionaries(NUMBERS, NUMBERS, max_size=12)
BATCHES = st.one_of(st.binary(max_size=20), st.sampled_from((b"x" * 255, b"x" * 256, b"\x00\x53\x72\xc1")))


def found_in(message: bytes) -> object:
    """Return the batch that the sections contain, read one by one, or None."""
    try:
        return plain.body_of(message), plain.ends_of(message)
    except MessageError:
        return None


def batch_in(message: bytes) -> object:
    try:
        return plain.batch_in(message)
    except MessageError:
        return None


@given(BATCHES, ENDS)
def test_both_paths_read_the_same(batch: bytes, ends: dict[int, int]) -> None:
    assert plain.batch_in(plain.batch_message(batch, ends)) == (batch, ends)


@given(BATCHES, ENDS, st.data())
@settings(max_examples=500, deadline=None)
def test_changed_message_is_read_by_its_sections(batch: bytes, ends: dict[int, int], data: st.DataObject) -> None:
    message = bytearray(plain.batch_message(batch, ends))
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, max(0, len(message) - 1)))
        piece = data.draw(st.sampled_from((b"", b"\0", b"\1", b"\2", b"\x44", b"\x53", b"\x80", b"\x45", b"\xff")))
        message[at : at + data.draw(st.integers(0, 2))] = piece
    assert batch_in(bytes(message)) == found_in(bytes(message))


def test_other_forms_are_read() -> None:
    pairs = [Ulong(1), Ulong(7)]
    annotations = b"\x00\x53\x72" + encode({plain.ENDS: pairs, "x-opt-other": 1})
    several = annotations + plain.data_section(b"ab") + plain.data_section(b"c")
    assert plain.batch_in(several) == (b"abc", {1: 7})
    odd = b"\x00\x53\x72" + encode({plain.ENDS: [Ulong(1), Ulong(7), Ulong(9)]}) + plain.data_section(b"ab")
    assert plain.batch_in(odd) == (b"ab", {})
