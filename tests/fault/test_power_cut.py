"""Power cuts at any moment: acknowledged messages are there or in the ledger, and no name is given twice.

The test prints the seed; ``WAYPOST_SEED=n`` repeats the same workloads, threads (`store/schedule.py`) and cuts. For 10
000 cuts: ``./waypost test tests/fault/test_power_cut.py -m slow -s`` (about 9 minutes).
"""

from __future__ import annotations

import errno
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault.store.cuts import Campaign, Findings, scratch, work
from tests.fault.store.disk import Disk
from tests.fault.store.history import Append, Given, Group, History, Line, Observed
from tests.fault.store.in_memory import RESERVE_MAX
from tests.fault.store.ledger import Lost
from tests.support.medium import Event, Files, Kind, Medium
from tests.support.seeds import chosen_seed

SEED = 20_261_122
"""Seed of the cuts that every run of the tests makes; ``WAYPOST_SEED=random``, or a number, makes others."""


def cut(count: int, *, cuts_a_life: int, seed: int) -> Findings:
    with scratch() as folder:
        findings = Campaign(seed, cuts_a_life=cuts_a_life, folder=Path(folder)).run(count)
    print(findings)
    assert not findings.problems, "\n".join(findings.problems[:5])
    assert findings.cuts >= count
    assert 0 < findings.joined < findings.in_flight, "commits were cut on both sides of their end"
    assert findings.messages > 10 * count
    assert findings.giving > count / 20, "commits that give messages up were cut, too"
    assert {"evicted", "rejected", "memory"} <= findings.lost.keys()
    assert findings.taken > count / 3
    assert findings.waited
    return findings


def test_150_power_cuts_break_no_promise() -> None:
    cut(150, cuts_a_life=75, seed=chosen_seed(SEED))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_10_000_power_cuts_break_no_promise() -> None:
    findings = cut(10_000, cuts_a_life=100, seed=chosen_seed())
    assert findings.refused > 10, "syncs failed, too"
    assert findings.reopened > 100
    assert findings.lost.keys() == {"evicted", "thinned", "rejected", "purged", "memory"}


def test_a_seed_is_one_order_of_events() -> None:
    """One seed gives one order of events, also of the store's threads, so that each finding is reproducible."""

    def shape(folder: Path) -> list[tuple[Kind, int, int, int]]:
        root = folder / "disk"
        root.mkdir(parents=True)
        with Medium(root, folder=folder, tracing=True) as medium:
            assert work(medium, root, 7, 30).returncode == 0
            return [(event.kind, event.file, event.offset, len(event.data)) for event in medium.events()]

    with scratch() as fast:
        first, second = (shape(Path(fast) / name) for name in "ab")
    assert len(first) > 300
    assert {Kind.WRITTEN, Kind.SYNCED, Kind.TRUNCATED} <= {kind for kind, *_ in first}
    differing = [(i, one, other) for i, (one, other) in enumerate(zip(first, second, strict=False)) if one != other]
    assert not differing, differing[:3]
    assert len(first) == len(second)


class TestDisk:
    """The model forgets only data that a disk may forget."""

    @staticmethod
    def disk(*events: Event) -> Disk:
        disk = Disk({}, {"/d"}, 1)
        for event in (Event(Kind.OPENED, 1, 0, b"/d"), Event(Kind.CREATED, 2, 0, b"/d/f"), *events):
            disk.apply(event)
        return disk

    @staticmethod
    def found(disk: Disk) -> set[bytes | None]:
        return {disk.cut(random.Random(seed))[0].get("/d/f") for seed in range(300)}

    def test_a_name_is_durable_with_its_folder(self) -> None:
        write, sync = Event(Kind.WRITTEN, 2, 0, b"x"), Event(Kind.SYNCED, 2, 0, b"")
        assert self.found(self.disk(write, sync)) == {None, b"x"}
        assert self.found(self.disk(write, sync, Event(Kind.SYNCED, 1, 0, b""))) == {b"x"}

    def test_sectors_are_lost_and_reordered(self) -> None:
        named, sync = Event(Kind.SYNCED, 1, 0, b""), Event(Kind.SYNCED, 2, 0, b"")
        first, second = Event(Kind.WRITTEN, 2, 0, b"a" * 1024), Event(Kind.WRITTEN, 2, 0, b"b" * 1024)
        found = self.found(self.disk(named, first, sync, second))
        assert {b"a" * 1024, b"b" * 1024, b"a" * 512 + b"b" * 512, b"b" * 512 + b"a" * 512} == found

    def test_failed_sync_may_lose_its_writes(self) -> None:
        events = [Event(Kind.SYNCED, 1, 0, b""), Event(Kind.WRITTEN, 2, 0, b"x"), Event(Kind.SYNC_FAILED, 2, 0, b"")]
        found: set[bytes | None] = set()
        for seed in range(20):
            disk = Disk({}, {"/d"}, seed)
            for event in (Event(Kind.OPENED, 1, 0, b"/d"), Event(Kind.CREATED, 2, 0, b"/d/f"), *events):
                disk.apply(event)
            disk.apply(Event(Kind.SYNCED, 2, 0, b""))
            found |= self.found(disk)
        assert found == {b"", b"x"}


