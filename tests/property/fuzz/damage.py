"""Damaged byte streams."""

from __future__ import annotations

from hypothesis import strategies as st

damages = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255), st.integers(0, 2)), max_size=5)


def damaged(stream: bytes, how: list[tuple[int, int, int]]) -> bytes:
    data = bytearray(stream)
    for place, value, kind in how:
        at = place % len(data)
        if kind == 0:
            data[at] = value
        elif kind == 1:
            del data[at : at + value % 9]
        else:
            data[at:at] = data[at : at + value]
        if not data:
            return b"\0"
    return bytes(data)
