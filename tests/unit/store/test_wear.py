"""The meter of bytes written to the card: the kernel's counters, the stored hours, and the totals of a store."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from edge.appliance.store.recovery.inspection import Inspection
from edge.broker.store import wear
from edge.broker.store.limits import StoreLimits
from edge.broker.store.sqlite import FILE_NAME
from edge.broker.store.sqlite_medium import SqliteMedium
from edge.broker.store.wear import HOUR_S, HOURS_KEPT, PERSIST_S, BlockDevice, WearMeter, WearTotals, WrittenBytes
from tests.contract.store.rig import Rig, fail_commits, run_of, sqlite_rig


class Kernel:
    """Counters and a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 50.0
        self.counters = WrittenBytes(1_000, 1_000_000)

    def meter(self, *rows: WearTotals) -> WearMeter:
        return WearMeter(rows, lambda: self.counters, lambda: self.now)


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


class TestMeter:
    def test_meter_counts_from_its_start(self, kernel: Kernel) -> None:
        meter = kernel.meter()
        assert meter.totals() == WearTotals(0, 0, 0, 0)
        kernel.now, kernel.counters = 60.0, WrittenBytes(1_500, 1_000_700)
        meter.payload_bytes += 100
        assert meter.totals() == WearTotals(10, 100, 500, 700)

    def test_meter_continues_over_a_reboot(self, kernel: Kernel) -> None:
        kernel.counters = WrittenBytes(0, 0)  # another process, another boot
        meter = kernel.meter(WearTotals(10, 1, 2, 3), WearTotals(5_000, 100, 500, 700))
        kernel.now, kernel.counters = 51.0, WrittenBytes(7, 9)
        assert meter.totals() == WearTotals(5_001, 100, 507, 709)

    def test_decreasing_counter_subtracts_nothing(self, kernel: Kernel) -> None:
        meter = kernel.meter(WearTotals(5, 100, 500, 700))
        kernel.now, kernel.counters = 40.0, WrittenBytes(0, 5)
        assert meter.totals() == WearTotals(5, 100, 500, 700)

    @pytest.mark.parametrize("later", [WrittenBytes(None, None), WrittenBytes(5, None), WrittenBytes(None, 5)])
    def test_missing_kernel_counters_stay_zero(self, kernel: Kernel, later: WrittenBytes) -> None:
        kernel.counters = WrittenBytes(None, None)
        meter = kernel.meter()
        kernel.counters = later
        assert meter.totals()[2:] == (0, 0)

    def test_meter_is_due_after_an_interval(self, kernel: Kernel) -> None:
        meter = kernel.meter()
        kernel.now += PERSIST_S - 0.1
        assert not meter.due()
        kernel.now += 0.1
        assert meter.due()
        meter.committed(meter.totals())
        assert not meter.due()

    def test_last_reading_of_each_hour_is_kept_up_to_a_limit(self, kernel: Kernel) -> None:
        meter = kernel.meter()
        for seconds in (10.0, HOUR_S - 1, HOUR_S, HOUR_S + 5):
            meter.committed(WearTotals(seconds))
        assert [row.seconds for row in meter.rows] == [HOUR_S - 1, HOUR_S + 5]
        for hour in range(2, 3 * HOURS_KEPT):
            meter.committed(WearTotals(hour * HOUR_S))
        assert len(meter.rows) == HOURS_KEPT + 1


class TestDevice:
    """A device in files, as /sys shows it."""

    def make(self, root: Path, *, partition: bool = False, life: str | None = None) -> Path:
        number = os.stat(root).st_dev
        whole = root / "sys/devices/mmcblk0"
        folder = whole / "mmcblk0p2" if partition else whole
        folder.mkdir(parents=True)
        for place, sectors in ((whole, 900), (folder, 900 if not partition else 5)):
            (place / "stat").write_text(f"  1 2 3 4 5 6 {sectors} 8 9 10 11\n")
        if partition:
            (folder / "partition").write_text("2\n")
        if life is not None:
            (whole / "device").mkdir()
            (whole / "device/life_time").write_text(life)
        links = root / "sys/dev/block"
        links.mkdir(parents=True)
        (links / f"{os.major(number)}:{os.minor(number)}").symlink_to(folder)
        return root

    @pytest.mark.parametrize("partition", [False, True])
    def test_device_is_the_whole_disk(self, tmp_path: Path, partition: bool) -> None:
        device = BlockDevice.of(tmp_path, self.make(tmp_path, partition=partition))
        assert device is not None
        assert (device.name, device.written_bytes()) == ("mmcblk0", 900 * 512)
        assert device.life_used() is None

    @pytest.mark.parametrize(
        ("life", "used"),
        [
            ("0x01 0x01\n", 0.0),
            ("0x02 0x04\n", 0.3),
            ("0x0b 0x01", 1.0),
            ("0x00 0x00", None),
            ("none", None),
            ("", None),
        ],
    )
    def test_emmc_reports_its_age(self, tmp_path: Path, life: str, used: float | None) -> None:
        device = BlockDevice.of(tmp_path, self.make(tmp_path, life=life))
        assert device is not None
        assert device.life_used() == (None if used is None else pytest.approx(used))

    def test_missing_device_is_unknown(self, tmp_path: Path) -> None:
        assert BlockDevice.of(tmp_path, tmp_path) is None
        assert BlockDevice.of(tmp_path / "nowhere") is None
        assert wear.read_counters(None).device_bytes is None

    def test_unreadable_values_are_unknown(self, tmp_path: Path) -> None:
        device = BlockDevice.of(tmp_path, self.make(tmp_path))
        assert device is not None
        (device.folder / "stat").write_text("1 2 3")
        assert device.written_bytes() is None

    def test_writes_of_a_process_exclude_cancelled_ones(self, tmp_path: Path) -> None:
        (tmp_path / "proc/self").mkdir(parents=True)
        assert wear.process_written_bytes(tmp_path) is None
        (tmp_path / "proc/self/io").write_text("wchar: 5\nwrite_bytes: 8192\ncancelled_write_bytes: 4096\n")
        assert wear.process_written_bytes(tmp_path) == 4096
        assert (wear.process_written_bytes() or 0) >= 0


