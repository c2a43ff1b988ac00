"""Gateways that left a hub: its landing keeps them in memory for a while, and reads them again when they return."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cloud.hub.groups import GatewaySession, LandingGroup, LandingOutcome, Presence, QueueEntry
from cloud.hub.limits import LEFT_KEPT_S
from cloud.hub.registry.faults import GatewaysMoved
from cloud.hub.registry.generations import Generations
from cloud.lake.faults import LakeError
from cloud.lake.lake import TransactionId
from cloud.lake.sequences import SequenceRange
from tests.contract.registry.conftest import HERE, THERE, Place
from tests.contract.registry.landing_hub import LandingHub
from tests.contract.registry.landings import TEMPERATURE, batch, land, sequences
from tests.contract.registry.statements import STATEMENTS_MAX, counted
from tests.support.memory_lake import MemoryLake


class SilentLake(MemoryLake):
    """Lake that gives no answer for a while. What is written then arrives, or does not."""

    def __init__(self, *, arrives: bool) -> None:
        super().__init__()
        self.silent = False
        self._arrives = arrives

    def append(self, table: str, rows: pa.Table, transaction: TransactionId | None = None) -> int:
        if not self.silent or self._arrives:
            super().append(table, rows, transaction)
        self._require_answer()
        return len(self.appended[table])

    def settled(self, table: str, transaction: TransactionId) -> bool:
        self._require_answer()
        return super().settled(table, transaction)

    def _require_answer(self) -> None:
        if self.silent:
            raise LakeError("the lake does not answer")


NAME = TEMPERATURE.gateway
KEY = (TEMPERATURE.tenant, NAME)
OTHER = TEMPERATURE._replace(gateway="other")


@pytest.fixture
def lake() -> MemoryLake:
    return MemoryLake()


def hub_of(place: Place, lake: MemoryLake, writer: str = HERE) -> LandingHub:
    """Return a hub that admits gateways, as each hub of the product does."""
    hub = LandingHub(place, lake, writer)
    hub.registry.directory.admission.limit_to(lambda _: 1_000)
    return hub


def in_memory(hub: LandingHub) -> tuple[int, int]:
    """Return the numbers of generations and of marks of gateways."""
    return len(generations(hub)._given), len(hub.registry.commits._marks._loaded)


def generations(hub: LandingHub) -> Generations:
    return hub.registry.directory._generations


def leave(hub: LandingHub, *gateways: str) -> None:
    """Disconnect gateways, and let the time pass until they are dropped."""
    hub.disconnect(*gateways)
    hub.now_s += LEFT_KEPT_S
    hub.lander.tidy()


def land_late(hub: LandingHub, first: int, last: int) -> LandingOutcome | None:
    """Land what a gateway has sent before, without a new connection; return the outcome."""
    session = GatewaySession(*KEY, "-", gone=True)
    entry = QueueEntry(session, batch(TEMPERATURE, first, last), lambda _outcome, _words: None, 0.0)
    hub.lander.land(LandingGroup([entry]), 1_000)
    return entry.verdict


def land_held(hub: LandingHub, first: int, last: int) -> None:
    """Land content that is held until the marks of its gateway are rebuilt."""
    assert LandingOutcome.LANDED in (land_late(hub, first, last) for _ in range(9))


def test_only_connected_gateways_stay_in_memory(place: Place, lake: MemoryLake) -> None:
    hub = hub_of(place, lake)
    names = [f"gw{number}" for number in range(20)]
    hub.connect(*names, "stays")
    hub.land(*(batch(TEMPERATURE._replace(gateway=name), 0, 9) for name in [*names, "stays"]))
    assert in_memory(hub) == (21, 21)
    hub.disconnect(*names)
    hub.lander.tidy()
    assert in_memory(hub) == (21, 21), "what they have sent before may still wait"
    hub.now_s += LEFT_KEPT_S
    hub.lander.tidy()
    assert in_memory(hub) == (1, 1)


def test_gateways_that_left_lately_are_bounded(place: Place, lake: MemoryLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloud.hub.registry.generations.LEFT_GATEWAYS_MAX", 2)
    hub = hub_of(place, lake)
    for name in ("a", "b", "c", "d"):
        hub.connect(name)
        hub.disconnect(name)
        hub.lander.tidy()
    assert generations(hub)._given.keys() == {("default", "c"), ("default", "d")}, "the latest ones"


def test_repetition_after_a_drop_lands_nothing_twice(place: Place, lake: MemoryLake) -> None:
    hub = hub_of(place, lake)
    hub.connect(NAME, "other")
    hub.land(batch(TEMPERATURE, 0, 9), batch(OTHER, 0, 9))
    leave(hub, NAME)
    hub.connect(NAME)
    hub.land(batch(TEMPERATURE, 0, 19), batch(OTHER, 0, 19))
    assert sequences(lake, TEMPERATURE) == sequences(lake, OTHER) == list(range(20))
    with counted(hub.registry) as statements:
        hub.land(batch(TEMPERATURE, 10, 29), batch(OTHER, 10, 29))
    assert len(statements) <= STATEMENTS_MAX, "it is in memory again"
    assert sequences(lake, TEMPERATURE) == list(range(30))


def test_gateway_that_returns_in_time_is_not_dropped(place: Place, lake: MemoryLake) -> None:
    hub = hub_of(place, lake)
    hub.connect(NAME)
    hub.land(batch(TEMPERATURE, 0, 9))
    hub.disconnect(NAME)
    hub.connect(NAME)
    hub.land(batch(TEMPERATURE, 5, 14))
    hub.now_s += LEFT_KEPT_S
    hub.lander.tidy()
    assert in_memory(hub) == (1, 1)
    assert sequences(lake, TEMPERATURE) == list(range(15))


def test_connection_that_began_and_ended_between_two_writes_is_dropped(place: Place, lake: MemoryLake) -> None:
    hub = hub_of(place, lake)
    hub.registry.directory.presence({KEY: Presence("-", connected=False, at_us=1, connects=1)})
    assert land_late(hub, 0, 9) is LandingOutcome.LANDED
    hub.now_s += LEFT_KEPT_S
    hub.lander.tidy()
    assert in_memory(hub) == (0, 0)


def test_late_content_of_a_dropped_gateway_is_released(place: Place, lake: MemoryLake) -> None:
    """Another hub may have landed it since: nothing fences it here."""
    here, there = hub_of(place, lake), hub_of(place, lake, THERE)
    here.connect(NAME)
    assert land_late(here, 0, 9) is LandingOutcome.LANDED
    leave(here, NAME)
    there.connect(NAME)
    there.land(batch(TEMPERATURE, 0, 19))
    assert land_late(here, 5, 19) is LandingOutcome.RELEASED
    assert in_memory(here) == (0, 0)
    here.connect(NAME)
    here.land(batch(TEMPERATURE, 5, 29))
    assert sequences(lake, TEMPERATURE) == list(range(30))


def test_late_disconnect_of_a_dropped_gateway_changes_nothing_elsewhere(place: Place, lake: MemoryLake) -> None:
    here, there = hub_of(place, lake), hub_of(place, lake, THERE)
    here.connect(NAME)
    leave(here, NAME)
    there.connect(NAME)
    here.disconnect(NAME)
    [row] = there.registry.directory.gateways()
    assert (row.writer, row.connected) == (THERE, True)


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("elsewhere", [True, False], ids=["settled by another hub", "settled here"])
def test_commit_of_unknown_outcome_counts_after_a_drop(place: Place, arrives: bool, elsewhere: bool) -> None:
    """The gateway leaves and is dropped before the commit is settled."""
    lake = SilentLake(arrives=arrives)
    hub, other = hub_of(place, lake), hub_of(place, lake, THERE)
    hub.connect(NAME)
    hub.land(batch(TEMPERATURE, 0, 9))
    lake.silent = True
    assert land_late(hub, 10, 19) is None
    leave(hub, NAME)
    lake.silent = False
    for at in (other, hub) if elsewhere else (hub, other):
        at.connect(NAME)
        at.land(batch(TEMPERATURE, 0, 24))
        leave(at, NAME)
    assert sequences(lake, TEMPERATURE) == list(range(25))
    assert in_memory(hub) == in_memory(other) == (0, 0)


def test_rebuild_of_marks_begins_again_with_each_connection(
    place: Place, lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rebuild lacks the messages that another hub has landed since the connection before."""
    monkeypatch.setattr("cloud.lake.rebuild.REBUILD_FILES", 1)
    here, there = hub_of(place, lake), hub_of(place, lake, THERE)
    here.connect(NAME)
    for first in (0, 10):
        here.land(batch(TEMPERATURE, first, first + 9))
    here.registry.commits.fold()
    place.execute("UPDATE marks SET checksum = -1")
    here.connect(NAME)
    assert land_late(here, 15, 24) is None, "one of two files is read"
    there.connect(NAME)
    land_held(there, 20, 29)
    there.registry.commits.fold()
    place.execute("UPDATE marks SET checksum = -1")
    here.connect(NAME)
    land_held(here, 20, 39)
    assert sequences(lake, TEMPERATURE) == list(range(40))


