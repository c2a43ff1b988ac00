"""Usual intervals of clients, learned from their message counts, and silence beyond them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edge.appliance.clients.activity import (
    CLIENTS_LOOKED_AT_MAX,
    GAPS_KEPT_MAX,
    GAPS_MIN,
    LOST_KEPT_MAX,
    LOST_KEPT_S,
    SILENT_AFTER_INTERVALS,
    ClientActivity,
    ClientCount,
    ClientKey,
)
from edge.appliance.clients.silence import SilentClient, silence_problems
from edge.health.problems import Severity


class Hall:
    """Connected clients with a clock, looked at each second."""

    def __init__(self) -> None:
        self.counts: dict[ClientKey, int] = {}
        self.open: set[int] = set()
        self.activity = ClientActivity(self._counts, self.open)
        self.now = 100.0

    def _counts(self) -> Iterator[ClientCount]:
        for key, count in list(self.counts.items()):
            yield ClientCount(key, count)

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            self.activity.look(self.now)

    def send(self, key: ClientKey, times: int, every_s: int, burst: int = 1) -> None:
        for _ in range(times):
            self.counts[key] = self.counts.get(key, 0) + burst
            self.wait(every_s)

    def learned(self, key: ClientKey, every_s: int = 10, times: int = GAPS_MIN + 2) -> None:
        self.send(key, times, every_s)


class TestInterval:
    def test_it_is_the_median_of_the_last_gaps(self) -> None:
        hall = Hall()
        hall.learned("pump", every_s=10, times=GAPS_KEPT_MAX + 5)
        known = hall.activity.of("pump")
        assert known is not None
        assert known.interval_s == 10
        assert known.gaps is not None
        assert len(known.gaps) == GAPS_KEPT_MAX
        hall.send("pump", GAPS_KEPT_MAX, every_s=3)
        assert known.interval_s == 3

    def test_it_is_unknown_before_there_are_enough(self) -> None:
        hall = Hall()
        hall.send("pump", GAPS_MIN, every_s=10)  # a gap less than messages
        known = hall.activity.of("pump")
        assert known is not None
        assert known.interval_s is None
        hall.wait(10_000)
        assert not hall.activity.is_silent("pump")

    def test_a_burst_counts_as_one_message(self) -> None:
        hall = Hall()
        hall.send("pump", GAPS_MIN + 2, every_s=60, burst=100)
        known = hall.activity.of("pump")
        assert known is not None
        assert known.interval_s == 60

    def test_a_client_without_messages_costs_nothing(self) -> None:
        hall = Hall()
        hall.counts["subscriber"] = 0
        hall.wait(5)
        assert hall.activity.of("subscriber") is None

    def test_two_looks_at_once_are_no_gap(self) -> None:
        hall = Hall()
        for count in range(1, 50):
            hall.activity.look_at(ClientCount("pump", count), hall.now + count / 1000)
        known = hall.activity.of("pump")
        assert known is not None
        assert known.gaps is None


class TestSilence:
    def test_a_client_is_silent_after_five_intervals_until_its_next_message(self) -> None:
        hall = Hall()
        hall.learned("pump", every_s=10)
        hall.wait(10 * SILENT_AFTER_INTERVALS - 11)
        assert not hall.activity.is_silent("pump")
        hall.wait(4)
        assert hall.activity.is_silent("pump")
        hall.send("pump", 1, every_s=2)
        assert not hall.activity.is_silent("pump")

    def test_a_lost_client_becomes_silent_and_one_that_left_does_not(self) -> None:
        hall = Hall()
        hall.learned("lost")
        hall.learned("left")
        for key, lost in (("lost", True), ("left", False)):
            del hall.counts[key]
            hall.activity.left(key, lost, hall.now)
        hall.wait(100)
        assert hall.activity.silent == {"lost"}
        assert hall.activity.of("left") is None

    def test_a_lost_client_that_returns_keeps_its_interval(self) -> None:
        hall = Hall()
        hall.learned("pump")
        del hall.counts["pump"]
        hall.activity.left("pump", True, hall.now)
        hall.wait(100)
        hall.counts["pump"] = 0
        hall.wait(1)
        assert hall.activity.is_silent("pump"), "it is connected, and sends nothing"
        assert not hall.activity.lost
        hall.send("pump", 1, every_s=2)
        assert not hall.activity.is_silent("pump")

    def test_a_device_that_connects_for_each_message(self) -> None:
        hall = Hall()
        for _ in range(GAPS_MIN + 2):
            hall.counts["pump"] = 1
            hall.wait(2)
            del hall.counts["pump"]
            hall.activity.left("pump", True, hall.now)
            hall.wait(58)
        assert hall.activity.of("pump") is None, "an interval is learned within a connection only"

    def test_lost_clients_are_bounded_and_end(self) -> None:
        hall = Hall()
        for number in range(LOST_KEPT_MAX + 5):
            key = f"c{number}"
            for count in range(1, GAPS_MIN + 3):
                hall.activity.look_at(ClientCount(key, count), hall.now + 10 * count)
            hall.activity.left(key, True, hall.now)
        assert len(hall.activity.lost) == LOST_KEPT_MAX
        hall.activity.look(hall.now + LOST_KEPT_S + 1)
        assert not hall.activity.lost
        assert not hall.activity.silent

    def test_an_amqp_connection_is_forgotten_at_its_end(self) -> None:
        hall = Hall()
        hall.open.add(7)
        hall.learned(7)
        del hall.counts[7]
        hall.open.clear()
        hall.wait(3)
        assert hall.activity.of(7) is None

    def test_many_clients_are_looked_at_in_turn(self) -> None:
        hall = Hall()
        hall.counts.update({f"c{number}": 1 for number in range(2 * CLIENTS_LOOKED_AT_MAX)})
        hall.wait(2)
        assert sum(hall.activity.of(key) is not None for key in hall.counts) == CLIENTS_LOOKED_AT_MAX
        hall.wait(1)
        assert all(hall.activity.of(key) is not None for key in hall.counts)


@pytest.mark.parametrize("lost", [True, False])
def test_the_notice_names_device_time_and_interval(lost: bool) -> None:
    (found,) = silence_problems([SilentClient("pump 7", lost, 1_000_000_000.0, 10)])
    assert (found.name, found.severity) == ("device silent", Severity.NOTICE)
    assert "2001-09-09 01:46 UTC" in found.what
    assert "every 10 s" in found.what
    assert "client show 'pump 7'" in found.next_step
