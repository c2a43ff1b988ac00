"""Uses of a bundle in configurations, roll-outs and selectors, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bridge.desired import DesiredReport, SystemPhase, SystemReport
from cloud.hub.groups import Presence
from cloud.hub.registry.bundle_use import BundleUse, find_bundle_use
from cloud.hub.registry.configurations import Configurations, WantedConfiguration
from cloud.hub.registry.database import Database
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.rollouts import RolloutRecord, Rollouts
from cloud.hub.registry.selectors import SelectorRecord, store_selector
from cloud.hub.rollout import MemberPhase, RolloutMember, RolloutState
from tests.contract.registry.conftest import Place
from tests.contract.registry.wanted import GATEWAYS, sign

NAME = "next_1.raucb"
UNUSED = BundleUse(0, (), ())


def system(name: str) -> dict[str, Any]:
    spec = {"version": "2", "build": "b" * 64, "url": f"hub:{name}", "sha256": "c" * 64, "size": 5}
    return {"apiVersion": "waypost/v1", "kind": "System", "metadata": {"name": "gateway"}, "spec": spec}


@pytest.fixture
def database(place: Place) -> Iterator[Database]:
    registry = place.open()
    registry.directory.presence({("acme", name): Presence("here", True, 1, 1) for name in GATEWAYS})
    registry.close()
    opened = open_registry(place.url).database
    yield opened
    opened.close()


def want(database: Database, gateway: str, name: str) -> None:
    wanted = WantedConfiguration("acme", gateway, [system(name)], 60.0, False, "ann", "")
    Configurations(database).set_wanted([wanted], 1, sign)


def test_bundle_is_needed_until_each_gateway_has_decided(database: Database) -> None:
    for gateway, name in (("g1", NAME), ("g2", NAME), ("g3", "next-1.raucb")):
        want(database, gateway, name)
    assert find_bundle_use(database, NAME) == BundleUse(2, (), ()), "the other name only looks like a pattern of it"
    for number, (gateway, phase) in enumerate((("g1", SystemPhase.KEPT), ("g2", SystemPhase.ROLLED_BACK)), 1):
        decided = DesiredReport(version=1, newest=1, system=SystemReport(version="2", phase=phase))
        Configurations(database).reported([(("acme", gateway), decided)], 2)
        assert find_bundle_use(database, NAME).gateways == 2 - number, gateway
    want(database, "g1", NAME)
    want(database, "g1", "later.raucb")
    assert find_bundle_use(database, NAME) == UNUSED, "the newest version counts"


@pytest.mark.parametrize("state", list(RolloutState))
def test_roll_out_that_is_not_over_needs_it(database: Database, state: RolloutState) -> None:
    record = RolloutRecord("r1", "acme", 1, "ann", "", [system(NAME)], 5.0, False, 1.0, 9.0, 0, 0, state, "")
    Rollouts(database).add(record, [RolloutMember("g1", 0, MemberPhase.WAITING, 1)])
    over = state in (RolloutState.DONE, RolloutState.ABORTED)
    assert find_bundle_use(database, NAME) == (UNUSED if over else BundleUse(0, ("r1",), ()))


def test_selector_needs_it_for_gateways_to_come(database: Database) -> None:
    record = SelectorRecord("acme", "site=north", 1, "ann", "", [system(NAME)], 5.0, False, None)
    database.transaction(lambda tx: store_selector(tx, record))
    found = find_bundle_use(database, NAME)
    assert found == BundleUse(0, (), ("site=north",))
    assert "site=north" in str(found)
    assert find_bundle_use(database, "1.raucb") == UNUSED
