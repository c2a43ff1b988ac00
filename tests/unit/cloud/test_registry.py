"""The registry on real SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud.hub.groups import Lineage, Presence
from cloud.hub.registry import Registry, RegistryTooNew, sqlite_url
from cloud.hub.schema import SCHEMA_VERSION
from cloud.lake.commits import GatewayStore, Prepared
from cloud.lake.faults import RegistryError
from cloud.lake.sequences import SequenceRange, Stream


def open_registry(directory: Path) -> Registry:
    return Registry(sqlite_url(str(directory / "registry.db")))


def connected() -> Presence:
    return Presence("-", connected=True, at_us=1, connects=1)


def test_it_is_durable_and_write_ahead(tmp_path: Path) -> None:
    registry = open_registry(tmp_path)
    with registry._transaction() as tx:
        assert tx.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert tx.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    registry.close()


def test_generations_grow_over_connections_and_restarts(tmp_path: Path) -> None:
    registry = open_registry(tmp_path)
    first, second = ("default", "gw1"), ("default", "gw2")
    registry.presence({first: Presence("10.0.0.1:1", True, 100, connects=1)})
    registry.presence({first: Presence("-", True, 200, connects=2), second: Presence("-", True, 200, connects=1)})
    found = registry.gateways()
    assert [(g.name, g.connected, g.last_seen, g.generation) for g in found] == [
        ("gw1", True, 200, 3),
        ("gw2", True, 200, 1),
    ]
    registry.presence({first: Presence("-", False, 400)})
    assert [(g.connected, g.generation) for g in registry.gateways()] == [(False, 3), (True, 1)]
    registry.close()
    again = open_registry(tmp_path)
    again.nobody_connected()
    assert not any(g.connected for g in again.gateways())
    again.presence({first: Presence("10.0.0.1:3", True, 500, connects=1)})
    assert again.gateways()[0].generation == 4
    again.seen({second: 999})
    assert {g.name: g.last_seen for g in again.gateways()} == {"gw1": 500, "gw2": 999}
    again.close()


def test_a_gateway_that_went_to_another_hub_is_fenced_until_it_comes_back(tmp_path: Path) -> None:
    names = [("default", f"gw{i}") for i in range(1_000)]
    here, there = open_registry(tmp_path), open_registry(tmp_path)
    here.presence({name: connected() for name in names})
    assert here.fenced(names) == set()
    there.presence({names[999]: connected(), ("default", "only there"): connected()})
    assert here.fenced([*names, ("default", "nobody"), ("default", "only there")]) == {names[999]}
    assert there.fenced([names[999]]) == set()
    here.presence({names[999]: connected()})
    assert here.fenced(names) == set()
    assert there.fenced(names) == {names[999]}
    here.close()
    there.close()


def test_a_prepared_commit_moves_nothing_until_confirmed(tmp_path: Path) -> None:
    registry = open_registry(tmp_path)
    registry.presence({("default", "g"): connected()})
    stream = Stream("default", "g", "e", "a")
    ranges = [SequenceRange(*stream, 0, 9), SequenceRange(*stream, 20, 29)]
    commit = registry.prepare("telemetry", ranges, 20)
    assert registry.landed(stream).mark == -1
    assert registry.unresolved() == [Prepared("telemetry", commit, ranges)]
    registry.confirm(Prepared("telemetry", commit, ranges), 7)
    assert registry.landed(stream).spans == [(0, 9), (20, 29)]
    assert registry.unresolved() == []
    assert registry.confirmed_version("telemetry") == 7
    assert registry.gateways()[0].landed == 20
    registry.close()
    again = open_registry(tmp_path)
    assert again.landed(stream).spans == [(0, 9), (20, 29)]
    assert again.prepare("telemetry", [], 0) == commit + 1
    again.close()


def test_a_forgotten_commit_leaves_no_trace(tmp_path: Path) -> None:
    registry = open_registry(tmp_path)
    stream = Stream("default", "g", "e", "a")
    commit = registry.prepare("telemetry", [SequenceRange(*stream, 0, 9)], 10)
    registry.forget(registry.unresolved()[0])
    assert registry.unresolved() == []
    assert registry.landed(stream).mark == -1
    assert registry.prepare("telemetry", [], 0) > commit, "an id is not given twice while the program runs"
    registry.close()


def test_a_ledger_range_is_known_once_confirmed(tmp_path: Path) -> None:
    registry = open_registry(tmp_path)
    move, other = SequenceRange("default", "g", "e", "a", 0, 9), SequenceRange("default", "g", "e", "a", 0, 8)
    registry.confirm(Prepared("ledger", registry.prepare("ledger", [move], 1), [move]), 1)
    assert registry.ledgered([move, other]) == {move}
    registry.close()


def test_two_registries_have_two_applications(tmp_path: Path) -> None:
    """A lake that outlives its registry must not take a new commit for an old one of the same number."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = open_registry(tmp_path / "a"), open_registry(tmp_path / "b")
    assert first.application("telemetry") != second.application("telemetry")
    first.close()
    assert open_registry(tmp_path / "a").application("telemetry") == first.application("telemetry")
    second.close()


def test_a_newer_registry_is_refused_in_one_line(tmp_path: Path) -> None:
    open_registry(tmp_path).close()
    with sqlite3.connect(tmp_path / "registry.db") as database:
        database.execute("UPDATE schema_version SET version = ?", (SCHEMA_VERSION + 1,))
    database.close()
    with pytest.raises(RegistryTooNew, match="newer program"):
        open_registry(tmp_path)


def test_a_file_that_is_no_database_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_bytes(b"\x00 this is not a database" * 100)
    with pytest.raises(RegistryError, match="not a database") as caught:
        open_registry(tmp_path)
    assert "\n" not in str(caught.value)


