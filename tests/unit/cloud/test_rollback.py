"""Choice of the version that a gateway goes back to, with several roll-backs in a row."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.hub.rollback import NoWayBack, find_way_back


class Past(NamedTuple):
    version: int
    content: str
    confirmed_at: int | None = None
    failure: str | None = None
    repeats: int | None = None

    @property
    def resources(self) -> list[dict[str, Any]]:
        return [{"is": self.content}]


class Gateway:
    """Versions of one gateway, the newest first."""

    def __init__(self) -> None:
        self.versions: list[Past] = []

    def set(self, content: str, *, good: bool = True) -> int:
        """Make the next version; a good one is confirmed, another one fails."""
        return self._add(Past(len(self.versions) + 1, content), good=good)

    def go_back(self, to: int | None = None, *, good: bool = True) -> str:
        """Roll back; return the content that is wanted then."""
        if to is None:
            way = find_way_back(self.versions)
            if way.is_made:
                return self.versions[0].content
            goal = way.goal
        else:
            goal = next(each for each in self.versions if each.version == to)
        self._add(Past(len(self.versions) + 1, goal.content, repeats=goal.version), good=good)
        return goal.content

    def _add(self, record: Past, *, good: bool) -> int:
        settled = record._replace(confirmed_at=1) if good else record._replace(failure="refused")
        self.versions.insert(0, settled)
        return record.version


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def test_repeated_roll_back_stays_at_the_good_version(gateway: Gateway) -> None:
    gateway.set("old")
    gateway.set("good")
    gateway.set("bad")
    assert [gateway.go_back() for _ in range(3)] == ["good"] * 3
    assert find_way_back(gateway.versions).why == "it already goes back to version 2"
    assert len(gateway.versions) == 4


def test_next_bad_version_goes_back_to_the_same_good_one(gateway: Gateway) -> None:
    gateway.set("good")
    for bad in ("bad", "worse", "worst"):
        gateway.set(bad)
        assert gateway.go_back() == "good"
    assert gateway.go_back(to=1) == "good"
    gateway.set("bad again")
    assert gateway.go_back() == "good"


def test_version_that_was_rolled_back_from_is_passed_over(gateway: Gateway) -> None:
    gateway.set("good")
    gateway.set("bad")
    gateway.go_back(to=1)
    gateway.versions[0] = gateway.versions[0]._replace(confirmed_at=None)  # the next one came before it was confirmed
    gateway.set("worse", good=False)
    way = find_way_back(gateway.versions)
    assert (way.goal.version, way.goal.content) == (1, "good")
    assert way.why == (
        "it was the last one in force and good before version 4; "
        "passed over, as rolled back from, failed, or equal to it: 2"
    )


def test_failed_roll_back_goes_further_back(gateway: Gateway) -> None:
    gateway.set("oldest")
    gateway.set("good")
    gateway.set("bad")
    assert gateway.go_back(good=False) == "good"
    assert gateway.go_back() == "oldest"
    assert gateway.go_back() == "oldest"


def test_bad_version_that_was_sent_twice_is_passed_over(gateway: Gateway) -> None:
    gateway.set("good")
    gateway.set("bad")
    gateway.set("bad")
    assert gateway.go_back() == "good"


def test_version_that_failed_after_it_was_confirmed_is_passed_over(gateway: Gateway) -> None:
    gateway.set("good")
    gateway.set("bad")
    gateway.versions[0] = gateway.versions[0]._replace(failure="system 2.0 refused")
    gateway.set("worse")
    assert gateway.go_back() == "good"


def test_without_a_good_version_nothing_is_chosen(gateway: Gateway) -> None:
    with pytest.raises(NoWayBack, match="has no version"):
        gateway.go_back()
    gateway.set("bad", good=False)
    gateway.set("worse", good=False)
    with pytest.raises(NoWayBack, match="no version before 2"):
        gateway.go_back()


@given(st.lists(st.tuples(st.sampled_from("ABC-"), st.booleans()), max_size=15))
def test_no_sequence_returns_to_a_version_that_was_left(steps: list[tuple[str, bool]]) -> None:
    gateway, left = Gateway(), set[int]()
    for content, good in steps:
        if content != "-":
            gateway.set(content, good=good)
            continue
        before = list(gateway.versions)
        try:
            gateway.go_back(good=good)
        except NoWayBack:
            continue
        if gateway.versions == before:
            continue
        newest = gateway.versions[0]
        assert newest.repeats is not None
        goal = next(each for each in before if each.version == newest.repeats)
        assert goal.confirmed_at is not None
        assert goal.failure is None
        assert goal.content != before[0].content
        assert goal.version not in left
        left.update(range(newest.repeats + 1, newest.version))
