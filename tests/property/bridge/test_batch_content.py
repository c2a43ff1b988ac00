"""The content of a batch: both forms read the same, whatever somebody wrote into its two sections."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hatch_build
from bridge import batch_content, libraries
from bridge.batch import _columns, _group, _table
from bridge.batch_content import Content, Range, interpreted, library_path, load, read
from bridge.columns import BatchError
from bridge.message import Run, Stored
from tests.property.bridge.test_batch import logs

pytestmark = pytest.mark.skipif(not library_path().exists(), reason="batch_content.c is not compiled")


def sections_of(items: list[Stored]) -> tuple[Any, Any, int, int]:
    """As `read` takes them."""
    ranges, runs, _ = _group(items, {})
    bodies = [body for run in runs for body in run.bodies]
    return _table(ranges), _columns(runs, bodies)[0], len(ranges), len(bodies)


def in_python(*arguments: Any) -> Content | None:
    """None: it is no batch."""
    try:
        return interpreted(*arguments)
    except BatchError:
        return None


def in_c(*arguments: Any) -> Content | None:
    """The same."""
    found = load()(*arguments, Range)
    return None if found is None else Content(*found)


@given(logs())
@settings(max_examples=200, deadline=None)
def test_what_was_written_is_read_alike(items: list[Stored]) -> None:
    sections = sections_of(items)
    found = in_c(*sections)
    assert found is not None
    assert found == in_python(*sections) == read(*sections)
    assert list(map(type, found)) == list(map(type, interpreted(*sections)))


@given(logs(), st.data())
@settings(max_examples=1_000, deadline=None)
def test_what_was_changed_is_read_alike(items: list[Stored], data: st.DataObject) -> None:
    """Bytes of both sections, their ends, and what the head says of them."""
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
    assert in_c(*sections, ranges, messages) == in_python(*sections, ranges, messages)


@pytest.mark.parametrize("received_at", [[2**63 - 1, 1], [0, -1], [5, -6], [2**63 - 1, 2**63 - 1]])
def test_times_beyond_63_bits_are_none(received_at: list[int]) -> None:
    run = Run("a", "d", 1, b"", [b"x"], 0)
    table, _, ranges, _ = sections_of([Stored(0, 0, run), Stored(1, 1, run)])
    runs = [Run("a", "d", 1, b"", [b"x"], 0), Run("a", "d", 1, b"", [b"x"], 0)]
    columns = bytearray(_columns(runs, [b"x", b"x"])[0])
    differences = b"".join(difference.to_bytes(8, "little", signed=True) for difference in received_at)
    planes = bytes(differences[8 * entry + plane] for plane in range(8) for entry in range(2))
    at = bytes(columns).index(bytes(16))
    columns[at : at + 16] = planes
    assert in_c(table, bytes(columns), ranges, 2) is None
    assert in_python(table, bytes(columns), ranges, 2) is None


def test_a_process_that_is_told_so_reads_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(libraries.SETTING, "python")
    batch_content.reader.cache_clear()
    try:
        assert batch_content.reader() is None
        assert len(read(*sections_of([Stored(0, 0, Run("a", "d", 1, b"", [b"x"], 0))])).bodies) == 1
    finally:
        monkeypatch.undo()
        batch_content.reader.cache_clear()


def test_it_is_compiled_where_it_is_looked_for() -> None:
    assert hatch_build.library_path(batch_content.SOURCE) == library_path()
