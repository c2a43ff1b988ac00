"""State of a gateway that connects: the hub restores it from the registry before it writes a new one."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import pytest

from bridge.intake import Intake
from cloud.hub.committer import Committer
from cloud.hub.fleet import FleetState
from cloud.hub.groups import GatewaySession, GroupReport, Key, LandingGroup, StoredState
from cloud.hub.metrics import Metrics
from cloud.hub.observed import ObservedState
from cloud.hub.service import HubService

KEY: Final = ("acme", "gw1")
NOW_US: Final = 1_800_000_000_000_000


class StubCommitter:
    """Records what the service hands over."""

    def __init__(self) -> None:
        self.reported: list[Any] = []
        self.pressing_bytes = 0
        self.seen: list[Key] = []
        self.observed: list[tuple[ObservedState, bool]] = []

    def connect(self, session: GatewaySession) -> None:
        """Take a connect."""

    def disconnect(self, session: GatewaySession, *, replaced: bool = False) -> None:
        """Take the end of a connection."""

    def put_state(self, row: Mapping[str, Any]) -> None:
        """Take a row of states."""

    def record_seen(self, key: Key) -> None:
        self.seen.append(key)

    def record_observed(self, key: Key, observed: str, *, soon: bool = False) -> None:
        self.observed.append((msgspec.json.decode(observed, type=ObservedState), soon))


class StubIntake:
    """Connection of a gateway without data."""

    waiting_bytes, has_backlog = 0, False

    def __init__(self) -> None:
        self.instance = "run"
        self.closed: tuple[str, str] | None = None

    def close(self, condition: str, description: str) -> None:
        self.closed = condition, description

    def share(self, batches: int) -> None:
        """Take its share of the room for credit."""

    def resume_decoding(self) -> None:
        """Decode nothing."""


class World:
    """Service of a hub without sockets and disks."""

    def __init__(self) -> None:
        self.fleet, self.committer = FleetState(hub="here"), StubCommitter()
        metrics = cast(Metrics, SimpleNamespace())
        self.service = HubService(
            self.fleet, cast(Committer, self.committer), metrics, now_us=lambda: NOW_US, clock=lambda: 0.0
        )
        self.intake = cast(Intake, StubIntake())
        self.service.register_peer(self.intake, "acme", "192.0.2.1:9")
        self.service.gateway_connected("gw1", self.intake)

    def report(self, **status: Any) -> None:
        self.service.status_arrived(self.intake, {"version": "2", **status}, "gw1")

    def store(self, state: ObservedState | None) -> None:
        """Report that the connect was written; `state`: what the registry has of the gateway."""
        observed = None if state is None else msgspec.json.encode(state).decode()
        report = GroupReport(stored={KEY: StoredState(7, observed)})
        for listener in self.committer.reported:
            listener(LandingGroup([], {}), report)


@pytest.fixture
def world() -> World:
    return World()


def test_status_before_the_state_is_restored_is_recorded_afterwards(world: World) -> None:
    world.report()
    assert (world.committer.seen, world.committer.observed) == ([KEY], [])
    world.store(ObservedState({"version": "1"}, 50, 3))
    [(observed, soon)] = world.committer.observed
    assert observed.status is not None
    assert (observed.status["version"], observed.newest_received_at, observed.dropped) == ("2", 50, 0)
    assert not soon, "its condition is the same"
    assert world.fleet.gateways[KEY].landed == 7


def test_status_after_the_state_is_restored_is_recorded_at_once(world: World) -> None:
    world.store(ObservedState({"version": "1"}, 50, 3))
    assert world.committer.observed == []
    world.report(storage={"room_hours": 0.0})
    [(observed, _)] = world.committer.observed
    assert observed.newest_received_at == 50


def test_gateway_that_comes_back_overwrites_nothing_that_another_hub_saw(world: World) -> None:
    world.store(None)
    world.report()
    world.service.gateway_disconnected("gw1", world.intake)
    world.committer.observed.clear()
    world.service.gateway_connected("gw1", world.intake)
    world.store(ObservedState({"version": "3"}, 90, 0))
    assert world.committer.observed == [], "it has reported nothing since"
    gateway = world.fleet.gateways[KEY]
    assert (gateway.status, gateway.newest_received_at) == ({"version": "3"}, 90)


def test_first_status_of_a_new_gateway_is_recorded_soon(world: World) -> None:
    world.report()
    world.store(None)
    assert [soon for _, soon in world.committer.observed] == [True]


def test_gateway_that_left_before_is_restored_too(world: World) -> None:
    world.report()
    world.service.gateway_disconnected("gw1", world.intake)
    world.store(ObservedState({"version": "1"}, 50, 3))
    assert world.fleet.gateways[KEY].newest_received_at == 50
    assert len(world.committer.observed) == 1


def test_refused_gateway_is_closed_and_not_kept(world: World) -> None:
    report = GroupReport(refused=[KEY])
    for listener in world.committer.reported:
        listener(LandingGroup([], {}), report)
    assert cast(StubIntake, world.intake).closed is not None
    world.service.gateway_disconnected("gw1", world.intake)
    assert not world.fleet.gateways
