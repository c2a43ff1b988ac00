"""Data that the console shows."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.hub.elsewhere import ElsewhereGateways, compare
from cloud.hub.fleet import FleetState, Rate
from cloud.hub.groups import GatewaySession
from cloud.hub.limits import HISTORY_SECONDS
from cloud.hub.registry.directory import GatewayRecord


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 9))), st.integers(0, 100))
def test_rate_counts_the_last_seconds(events: list[tuple[int, int]], later: int) -> None:
    rate, now, model = Rate(), 0, dict[int, int]()
    for after, messages in events:
        now += after
        rate.add(messages, now + 0.5)
        model[now] = model.get(now, 0) + messages
    now += later
    wanted = [model.get(second, 0) for second in range(now - HISTORY_SECONDS + 1, now)]
    assert rate.history(now + 0.9) == wanted


def test_replaced_connection_does_not_set_the_gateway_offline() -> None:
    fleet = FleetState()
    old, new = GatewaySession("default", "gw1", "a"), GatewaySession("default", "gw1", "b")
    assert fleet.connect(old, 1) is None
    assert fleet.connect(new, 2) is old
    assert fleet.connected == 1
    assert not fleet.disconnect(old, 3)
    assert fleet.gateways["default", "gw1"].connected
    assert fleet.disconnect(new, 4)
    assert (fleet.connected, fleet.gateways["default", "gw1"].last_seen) == (0, 4)


def test_landed_messages_of_a_forgotten_gateway_count_when_it_returns() -> None:
    fleet = FleetState()
    fleet.load([GatewayRecord("acme", "gw1", 1, 1, False, "-", 1, 3)], {("acme", "gw2"): 4})
    fleet.forget(("acme", "gw1"), 5)
    for name in ("gw1", "gw2", "gw3"):
        fleet.connect(GatewaySession("acme", name, "a"), 6)
    assert sorted((each.name, each.landed) for each in fleet.gateways.values()) == [("gw1", 3), ("gw2", 4), ("gw3", 0)]


def test_forgotten_gateway_is_not_known() -> None:
    fleet = FleetState()
    first = GatewaySession("acme", "gw1", "a")
    fleet.connect(first, 1)
    fleet.forget(first.key, 5)
    assert fleet.tenant("acme").known == 1, "it is there"
    fleet.disconnect(first, 5)
    fleet.forget(first.key, 5)
    assert fleet.tenant("acme").known == 1, "it was there since"
    for _ in range(2):
        fleet.forget(first.key, 6)
    assert fleet.tenant("acme").known == 0


def test_refused_gateway_is_not_known() -> None:
    fleet = FleetState()
    session = GatewaySession("acme", "gw1", "a")
    fleet.connect(session, 1)
    assert fleet.refuse(session.key) is session
    fleet.disconnect(session, 2)
    assert fleet.refuse(session.key) is None
    assert (fleet.tenant("acme").known, fleet.connected, fleet.left_out) == (0, 0, False)


def test_refused_gateway_whose_connection_has_ended_is_not_known() -> None:
    fleet = FleetState()
    session = GatewaySession("acme", "gw1", "a")
    fleet.connect(session, 1)
    fleet.disconnect(session, 2)
    assert fleet.refuse(session.key) is None
    assert (fleet.tenant("acme").known, fleet.gateways) == (0, {})


def test_no_gateway_is_refused_for_the_memory_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.fleet.GATEWAYS_MAX", 2)
    fleet = FleetState(hub="here")
    records = [GatewayRecord("acme", f"gw{number}", 1, number, False, "-", 1, 7) for number in range(2)]
    fleet.load(records)
    assert not fleet.may_know(("acme", "gw9"))
    sessions = [GatewaySession("acme", f"new{number}", "a") for number in range(3)]
    for session in sessions:
        assert fleet.connect(session, 9) is None
    assert (len(fleet.gateways), fleet.connected_here) == (5, 3)
    for session in sessions:
        fleet.disconnect(session, 10)
    assert sorted(name for _, name in fleet.gateways) == ["gw0", "gw1"], "as many as are kept"
    assert fleet.may_know(("acme", "new0")), "only the registry knows"


def test_first_sight_of_a_gateway_that_was_left_out_is_in_its_record() -> None:
    fleet = FleetState(hub="here")
    fleet.connect(GatewaySession("acme", "gw1", "a"), 9)
    state = fleet.current(GatewayRecord("acme", "gw1", 3, 9, True, "a", 1, 70, writer="here"))
    assert (state.first_seen, state.landed, state.session is not None) == (3, 70, True)


class Looks:
    """Looks of a fleet at the gateways of other hubs."""

    def __init__(self, fleet: FleetState) -> None:
        self.elsewhere = ElsewhereGateways(fleet)

    def look(self, *found: GatewayRecord, there: Collection[str] = ("there",)) -> int:
        """Take over a look; return its number of steps."""
        look = compare(self.elsewhere.records, found)
        return sum(1 for _ in self.elsewhere.take_over(look, there))


THERE = GatewayRecord("acme", "gw1", 1, 1, True, "-", 1, 0, writer="there")


def test_gateway_that_came_and_left_between_two_looks_is_not_shown_elsewhere() -> None:
    """The record is older than the connection here; the registry has no record of another hub after it."""
    fleet = FleetState(hub="here")
    looks = Looks(fleet)
    looks.look(THERE)
    assert fleet.connected == 1
    session = GatewaySession("acme", "gw1", "a")
    fleet.connect(session, 2)
    fleet.disconnect(session, 3)
    looks.look(THERE)
    looks.look()
    assert (fleet.connected, fleet.tenant("acme").connected, fleet.connected_here) == (0, 0, 0)


def test_forgotten_gateway_of_another_hub_is_not_counted() -> None:
    fleet = FleetState(hub="here")
    Looks(fleet).look(THERE)
    fleet.forget(("acme", "gw1"), 9)
    assert (fleet.connected, fleet.tenant("acme").connected, fleet.tenant("acme").known) == (0, 0, 0)


def test_look_without_changes_takes_over_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.elsewhere.FOLLOWED_AT_ONCE", 2)
    fleet = FleetState(hub="here")
    looks = Looks(fleet)
    records = [THERE._replace(name=f"gw{number}", observed=f'{{"dropped": {number}}}') for number in range(5)]
    assert looks.look(*records) == 3, "in slices"
    assert (fleet.connected, fleet.gateways["acme", "gw4"].dropped) == (5, 4)
    assert looks.look(*(record._replace() for record in records)) == 0
    records[3] = records[3]._replace(last_seen=7, observed='{"dropped": 9}')
    assert looks.look(*records) == 1
    assert (fleet.gateways["acme", "gw3"].last_seen, fleet.gateways["acme", "gw3"].dropped) == (7, 9)
    assert looks.look(*records[:2]) == 2
    assert (fleet.connected, fleet.tenant("acme").connected) == (2, 2)


def test_gateways_follow_their_hub_although_their_records_stay() -> None:
    fleet = FleetState(hub="here")
    looks = Looks(fleet)
    looks.look(THERE)
    looks.look(THERE, there=())
    assert fleet.connected == 0
    looks.look(THERE)
    assert fleet.connected == 1


def test_look_that_is_not_taken_over_to_its_end_is_repeated() -> None:
    fleet = FleetState(hub="here")
    looks = Looks(fleet)
    session = GatewaySession("acme", "gw1", "a")
    fleet.connect(session, 2)
    looks.look(THERE)
    fleet.disconnect(session, 3)
    fleet.forget(("acme", "gw1"), 9)
    steps = looks.elsewhere.take_over(compare(looks.elsewhere.records, [THERE._replace(last_seen=8)]), ("there",))
    next(steps)
    steps.close()
    assert looks.elsewhere.records[THERE.tenant, THERE.name] == THERE
    assert looks.look(THERE._replace(last_seen=8)) == 1


def test_gateway_without_a_place_comes_when_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.fleet.GATEWAYS_MAX", 1)
    fleet = FleetState(hub="here")
    looks, other = Looks(fleet), THERE._replace(name="gw2")
    looks.look(THERE, other)
    looks.look(THERE, other)
    assert list(fleet.gateways) == [("acme", "gw1")]
    fleet.forget(("acme", "gw1"), 9)
    looks.look(other)
    assert list(fleet.gateways) == [("acme", "gw2")]
