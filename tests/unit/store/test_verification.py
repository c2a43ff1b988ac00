"""Verification finds each kind of damage, names its place, and finds none in a valid store."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.appliance.store.recovery.verification import Depth, StoreFinding, VerificationReport, verify
from edge.broker.store.errors import StoreDamaged, StoreInaccessible
from edge.broker.store.limits import FINDINGS_MAX, StoreLimits
from edge.broker.store.sqlite import open_store
from tests.contract.store.rig import run_of, sqlite_rig
from tests.support.stores import Made, change, key, make, rot


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make(tmp_path / "data")


def codes(report: VerificationReport) -> list[str]:
    return [finding.code for finding in report.findings]


def opens(made: Made) -> bool:
    """Return True when a gateway would start on it."""
    try:
        store = open_store(made.path.parent, post=lambda _: None)
    except StoreDamaged:
        return False
    store.close()
    return True


class TestSound:
    @pytest.mark.parametrize("depth", Depth)
    @pytest.mark.parametrize("crashed", [False, True])
    def test_no_findings_in_a_sound_store(self, tmp_path: Path, depth: Depth, crashed: bool) -> None:
        made = make(tmp_path / "data", crashed=crashed)
        report = verify(made.path, depth)
        assert codes(report) == []
        assert not report.damaged
        assert report.epoch == made.epoch
        if depth is Depth.FULL:
            assert report.messages == made.messages
            assert (report.logs, report.cursors, report.addresses) == (2, 2, 8)

    def test_progress_is_reported(self, made: Made) -> None:
        told: list[tuple[int, int]] = []
        verify(made.path, on_progress=lambda done, all_: told.append((done, all_)))
        assert told[-1][0] == told[-1][1] > 0
        assert told == sorted(told)

    def test_empty_store_is_sound(self, tmp_path: Path) -> None:
        open_store(tmp_path, post=lambda _: None).close()
        assert verify(tmp_path / "store.sqlite").findings == []

    def test_address_that_was_in_another_log_is_sound(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path)
        kept, read = rig.store.logs.open("kept"), rig.store.logs.open("read")
        rig.store.cursors.open("absent", kept, 0)
        cursor = rig.store.cursors.open("reader", read, 0)
        for log in (kept, read, read):
            rig.store.logs.append(log, run_of(b"x", address="p"))
            rig.commit()
        rig.store.cursors.acknowledge(cursor, 0, 1)
        rig.store.close()
        assert verify(tmp_path / "store.sqlite").findings == []

    def test_newer_schema_is_a_note(self, made: Made) -> None:
        change(made.path, "PRAGMA user_version = 99")
        report = verify(made.path)
        assert codes(report) == ["schema-newer"]
        assert not report.damaged

    def test_missing_store_is_reported(self, tmp_path: Path) -> None:
        with pytest.raises(StoreInaccessible, match="no store"):
            verify(tmp_path / "store.sqlite")

    def test_verification_changes_nothing(self, made: Made) -> None:
        before = made.path.read_bytes()
        verify(made.path)
        assert made.path.read_bytes() == before


class TestDamage:
    def test_damaged_segment_is_found(self, made: Made) -> None:
        rot(made.path, 1, 100)
        [finding] = verify(made.path).findings
        assert finding == StoreFinding(
            "segment-damaged", "log 'queue jobs'", "positions 100 to 109: checksum does not match", True, 1, 100, 109
        )
        assert opens(made)

    def test_damaged_uncounted_segment_prevents_the_start(self, tmp_path: Path) -> None:
        made = make(tmp_path / "data", crashed=True)
        rot(made.path, 1, 200)
        for depth in Depth:
            assert codes(verify(made.path, depth)) == ["newest-damaged"]
        assert not opens(made)

    def test_missing_segment_is_found(self, made: Made) -> None:
        change(made.path, "DELETE FROM segment WHERE key = ?", key(2, 110))
        [finding] = verify(made.path).findings
        assert (finding.code, finding.log, finding.first, finding.last) == ("positions-missing", 2, 110, 120)

    @pytest.mark.parametrize("position", [50, 190])
    def test_missing_end_is_found(self, made: Made, position: int) -> None:
        change(made.path, "DELETE FROM segment WHERE key = ?", key(1, position))
        [finding] = verify(made.path).findings
        assert (finding.code, finding.first, finding.last) == ("positions-missing", position, position + 9)

    def test_wrong_column_is_found(self, made: Made) -> None:
        change(made.path, "UPDATE segment SET messages = 11 WHERE key = ?", key(1, 100))
        assert "segment-damaged" in codes(verify(made.path))

    @pytest.mark.parametrize(
        ("statement", "code"),
        [
            ("UPDATE cursor SET position = 900 WHERE name = 'queue'", "cursor-beyond"),
            ("UPDATE cursor SET acknowledged = x'4901'", "cursor-damaged"),
            ("UPDATE cursor SET log = 77 WHERE name = 'queue'", "cursor-lost"),
            ("UPDATE address SET next = 3 WHERE name = 'jobs'", "counter-behind"),
            ("DELETE FROM address WHERE name = 'jobs'", "counter-behind"),
            ("UPDATE address SET next = 999 WHERE name = 'jobs'", "sequences-missing"),
            ("UPDATE log SET bytes = bytes + 1 WHERE log = 1", "bytes-miscounted"),
            ("UPDATE log SET first = 70 WHERE log = 1", "below-first"),
            ("UPDATE log SET next = next + 5 WHERE log = 1", "positions-missing"),
            ("DELETE FROM log WHERE log = 2", "log-unknown"),
            ("DELETE FROM meta WHERE key = 'epoch'", "no-epoch"),
            ("ALTER TABLE log DROP COLUMN bytes", "schema-damaged"),
        ],
    )
    def test_state_that_opening_uses_is_checked(self, made: Made, statement: str, code: str) -> None:
        assert change(made.path, statement) != 0
        report = verify(made.path)
        assert code in codes(report)
        assert report.damaged

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE cursor SET acknowledged = x'4901' WHERE name = 'queue'",
            "UPDATE cursor SET log = 77 WHERE name = 'queue'",
            "DELETE FROM meta WHERE key = 'epoch'",
        ],
    )
    def test_damage_that_prevents_the_start_is_found_at_any_depth(self, made: Made, statement: str) -> None:
        change(made.path, statement)
        assert not opens(made)
        assert all(verify(made.path, depth).damaged for depth in Depth)

    def test_misplaced_segment_is_found(self, made: Made) -> None:
        change(made.path, "UPDATE segment SET key = key + 10 WHERE key = ?", key(1, 190))
        report = verify(made.path)
        assert {"newest-damaged", "positions-missing"} <= set(codes(report))

    def test_foreign_file_is_reported(self, tmp_path: Path) -> None:
        path = tmp_path / "store.sqlite"
        for content in (b"", b"x" * 8192, b"SQLite format 3\0" + bytes(100)):
            path.write_bytes(content)
            assert codes(verify(path)) == ["not-a-store"]

    def test_findings_are_bounded(self, tmp_path: Path) -> None:
        made = make(tmp_path / "data", 600, limits=StoreLimits(counted_commits_max=1))
        change(made.path, "UPDATE segment SET crc = crc + 1")
        report = verify(made.path, Depth.FULL)
        assert len(report.findings) == FINDINGS_MAX
        assert len(report.findings) + report.left_out >= 1195
        assert report.damaged
