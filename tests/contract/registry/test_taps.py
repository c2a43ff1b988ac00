"""Taps of the lake in the registry: one hub passes commits on, and another one continues where it stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cloud.hub.registry.taps import RegistryTaps, TapName, TapRecord
from tests.contract.registry.conftest import HERE, THERE, Place

NAME = TapName("lake-1", "telemetry", "waypost")
SILENT_US = 60_000_000


def begin(now_us: int, version: int = 7) -> TapRecord:
    return TapRecord(0, None, now_us, version, "", version, None, 0, "")


@pytest.fixture
def taps(place: Place) -> Iterator[RegistryTaps]:
    with contextlib.closing(RegistryTaps(place.url)) as opened:
        yield opened


def claimed(taps: RegistryTaps, hub: str, now_us: int) -> TapRecord:
    record = taps.claim(NAME, hub, begin(now_us), SILENT_US)
    assert record is not None
    return record


def test_new_tap_begins_at_the_newest_version(taps: RegistryTaps) -> None:
    assert taps.read(NAME) is None
    record = claimed(taps, HERE, 1_000)
    assert record == taps.read(NAME)
    assert (record.holder, record.version, record.seen_at) == (HERE, 7, 1_000)


def test_claim_of_a_hub_that_writes_is_kept(taps: RegistryTaps) -> None:
    claimed(taps, HERE, 1_000)
    assert taps.claim(NAME, THERE, begin(1_000 + SILENT_US - 1), SILENT_US) is None


def test_claim_of_a_silent_hub_ends(taps: RegistryTaps) -> None:
    """The first hub notices it at its next change, and changes nothing."""
    first = claimed(taps, HERE, 1_000)
    second = claimed(taps, THERE, 1_000 + SILENT_US)
    assert (second.holder, second.version) == (THERE, 7)
    assert taps.advance(NAME, first, first._replace(version=9)) is None
    assert taps.read(NAME) == second


def test_hub_continues_where_the_other_one_has_stopped(taps: RegistryTaps) -> None:
    first = claimed(taps, HERE, 1_000)
    passed = taps.advance(NAME, first, first._replace(version=8, records=5, digest="d", seen_at=2_000))
    assert passed is not None
    assert passed.number == first.number + 1
    released = taps.advance(NAME, passed, passed._replace(holder=None, trouble="no broker answers"))
    assert released is not None
    second = claimed(taps, THERE, 2_001)
    assert (second.version, second.records, second.digest, second.trouble) == (8, 5, "d", "no broker answers")


def test_own_claim_is_renewed(taps: RegistryTaps) -> None:
    claimed(taps, HERE, 1_000)
    assert claimed(taps, HERE, 1_001).seen_at == 1_001


def test_taps_of_other_topics_are_separate(taps: RegistryTaps) -> None:
    claimed(taps, HERE, 1_000)
    other = NAME._replace(topic="other")
    assert taps.read(other) is None
    assert taps.claim(other, THERE, begin(1_000, 3), SILENT_US) is not None


def test_one_of_two_hubs_that_claim_at_once_gets_it(place: Place) -> None:
    with contextlib.closing(RegistryTaps(place.url)):
        pass  # creates the tables

    def claim(hub: str) -> TapRecord | None:
        with contextlib.closing(RegistryTaps(place.url)) as taps:
            return taps.claim(NAME, hub, begin(1_000), SILENT_US)

    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(claim, (HERE, THERE)))
    assert sum(each is not None for each in results) == 1
