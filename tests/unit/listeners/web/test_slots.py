"""The longest idle connection of the origin with most connections closes when there are too many."""

from __future__ import annotations

from edge.broker.listeners.web.slots import ConnectionSlots


class Connection:
    def __init__(self) -> None:
        self.ended = 0

    def shed(self) -> None:
        self.ended += 1


def test_oldest_connection_of_an_origin_with_too_many_is_closed() -> None:
    places = ConnectionSlots(10, 2)
    first, second, third, other = (Connection() for _ in range(4))
    places.take(other, "b")
    for connection in (first, second, third):
        places.take(connection, "a")
    assert [each.ended for each in (first, second, third, other)] == [1, 0, 0, 0]
    assert len(places) == 3


def test_oldest_connection_of_the_largest_origin_is_closed() -> None:
    places = ConnectionSlots(4, 10)
    greedy = [Connection() for _ in range(3)]
    modest, late = Connection(), Connection()
    places.take(modest, "modest")
    for connection in greedy:
        places.take(connection, "greedy")
    places.take(late, "late")
    assert [each.ended for each in (*greedy, modest, late)] == [1, 0, 0, 0, 0]


def test_released_connection_is_not_closed() -> None:
    places = ConnectionSlots(10, 1)
    first, second = Connection(), Connection()
    places.take(first, "a")
    places.leave(first)
    places.leave(first)
    places.take(second, "a")
    assert (first.ended, second.ended, len(places)) == (0, 0, 1)


def test_returning_connection_is_the_newest() -> None:
    places = ConnectionSlots(10, 2)
    first, second, third = (Connection() for _ in range(3))
    for connection in (first, second, first, third):
        places.take(connection, "a")
    assert [each.ended for each in (first, second, third)] == [0, 1, 0]