def test_rebuild_of_marks_begins_again_when_the_registry_is_restored_twice(
    place: Place, lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same backup gives the same number to another connection of the gateway."""
    monkeypatch.setattr("cloud.lake.rebuild.REBUILD_FILES", 1)
    here, there = hub_of(place, lake), hub_of(place, lake, THERE)
    here.connect(NAME)
    for first in (0, 10):
        here.land(batch(TEMPERATURE, first, first + 9))
    here.registry.commits.fold()
    place.execute("UPDATE marks SET checksum = -1")
    here.connect(NAME)
    [(number,)] = place.execute("SELECT generation FROM gateways")
    assert land_late(here, 15, 24) is None, "one of two files is read"
    there.connect(NAME)
    land_held(there, 20, 29)
    there.registry.commits.fold()
    place.execute("UPDATE marks SET checksum = -1")
    place.execute("UPDATE gateways SET generation = :before", before=number - 1)
    database = here.registry.commits._database
    monkeypatch.setattr(database, "connections", database.connections + 1)
    here.connect(NAME)
    assert place.execute("SELECT generation FROM gateways") == [(number,)]
    land_held(here, 20, 39)
    assert sequences(lake, TEMPERATURE) == list(range(40))


def test_unfinished_rebuild_is_dropped_with_its_gateway(
    place: Place, lake: MemoryLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloud.lake.rebuild.REBUILD_FILES", 1)
    hub = hub_of(place, lake)
    hub.connect(NAME)
    hub.land(batch(TEMPERATURE, 0, 9))
    hub.registry.commits.fold()
    place.execute("UPDATE marks SET checksum = -1")
    hub.connect(NAME)
    assert land_late(hub, 5, 14) is None
    assert hub.lander._landing._rebuilds.keys() == {KEY}
    leave(hub, NAME)
    assert not hub.lander._landing._rebuilds


def test_no_commit_is_prepared_for_a_dropped_gateway(place: Place, lake: MemoryLake) -> None:
    hub = hub_of(place, lake)
    hub.connect(NAME)
    leave(hub, NAME)
    with pytest.raises(GatewaysMoved):
        land(hub.registry, SequenceRange(*TEMPERATURE, 0, 9))