def test_late_sync_error_is_no_second_failure(tmp_path: Path) -> None:
    """A sync error that is reported late is not a second failure.

    Each open file of a name gets the error once; writes since then are not lost.
    """
    program = """
import os, sys
one, other = (os.open(sys.argv[1], os.O_RDWR | os.O_CREAT) for _ in range(2))
for file in (one, other, other):
    os.write(file, b"x")
    try:
        os.fsync(file)
        print("synced")
    except OSError:
        print("failed")
"""
    root = tmp_path / "disk"
    root.mkdir()
    with Medium(root, folder=tmp_path, tracing=True) as medium:
        medium.fail(Files.LOG, sync=errno.EIO, syncs_failing=1)
        command = [sys.executable, "-c", program, str(root / "x-wal")]
        told = subprocess.run(command, env=medium.environment, capture_output=True, text=True, check=True).stdout
        syncs = [event.kind for event in medium.events() if event.kind in {Kind.SYNCED, Kind.SYNC_FAILED}]
    assert told.split() == ["failed", "failed", "synced"]
    assert syncs == [Kind.SYNC_FAILED, Kind.SYNCED]


class TestChecker:
    """The checker finds each kind of violation."""

    @staticmethod
    def history(*, answered: bool = True) -> History:
        history = History()
        group = Group([("q", 0)], [], [Append("q", "a", ["1", "2"])], [("c", "q", 0)], puts={"k": "v"})
        history.follow(Line("sealed", group=group))
        if answered:
            history.follow(Line("ok", appended=[("q", 0, "a", 0, ["1", "2"])]))
        return history

    @staticmethod
    def shown() -> Observed:
        messages = {"q": [(0, "a", 0, "1"), (1, "a", 1, "2")]}
        return Observed("e", {"q": (0, 2)}, messages, [("c", "q", 0, [])], {"k": "v"}, {"a": 2}, (2, 2), 2)

    def test_valid_content_is_no_problem(self) -> None:
        assert not self.history().problems(self.shown())
        assert not self.history(answered=False).problems(self.shown())
        assert not self.history(answered=False).problems(Observed("e", {}, {}, [], {}, {}, (0, 0), 0))

    @pytest.mark.parametrize(("field", "value"), [
        ("bounds", {"q": (0, 1)}), ("bounds", {"q": (1, 2)}), ("bounds", {}),
        ("messages", {"q": [(0, "a", 0, "1")]}), ("messages", {"q": [(0, "a", 0, "1"), (1, "a", 1, "3")]}),
        ("messages", {"q": [(0, "a", 0, "2"), (1, "a", 1, "1")]}),
        ("messages", {"q": [(0, "a", 0, "1"), (1, "a", 2, "2")]}),
        ("cursors", []), ("cursors", [("c", "q", 1, [])]), ("cursors", [("c", "q", 0, [(1, 1)])]),
        ("state", {}), ("state", {"k": "w"}), ("sequences", {"a": 1}), ("sequences", {}), ("figures", (2, 3)),
    ])  # fmt: skip
    def test_a_difference_is_a_problem(self, field: str, value: object) -> None:
        shown = self.shown()
        setattr(shown, field, value)
        assert self.history().problems(shown)
        assert self.history(answered=False).problems(shown)

    def test_lost_acknowledgement_is_a_problem(self) -> None:
        history = self.history()
        history.follow(Line("acked", cursor=("c", "q", 0, 0)))
        assert not history.problems(self.shown())
        history.follow(Line("closed"))
        assert history.problems(self.shown())

    def test_another_epoch_is_a_problem(self) -> None:
        history = self.history()
        history.adopt(self.shown())
        shown = self.shown()
        shown.epoch = "f"
        assert history.problems(shown)

    @staticmethod
    def giving(group: Group, *, answered: bool) -> History:
        """Return the history after a commit with losses."""
        history = TestChecker.history()
        history.follow(Line("sealed", group=group))
        if answered:
            history.follow(Line("ok"))
        return history

    @pytest.mark.parametrize("answered", [True, False])
    def test_evicted_message_is_in_the_ledger(self, answered: bool) -> None:
        history, shown = self.giving(Group(evicted=["q"]), answered=answered), self.shown()
        shown.bounds, shown.messages, shown.figures, shown.true_bytes = (
            {"q": (1, 2)},
            {"q": [(1, "a", 1, "2")]},
            (1, 1),
            1,
        )
        assert history.problems(shown), "not entered"
        shown.ledger = [(1, "c", "a", 0, 0, 1, 1, "evicted")]
        assert not history.problems(shown)
        shown.ledger = [(1, "c", "a", 0, 1, 2, 2, "evicted")]
        assert history.problems(shown), "the second is there"
        shown.ledger = [(1, "c", "a", 0, 0, 1, 1, "evicted"), (2, "c", "a", 0, 0, 1, 1, "evicted")]
        assert history.problems(shown), "entered twice"

    @pytest.mark.parametrize("answered", [True, False])
    def test_dropped_message_is_no_longer_pending(self, answered: bool) -> None:
        lost = Lost("c", "a", 0, 1, "rejected")
        history = self.giving(Group(given=[Given(("c", "q"), 0, 0, [lost], if_kept=True)]), answered=answered)
        shown = self.shown()
        assert bool(history.problems(shown)) == answered, "all of it or nothing"
        shown.ledger = [(1, "c", "a", 0, 0, 1, 1, "rejected")]
        assert history.problems(shown), "the cursor still waits for it"
        shown.cursors = [("c", "q", 1, [])]
        assert not history.problems(shown)
        shown.ledger = []
        assert history.problems(shown), "passed, and not in the ledger"

    def test_summary_replaces_thinned_messages(self) -> None:
        history, shown = self.giving(Group(thinned=["q"]), answered=True), self.shown()
        shown.messages, shown.true_bytes, shown.figures = {"q": [(1, "a", 1, "2~2")]}, 3, (2, 3)
        shown.ledger = [(1, "c", "a", 0, 0, 1, 1, "thinned")]
        assert not history.problems(shown)
        shown.messages = {"q": [(1, "a", 1, "2~3")]}
        assert history.problems(shown)
        shown.messages = {"q": [(1, "a", 1, "2")]}
        assert history.problems(shown)


