"""Data that the console shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.hub.fleet import FleetFull, FleetState, Rate
from cloud.hub.groups import GatewaySession
from cloud.hub.limits import HISTORY_SECONDS
from cloud.hub.registry.directory import GatewayRecord
from cloud.hub.tenants import Quota, Tenants


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


def test_gateways_of_a_tenant_are_limited() -> None:
    fleet = FleetState(quotas=Tenants(own={"acme": Quota(gateways=2)}))
    fleet.load([GatewayRecord("acme", "gone", 1, 1, False, "-", 1, 0)])
    fleet.connect(GatewaySession("acme", "gw1", "a"), 1)
    with pytest.raises(FleetFull, match="`gateways`"):
        fleet.connect(GatewaySession("acme", "gw2", "a"), 1)
    fleet.connect(GatewaySession("acme", "gone", "a"), 1)
    fleet.connect(GatewaySession("other", "gw2", "a"), 1)
    assert fleet.tenant("acme").known == 2


def test_landed_messages_of_a_forgotten_gateway_count_when_it_returns() -> None:
    fleet = FleetState()
    fleet.load([GatewayRecord("acme", "gw1", 1, 1, False, "-", 1, 3)], {("acme", "gw2"): 4})
    fleet.forget(("acme", "gw1"), 5)
    for name in ("gw1", "gw2", "gw3"):
        fleet.connect(GatewaySession("acme", name, "a"), 6)
    assert sorted((each.name, each.landed) for each in fleet.gateways.values()) == [("gw1", 3), ("gw2", 4), ("gw3", 0)]


def test_forgotten_gateway_frees_its_place() -> None:
    fleet = FleetState(quotas=Tenants(own={"acme": Quota(gateways=1)}))
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
    fleet.connect(GatewaySession("acme", "gw2", "a"), 7)
    with pytest.raises(FleetFull, match="`gateways`"):
        fleet.connect(first, 8)


def test_gateway_that_came_and_left_between_two_looks_is_not_shown_elsewhere() -> None:
    """The record is older than the connection here; the registry has no record of another hub after it."""
    fleet = FleetState(hub="here")
    stale = GatewayRecord("acme", "gw1", 1, 1, True, "-", 1, 0, writer="there")
    fleet.follow([stale], {"there"})
    assert fleet.connected == 1
    session = GatewaySession("acme", "gw1", "a")
    fleet.connect(session, 2)
    fleet.disconnect(session, 3)
    fleet.follow([stale], {"there"})
    fleet.follow([], {"there"})
    assert (fleet.connected, fleet.tenant("acme").connected, fleet.connected_here) == (0, 0, 0)


def test_forgotten_gateway_of_another_hub_is_not_counted() -> None:
    fleet = FleetState(hub="here")
    fleet.follow([GatewayRecord("acme", "gw1", 1, 1, True, "-", 1, 0, writer="there")], {"there"})
    fleet.forget(("acme", "gw1"), 9)
    assert (fleet.connected, fleet.tenant("acme").connected, fleet.tenant("acme").known) == (0, 0, 0)
