"""Messages of two brokers are paired, and differences named; what was not seen is no difference."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.appliance.shadow import traffic_comparison
from edge.appliance.shadow.address_comparison import AddressComparison, ComparedBroker, Difference
from edge.appliance.shadow.limits import ADDRESS_WAITING_MAX, EXAMPLES_MAX, HEAD_BYTES, LOOP_REPEATS, LOOP_WINDOW_S
from edge.appliance.shadow.retained_comparison import RetainedReading, RetainedState, compare_retained
from edge.appliance.shadow.traffic_comparison import TrafficComparison

OLD, HERE = ComparedBroker.OLD, ComparedBroker.HERE
PATIENCE_S = 10.0


def compared(old: Iterable[bytes], here: Iterable[bytes]) -> AddressComparison:
    """Return the result after all messages of one broker and then those of the other."""
    found = AddressComparison()
    for broker, bodies in ((OLD, old), (HERE, here)):
        for body in bodies:
            found.arrived(broker, body, 1.0)
    found.expire(2.0, 0.0)
    return found


class TestAddress:
    """Messages of one address."""

    @pytest.mark.parametrize(
        ("old", "here", "equal", "found"),
        [
            ("abc", "abc", 3, {}),
            ("0000", "0000", 4, {}),
            ("abc", "ac", 2, {Difference.MISSING: 1}),
            ("ab", "abx", 2, {Difference.EXTRA: 1}),
            ("abc", "abbc", 3, {Difference.DUPLICATED: 1}),
            ("aabc", "abc", 3, {Difference.DUPLICATED: 1}),
            ("abc", "acb", 3, {Difference.REORDERED: 1}),
            ("abcd", "bcda", 4, {Difference.REORDERED: 1}),
            ("abcdef", "bdf", 3, {Difference.MISSING: 3}),
        ],
    )
    def test_difference_is_named(self, old: str, here: str, equal: int, found: dict[Difference, int]) -> None:
        result = compared((each.encode() for each in old), (each.encode() for each in here))
        assert (result.equal, result.found) == (equal, found)
        assert result.counts == [len(old), len(here)]

    def test_example_has_the_beginning_of_the_payload(self) -> None:
        result = compared([b"first", b"x" * 100], [b"first"])
        [example] = result.examples
        assert (example.difference, example.broker, example.number) == (Difference.MISSING, OLD, 2)
        assert example.head == b"x" * HEAD_BYTES

    def test_examples_are_limited(self) -> None:
        result = compared([b"%d" % n for n in range(EXAMPLES_MAX + 5)], [])
        assert len(result.examples) == EXAMPLES_MAX
        assert result.found == {Difference.MISSING: EXAMPLES_MAX + 5}

    def test_message_beyond_the_window_is_not_compared(self) -> None:
        bodies = [b"%d" % n for n in range(ADDRESS_WAITING_MAX + 7)]
        result = compared(bodies, bodies)
        assert result.found == {}
        assert (result.equal, result.not_compared) == (ADDRESS_WAITING_MAX, 14)

    def test_same_message_again_and_again_is_a_loop(self) -> None:
        found = AddressComparison()
        for _ in range(LOOP_REPEATS):
            assert not found.is_looping(1.0)
            found.note_repeat(b"x", 1.0)
        assert found.is_looping(1.0)
        assert not found.is_looping(2.0 + LOOP_WINDOW_S)
        found.note_repeat(b"y", 1.0)
        assert not found.is_looping(1.0)

    @given(st.lists(st.tuples(st.sampled_from(ComparedBroker), st.binary(max_size=1)), max_size=60))
    def test_every_message_is_counted_once(self, arrivals: list[tuple[ComparedBroker, bytes]]) -> None:
        found = AddressComparison()
        for broker, body in arrivals:
            found.arrived(broker, body, 1.0)
        found.expire(2.0, 0.0)
        alone = sum(found.found.values()) - found.found.get(Difference.REORDERED, 0)
        assert 2 * found.equal + alone + found.not_compared == sum(found.counts) == len(arrivals)


@pytest.fixture
def traffic() -> TrafficComparison:
    made = TrafficComparison(PATIENCE_S)
    for broker in ComparedBroker:
        made.up(broker, 0.0)
    return made


def unjudged(traffic: TrafficComparison, address: str = "a") -> tuple[int, dict[Difference, int]]:
    found = traffic.addresses[address]
    return found.not_compared, found.found


class TestTraffic:
    """Messages of all addresses, over breaks."""

    def test_first_messages_may_have_a_counterpart_from_before(self, traffic: TrafficComparison) -> None:
        traffic.arrived(HERE, "a", b"1", 1.0)
        traffic.arrived(OLD, "a", b"2", PATIENCE_S + 1)
        traffic.expire(3 * PATIENCE_S)
        assert unjudged(traffic) == (1, {Difference.MISSING: 1})

    def test_message_has_its_time(self, traffic: TrafficComparison) -> None:
        traffic.arrived(OLD, "a", b"1", 100.0)
        traffic.expire(99.0 + PATIENCE_S)
        assert unjudged(traffic) == (0, {})
        traffic.arrived(HERE, "a", b"1", 99.0 + PATIENCE_S)
        traffic.expire(200.0)
        assert unjudged(traffic) == (0, {})
        assert traffic.waiting == 0

    def test_break_is_no_difference(self, traffic: TrafficComparison) -> None:
        traffic.arrived(OLD, "a", b"1", 100.0)
        traffic.down(HERE, 101.0, "lost")
        traffic.arrived(OLD, "a", b"2", 102.0)
        traffic.up(HERE, 103.0)
        traffic.arrived(HERE, "a", b"3", 104.0)
        traffic.arrived(OLD, "a", b"4", 104.0 + PATIENCE_S)
        traffic.expire(300.0)
        assert unjudged(traffic) == (3, {Difference.MISSING: 1})
        assert [(each.broker, each.since, each.until) for each in traffic.gaps] == [(HERE, 101.0, 103.0)]

    def test_mirror_that_is_away_delays_the_judgement(self, traffic: TrafficComparison) -> None:
        traffic.arrived(OLD, "a", b"1", 100.0)
        traffic.hold(101.0)
        traffic.hold(150.0)
        traffic.expire(155.0)
        traffic.arrived(HERE, "a", b"1", 156.0)
        traffic.expire(300.0)
        assert unjudged(traffic) == (0, {})
        assert traffic.addresses["a"].equal == 1

    def test_addresses_are_limited(self, traffic: TrafficComparison, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(traffic_comparison, "ADDRESSES_MAX", 2)
        for number in range(5):
            for broker in ComparedBroker:
                traffic.arrived(broker, f"a/{number}", b"1", 100.0)
        assert (len(traffic.addresses), traffic.further) == (2, [3, 3])

    def test_waiting_messages_are_limited(self, traffic: TrafficComparison, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(traffic_comparison, "WAITING_MAX", 3)
        for number in range(5):
            traffic.arrived(OLD, f"a/{number}", b"1", 100.0)
        assert traffic.waiting == 3
        for number in range(5):
            traffic.arrived(HERE, f"a/{number}", b"1", 101.0)
        traffic.expire(500.0)
        assert {name: each.found for name, each in traffic.addresses.items() if each.found} == {}
        assert sum(each.not_compared for each in traffic.addresses.values()) == 4


def test_retained_difference_has_to_last() -> None:
    first = RetainedReading({"same": b"1", "only-old": b"1", "differs": b"1", "moving": b"1"}, {"same": b"1",
                            "differs": b"2", "moving": b"0", "only-here": b"1"})  # fmt: skip
    second = RetainedReading({**first.old, "moving": b"2"}, first.here)
    assert compare_retained(first, second) == {
        "same": RetainedState.EQUAL,
        "only-old": RetainedState.MISSING,
        "only-here": RetainedState.EXTRA,
        "differs": RetainedState.DIFFERS,
    }
