"""Problems of addresses and spaces that are full."""

from __future__ import annotations

import pytest

from edge.appliance.problems import room_problems
from edge.broker.retention.quotas import QuotaUsage

MB = 1_000_000


def room(address: str, used: int, quota: int | None = None, reserve: int = 0, when_full: str = "reject") -> QuotaUsage:
    return QuotaUsage(address, used, quota, reserve, when_full, 0, 0)


def names(
    *rooms: QuotaUsage, space: int | None = None, at_floor: bool = False, lately: tuple[str, ...] = ()
) -> list[str]:
    bounds = {"space_bytes": space, "at_floor": at_floor, "floor_bytes": 64 * MB}
    return [found.name for found in room_problems(rooms, lately=frozenset(lately), **bounds)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rooms", "space", "expected"),
    [
        ([room("a", 5 * MB)], None, []),
        ([room("a", 99, quota=100)], None, []),
        ([room("a", 100, quota=100)], None, ["address a"]),
        ([room("a", 100, quota=100, when_full="dropOldest")], None, []),
        ([room("a", 100)], 100, ["space"]),
        ([room("a", 100)], 101, []),
        ([room("a", 50), room("b", 50, when_full="thin")], 100, []),
        ([room("a", 50), room("b", 50, when_full="thin", reserve=50)], 100, ["space"]),
        ([room("ring", 100, when_full="dropOldest")], 100, []),
        ([room("a", 10, reserve=20), room("b", 80, reserve=80, when_full="thin")], 100, []),
    ],
)
def test_full_address_is_a_problem_where_messages_are_refused(
    rooms: list[QuotaUsage], space: int | None, expected: list[str]
) -> None:
    assert names(*rooms, space=space) == expected


def test_floor_is_one_problem_for_all_addresses() -> None:
    assert names(room("a", 10), room("b", 10), at_floor=True, lately=("a", "b")) == ["free space"]


def test_message_larger_than_the_remaining_room_is_refused() -> None:
    assert names(room("a", 10, quota=100), room("b", 10), lately=("a",)) == ["address a"]
