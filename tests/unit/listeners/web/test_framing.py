"""Ambiguous heads, which two programs could read in two ways, are refused in pieces of any size."""

from __future__ import annotations

import h11
import pytest

from edge.broker.listeners.web.framing import Framing
from tests.support.ambiguous_heads import AMBIGUOUS


def ends(connection: Framing) -> bool:
    """Read all events; return True when the input was malformed."""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return True
        if event is h11.NEED_DATA or event is h11.PAUSED:
            return False


@pytest.mark.parametrize("name", AMBIGUOUS)
@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_ambiguous_heads_are_refused(name: str, piece: int) -> None:
    data, connection = AMBIGUOUS[name], Framing(16_384)
    for start in range(0, len(data), piece):
        connection.receive_data(data[start : start + piece])
        if ends(connection):
            return
    raise AssertionError(f"{name} was taken")


@pytest.mark.parametrize(
    "data",
    [
        b"GET /a HTTP/1.1\r\nHost: x\r\nA:\tb \r\nB:\r\n\r\n",
        b"GET /a HTTP/1.0\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n\n\n \n",
        b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n2;a=b\r\n\n\n\r\n0\r\nT: u\r\n\r\n",
    ],
)
def test_ordinary_requests_are_accepted(data: bytes) -> None:
    whole, pieces = Framing(16_384), Framing(16_384)
    whole.receive_data(data)
    assert not ends(whole)
    assert whole.their_state in (h11.DONE, h11.MUST_CLOSE)
    for byte in data:
        pieces.receive_data(bytes([byte]))
        assert not ends(pieces)
    assert pieces.their_state in (h11.DONE, h11.MUST_CLOSE)
