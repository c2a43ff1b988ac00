"""The registry on real SQLite."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from cloud.hub.registry import SCHEMA_VERSION, Registry, RegistryTooNew, sqlite_url
from cloud.lake.commits import Prepared, RegistryError, SequenceRange, Stream


def open_registry(directory: Path) -> Registry:
    return Registry(sqlite_url(str(directory / "registry.db")))


def test_it_is_durable_and_write_ahead(tmp_path: Path) -> None:
    registry = open_registry(tmp_path)
    with registry._transaction() as tx:
        assert tx.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert tx.exec_driver_sql("PRAGMA synchronous").scalar() == 2
    registry.close()


def test_generations_grow_over_connections_and_restarts(tmp_path: Path) -> None:
    registry = open_registry(tmp_path)
    assert registry.connect("default", "gw1", "10.0.0.1:1", 100) == 1
    assert registry.connect("default", "gw1", "10.0.0.1:2", 200) == 2
    assert registry.connect("default", "gw2", "10.0.0.2:1", 200) == 1
    registry.disconnect("default", "gw1", 1, 300)
    assert [(g.name, g.connected, g.last_seen) for g in registry.gateways()] == [("gw1", True, 200), ("gw2", True, 200)]
    registry.disconnect("default", "gw1", 2, 400)
    assert [g.connected for g in registry.gateways()] == [False, True]
    registry.close()
    again = open_registry(tmp_path)
    again.nobody_connected()
    assert not any(g.connected for g in again.gateways())
    assert again.connect("default", "gw1", "10.0.0.1:3", 500) == 3
    assert again.current([("default", "gw1"), ("default", "nobody")]) == {("default", "gw1"): 3}
    again.seen({("default", "gw2"): 999})
    assert {g.name: g.last_seen for g in again.gateways()} == {"gw1": 500, "gw2": 999}
    again.close()


def test_many_generations_are_asked_for_in_parts(tmp_path: Path) -> None:
    registry = open_registry(tmp_path)
    names = [("default", f"gw{i}") for i in range(1_000)]
    registry.connect(*names[999], "-", 1)
    assert registry.current(names) == {names[999]: 1}
    registry.close()


def test_a_prepared_commit_moves_nothing_until_confirmed(tmp_path: Path) -> None:
    registry = open_registry(tmp_path)
    registry.connect("default", "g", "-", 1)
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
    def test_openings_that_go_on(self, tmp_path: Path) -> None:
        registry = Registry(sqlite_url(str(tmp_path / "r")))
        assert registry.lineage("t", "gw", "e", ["1"]) is None
        assert registry.lineage("t", "gw", "e", ["1"]) is None
        assert registry.lineage("t", "gw", "e", ["1", "2", "3"]) is None
        assert registry.lineage("t", "gw", "other", ["9"]) is None
        assert registry.lineage("t", "gw2", "e", ["8"]) is None
        registry.close()

    def test_an_older_copy_is_told_the_last_opening_both_know(self, tmp_path: Path) -> None:
        registry = Registry(sqlite_url(str(tmp_path / "r")))
        registry.lineage("t", "gw", "e", ["1", "2", "3"])
        assert registry.lineage("t", "gw", "e", ["1", "2", "2b"]) == "2"
        assert registry.lineage("t", "gw", "e", ["x", "y"]) == ""
        assert registry.lineage("t", "gw", "e", ["2", "3", "4"]) is None, "what was rejected is not remembered"
        registry.close()

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
        assert registry.lineage("t", "gw", "e", ["1"]) is None
        registry.close()
