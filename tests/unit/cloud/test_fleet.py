"""Data that the console shows."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.hub.fleet import FleetCount, FleetState, Rate
from cloud.hub.groups import GatewaySession, GroupReport, LandingGroup
from cloud.hub.limits import HISTORY_SECONDS, LEFT_KEPT_S
from cloud.hub.observed import ObservedState
from cloud.hub.registry.directory import GatewayRecord
from cloud.lake.landing import LandingResult


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


def session_of(name: str, tenant: str = "acme") -> GatewaySession:
    return GatewaySession(tenant, name, "a")


def test_replaced_connection_does_not_set_the_gateway_offline() -> None:
    fleet = FleetState()
    old, new = session_of("gw1"), session_of("gw1")
    assert fleet.connect(old, 1) is None
    assert fleet.connect(new, 2) is old
    assert (fleet.connected_here, fleet.tenant("acme").connected) == (1, 1)
    assert not fleet.disconnect(old, 3)
    assert fleet.gateways[new.key].connected
    assert fleet.disconnect(new, 4)
    assert (fleet.connected_here, fleet.tenant("acme").connected, fleet.gateways[new.key].last_seen) == (0, 0, 4)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_shares_of_hubs_follow_their_gateways(connected: list[int]) -> None:
    hubs = [FleetState() for _ in connected]
    for fleet, count in zip(hubs, connected, strict=True):
        for number in range(count):
            fleet.connect(session_of(f"gw{number}"), 1)
        fleet.counted = FleetCount({}, {"acme": sum(connected) - count, "other": 7}, {})
    shares = [fleet.share_of("acme") for fleet, count in zip(hubs, connected, strict=True) if count]
    assert sum(shares) == pytest.approx(1.0 if any(connected) else 0.0)
    assert all(0 < fleet.share_of("acme") <= 1 for fleet in hubs), "also of one that has none yet"


def test_gateway_that_left_stays_for_a_while() -> None:
    fleet, after_us = FleetState(), int(LEFT_KEPT_S * 1e6)
    for at_us, name in enumerate(("gw1", "gw2", "gw3")):
        fleet.connect(session := session_of(name), at_us)
        fleet.disconnect(session, at_us)
    again = session_of("gw1")
    fleet.connect(again, 3)
    fleet.drop_left(after_us)
    assert list(fleet.gateways) == [("acme", "gw1"), ("acme", "gw2"), ("acme", "gw3")]
    fleet.drop_left(after_us + 1)
    assert list(fleet.gateways) == [("acme", "gw1"), ("acme", "gw3")], "gw1 is connected"
    fleet.disconnect(again, after_us + 2)
    fleet.connect(session_of("gw4"), 2 * after_us + 3)
    assert list(fleet.gateways) == [("acme", "gw4")]


def test_gateways_that_left_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.fleet.LEFT_GATEWAYS_MAX", 2)
    fleet = FleetState()
    sessions = [session_of(f"gw{number}") for number in range(4)]
    for session in sessions:
        fleet.connect(session, 1)
    assert len(fleet.gateways) == 4, "connected ones do not count"
    for session in sessions:
        fleet.disconnect(session, 2)
    assert list(fleet.gateways) == [("acme", "gw2"), ("acme", "gw3")]


def test_forgotten_gateway_is_dropped_unless_it_was_there_since() -> None:
    fleet = FleetState()
    first = session_of("gw1")
    fleet.connect(first, 1)
    fleet.forget(first.key, 5)
    assert first.key in fleet.gateways, "it is there"
    fleet.disconnect(first, 5)
    fleet.forget(first.key, 5)
    assert first.key in fleet.gateways, "it was there since"
    for _ in range(2):
        fleet.forget(first.key, 6)
    assert not fleet.gateways
    fleet.connect(first, 7)
    assert list(fleet.gateways) == [first.key]


def test_refused_gateway_is_not_kept() -> None:
    fleet = FleetState()
    session = session_of("gw1")
    fleet.connect(session, 1)
    assert fleet.refuse(session.key) is session
    fleet.disconnect(session, 2)
    assert fleet.refuse(session.key) is None
    assert (fleet.gateways, fleet.count_known()) == ({}, 0)


def test_refused_gateway_whose_connection_has_ended_is_not_kept() -> None:
    fleet = FleetState()
    session = session_of("gw1")
    fleet.connect(session, 1)
    fleet.disconnect(session, 2)
    assert fleet.refuse(session.key) is None
    assert not fleet.gateways


def test_numbers_are_those_of_the_registry_and_of_this_hub() -> None:
    fleet = FleetState(hub="here")
    assert (fleet.count_known(), fleet.count_connected("acme")) == (0, 0)
    fleet.connect(session_of("gw1"), 1)
    assert (fleet.count_known("acme"), fleet.count_connected("acme"), fleet.count_connected()) == (1, 1, 1)
    fleet.counted = FleetCount({"acme": 5, "other": 2}, {"acme": 2, "other": 1}, {"there": 3})
    assert (fleet.count_known("acme"), fleet.count_connected("acme")) == (5, 3)
    assert (fleet.count_known(), fleet.count_connected(), fleet.count_connected("nobody")) == (7, 4, 0)
    fleet.counted = FleetCount({"acme": 1}, {"acme": 1}, {"there": 1})
    assert fleet.count_connected("acme") == 1, "it has just come from another hub"


def test_what_the_registry_has_of_a_gateway_is_restored_once_it_connects() -> None:
    fleet = FleetState(hub="here")
    session = session_of("gw1")
    assert fleet.restore(session.key, 7, None) is None, "it has gone"
    fleet.connect(session, 1)
    gateway = fleet.gateways[session.key]
    assert not gateway.is_stored
    before = ObservedState({"version": "1"}, 50, 3)
    assert fleet.restore(session.key, 7, msgspec.json.encode(before).decode()) is None
    assert (gateway.landed, gateway.status, gateway.newest_received_at) == (7, {"version": "1"}, 50)
    assert (gateway.dropped, gateway.is_stored) == (0, True), "drops count since the hub started"
    gateway.landed, gateway.newest_received_at, gateway.status = 9, 60, {"version": "2"}
    assert fleet.restore(session.key, 8, msgspec.json.encode(before).decode()) is gateway
    assert (gateway.landed, gateway.newest_received_at, gateway.status) == (9, 60, {"version": "2"})
    assert fleet.restore(session.key, 8, '{"status": 7}') is gateway, "that of a newer program changes nothing"
    fleet.connect(session_of("gw1"), 2)
    elsewhere = msgspec.json.encode(ObservedState({"version": "3"}, 70, 0)).decode()
    assert fleet.restore(session.key, 9, elsewhere) is None
    assert gateway.status == {"version": "3"}, "the connection before hung while it was at another hub"


def test_record_of_a_gateway_that_is_here_shows_the_present() -> None:
    fleet = FleetState(hub="here")
    session = session_of("gw1")
    fleet.connect(session, 9)
    record = GatewayRecord("acme", "gw1", 3, 8, False, "b", 1, 70, "there", 2, '{"status": {"version": "1"}}')
    state = fleet.current(record)
    assert (state.connected, state.hub, state.first_seen, state.landed) == (True, "here", 3, 70)
    assert state.status == {"version": "1"}, "until it reports"
    assert fleet.gateways[session.key].landed == 0, "showing changes nothing"
    fleet.disconnect(session, 10)
    assert fleet.current(record).hub == "there", "its last connection was elsewhere"
    mine = fleet.current(record._replace(writer="here", connected=True))
    assert (mine.connected, mine.last_seen) == (False, 10), "the end of its connection is not written yet"


def test_landed_messages_count_after_their_gateway_was_dropped() -> None:
    fleet = FleetState()
    report = GroupReport(landed=LandingResult(rows=3, by_gateway={("acme", "gw1"): 3}))
    fleet.landed(LandingGroup([], {}), report, 1.0)
    assert (fleet.tenant("acme").rows, fleet.totals.rows) == (3, 3)
