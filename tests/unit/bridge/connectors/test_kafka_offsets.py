"""Offsets of a partition: a commit covers no record without an answer, and no record behind one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.connectors.kafka.offsets import Offsets


def test_answer_out_of_order_waits_for_earlier_ones() -> None:
    offsets = Offsets()
    for offset in (7, 8, 10):
        offsets.taken(offset)
    assert (offsets.done, offsets.open, offsets.uncommitted) == (7, 3, 0)
    offsets.record(8)
    assert offsets.uncommitted == 0
    offsets.record(7)
    assert (offsets.done, offsets.open, offsets.uncommitted) == (9, 1, 2)
    offsets.committed(9)
    offsets.record(10)
    assert (offsets.done, offsets.open, offsets.uncommitted) == (11, 0, 2)


@given(st.sets(st.integers(0, 10_000), min_size=1, max_size=30), st.data())
def test_commit_ends_before_the_first_record_without_an_answer(taken: set[int], data: st.DataObject) -> None:
    offsets, order = Offsets(), sorted(taken)
    for offset in order:
        offsets.taken(offset)
    waiting = set(taken)
    for offset in data.draw(st.permutations(order)):
        offsets.record(offset)
        waiting.discard(offset)
        here = [each for each in order if each < min(waiting, default=max(order) + 1)]
        assert offsets.done == (here[-1] + 1 if here else order[0])
        assert offsets.open == len(taken) - len(here)
