"""After a flipped bit in a store's file, everything is delivered, named in the ledger to the message, or refused."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest

from edge.appliance.store.recovery.found_logs import RECOVERED
from edge.appliance.store.recovery.repair import repair
from edge.appliance.store.recovery.verification import verify
from edge.broker.store.errors import StoreError
from edge.broker.store.sqlite import FILE_NAME
from edge.broker.store.wal_frames import FRAME, HEADER, WalLog, lost_commits
from tests.fault.store import flips
from tests.fault.store.flips import LOGS
from tests.support.seeds import chosen_seed

LOG_NAME = f"{FILE_NAME}-wal"
RENAMED = {f"{RECOVERED} {number}": name for number, name in enumerate(LOGS, 1)}
SEED = 1_746_504_113
"""Seed of the bits that every run of the tests flips; ``WAYPOST_SEED=random``, or a number, flips others."""
SAMPLES = 400
"""Number of bits in a sample of a file."""


def _counters(path: Path) -> list[tuple[object, ...]]:
    """Return data without redundancy in the file: progress of consumer groups, and addresses idle for long."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)  # closing another would delete the log
    try:
        rows = connection.execute("SELECT name, log, position, acknowledged FROM cursor ORDER BY cursor").fetchall()
        return rows + connection.execute("SELECT name, next FROM address ORDER BY name").fetchall()
    except (sqlite3.Error, UnicodeDecodeError):
        return []
    finally:
        connection.close()


class Walk:
    """Flips bits of one file of one store, one at a time."""

    def __init__(self, folder: Path, name: str = FILE_NAME, *, crashed: bool = False) -> None:
        self.name = name
        self.sound, self.data = folder / "sound", folder / "data"
        self.sent = flips.make(self.sound, crashed=crashed)
        flips.flip(self.sound, self.data, FILE_NAME, 0, width=0)
        self.counters = _counters(self.data / FILE_NAME)
        self.seen = flips.look(self.data)
        assert set(self.seen.delivered) == {(group, log) for log in LOGS for group in flips.GROUPS[log]}
        assert self.faults() == []

    def faults(self) -> list[str]:
        return flips.faults(self.sent, self.seen, self.seen)

    def repair(self, bits: Iterable[int]) -> dict[str, int]:
        """Repair the stores in which `verify` finds an error; return the outcomes."""
        outcomes: dict[str, int] = {}
        for bit in bits:
            flips.flip(self.sound, self.data, self.name, bit)
            believed = _counters(self.data / FILE_NAME)
            try:
                sound = not verify(self.data / FILE_NAME).damaged and lost_commits(self.data / FILE_NAME) == 0
            except StoreError:
                sound = False
            outcome = "sound"
            if not sound:
                done = repair(self.data, write=True)
                seen = flips.look(self.data)
                # A log without a name gets a new one with its number, which the repair reports.
                seen.delivered = {(group, RENAMED.get(log, log)): owed for (group, log), owed in seen.delivered.items()}
                where = f"bit {bit} (page {bit // 8 // flips.PAGE_BYTES + 1}): {done.notes}"
                assert (seen.refused, seen.stopped) == ("", set()), where
                faults = flips.faults(self.sent, self.seen, seen)
                if RECOVERED in {group for group, _ in seen.delivered}:  # it has messages of unknown groups
                    faults = [fault for fault in faults if not fault.endswith("is gone")]
                outcome = "believed" if faults and believed and believed != self.counters else "repaired"
                assert outcome == "believed" or faults == [], where
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
        return outcomes

    def run(self, bits: Iterable[int]) -> dict[str, int]:
        """Count the outcomes."""
        outcomes: dict[str, int] = {}
        for bit in bits:
            flips.flip(self.sound, self.data, self.name, bit)
            believed = _counters(self.data / FILE_NAME)
            seen = flips.look(self.data)
            faults = flips.faults(self.sent, self.seen, seen)
            if faults and believed and believed != self.counters:
                outcome = "believed"
            else:
                assert faults == [], f"bit {bit} (page {bit // 8 // flips.PAGE_BYTES + 1})"
                outcome = (
                    "refused" if seen.refused else "stopped" if seen.stopped else "ledger" if seen.entries else "ok"
                )
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
        return outcomes


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    return Walk(tmp_path_factory.mktemp("flips"))


def test_flipped_bit_is_harmless_reported_or_refused(walk: Walk) -> None:
    seed = chosen_seed(SEED)
    dice = random.Random(seed)
    outcomes = walk.run(dice.sample(range(flips.bits(walk.sound)), SAMPLES))
    print(outcomes)
    assert outcomes.keys() >= {"ok", "ledger", "refused"}
    assert outcomes.get("believed", 0) < SAMPLES // 50


def test_repair_loses_only_messages_in_the_ledger(walk: Walk) -> None:
    seed = chosen_seed(SEED)
    outcomes = walk.repair(random.Random(seed).sample(range(flips.bits(walk.sound)), SAMPLES // 2))
    assert outcomes.get("repaired", 0) > SAMPLES // 10, outcomes
    assert outcomes.get("believed", 0) < SAMPLES // 50


def test_repair_keeps_every_durable_commit_of_damaged_log(tmp_path: Path) -> None:
    walk = Walk(tmp_path, LOG_NAME, crashed=True)
    seed = chosen_seed(SEED)
    outcomes = walk.repair(random.Random(seed).sample(range(_durable_bits(walk)), SAMPLES // 10))
    assert outcomes.get("repaired", 0) > SAMPLES // 20, outcomes


def _durable_bits(walk: Walk) -> int:
    """Return the number of bits in the log, without its last commit."""
    log = WalLog.of(walk.sound / LOG_NAME)
    assert log is not None
    return (max(log.synced_commits(0)) * (FRAME.size + log.page_bytes) + HEADER.size) * 8


def test_flipped_bit_of_write_ahead_log_is_refused(tmp_path: Path) -> None:
    """Bits of all commits but the last are flipped: a wrong bit in the last one looks like an unfinished commit."""
    walk = Walk(tmp_path, LOG_NAME, crashed=True)
    seed = chosen_seed(SEED)
    dice = random.Random(seed)
    outcomes = walk.run(dice.sample(range(_durable_bits(walk)), SAMPLES))
    assert outcomes.get("refused", 0) > SAMPLES * 0.98, outcomes


@pytest.mark.slow
@pytest.mark.timeout(14_400)
def test_each_flipped_bit_is_harmless_reported_or_refused(walk: Walk) -> None:
    outcomes = walk.run(range(flips.bits(walk.sound)))
    print(outcomes)
    assert outcomes.keys() >= {"ok", "ledger", "refused", "stopped"}
