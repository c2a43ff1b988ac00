"""Registries of older programs: their content is kept, and open commits are settled under their names.

`golden/registry/version3.sql` was written by the program of schema 3, killed with a prepared commit to each table.
`version4.sql` was written by that of schema 4, killed with a prepared commit of writer `HERE`. They never change.
"""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
import sqlalchemy as sa

from cloud.hub.groups import GatewayLineage, Presence
from cloud.hub.registry.configurations import Configurations, WantedConfiguration
from cloud.hub.registry.device_updates import DeviceUpdates, UpdateFilter
from cloud.hub.registry.enrolments import Enrolments, TokenRecord
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.registry import Registry
from cloud.hub.registry.schema import SCHEMA_VERSION
from cloud.hub.registry.taps import RegistryTaps, TapName
from cloud.lake.commits import GatewayStore
from cloud.lake.lake import TransactionId
from cloud.lake.landing import Landing
from cloud.lake.sequences import SequenceRange
from tests.contract.registry.conftest import Place
from tests.contract.registry.golden import written_by
from tests.contract.registry.landings import PUMP, TEMPERATURE, batch, sequences
from tests.contract.registry.wanted import document, sign
from tests.support.memory_lake import MemoryLake

REGISTRY_ID = "1c51b981073ce323ee215f98cf049851"


@pytest.fixture
def golden(place: Place) -> Place:
    return written_by(place, 3)


def open_lake(place: Place, lake: MemoryLake) -> tuple[Registry, Landing]:
    registry = place.open()
    registry.commits.write_to(lake)
    return registry, Landing(lake, registry.commits)


def test_known_state_is_kept(golden: Place) -> None:
    registry, _ = open_lake(golden, MemoryLake())
    assert registry.registry_id == REGISTRY_ID
    assert registry.commits.landed(TEMPERATURE).spans == [(0, 9), (20, 29)]
    assert registry.commits.confirmed_version("telemetry") == 2
    given_up = SequenceRange(*TEMPERATURE, 10, 14)
    assert registry.commits.ledgered([given_up]) == {given_up}
    assert [(g.name, g.generation, g.landed) for g in registry.directory.gateways()] == [("gw1", 2, 20), ("gw2", 1, 0)]
    store = GatewayStore("default", "gw1", "e" * 32)
    copy = GatewayLineage("e" * 32, ["one", "two", "three"], [{7: 38}, {7: 38}, {7: 38}])
    assert registry.lineages.compare(store, copy) == "two"
    assert golden.execute("SELECT version FROM schema_version") == [(SCHEMA_VERSION,)]


def test_commit_of_the_older_program_is_confirmed(golden: Place) -> None:
    """The program was killed between lake and registry; the lake has the commit under the older program's name."""
    lake = MemoryLake()
    lake.append("telemetry", pa.table({}), TransactionId(f"waypost/{REGISTRY_ID}/telemetry", 3))
    lake.appended["telemetry"].clear()
    registry, landing = open_lake(golden, lake)
    assert registry.commits.unresolved() == []
    assert registry.commits.landed(TEMPERATURE).spans == [(0, 9), (20, 39)]
    assert registry.commits.landed(PUMP).spans == [(0, 4)]
    assert registry.commits.ledgered([SequenceRange(*TEMPERATURE, 15, 19)]) == set(), "this one the lake does not know"
    assert landing.land([batch(TEMPERATURE, 25, 44), batch(PUMP, 0, 4)], 1_000).rows == 5
    assert sequences(lake, TEMPERATURE) == list(range(40, 45))


def test_uncommitted_batch_of_the_older_program_lands_once(golden: Place) -> None:
    lake = MemoryLake()
    registry, landing = open_lake(golden, lake)
    assert registry.commits.unresolved() == []
    for _ in range(2):
        landing.land([batch(TEMPERATURE, 0, 39), batch(PUMP, 0, 4)], 1_000)
    assert sequences(lake, TEMPERATURE) == [*range(10, 20), *range(30, 40)]
    assert sequences(lake, PUMP) == list(range(5))


def test_numbers_restart_under_another_name(golden: Place) -> None:
    registry, _ = open_lake(golden, MemoryLake())
    prepared = registry.commits.prepare("telemetry", [], 0)
    assert prepared.commit == 1
    assert registry.commits.application(prepared) == f"waypost/{REGISTRY_ID}/{prepared.writer}/telemetry"


