"""Invalid values of a peer can be encoded again: cases that fuzzing found."""

from __future__ import annotations

import pytest

from bridge.amqp_values import Symbol, Symbols, decode, encode


@pytest.mark.parametrize(
    "raw", [b"\xa3\x02\x9fr", b"\x73\x00\x00\xd8\x00", b"\x73\xff\xff\xff\xff", b"\x80" + b"\xff" * 8]
)
def test_read_values_can_be_written(raw: bytes) -> None:
    """Decoded values can be encoded: a symbol outside ASCII, a surrogate, a char beyond Unicode, the largest ulong."""
    value, end = decode(raw)
    assert end == len(raw)
    assert decode(encode(value))[1] == len(encode(value))


def test_invalid_symbol_loses_its_invalid_characters() -> None:
    assert encode(Symbol("a\ufffd")) == b"\xa3\x02a?"
    assert encode(Symbols(("\ufffd",))) == b"\xa3\x01?"


def test_largest_ulong_survives() -> None:
    assert decode(encode((1 << 64) - 1))[0] == (1 << 64) - 1