class TestLineage:
    @pytest.fixture
    def registry(self, tmp_path: Path) -> Iterator[Registry]:
        registry = open_registry(tmp_path)
        yield registry
        registry.close()

    STORE = GatewayStore("t", "gw", "e")

    def test_openings_that_go_on(self, registry: Registry) -> None:
        assert registry.lineage(self.STORE, Lineage("e", ["1"])) is None
        assert registry.lineage(self.STORE, Lineage("e", ["1"])) is None
        assert registry.lineage(self.STORE, Lineage("e", ["1", "2", "3"])) is None
        assert registry.lineage(self.STORE._replace(epoch="other"), Lineage("other", ["9"])) is None
        assert registry.lineage(self.STORE._replace(gateway="gw2"), Lineage("e", ["8"])) is None

    def test_an_older_copy_is_told_the_last_opening_both_know(self, registry: Registry) -> None:
        registry.lineage(self.STORE, Lineage("e", ["1", "2", "3"]))
        assert registry.lineage(self.STORE, Lineage("e", ["1", "2", "2b"])) == "2"
        assert registry.lineage(self.STORE, Lineage("e", ["x", "y"])) == ""
        assert registry.lineage(self.STORE, Lineage("e", ["2", "3", "4"])) is None, (
            "what was rejected is not remembered"
        )

    @pytest.mark.parametrize(
        ("ends", "copy"),
        [
            ([{7: 0}, {7: 50}, {7: 100, 8: 3}], False),  # as far as was seen
            ([{7: 0}, {7: 50}, {7: 999, 8: 3, 9: 1}], False),  # further
            ([{7: 0}, {7: 50}, {7: 99, 8: 3}], True),
            ([{7: 0}, {7: 50}, {7: 999}], True),  # it never had log 8
            ([{7: 50}, {7: 99, 8: 3}], True),  # of the newest openings only
            ([{7: 99, 8: 3}], True),
            ([None, None, None], False),  # it cannot say
            ([], False),  # a program of before this
        ],
    )
    def test_a_copy_made_while_the_store_was_open(
        self, registry: Registry, ends: list[dict[int, int] | None], copy: bool
    ) -> None:
        registry.lineage(self.STORE, Lineage("e", ["1", "2"], [{7: 0}, {7: 50}]))
        registry.prepare("telemetry", [], 0, {self.STORE: {7: 100, 8: 3}})
        registry.prepare("telemetry", [], 0, {self.STORE: {7: 90}})
        for _ in range(2):  # and it stays one
            assert registry.lineage(self.STORE, Lineage("e", ["1", "2", "3"], ends)) == ("2" if copy else None)
            if not copy:
                break

    def test_a_copy_that_went_far_before_the_hub_heard_of_it(self, registry: Registry) -> None:
        registry.lineage(self.STORE, Lineage("e", ["1"], [{7: 0}]))
        registry.prepare("telemetry", [], 0, {self.STORE: {7: 100}})
        told = Lineage("e", ["1", "2", "3"], [{7: 0}, {7: 60}, {7: 500}])
        assert registry.lineage(self.STORE, told) == "1", "its first opening after the one both know tells"

    def test_how_far_a_store_went_outlives_the_hub(self, tmp_path: Path) -> None:
        registry = open_registry(tmp_path)
        registry.lineage(self.STORE, Lineage("e", ["1"]))
        registry.prepare("telemetry", [], 0, {self.STORE: {7: 100}})
        registry.close()
        again = open_registry(tmp_path)
        again.prepare("telemetry", [], 0, {self.STORE: {8: 1}})
        assert again.lineage(self.STORE, Lineage("e", ["1", "2"], [{7: 99, 8: 1}])) == "1"
        again.close()

    def test_what_is_damaged_makes_nobody_a_copy(self, tmp_path: Path) -> None:
        registry = open_registry(tmp_path)
        registry.lineage(self.STORE, Lineage("e", ["1"]))
        registry.prepare("telemetry", [], 0, {self.STORE: {7: 100}})
        registry.close()
        with sqlite3.connect(tmp_path / "registry.db") as database:
            [(ends,)] = database.execute("SELECT ends FROM lineages").fetchall()
        for at in range(8 * len(ends)):
            flipped = bytes(byte ^ (1 << at % 8) * (i == at // 8) for i, byte in enumerate(ends))
            with sqlite3.connect(tmp_path / "registry.db") as database:
                database.execute("UPDATE lineages SET ends = ?", (flipped,))
            database.close()
            registry = open_registry(tmp_path)
            assert registry.lineage(self.STORE, Lineage("e", ["1", "2"], [{7: 100}, {7: 100}])) is None
            registry.close()

    def test_the_logs_kept_are_bounded(self, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cloud.hub.registry.LOGS_KEPT", 3)
        registry.lineage(self.STORE, Lineage("e", ["1"]))
        for log in range(5):
            registry.prepare("telemetry", [], 0, {self.STORE: {log: 10}})
        assert registry.lineage(self.STORE, Lineage("e", ["1", "2"], [{2: 10, 3: 10, 4: 10}])) is None

    def test_a_registry_of_before_it(self, tmp_path: Path) -> None:
        url = sqlite_url(str(tmp_path / "r"))
        before = Registry(url)
        name = before.registry_id
        before.close()
        with sqlite3.connect(tmp_path / "r") as database:
            database.execute("DROP TABLE lineages")
            database.execute("UPDATE schema_version SET version = 1")
        database.close()
        registry = Registry(url)
        assert registry.registry_id == name
        assert registry.lineage(self.STORE, Lineage("e", ["1"])) is None
        registry.close()
