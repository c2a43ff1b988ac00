"""Reader and model agree on the content of a batch, for any bytes in its two sections."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.batch import _columns, _group, _table
from bridge.batch_content import BatchContent, read
from bridge.columns import BatchError
from bridge.message import Run, Stored
from tests.property.bridge.stored_logs import logs
from tests.support.examples import examples
from tests.support.models import batch_content as model


def sections_of(items: list[Stored]) -> tuple[Any, Any, int, int]:
    """Return the sections in the form that `read` takes."""
    ranges, runs, _ = _group(items, {})
    bodies = [body for run in runs for body in run.bodies]
    return _table(ranges), _columns(runs, bodies)[0], len(ranges), len(bodies)


def outcome(reader: Any, *sections: Any) -> BatchContent | None:
    """Return the result of `reader`, or None if the sections are not a batch."""
    try:
        found: BatchContent = reader(*sections)
    except BatchError:
        return None
    return found


@given(logs())
@settings(max_examples=examples(200), deadline=None)
def test_encoded_content_is_read_alike(items: list[Stored]) -> None:
    sections = sections_of(items)
    found, expected = read(*sections), model.read(*sections)
    assert found == expected
    assert list(map(type, found)) == list(map(type, expected))


@given(logs(), st.data())
@settings(max_examples=examples(1_000), deadline=None)
def test_changed_content_is_read_alike(items: list[Stored], data: st.DataObject) -> None:
    """Reader and model agree after changes to both sections, their ends, and the head."""
    *sections, ranges, messages = sections_of(items)
    for _ in range(data.draw(st.integers(1, 3))):
        which = data.draw(st.sampled_from((0, 1)))
        section = bytearray(sections[which])
        at = data.draw(st.integers(0, len(section)))
        kind = data.draw(st.sampled_from(("byte", "cut", "more", "less")))
        if kind == "byte":
            section[at : at + 1] = data.draw(st.sampled_from((b"\0", b"\1", b"\2", b"\x7f", b"\x80", b"\xc3", b"\xff")))
        elif kind == "cut":
            del section[at:]
        elif kind == "more":
            section[at:at] = data.draw(st.binary(min_size=1, max_size=5))
        else:
            del section[at : at + 1]
        sections[which] = bytes(section)
    ranges += data.draw(st.sampled_from((0, 0, 0, 1, -1)))
    messages += data.draw(st.sampled_from((0, 0, 0, 1, -1)))
    messages = max(messages, 1)
    ranges = max(1, min(ranges, messages))
    sections = [*sections, ranges, messages]
    assert outcome(read, *sections) == outcome(model.read, *sections)


@pytest.mark.parametrize("received_at", [[2**63 - 1, 1], [0, -1], [5, -6], [2**63 - 1, 2**63 - 1]])
def test_times_beyond_63_bits_are_refused(received_at: list[int]) -> None:
    run = Run("a", "d", 1, b"", [b"x"], 0)
    table, _, ranges, _ = sections_of([Stored(0, 0, run), Stored(1, 1, run)])
    runs = [Run("a", "d", 1, b"", [b"x"], 0), Run("a", "d", 1, b"", [b"x"], 0)]
    columns = bytearray(_columns(runs, [b"x", b"x"])[0])
    differences = b"".join(difference.to_bytes(8, "little", signed=True) for difference in received_at)
    planes = bytes(differences[8 * entry + plane] for plane in range(8) for entry in range(2))
    at = 4 + (4 + 4 + 1) + (4 + 4) + 3 * 8  # after the number of runs, both dictionaries and three columns of the runs
    assert columns[at : at + 16] == bytes(16)
    columns[at : at + 16] = planes
    for reader in (read, model.read):
        with pytest.raises(BatchError, match="63 bits"):
            reader(table, bytes(columns), ranges, 2)
