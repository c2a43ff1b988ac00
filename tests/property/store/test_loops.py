"""The loops of a commit agree with their model on any input."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.message import Run, Stored
from edge.broker.store import loops
from edge.broker.store.segment import SegmentRow, _checksum, decode
from tests.support.examples import examples
from tests.support.models import commit_loops as model
from tests.support.stored_runs import stored_from

ADDRESSES = ("a", "plant/7/temp", "é", "x" * 300, "\ud800", "y" * 70_000)
RUNS = st.builds(
    Run,
    address=st.sampled_from(ADDRESSES[:4]),
    device=st.sampled_from(("", "d", "ü")),
    flags=st.integers(0, 0xFFFF),
    properties=st.sampled_from((b"", b"", b"", b"\x01\x02")),
    bodies=st.lists(st.sampled_from((b"", b"x", b"y" * 255, b"z" * 256, b"w" * 70_000)), max_size=4),
    received_at=st.integers(-5, 2**62),
)
ODD_RUNS = st.builds(
    Run,
    address=st.sampled_from(ADDRESSES),
    device=st.sampled_from(ADDRESSES),
    flags=st.sampled_from((0, 0xFFFF, 0x1_0000, -1, 2**70)),
    properties=st.sampled_from((b"", bytearray(b"like"), memoryview(b"bytes"))),
    bodies=st.lists(st.sampled_from((b"x", bytearray(b"y"), memoryview(b"z"))), max_size=3),
    received_at=st.sampled_from((0, 2**63, -(2**63) - 1)),
)

FORMS = (model, loops)


def outcome(call: Any, *arguments: Any) -> Any:
    """Return the result, or a marker if it cannot be written."""
    try:
        return call(*arguments)
    except (struct.error, OverflowError, UnicodeEncodeError):
        return "cannot be written"


@settings(max_examples=examples(200), deadline=None)
@given(
    runs=st.lists(st.tuples(st.integers(1, 3), RUNS), max_size=12),
    known=st.dictionaries(st.sampled_from(ADDRESSES[:4]), st.integers(0, 2**40)),
    ends=st.dictionaries(st.integers(1, 3), st.integers(0, 2**40)),
    start=st.integers(0, 3),
)
def test_numbering_agrees(runs: list[tuple[int, Run]], known: dict[str, int], ends: dict[int, int], start: int) -> None:
    seen = []
    for form in FORMS:
        its_ends, sequences, appended = dict(ends), dict[str, int](), list[tuple[int, Stored]]()
        stopped = form.number(runs, min(start, len(runs)), known, its_ends, sequences, appended)
        assert all(type(stored) is Stored for _, stored in appended)
        seen.append((stopped, its_ends, list(sequences.items()), appended))
    assert seen[0] == seen[1]
    stopped = seen[0][0]
    assert start >= len(runs) or [run for _, run in runs[start:stopped]] == [stored.run for _, stored in seen[0][3]]


@settings(max_examples=examples(200), deadline=None)
@given(runs=st.lists(RUNS, max_size=6), position=st.integers(0, 2**40), sparse=st.booleans())
def test_packing_agrees(runs: list[Run], position: int, sparse: bool) -> None:
    stored = stored_from(position, runs)
    base = position if sparse else -1
    packed = [form.pack(stored, base) for form in FORMS]
    assert packed[0] == packed[1]
    data, messages, size = packed[0]
    row = SegmentRow(position, messages, size, 1, 2, 0, data)
    told = decode(row._replace(crc=_checksum(row)), position)
    assert told == stored


@settings(max_examples=examples(200), deadline=None)
@given(runs=st.lists(st.one_of(RUNS, ODD_RUNS), max_size=3), base=st.sampled_from((-1, 0, 2**33)))
def test_packing_of_invalid_values_agrees(runs: list[Run], base: int) -> None:
    stored = stored_from(0, runs)
    assert outcome(model.pack, stored, base) == outcome(loops.pack, stored, base)


@settings(max_examples=examples(200), deadline=None)
@given(
    runs=st.lists(st.tuples(st.sampled_from((1, 1, 1, 2)), RUNS, st.sampled_from((0, 0, 0, 1))), max_size=8),
    start=st.integers(0, 2),
    place=st.integers(0, 2),
)
def test_skipping_agrees(runs: list[tuple[int, Run, int]], start: int, place: int) -> None:
    appended, position = list[tuple[int, Stored]](), 0
    for log, run, gap in runs:
        position += gap
        appended.append((log, Stored(position, 0, run)))
        position += len(run)
    told = [form.pass_over(appended, min(start, len(appended)), 1, place) for form in FORMS]
    assert told[0] == told[1]
