"""Damage of the registry's marks is found, limited to its stream, and repaired from the lake."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.batch import decode, encode
from bridge.message import Run, Stored
from cloud.hub.groups import Presence
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.registry import Registry
from cloud.lake.landing import Landing
from cloud.lake.rows import ReceivedBatch
from tests.support.memory_lake import MemoryLake

FILE = "registry.db"


def batch(address: str, first: int, last: int, gateway: str = "gw1") -> ReceivedBatch:
    run = Run(address, "d", 0, b"", [b"x"] * (last - first + 1), 1_000)
    return ReceivedBatch("default", gateway, decode(encode([Stored(-1, first, run)], space="s", epoch="e")))


class Hub:
    """A registry on disk and a lake in memory with landed batches."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lake = MemoryLake()
        self.open()
        self.registry.directory.presence(
            {("default", gateway): Presence("-", True, 1, 1) for gateway in ("gw1", "gw2")}
        )
        self.land(batch("a", 0, 9), batch("a", 20, 29), batch("b", 3, 5), batch("a", 0, 4, "gw2"))

    def open(self) -> None:
        self.registry = Registry(sqlite_url(self.directory / FILE), "a" * 32)
        self.landing = Landing(self.lake, self.registry.commits)

    def close(self) -> None:
        self.registry.commits.fold()
        self.registry.close()

    def land(self, *batches: ReceivedBatch) -> dict[int, str]:
        return dict(self.landing.land(batches, 1_000).held)

    def execute(self, text: str, *values: Any) -> list[Any]:
        database = sqlite3.connect(self.directory / FILE)
        with database:
            found = database.execute(text, values).fetchall()
        database.close()
        return found

    def names(self) -> Counter[tuple[str, str, int]]:
        return Counter(
            (row["gateway"], row["address"], row["sequence"])
            for part in self.lake.appended["telemetry"]
            for row in part.to_pylist()
        )


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    made = Hub(tmp_path)
    yield made
    made.close()


def flips(value: Any) -> Iterator[Any]:
    """Yield the value with each of its bits flipped."""
    if isinstance(value, int):
        yield from (value ^ (1 << bit) for bit in range(63))
    else:
        raw = value if isinstance(value, bytes) else value.encode()
        for at, bit in itertools.product(range(len(raw)), range(8)):
            yield raw[:at] + bytes([raw[at] ^ (1 << bit)]) + raw[at + 1 :]


@pytest.mark.parametrize("column", ["spans", "mark", "checksum", "address", "epoch"])
def test_every_flipped_bit_of_a_row_is_detected(tmp_path: Path, column: str) -> None:
    """A flipped bit makes no new message a duplicate, lands no message twice, and affects no other stream."""
    (tmp_path / "whole").mkdir()
    whole = Hub(tmp_path / "whole")
    whole.close()
    [(value,)] = whole.execute(f"SELECT {column} FROM marks WHERE gateway = 'gw1' AND address = 'a'")
    for flipped in flips(value):
        shutil.copytree(whole.directory, tmp_path / "damaged")
        hub = object.__new__(Hub)
        hub.directory, hub.lake = tmp_path / "damaged", MemoryLake()
        hub.lake.appended = {table: list(parts) for table, parts in whole.lake.appended.items()}
        stored = "CAST(? AS TEXT)" if isinstance(value, str) else "?"
        hub.execute(f"UPDATE marks SET {column} = {stored} WHERE gateway = 'gw1' AND address = 'a'", flipped)
        hub.open()
        sent = [batch("a", 5, 35), batch("a", 0, 7, "gw2")]
        held = hub.land(*sent)
        assert set(held) <= {0}, "the other gateway does not notice"
        assert hub.land(*sent) == {}, "it is known again"
        hub.land(batch("b", 3, 9))
        wanted = [*(("gw1", "a", s) for s in range(36)), *(("gw1", "b", s) for s in range(3, 10))]
        assert hub.names() == Counter([*wanted, *(("gw2", "a", s) for s in range(8))]), flipped
        hub.close()
        shutil.rmtree(hub.directory)


def test_unrelated_topic_of_the_gateway_lands_meanwhile(hub: Hub) -> None:
    hub.close()
    hub.execute("UPDATE marks SET spans = x'00' WHERE gateway = 'gw1' AND address = 'a'")
    hub.open()
    held = hub.land(batch("b", 6, 9), batch("a", 30, 31), batch("b", 10, 12))
    assert list(held) == [1]
    assert "'a' of gateway gw1" in held[1]
    assert hub.names()["gw1", "b", 12] == 1
    assert hub.land(batch("a", 30, 31)) == {}
    assert hub.names()["gw1", "a", 31] == 1


def test_names_on_disk_are_stable(hub: Hub) -> None:
    columns = [row[1] for row in hub.execute("PRAGMA table_info(commits)")]
    assert columns == ["writer", "table_name", "id", "state", "rows", "version", "moves", "reached"]


def test_damage_found_at_confirmation_is_handled(hub: Hub) -> None:
    """The hub died between the lake and the registry, and then the row was damaged."""
    confirm = hub.registry.commits.confirm
    hub.registry.commits.confirm = lambda prepared, version: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        hub.land(batch("a", 10, 12))
    hub.registry.commits.confirm = confirm  # type: ignore[method-assign]
    hub.close()
    hub.execute("UPDATE marks SET mark = 1 WHERE gateway = 'gw1' AND address = 'a'")
    hub.open()
    assert set(hub.land(batch("a", 5, 40))) == {0}
    assert hub.land(batch("a", 5, 40)) == {}
    assert hub.names() == Counter(
        [
            *(("gw1", "a", s) for s in range(41)),
            *(("gw1", "b", s) for s in range(3, 6)),
            *(("gw2", "a", s) for s in range(5)),
        ]
    )
