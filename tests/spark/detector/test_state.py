"""State of a detector as bytes: it continues unchanged and creates no other objects."""

from __future__ import annotations

import math
import pickle
import zlib

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.detector.detector import Detector
from spark.detector.running import Numbers
from spark.detector.state import FORMAT, STATE_BYTES_MAX, StateError, dumps, loads


def value(i: int) -> float:
    """Sine with occasional spikes."""
    return math.sin(i / 46) + (8 if i % 997 == 0 else 0)


@pytest.mark.parametrize("count", [0, 1, 29, 160, 1_500, 4_000])
def test_a_detector_goes_on_from_its_bytes(count: int) -> None:
    def column(begin: int, end: int) -> tuple[Numbers, Numbers]:
        places = range(begin, end)
        return np.array(places) * 300.0, np.array([value(i) for i in places])

    one = Detector()
    one.judge(*column(0, count))
    other = loads(dumps(one))
    assert isinstance(other, Detector)
    assert list(one.judge(*column(count, count + 300))) == list(other.judge(*column(count, count + 300)))
    assert len(dumps(one)) < 64 * 1024


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        pickle.dumps(Detector),
        zlib.compress(b"\xff"),
        zlib.compress(cbor2.dumps([FORMAT + 1, None])),
        zlib.compress(cbor2.dumps([FORMAT, {"object": ["Records", {"_highest": 1.0}]}])),
        zlib.compress(cbor2.dumps([FORMAT, {"object": ["Popen", {}]}])),
        zlib.compress(cbor2.dumps([FORMAT, {"object": ["Records", {"unknown": 1.0}]}])),
        zlib.compress(cbor2.dumps([FORMAT, {"array": ["object", [1], b"12345678"]}])),
        zlib.compress(bytes(2 * STATE_BYTES_MAX)),
    ],
)
def test_what_is_no_state_is_refused(data: bytes) -> None:
    with pytest.raises(StateError):
        loads(data)


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_a_state_or_refused(data: bytes) -> None:
    with pytest.raises(StateError):
        loads(zlib.compress(data))
