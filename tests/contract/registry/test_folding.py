"""Log of landed commits: one row for all gateways of a landing, folded later by any hub."""

from __future__ import annotations

import pytest

from cloud.hub.groups import GatewayLineage, Presence
from cloud.hub.limits import FOLD_EVERY_S
from cloud.hub.registry.faults import WriterReplaced
from cloud.hub.registry.schema import SCHEMA_VERSION
from cloud.lake.commits import GatewayStore
from cloud.lake.faults import RegistryError
from cloud.lake.sequences import SequenceRange, SequenceStream
from tests.contract.registry.conftest import HERE, THERE, Place
from tests.contract.registry.landing_hub import LandingHub as Hub
from tests.contract.registry.landings import batch, land
from tests.contract.registry.statements import STATEMENTS_MAX, counted
from tests.support.memory_lake import MemoryLake

STREAM = SequenceStream("default", "gw", "e", "a")
KEY = ("default", "gw")


def connected() -> Presence:
    return Presence("-", connected=True, at_us=1, connects=1)


def moved(first: int, last: int, stream: SequenceStream = STREAM) -> SequenceRange:
    return SequenceRange(*stream, first, last)


def landed_of(place: Place, gateway: str = "gw") -> list[int]:
    return [row[0] for row in place.execute("SELECT landed FROM gateways WHERE name = :name", name=gateway)]


@pytest.mark.parametrize("gateways", [1, 10, 300])
def test_landing_takes_few_statements_whatever_the_number_of_gateways(place: Place, gateways: int) -> None:
    hub = Hub(place, MemoryLake())
    names = [f"gw{number}" for number in range(gateways)]
    hub.connect(*names)
    for first in (0, 10, 20):
        sent = [batch(STREAM._replace(gateway=name, address=a), first, first + 9) for name in names for a in ("a", "b")]
        with counted(hub.registry) as statements:
            hub.land(*sent)
    assert len(statements) <= STATEMENTS_MAX, statements
    hub.registry.commits.fold()
    assert landed_of(place, names[-1]) == [60]
    assert place.execute("SELECT count(*) FROM marks WHERE mark = 29") == [(2 * gateways,)]


