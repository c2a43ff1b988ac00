"""Reports of devices in the registry: the newest one counts, in whatever order and however often they come."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cloud.hub.limits import FAILURE_EARLY_S_MAX
from cloud.hub.registry import device_updates as module
from cloud.hub.registry.artefacts import ArtefactRow, RegisteredArtefacts
from cloud.hub.registry.device_updates import DeviceUpdate, DeviceUpdates, UpdateCount, UpdateFilter
from cloud.hub.registry.opening import open_registry
from tests.contract.registry.conftest import Place

ACME = UpdateFilter("acme")


@pytest.fixture
def updates(place: Place) -> Iterator[DeviceUpdates]:
    with contextlib.closing(open_registry(place.url).database) as database:
        artefacts = RegisteredArtefacts(database)
        for number, version in enumerate(("1.2.0", "1.3.0"), 1):
            artefacts.add(
                ArtefactRow(
                    "acme", "blinker", version, "firmware", number, "0" * 64, 10, "i" * 32, b"e", "k", 1, "anna"
                )
            )
        yield DeviceUpdates(database)


def report(sequence: int = 1, state: str = "verified", **fields: Any) -> DeviceUpdate:
    given = {
        "tenant": "acme", "name": "blinker", "version": "1.2.0", "device": "pump-1", "state": state, "reason": "",
        "gateway": "hall", "stream": "a", "sequence": sequence, "reported_at": sequence, "changed_at": 9,
    }  # fmt: skip
    return DeviceUpdate(**{**given, **fields})


def listed(updates: DeviceUpdates, wanted: UpdateFilter = ACME) -> list[tuple[str, str, str]]:
    return [(each.version, each.device, each.state) for each in updates.page(wanted, None, 1_000)]


def test_newest_report_counts_in_each_order(updates: DeviceUpdates) -> None:
    """Later by sequence, also when the clock of the gateway was set back in between."""
    some = [report(1, "downloading"), report(2, "verified", reported_at=90), report(3, "installed", reported_at=80)]
    for place, order in enumerate(itertools.permutations(some)):
        device = f"pump-{place}"
        for each in order:
            updates.record([each._replace(device=device)])
        updates.record([each._replace(device=f"{device}-together") for each in order])
    assert {state for _, _, state in listed(updates)} == {"installed"}
    assert len(listed(updates)) == 12


def test_repeated_report_changes_nothing(updates: DeviceUpdates) -> None:
    assert updates.record([report(3)]) == 1
    assert updates.record([report(3, changed_at=99), report(2, changed_at=99)]) == 0
    assert updates.page(ACME, None, 1)[0].changed_at == 9


def test_reports_of_different_gateways_are_ordered_by_time(updates: DeviceUpdates) -> None:
    updates.record([report(9, reported_at=50)])
    assert updates.record([report(1, "downloading", stream="b", gateway="roof", reported_at=50)]) == 0
    assert updates.record([report(2, "installed", stream="b", gateway="roof", reported_at=51)]) == 1
    assert updates.page(ACME, None, 1)[0].gateway == "roof"
    assert updates.record([report(8, "rolled-back", reported_at=49)]) == 0


def test_repeated_report_changes_nothing_whatever_the_clocks_say(updates: DeviceUpdates) -> None:
    """The clock of the first gateway is ahead, so its report gets the time of the hub at each repetition."""
    ahead = report(1, "downloading", reported_at=10)
    updates.record([ahead])
    updates.record([report(1, "verified", stream="b", reported_at=15)])
    assert updates.record([ahead._replace(reported_at=16)]) == 0
    late = report(5, "downloading", stream="c", reported_at=1)
    assert updates.record([late]) == 0
    assert updates.record([late._replace(reported_at=99)]) == 0, "it was seen, and was older"
    assert updates.page(ACME, None, 1)[0].state == "verified"


def test_report_on_the_way_does_not_replace_a_final_one_of_another_gateway(updates: DeviceUpdates) -> None:
    updates.record([report(1, "installed", reported_at=10)])
    assert updates.record([report(1, "downloading", stream="b", reported_at=70)]) == 0
    assert updates.record([report(2, "healthy", stream="b", reported_at=71)]) == 1
    assert updates.record([report(2, "downloading", reported_at=5)]) == 0


def test_final_report_of_another_gateway_stands_whatever_its_clock_says(updates: DeviceUpdates) -> None:
    updates.record([report(1, "downloading", reported_at=1_000)])
    assert updates.record([report(1, "rolled-back", stream="b", reported_at=10)]) == 1
    assert updates.page(ACME, None, 1)[0].state == "rolled-back"


def test_last_failure_stays_known(updates: DeviceUpdates) -> None:
    """A campaign sees it although later reports came with it, or came before it by the clock of another gateway."""
    updates.record([report(1, "rolled-back", reason="no boot"), report(2, "downloading"), report(3, "healthy")])
    [row] = updates.page(ACME, None, 9)
    assert (row.state, row.failure, row.failure_reason, row.failure_at) == ("healthy", "a:1", "no boot", 1)
    behind = report(7, "rolled-back", reason="no disk", stream="b", reported_at=2)
    for _ in range(2):
        updates.record([behind])
        [row] = updates.page(ACME, None, 9)
        assert (row.state, row.failure, row.failure_reason, row.failure_at) == ("healthy", "b:7", "no disk", 2)
    updates.record([report(4, "rolled-back")])
    [row] = updates.page(ACME, None, 9)
    assert (row.state, row.failure, row.failure_reason) == ("rolled-back", "a:4", "")


@pytest.mark.parametrize("state", ["healthy", "rolled-back"])
def test_failure_of_long_ago_hides_no_other_one(updates: DeviceUpdates, state: str) -> None:
    """The late one is older than any offer that the last one is about."""
    day = FAILURE_EARLY_S_MAX * 1_000_000
    updates.record([report(1, "rolled-back", reported_at=2 * day), report(2, state, reported_at=2 * day)])
    name = "a:2" if state == "rolled-back" else "a:1"
    for sequence, at, found in ((1, day - 1, name), (2, day, "b:2")):
        updates.record([report(sequence, "rolled-back", stream="b", reported_at=at)])
        [row] = updates.page(ACME, None, 9)
        assert (row.state, row.failure) == (state, found)


def test_last_report_on_the_way_stays_known(updates: DeviceUpdates) -> None:
    """A final one of another gateway stands before it."""
    updates.record([report(1, "rolled-back", reported_at=50)])
    updates.record([report(1, "downloading", stream="b", reported_at=51)])
    [row] = updates.page(ACME, None, 9)
    assert (row.state, row.failure, row.progress, row.progress_at) == ("rolled-back", "a:1", "b:1", 51)
    updates.record([report(1, "downloading", stream="b", reported_at=99), report(2, "installed", stream="b")])
    [row] = updates.page(ACME, None, 9)
    assert (row.state, row.progress_at, row.failure) == ("rolled-back", 51, "a:1")


def test_reports_of_a_device_are_deleted_together(updates: DeviceUpdates, place: Place) -> None:
    updates.record([report(device=name, version=version) for name in "abc" for version in ("1.2.0", "1.3.0")])
    with contextlib.closing(open_registry(place.url).database) as database:
        database.transaction(lambda tx: module.forget_device_updates(tx, "acme", ["a", "c", "d"]))
        database.transaction(lambda tx: module.forget_device_updates(tx, "other", ["b"]))
    assert {device for _, device, _ in listed(updates)} == {"b"}


def test_names_with_backslashes_follow_each_other(updates: DeviceUpdates) -> None:
    names = ["a\\1", "a\\b", "a\\z", "b"]
    updates.record([report(device=name) for name in names])
    found, after = [], None
    while rows := updates.page(ACME, after, 1):
        found.append(rows[0].device)
        after = rows[0].name, rows[0].version, rows[0].device
        assert len(found) <= len(names)
    assert sorted(found) == sorted(names)


def test_reports_end_with_the_artefact(updates: DeviceUpdates, place: Place) -> None:
    updates.record(
        [report(device=f"pump-{i}", version=version) for i in range(1_200) for version in ("1.2.0", "1.3.0")]
    )
    with contextlib.closing(open_registry(place.url).database) as database:
        artefacts = RegisteredArtefacts(database)
        row = artefacts.begin_removal("acme", "blinker", "1.2.0")
        assert updates.record([report(9, device="late")]) == 0, "its reports are being deleted"
        while artefacts.forget_reports(row):
            pass
        artefacts.end_removal(row)
    assert [each.devices for each in updates.counts(ACME)] == [1_200]


def test_reports_about_unknown_artefacts_are_not_kept(updates: DeviceUpdates) -> None:
    others = [report(version="9"), report(name="other"), report(tenant="other")]
    assert updates.record([*others, report()]) == 1
    assert listed(updates) == [("1.2.0", "pump-1", "verified")]


def test_limit_of_a_tenant(updates: DeviceUpdates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TENANT_DEVICE_UPDATES_MAX", 3)
    assert updates.record([report(device=f"pump-{i}") for i in range(5)]) == 3
    assert updates.record([report(device="another")]) == 0
    assert updates.record([report(2, "installed", device="pump-0")]) == 1, "known ones change further"


def test_fifth_gateway_is_remembered_in_place_of_the_first(updates: DeviceUpdates) -> None:
    """A repetition at the first one is taken for a new report then, and its time decides."""
    streams = [f"s{number}" for number in range(module.STREAMS_REMEMBERED + 1)]
    for number, stream in enumerate(streams):
        updates.record([report(5, stream=stream, reported_at=10 + number)])
    [row] = updates.page(ACME, None, 9)
    assert list(row.sequences) == streams[1:]
    assert updates.record([report(5, stream=streams[1], reported_at=99)]) == 0, "it is known"
    assert updates.record([report(5, stream=streams[0], reported_at=9)]) == 0, "it is older"
    assert updates.record([report(5, stream=streams[1], reported_at=99)]) == 1, "the next one is forgotten"


def test_reports_are_recorded_in_transactions_of_limited_size(
    updates: DeviceUpdates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECORDED_AT_ONCE", 2)
    sizes: list[int] = []
    original = updates._record_part

    def record(some: Sequence[DeviceUpdate]) -> int:
        sizes.append(len(some))
        return original(some)

    monkeypatch.setattr(updates, "_record_part", record)
    assert updates.record([report(device=f"pump-{number}") for number in range(5)]) == 5
    assert sizes == [2, 2, 1]


def test_full_tenant_is_counted_again_after_some_time(updates: DeviceUpdates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TENANT_DEVICE_UPDATES_MAX", 1)
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert updates.record([report(device="a"), report(device="b")]) == 1
    assert updates.full == ["acme"]
    monkeypatch.setattr(module, "TENANT_DEVICE_UPDATES_MAX", 9)
    assert updates.record([report(device="b")]) == 0
    now[0] = module.FULL_S
    assert updates.full == []
    assert updates.record([report(device="b")]) == 1


def test_pages_follow_each_other(updates: DeviceUpdates) -> None:
    names = [f"pump-{i:04}" for i in range(2_500)]
    updates.record([report(device=name, version=version) for name in names for version in ("1.2.0", "1.3.0")])
    assert updates.record([report(2, "healthy", device=name) for name in names]) == len(names)
    found, after = list[tuple[str, str]](), None
    while rows := updates.page(ACME, after, 999):
        found += [(each.version, each.device) for each in rows]
        after = rows[-1].name, rows[-1].version, rows[-1].device
    assert found == [(version, name) for version in ("1.2.0", "1.3.0") for name in names]


def test_filters_and_counts(updates: DeviceUpdates) -> None:
    updates.record([report(device="a"), report(device="b", state="healthy"), report(device="b", version="1.3.0")])
    assert listed(updates, UpdateFilter("acme", device="b")) == [("1.2.0", "b", "healthy"), ("1.3.0", "b", "verified")]
    assert listed(updates, UpdateFilter("acme", "blinker", "1.2.0", state="verified")) == [("1.2.0", "a", "verified")]
    assert listed(updates, UpdateFilter("other")) == []
    assert updates.counts(ACME) == [
        UpdateCount("blinker", "1.2.0", "healthy", 1),
        UpdateCount("blinker", "1.2.0", "verified", 1),
        UpdateCount("blinker", "1.3.0", "verified", 1),
    ]
    assert updates.counts(UpdateFilter("acme", version="1.3.0")) == [UpdateCount("blinker", "1.3.0", "verified", 1)]