class TestStore:
    """Totals in the store."""

    LIMITS = StoreLimits(counted_commits_max=4)

    def rows(self, folder: Path) -> list[WearTotals]:
        with Inspection.open(folder / FILE_NAME) as inspection:
            return inspection.wear()

    def publish(self, rig: Rig, log: int, commits: int, size: int = 100) -> None:
        for _ in range(commits):
            rig.store.logs.append(log, run_of(b"x" * size))
            rig.now += 1.0
            assert rig.store.commits.flush()
            while rig.store.commits.committing:
                rig.turn()

    def test_wear_is_written_with_counters_without_a_commit_of_its_own(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, self.LIMITS)
        store = rig.store
        assert isinstance(store.medium, SqliteMedium)
        log = store.logs.open("a")
        store.cursors.open("c", log, 0)
        self.publish(rig, log, 9)
        assert self.rows(tmp_path) == []  # counted twice, but not for long enough
        rig.now += PERSIST_S
        commits = store.medium.commits.total
        self.publish(rig, log, 4)
        assert store.medium.commits.total == commits + 4
        (kept,) = self.rows(tmp_path)
        assert PERSIST_S < kept.seconds < PERSIST_S + 20
        assert kept.payload_bytes in range(1000, 1400, 100)
        assert store.medium.written[0].payload_bytes == 1300
        store.close()

    def test_wear_continues_after_a_restart(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, self.LIMITS)
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        for restarts in range(1, 4):
            self.publish(rig, log, 5)
            rig.reopen()
            assert isinstance(rig.store.medium, SqliteMedium)
            assert rig.store.medium.written[0].payload_bytes == 500 * restarts
            (kept,) = self.rows(tmp_path)
            assert kept.payload_bytes >= 400 * restarts
        rig.store.close()

    def test_closing_writes_the_wear_alone(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, StoreLimits(counted_commits_max=1))
        log = rig.store.logs.open("a")
        rig.store.cursors.open("c", log, 0)
        self.publish(rig, log, 2)
        assert self.rows(tmp_path) == []
        rig.store.close()
        (kept,) = self.rows(tmp_path)
        assert kept.payload_bytes == 200

    def test_old_hours_are_removed(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, self.LIMITS)
        log = rig.store.logs.open("a")
        for _ in range(HOURS_KEPT + 20):
            rig.now += HOUR_S
            self.publish(rig, log, 4)
        assert HOURS_KEPT - 1 <= len(self.rows(tmp_path)) <= HOURS_KEPT + 1
        assert isinstance(rig.store.medium, SqliteMedium)
        assert rig.store.medium.written[1] == self.rows(tmp_path)
        rig.store.close()

    def test_refused_messages_are_not_payload(self, tmp_path: Path) -> None:
        rig = sqlite_rig(tmp_path, self.LIMITS)
        log = rig.store.logs.open("a")
        self.publish(rig, log, 1)
        fail_commits(rig)
        rig.now += PERSIST_S
        self.publish(rig, log, 4, 100_000)
        assert rig.commits[-1].error is not None
        assert isinstance(rig.store.medium, SqliteMedium)
        assert rig.store.medium.written[0].payload_bytes == 100
        assert rig.store.medium.written[1] == []
        rig.store.close()

    def test_store_of_an_older_schema_has_none(self, tmp_path: Path) -> None:
        sqlite_rig(tmp_path).store.close()
        with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
            connection.execute("DROP TABLE wear")
        assert self.rows(tmp_path) == []


@pytest.mark.parametrize("seconds", [None, "1.5", b"1", -1.0, float("inf")])
def test_damaged_row_is_skipped(seconds: object) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE wear (hour, seconds, payload_bytes, process_bytes, device_bytes)")
        sound = WearTotals(3_700.5, 10, 20, 30)
        connection.executemany("INSERT INTO wear VALUES (?, ?, ?, ?, ?)", [(0, seconds, 1, 2, 3), (1, *sound)])
        assert wear.load(connection) == [sound]