class TestFold:
    def test_landed_messages_are_known_before_and_after_it(self, place: Place) -> None:
        here, there = place.open(HERE), place.open(THERE)
        here.directory.presence({KEY: connected()})
        assert here.commits.take_over([KEY]) == []
        land(here, moved(0, 9))
        land(here, moved(10, 19))
        for _ in range(2):
            assert here.commits.landed(STREAM).spans == [(0, 19)]
            assert there.commits.marks(*KEY).landed[STREAM].spans == [(0, 19)], "a page at another hub"
            assert place.execute("SELECT count(*) FROM marks") == [(0,)]
        for _ in range(2):
            here.commits.fold()
            assert here.commits.landed(STREAM).spans == [(0, 19)]
            assert there.commits.marks(*KEY).landed[STREAM].spans == [(0, 19)]
            assert landed_of(place) == [20], "once"
        assert place.execute("SELECT DISTINCT state, length(moves) FROM commits") == [("confirmed", 0)]

    def test_gateway_that_returns_finds_what_it_has_landed(self, place: Place) -> None:
        hub = place.open()
        for first in (0, 10):
            hub.directory.presence({KEY: connected()})
            assert hub.commits.take_over([KEY]) == []
            land(hub, moved(first, first + 9))
        hub.directory.presence({KEY: connected()})
        assert hub.commits.take_over([KEY]) == []
        assert hub.commits.landed(STREAM).spans == [(0, 19)]

    def test_hub_that_takes_a_gateway_over_folds_the_log_in_its_order(self, place: Place) -> None:
        """Another gateway of the log stays at its hub, which goes on with what it knows."""
        here, there = place.open(HERE), place.open(THERE)
        other, stays = STREAM._replace(gateway="other"), ("default", "other")
        here.directory.presence({KEY: connected(), stays: connected()})
        assert here.commits.take_over([KEY, stays]) == []
        for ranges in ([moved(0, 9, other)], [moved(0, 9), moved(10, 19, other)], [moved(20, 29, other)]):
            land(here, *ranges)
        there.directory.presence({KEY: connected()})
        assert there.commits.take_over([KEY]) == []
        assert there.commits.landed(STREAM).spans == [(0, 9)]
        assert (landed_of(place), landed_of(place, "other")) == ([10], [20])
        land(there, moved(10, 19))
        land(here, moved(30, 39, other))
        for hub in (here, there, here):
            hub.commits.fold()
        assert (landed_of(place), landed_of(place, "other")) == ([20], [40])
        assert there.commits.marks(*stays).landed[other].spans == [(0, 39)]
        assert here.commits.marks(*KEY).landed[STREAM].spans == [(0, 19)]

    def test_hub_forgets_what_it_knew_when_another_one_has_settled_its_commit(self, place: Place) -> None:
        """The lake did not answer the first hub. Another gateway of the commit has stayed there."""
        here, there = place.open(HERE), place.open(THERE)
        for hub in (here, there):
            hub.commits.write_to(MemoryLake("this"))
        other, stays = STREAM._replace(gateway="other"), ("default", "other")
        here.directory.presence({KEY: connected(), stays: connected()})
        assert here.commits.take_over([KEY, stays]) == []
        prepared = here.commits.prepare("telemetry", [moved(0, 9), moved(0, 9, other)], 20)
        there.directory.presence({KEY: connected()})
        assert there.commits.take_over([KEY]) == [prepared]
        there.commits.confirm(prepared, 3)
        assert here.commits.unresolved() == []
        assert here.commits.landed(other).spans == [(0, 9)]

    def test_start_folds_what_the_last_process_left(self, place: Place) -> None:
        hub = place.open()
        hub.directory.presence({KEY: connected()})
        land(hub, moved(0, 9))
        hub.close()
        again = place.open()
        assert again.commits.unresolved() == []
        assert place.execute("SELECT mark FROM marks") == [(9,)]

    def test_replaced_hub_folds_nothing(self, place: Place) -> None:
        hub = place.open()
        land(hub, moved(0, 9))
        place.open()
        with pytest.raises(WriterReplaced):
            hub.commits.fold()
        assert place.execute("SELECT count(*) FROM marks") == [(0,)]

    def test_names_that_databases_cannot_store_are_folded_again(self, place: Place) -> None:
        hub = place.open()
        streams = [STREAM._replace(address=name) for name in ("\0", "\\0", "a\\b", "ж")]
        for first in (0, 10):
            land(hub, *(moved(first, first + 9, stream) for stream in streams))
            hub.commits.fold()
        found = place.open(THERE).commits.marks(*KEY).landed
        assert {stream: landed.spans for stream, landed in found.items()} == {each: [(0, 19)] for each in streams}

    def test_end_of_a_log_reaches_the_hub_of_the_next_connection(self, place: Place) -> None:
        """The first hub has only prepared the commit, but the gateway has shown the end of its log."""
        here, there = place.open(HERE), place.open(THERE)
        store = GatewayStore(*KEY, "e")
        assert here.lineages.compare(store, GatewayLineage("e", ["1"])) is None
        prepared = here.commits.prepare("telemetry", [], 0, {store: {7: 100}})
        older = GatewayLineage("e", ["1", "2"], [{7: 99}, {7: 99}])
        assert there.lineages.compare(store, older) == "1"
        assert here.commits.unresolved() == [prepared], "whether it has landed is as open as before"

    def test_end_of_a_log_in_a_forgotten_commit_counts(self, place: Place) -> None:
        hub, store = place.open(), GatewayStore(*KEY, "e")
        assert hub.lineages.compare(store, GatewayLineage("e", ["1"])) is None
        hub.commits.forget(hub.commits.prepare("telemetry", [], 0, {store: {7: 100}}))
        assert hub.lineages.compare(store, GatewayLineage("e", ["1", "2"], [{7: 99}, {7: 99}])) == "1"

    def test_older_hub_finds_each_landed_commit_prepared(self, place: Place) -> None:
        """Hubs of the last version serve during an update. They settle what is prepared, by the lake."""
        here = place.open(HERE)
        land(here, moved(0, 9))
        assert place.execute("SELECT state, version FROM commits") == [("prepared", 1)]

    def test_registry_of_the_last_version_is_migrated(self, place: Place) -> None:
        registry = place.open()
        land(registry, moved(0, 9))
        registry.commits.fold()
        registry.close()
        place.execute("DROP INDEX commits_state")
        place.execute("ALTER TABLE commits DROP COLUMN reached")
        place.execute("UPDATE schema_version SET version = 18")
        again = place.open()
        land(again, moved(10, 19))
        assert again.commits.marks(*KEY).landed[STREAM].spans == [(0, 19)]
        assert place.execute("SELECT version FROM schema_version") == [(SCHEMA_VERSION,)]


class TestBetweenLandings:
    def test_log_is_folded_after_a_while(self, place: Place) -> None:
        hub = Hub(place, MemoryLake())
        hub.connect("gw")
        hub.land(batch(STREAM, 0, 9))
        hub.lander.tidy()
        assert landed_of(place) == [0]
        hub.now_s += FOLD_EVERY_S
        hub.lander.tidy()
        assert landed_of(place) == [10]

    def test_long_log_is_folded_at_once(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cloud.hub.lander.FOLD_RANGES_MAX", 3)
        hub = Hub(place, MemoryLake())
        hub.connect("gw")
        for first in (0, 10, 20):
            assert landed_of(place) == [0]
            hub.land(batch(STREAM, first, first + 9))
            hub.lander.tidy()
        assert landed_of(place) == [30]

    def test_failure_leaves_the_log_for_the_next_fold(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_arguments: object) -> None:
            raise RegistryError("the server went away")

        hub = Hub(place, MemoryLake())
        hub.connect("gw")
        hub.land(batch(STREAM, 0, 9))
        with monkeypatch.context() as patched:
            patched.setattr("cloud.hub.registry.unfolded._count", fail)
            hub.lander.fold()
        assert (landed_of(place), place.execute("SELECT count(*) FROM marks")) == ([0], [(0,)])
        hub.lander.fold()
        hub.land(batch(STREAM, 0, 19))
        hub.lander.fold()
        assert landed_of(place) == [20]
