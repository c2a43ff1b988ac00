"""The accounts find exactly the faults that were put into a history."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.demo.accounting import Account, Deliveries, Given, Row, account, total

ADDRESS = "plant/gw1/d1/cpu"


def row(sequence: int, seq: int | None, *, epoch: str = "e1", device: str = "d1", gateway: str = "gw1") -> Row:
    return Row(gateway, epoch, ADDRESS, sequence, None if seq is None else (device, seq))


def deliveries(sends: dict[int, int], **more: int) -> Deliveries:
    return Deliveries("d1", "gw1", sends, **more)


def test_complete_history_adds_up() -> None:
    found = account("gw1", [deliveries({0: 1, 1: 1, 2: 1})], [row(0, 0), row(1, 1), row(2, 2)], [])
    assert (found.acknowledged, found.landed, found.rows) == (3, 3, 3)
    assert found.adds_up


def test_empty_history_does_not_add_up() -> None:
    assert not account("gw1", [], [], []).adds_up


def test_missing_acknowledged_reading_is_named() -> None:
    found = account("gw1", [deliveries({0: 1, 1: 1})], [row(0, 0)], [])
    assert found.missing == [("d1", 1)]
    assert found.landed == 1
    assert not found.adds_up


def test_repeated_reading_may_be_stored_twice() -> None:
    found = account("gw1", [deliveries({0: 2})], [row(0, 0), row(1, 0)], [])
    assert (found.resent, found.twice, found.unconfessed, found.duplicates) == (1, 1, 0, 0)
    assert found.adds_up


def test_reading_stored_more_often_than_sent_is_a_duplicate() -> None:
    found = account("gw1", [deliveries({0: 1})], [row(0, 0), row(1, 0)], [])
    assert found.unconfessed == 1
    assert not found.adds_up


def test_repeated_name_is_a_duplicate_with_any_body() -> None:
    found = account("gw1", [deliveries({0: 5})], [row(0, 0), row(0, 0)], [])
    assert found.duplicates == 1
    assert found.twice == 0
    assert not found.adds_up


def test_gap_is_a_fault_unless_the_ledger_explains_it() -> None:
    sends = [deliveries({0: 1, 3: 1})]
    rows = [row(0, 0), row(3, 3)]
    assert account("gw1", sends, rows, []).unexplained_gaps == 2
    assert account("gw1", sends, rows, [Given("gw1", "e1", ADDRESS, 1, 1)]).unexplained_gaps == 1
    explained = account("gw1", sends, rows, [Given("gw1", "e1", ADDRESS, 1, 2)])
    assert explained.unexplained_gaps == 0
    assert explained.given_up == 2
    assert explained.adds_up


def test_missing_start_is_a_gap() -> None:
    assert account("gw1", [deliveries({0: 1})], [row(2, 0)], []).unexplained_gaps == 2


def test_every_epoch_counts_from_zero() -> None:
    found = account("gw1", [deliveries({0: 1, 1: 1})], [row(0, 0), row(0, 1, epoch="e2")], [])
    assert found.unexplained_gaps == 0
    assert found.adds_up


def test_other_gateways_and_senders_are_counted_separately() -> None:
    rows = [row(0, 0), row(0, 0, gateway="gw2"), row(1, 7, device="stranger"), row(2, None)]
    found = account("gw1", [deliveries({0: 1})], rows, [Given("gw2", "e1", ADDRESS, 9, 9)])
    assert found.rows == 3
    assert found.foreign == 2
    assert found.given_up == 0
    assert found.adds_up


def test_reading_with_a_lost_acknowledgement_is_distinguished() -> None:
    found = account("gw1", [deliveries({0: 1}, unacknowledged=1)], [row(0, 0), row(1, 1)], [])
    assert found.unacknowledged_landed == 1
    assert not found.adds_up, "a device was left with a reading"


@pytest.mark.parametrize("fault", ["unacknowledged", "dropped"])
def test_readings_stored_or_dropped_by_devices_count(fault: str) -> None:
    assert not account("gw1", [deliveries({0: 1}, **{fault: 1})], [row(0, 0)], []).adds_up


def test_total_is_the_sum() -> None:
    one = account("gw1", [deliveries({0: 1, 1: 1})], [row(0, 0)], [])
    assert total([one, one]) == Account(gateway="all", acknowledged=4, landed=2, rows=2, missing=[("d1", 1), ("d1", 1)])


@given(
    sends=st.lists(st.integers(1, 3), min_size=1, max_size=30),
    lost=st.sets(st.integers(0, 29)),
    again=st.sets(st.integers(0, 29)),
    copied=st.sets(st.integers(0, 29)),
)
def test_exactly_the_injected_faults_are_found(
    sends: list[int], lost: set[int], again: set[int], copied: set[int]
) -> None:
    """Readings arrive in order; those in `again` are stored for every send, then rows are lost and copied."""
    stored = [seq for seq, times in enumerate(sends) for _ in range(times if seq in again else 1)]
    names = dict(enumerate(stored))
    last = max(names)
    lost = {sequence for sequence in lost if sequence < last}
    kept = [row(sequence, seq) for sequence, seq in names.items() if sequence not in lost]
    kept += [one for one in kept if one.sequence in copied]
    found = account("gw1", [deliveries(dict(enumerate(sends)))], kept, [])
    left = {one.sequence: one for one in kept}
    assert found.unexplained_gaps == len(lost & names.keys())
    assert found.duplicates == len(copied & left.keys())
    assert found.unconfessed == 0
    assert set(found.missing) == {("d1", seq) for seq in names.values()} - {one.reading for one in left.values()}
    assert found.landed + len(found.missing) == found.acknowledged == len(sends)
    assert found.adds_up == (not found.unexplained_gaps and not found.duplicates and not found.missing)