@pytest.mark.parametrize("version", [1, 2])
def test_even_older_registries_are_migrated(golden: Place, version: int) -> None:
    golden.execute("ALTER TABLE marks DROP COLUMN checksum")
    golden.execute("DROP TABLE lineages" if version == 1 else "ALTER TABLE lineages DROP COLUMN ends")
    golden.execute("UPDATE schema_version SET version = :version", version=version)
    registry, landing = open_lake(golden, MemoryLake())
    assert landing.land([batch(TEMPERATURE, 0, 39)], 1_000).rows == 20
    assert (
        registry.lineages.compare(GatewayStore("default", "gw1", "e" * 32), GatewayLineage("e" * 32, ["one", "two"]))
        is None
    )
    checked = golden.execute("SELECT count(*) FROM marks WHERE checksum IS NOT NULL")
    assert checked == [(1,)], "what is written anew has a checksum"


def test_failed_upgrade_changes_nothing(golden: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    class Died(BaseException):
        pass

    def die(_tx: sa.Connection) -> None:
        raise Died

    monkeypatch.setattr("cloud.hub.registry.schema._copy_commits", die)
    with pytest.raises(Died):
        golden.open()
    monkeypatch.undo()
    assert golden.execute("SELECT version FROM schema_version") == [(3,)]
    registry, _ = open_lake(golden, MemoryLake())
    assert registry.commits.landed(TEMPERATURE).spans == [(0, 9), (20, 29)]


def test_roll_backs_of_older_programs_are_known_by_their_notes(place: Place) -> None:
    registry = place.open()
    registry.directory.presence({("acme", "g1"): Presence("here", True, 1, 1)})
    registry.close()
    notes = ("first", "bad", "back to version 1", "back to version 7", "back to version 1, as we must")
    with contextlib.closing(open_registry(place.url).database) as database:
        known = Configurations(database)
        for note in notes:
            known.set_wanted([WantedConfiguration("acme", "g1", [document("a")], 60.0, False, "ann", note)], 1, sign)
    place.execute("ALTER TABLE configurations DROP COLUMN repeats")
    place.execute("UPDATE schema_version SET version = 15")
    with contextlib.closing(open_registry(place.url).database) as database:
        found = Configurations(database).versions("acme", "g1")
    assert [each.repeats for each in reversed(found)] == [None, None, 1, None, None]


class TestFour:
    """A registry of schema 4 has no tokens and no certificates."""

    def test_known_state_is_kept_and_gateways_enrol(self, place: Place) -> None:
        lake = MemoryLake()
        registry, landing = open_lake(written_by(place, 4), lake)
        assert place.execute("SELECT version FROM schema_version") == [(SCHEMA_VERSION,)]
        assert registry.commits.landed(TEMPERATURE).spans == [(0, 9), (20, 29)]
        assert registry.commits.confirmed_version("telemetry") == 2
        assert registry.commits.unresolved() == [], "the lake does not know the commit that was prepared"
        assert [(g.name, g.generation) for g in registry.directory.gateways()] == [("gw1", 2), ("gw2", 1)]
        assert landing.land([batch(TEMPERATURE, 25, 39), batch(PUMP, 0, 4)], 1_000).rows == 15
        with contextlib.closing(Enrolments(place.url)) as enrolments:
            assert (enrolments.tokens(), enrolments.certificates()) == ([], [])
            enrolments.add([TokenRecord("t", b"digest", "default", None, 1, 2)])
            assert [each.id for each in enrolments.tokens()] == ["t"]

    def test_command_upgrades_before_the_hub_does(self, place: Place) -> None:
        with contextlib.closing(Enrolments(written_by(place, 4).url)) as enrolments:
            assert enrolments.tokens() == []
        registry, _ = open_lake(place, MemoryLake())
        assert registry.commits.landed(TEMPERATURE).spans == [(0, 9), (20, 29)]


def test_older_registry_gets_the_table_of_taps(golden: Place) -> None:
    with contextlib.closing(RegistryTaps(golden.url)) as taps:
        assert taps.read(TapName("lake", "telemetry", "topic")) is None


def test_older_registry_gets_the_table_of_reports(golden: Place) -> None:
    with contextlib.closing(open_registry(golden.url).database) as database:
        assert DeviceUpdates(database).page(UpdateFilter("acme"), None, 9) == []
