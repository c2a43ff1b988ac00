"""The medium fails in every way a card does; each outcome is a row of the table in ``edge/broker/store/README.md``."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fault.store.driver import Driven
from tests.fault.store.history import Observed
from tests.fault.store.limits import LIMITS
from tests.support.medium import Files, Medium

NAME = "queue jobs"
COMMITS_BEFORE_A_PASS = LIMITS.checkpoint_bytes // (4 * 4_096)
"""Minimum of commits with one message of a page each before a checkpoint: each writes three or four pages."""
TEN_YEARS_NS = 10 * 365 * 86_400 * 1_000_000_000


@pytest.fixture
def medium(tmp_path: Path) -> Iterator[Medium]:
    (tmp_path / "disk").mkdir()
    with Medium(tmp_path / "disk", folder=tmp_path) as medium:
        yield medium


@pytest.fixture
def start(medium: Medium, tmp_path: Path) -> Callable[[], Driven]:
    return lambda: Driven(tmp_path / "disk" / "data", medium.environment, tmp_path / "driver.log")


def bodies(prefix: str, count: int, size: int = 200) -> list[str]:
    return [f"{prefix}{number}".ljust(size, "-") for number in range(count)]


def shows(observed: Observed, expected: list[str]) -> None:
    """Check that the store has exactly these messages, with dense positions and sequences, and the right figures."""
    first, end = observed.bounds[NAME]
    assert [body for *_, body in observed.messages[NAME]] == expected[first:]
    assert [position for position, *_ in observed.messages[NAME]] == list(range(first, end))
    assert [sequence for _, _, sequence, _ in observed.messages[NAME]] == list(range(first, end))
    assert end == len(expected)
    assert observed.figures == (end - first, sum(len(body) for body in expected[first:])), "the accounting is exact"


class TestFull:
    """ENOSPC at the last byte, and space again."""

    @pytest.mark.parametrize("room", [0, 1, 100_000, 300_001])
    def test_full_medium_refuses_commits_until_there_is_space(
        self, medium: Medium, start: Callable[[], Driven], room: int
    ) -> None:
        with start() as store:
            kept = bodies("before", 3)
            assert store.commit(*kept) == ""
            medium.limit(room)
            refused_in_a_row = 0
            for number in range(200):
                more = bodies(f"{number}:", 5, 3_000)
                error = store.commit(*more)
                if error:
                    assert error == "StoreFull"
                    refused_in_a_row += 1
                else:  # also after a refusal: a checkpoint that ended during it lets the log restart
                    kept += more
                    refused_in_a_row = 0
                if refused_in_a_row == 10:
                    break
            assert refused_in_a_row == 10
            shows(store.observe(), kept)
            medium.limit(1 << 30)
            after = bodies("after", 4)
            assert store.commit(*after) == ""
            shows(store.observe(), kept + after)
            assert store.acknowledge(3) == ""
            assert "commits succeed again" in store.log()
            last = store.observe()
        with start() as store:
            assert store.opened.error == ""
            shows(store.observe(), kept + after)
            assert store.observe().bounds[NAME][0] >= last.bounds[NAME][0]

    def test_store_on_full_medium_opens_and_is_read(self, medium: Medium, start: Callable[[], Driven]) -> None:
        with start() as store:
            assert store.commit("kept") == ""
        medium.limit(0)
        with start() as store:
            # The log's index is not counted: it is memory of SQLite's, on any file system with a page left.
            assert store.opened.error == ""
            assert store.commit("x" * 10_000) == "StoreFull"
            assert store.bodies() == ["kept"]

    def test_acknowledgements_make_room_on_full_medium(self, medium: Medium, start: Callable[[], Driven]) -> None:
        """Acknowledged messages make room on a full medium: the log is moved into the file, and restarted early."""
        with start() as store:
            kept = bodies("before", 200, 3_000)
            for at in range(0, 200, 5):
                assert store.commit(*kept[at : at + 5]) == ""
            assert store.acknowledge(199) == ""
            while store.observe().bounds[NAME][0] < 200:
                kept.append("behind")
                assert store.commit(kept[-1]) == ""
                assert len(kept) < 500
            medium.limit(0)
            taken, refused = 0, 0
            deadline = time.monotonic() + 20.0
            while taken < 10 or not refused:
                assert time.monotonic() < deadline, (taken, refused)
                more = bodies(f"{taken}:", 2, 3_000)
                error = store.commit(*more)
                assert error in {"", "StoreFull"}
                if error:
                    refused += 1
                else:
                    taken, kept = taken + 1, kept + more
                    shows(store.observe(), kept)
        with start() as store:
            shows(store.observe(), kept)


class TestFailing:
    """EIO and a file system that became read-only."""

    @pytest.mark.parametrize("files", [Files.LOG, Files.ALL])
    @pytest.mark.parametrize(("call", "code"), [("write", errno.EIO), ("sync", errno.EIO), ("write", errno.EROFS)])
    def test_write_error_refuses_commits_until_it_ends(
        self, medium: Medium, start: Callable[[], Driven], files: Files, call: str, code: int
    ) -> None:
        with start() as store:
            kept = bodies("before", 3)
            assert store.commit(*kept) == ""
            medium.fail(files, **{call: code})  # type: ignore[arg-type]
            for _ in range(5):
                assert store.commit("refused" * 100) == "StoreError"
                shows(store.observe(), kept)
            medium.heal()
            kept += bodies("after", 3)
            assert store.commit(*kept[3:]) == ""
            shows(store.observe(), kept)
        with start() as store:
            shows(store.observe(), kept)

    @pytest.mark.parametrize(("call", "code"), [("write", errno.EIO), ("sync", errno.EIO)])
    def test_failed_checkpoint_stops_no_commit(
        self, medium: Medium, start: Callable[[], Driven], call: str, code: int
    ) -> None:
        """A failed checkpoint does not stop commits, which need only the log, and a later checkpoint completes it."""
        with start() as store:
            medium.fail(Files.DATABASE, **{call: code})  # type: ignore[arg-type]
            kept: list[str] = []
            for number in range(20):
                kept += bodies(f"{number}:", 4, 4_000)
                assert store.commit(*kept[-4:]) == ""
            assert "checkpoint: " in store.log()
            assert "the medium failed" in store.log()
            shows(store.observe(), kept)
            medium.heal()
            for number in range(20):
                kept += bodies(f"more {number}:", 4, 4_000)
                assert store.commit(*kept[-4:]) == ""
            shows(store.observe(), kept)
        with start() as store:
            shows(store.observe(), kept)

    def test_slow_medium_delays_checkpoints_and_no_commits(self, medium: Medium, start: Callable[[], Driven]) -> None:
        """A slow medium delays its checkpoints and no commits.

        A card needs seconds for random writes that take one second in sequence.
        """
        with start() as store:
            medium.stall(Files.DATABASE)
            kept: list[str] = []
            while not medium.count("asleep"):
                kept += bodies(f"{len(kept)}:", 1, 4_000)
                assert store.commit(kept[-1]) == ""
                # a started pass comes to its sync: commits wait for one when the log has run far ahead
                until = time.monotonic() + (0.5 if len(kept) >= COMMITS_BEFORE_A_PASS else 0.0)
                while time.monotonic() < until and not medium.count("asleep"):
                    time.sleep(0.005)
            for _ in range(3):
                kept += bodies(f"{len(kept)}:", 1, 4_000)
                assert store.commit(kept[-1]) == ""
            assert medium.count("asleep") == 1
            medium.heal()
            shows(store.observe(), kept)
        with start() as store:
            shows(store.observe(), kept)

    def test_read_error_is_logged_and_reading_resumes(self, medium: Medium, start: Callable[[], Driven]) -> None:
        with start() as store:
            kept = bodies("kept", 40, 5_000)
            assert store.commit(*kept) == ""
        with start() as store:
            medium.fail(Files.ALL, read=errno.EIO)
            assert store.bodies() == []
            assert "read of log" in store.log()
            medium.heal()
            assert store.answered() == kept
            shows(store.observe(), kept)

    def test_store_on_read_only_medium_does_not_open(self, medium: Medium, start: Callable[[], Driven]) -> None:
        with start() as store:
            assert store.commit("kept") == ""
        medium.fail(Files.ALL, write=errno.EROFS, opening=errno.EROFS)
        with start() as store:
            assert store.opened.error == "StoreInaccessible"
            assert "mounted read-write" in store.opened.text
        medium.heal()
        with start() as store:
            assert store.bodies() == ["kept"]

    def test_store_on_medium_that_does_not_sync_does_not_open(
        self, medium: Medium, start: Callable[[], Driven]
    ) -> None:
        with start() as store:
            assert store.commit("kept") == ""
        medium.fail(Files.ALL, sync=errno.EIO)
        with start() as store:
            assert store.opened.error == "StoreError"
            assert "the medium failed" in store.opened.text
        medium.heal()
        with start() as store:
            assert store.bodies() == ["kept"]


class TestDamaged:
    """Bytes that changed, files that disappeared."""

    @pytest.fixture
    def closed(self, start: Callable[[], Driven], tmp_path: Path) -> Path:
        """Make a closed store of 40 messages in 20 commits."""
        with start() as store:
            for number in range(20):
                assert store.commit(*bodies(f"{number}:", 2, 2_500)) == ""
            assert store.close() == ""
        return tmp_path / "disk" / "data"

    @staticmethod
    def all_bodies() -> list[str]:
        return [body for number in range(20) for body in bodies(f"{number}:", 2, 2_500)]

    def test_torn_page_of_bodies_is_skipped_and_reported(self, closed: Path, start: Callable[[], Driven]) -> None:
        """A segment with a torn page is skipped and reported; the others are delivered, and the log continues."""
        path = closed / "store.sqlite"
        data = bytearray(path.read_bytes())
        at = data.index(b"7:1---") + 600
        data[at : at + 512] = bytes(512)
        path.write_bytes(data)
        with start() as store:
            expected = [body for body in self.all_bodies() if not body.startswith("7:")]
            assert store.bodies() == expected
            assert "positions 14 to 15 are damaged and skipped" in store.log()
            assert store.commit("more") == ""
            assert store.bodies() == [*expected, "more"]

    def test_store_with_torn_first_page_does_not_open(self, closed: Path, start: Callable[[], Driven]) -> None:
        """A store with a torn first page, which identifies the file, does not open, and nothing is written."""
        path = closed / "store.sqlite"
        data = bytearray(path.read_bytes())
        data[:512] = bytes(512)
        path.write_bytes(data)
        with start() as store:
            assert store.opened.error == "StoreDamaged"
        assert path.read_bytes() == data

    @pytest.mark.parametrize("keep", [0, 20, 32, 5_000, 60_000])
    def test_truncated_log_keeps_whole_commits(self, start: Callable[[], Driven], tmp_path: Path, keep: int) -> None:
        """A truncated log keeps whole commits, and the store continues.

        No pass over the log was under way: then the file has some pages of the newest commits, and needs the log for
        others.
        """
        with start() as store:
            for number in range(6):
                assert store.commit(*bodies(f"{number}:", 2, 2_500)) == ""
        log = tmp_path / "disk" / "data" / "store.sqlite-wal"
        assert log.stat().st_size > 60_000
        os.truncate(log, keep)
        with start() as store:
            assert store.opened.error == ""
            kept = store.observe().messages.get(NAME, [])
            assert len(kept) % 2 == 0
            assert [body for *_, body in kept] == self.all_bodies()[: len(kept)]
            assert store.commit("more") == ""
            assert store.bodies()[-1] == "more"

    @pytest.mark.parametrize("running", [False, True])
    def test_deleted_index_of_log_loses_nothing(
        self, start: Callable[[], Driven], tmp_path: Path, running: bool
    ) -> None:
        index = tmp_path / "disk" / "data" / "store.sqlite-shm"
        with start() as store:
            for number in range(10):
                assert store.commit(*bodies(f"{number}:", 2, 2_500)) == ""
            if running:
                index.unlink()
            for number in range(10, 20):
                assert store.commit(*bodies(f"{number}:", 2, 2_500)) == ""
            shows(store.observe(), self.all_bodies())
        index.unlink(missing_ok=True)
        with start() as store:
            shows(store.observe(), self.all_bodies())

    def test_store_opens_in_one_process_only(self, start: Callable[[], Driven]) -> None:
        with start() as store:
            assert store.commit("kept") == ""
            with start() as second:
                assert second.opened.error == "StoreBusy"
            assert store.commit("more") == ""
            assert store.bodies() == ["kept", "more"]


@pytest.mark.parametrize("jump", [TEN_YEARS_NS, -TEN_YEARS_NS])
def test_clock_jump_changes_no_order_name_or_cursor(start: Callable[[], Driven], jump: int) -> None:
    """Order, names and cursors come from counters: the time of a message changes none of them."""
    now = 1_790_000_000_000_000_000
    with start() as store:
        assert store.commit("a", received_at=now) == ""
        assert store.commit("b", received_at=now + jump) == ""
        assert store.commit("c", received_at=now + 1) == ""
        assert store.acknowledge(0) == ""
        assert store.close() == ""
    with start() as store:
        shows(store.observe(), ["a", "b", "c"])
        assert store.observe().cursors[0][2:] == (1, [])