class TestCheckerOfLogsInMemory:
    """The checker of `in_memory` finds each kind of violation."""

    LOG = "queue memory"
    ADDRESS = "memory/0"

    def history(self) -> History:
        """Return a history of three messages.

        One is on disk, from before the log was in memory. Two are in memory, and one of these is settled.
        """
        history = History()
        opened = [("c", self.LOG, 0)]
        history.follow(
            Line("sealed", group=Group([(self.LOG, 0)], [], [Append(self.LOG, self.ADDRESS, ["1"])], opened))
        )
        history.follow(Line("ok", appended=[(self.LOG, 0, self.ADDRESS, 0, ["1"])]))
        history.follow(Line("took", taken=[(self.LOG, 1, self.ADDRESS, 1, ["2", "3"])], at_s=1.0))
        history.follow(Line("acked", cursor=("c", self.LOG, 1, 1)))
        return history

    def shown(self) -> Observed:
        """Return the content after a crash with four reserved numbers and three possible losses in the ledger."""
        messages = {self.LOG: [(0, self.ADDRESS, 0, "1")]}
        cursors: list[tuple[str, str, int, list[tuple[int, int]]]] = [("c", self.LOG, 0, [(1, 3)])]
        shown = Observed("e", {self.LOG: (0, 4)}, messages, cursors, {}, {self.ADDRESS: 4}, (4, 1), 1)
        shown.ledger = [(1, "c", self.ADDRESS, 1, 3, 3, 0, "memory")]
        return shown

    def test_valid_content_is_no_problem(self) -> None:
        assert not self.history().problems(self.shown())

    def test_orderly_close_reports_exactly_the_losses(self) -> None:
        """After an orderly close, exactly the lost messages are in the ledger, and no number is skipped."""
        history, shown = self.history(), self.shown()
        history.follow(Line("closed"))
        shown.bounds, shown.sequences = {self.LOG: (0, 3)}, {self.ADDRESS: 3}
        shown.figures, shown.cursors = (3, 1), [("c", self.LOG, 0, [(1, 2)])]
        shown.ledger = [(1, "c", self.ADDRESS, 2, 2, 1, 1, "memory")]
        assert not history.problems(shown)
        shown.ledger = [(1, "c", self.ADDRESS, 2, 2, 1, 1, "evicted")]
        assert not history.problems(shown)
        shown.ledger = []
        assert history.problems(shown)

    def test_running_store_need_not_report_drops_of_a_ring(self) -> None:
        history, shown = self.history(), self.shown()
        shown.running, shown.ledger = True, []
        shown.bounds, shown.sequences = {self.LOG: (0, 3)}, {self.ADDRESS: 3}
        shown.figures, shown.cursors = (3, 1), [("c", self.LOG, 0, [(1, 2)])]
        assert not history.problems(shown)

    def test_gap_in_numbers_is_found(self) -> None:
        for position, sequence in ((2, 3), (3, 2), (4, 3), (3, 4)):
            with pytest.raises(AssertionError, match="took"):
                self.history().follow(Line("took", taken=[(self.LOG, position, self.ADDRESS, sequence, ["4"])]))

    @pytest.mark.parametrize(("field", "value"), [
        ("ledger", []),
        ("ledger", [(1, "c", ADDRESS, 1, 2, 2, 0, "memory")]),
        ("ledger", [(1, "c", ADDRESS, 0, 3, 4, 0, "memory")]),
        ("ledger", [(1, "c", ADDRESS, 1, 4, 4, 0, "memory")]),
        ("ledger", [(1, "d", ADDRESS, 1, 3, 3, 0, "memory")]),
        ("ledger", [(1, "c", ADDRESS, 1, 3, 3, 0, "evicted")]),
        ("ledger", [(1, "c", ADDRESS, 1, 3, 3, 0, "memory"), (2, "c", ADDRESS, 3, 3, 1, 0, "memory")]),
        ("ledger", [(1, "c", ADDRESS, 1, 3, 3, 0, "memory"), (2, "c", ADDRESS, 3, 3, 1, 0, "rejected")]),
        ("sequences", {ADDRESS: 2}), ("sequences", {ADDRESS: 4 + RESERVE_MAX}),
        ("bounds", {LOG: (0, 2)}), ("bounds", {LOG: (0, 4 + RESERVE_MAX)}),
        ("messages", {LOG: []}),
        ("messages", {LOG: [(0, ADDRESS, 0, "1"), (1, ADDRESS, 1, "2")]}),
        ("messages", {LOG: [(0, ADDRESS, 0, "1"), (3, ADDRESS, 3, "4")]}),
        ("cursors", [("c", LOG, 0, [])]), ("cursors", [("c", LOG, 0, [(1, 2)])]), ("cursors", [("c", LOG, 4, [])]),
    ])  # fmt: skip
    def test_a_difference_is_a_problem(self, field: str, value: object) -> None:
        shown = self.shown()
        setattr(shown, field, value)
        assert self.history().problems(shown)

    def test_later_cursor_skips_messages_that_all_had_taken(self) -> None:
        """A later cursor does not wait for messages that all earlier ones had taken.

        It begins at the messages still on the medium; later ones may have left the memory by then.
        """
        history = History()
        opened = [("c", self.LOG, 0)]
        made = Group([(self.LOG, 0)], [], [Append(self.LOG, self.ADDRESS, ["1"])], opened)
        history.follow(Line("sealed", group=made))
        history.follow(Line("ok", appended=[(self.LOG, 0, self.ADDRESS, 0, ["1"])]))
        history.follow(Line("took", taken=[(self.LOG, 1, self.ADDRESS, 1, ["2", "3"])], at_s=1.0))
        history.follow(Line("acked", cursor=("c", self.LOG, 0, 2)))
        for at_s, group in ((2.0, Group(opened=[("late", self.LOG, 0)])), (20.0, Group(puts={"k": "v"}))):
            group.at_s = at_s
            history.follow(Line("sealed", group=group))
            history.follow(Line("ok"))
        shown = self.shown()
        shown.cursors = [("c", self.LOG, 0, [(1, 3)]), ("late", self.LOG, 0, [(1, 3)])]
        shown.ledger = [(n, name, self.ADDRESS, 1, 3, 3, 0, "memory") for n, name in enumerate(("c", "late"))]
        shown.state = {"k": "v"}
        assert not history.problems(shown)

    def test_close_that_skips_numbers_is_a_problem(self) -> None:
        history = self.history()
        history.follow(Line("closed"))
        assert history.problems(self.shown())
