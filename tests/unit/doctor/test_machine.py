"""Checks of the machine and its medium, on machines of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.appliance.doctor import machine as checks
from edge.appliance.doctor import medium
from edge.appliance.doctor.check import CheckContext, Level, examine
from edge.broker.configuration import BrokerConfiguration
from edge.broker.limits import Limits
from tests.unit.doctor.check_context import NOW, bad, found, levels, machine


def mounts(*lines: str) -> dict[str, str]:
    head = "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/root rw"
    return {"proc/self/mountinfo": "\n".join((head, *lines)) + "\n"}


class TestFileSystem:
    @pytest.mark.parametrize(
        ("line", "level", "said"),
        [
            ("/ {} rw,noatime shared:2 - ext4 /dev/mmcblk0p3 rw", "ok", "ext4 on /dev/mmcblk0p3"),
            ("/ {} ro,noatime shared:2 - ext4 /dev/mmcblk0p3 rw", "fail", "read-only"),
            ("/ {} rw - ext4 /dev/mmcblk0p3 ro,errors=remount-ro", "fail", "read-only"),
            ("/ {} rw - tmpfs tmpfs rw,size=1g", "fail", "memory"),
            ("/ {} rw - nfs4 nas:/data rw", "fail", "network"),
            ("/ {} rw - vfat /dev/sda1 rw", "warn", "journal"),
            ("/ {} rw - overlay overlay rw,lowerdir=/a", "warn", "container"),
        ],
    )
    def test_kinds_of_file_systems_are_judged(self, tmp_path: Path, line: str, level: str, said: str) -> None:
        data = tmp_path / "data"
        data.mkdir()
        around = machine(tmp_path / "root", mounts("36 22 179:3 " + line.format(data)), data=data)
        result = found(medium.file_system, around)["file system"]
        assert (result.level.value, said in result.seen) == (level, True)
        assert bool(result.next_step) == (level != "ok")

    @pytest.mark.parametrize("option", ["nobarrier", "barrier=0", "data=writeback"])
    def test_options_that_break_durability_are_reported(self, tmp_path: Path, option: str) -> None:
        around = machine(tmp_path, mounts(f"36 22 179:3 / {tmp_path} rw - ext4 /dev/sda1 rw,{option}"), data=tmp_path)
        result = found(medium.file_system, around)["mount options"]
        assert result.level is Level.FAIL
        assert option in result.seen

    @pytest.mark.parametrize(
        ("files", "said", "step"),
        [
            ({}, "not known without /proc", "mount -t proc"),
            (
                {"proc/self/mountinfo": "36 22 0:5 / /proc rw - proc proc rw\n"},
                "as in a chroot",
                "outside of the chroot",
            ),
        ],
    )
    def test_unknown_mount_is_reported(self, tmp_path: Path, files: dict[str, str], said: str, step: str) -> None:
        result = found(medium.file_system, machine(tmp_path / "root", files, data=tmp_path))["file system"]
        assert (result.level, said in result.seen, step in result.next_step) == (Level.WARN, True, True)

    def test_longest_mount_counts_and_names_are_unescaped(self) -> None:
        info = mounts("1 0 1:1 / /data rw - ext4 /dev/a rw", r"2 0 1:1 / /data/my\040card rw - vfat /dev/b rw")
        text = info["proc/self/mountinfo"]
        assert medium.mount_of(Path("/data/my card/gw"), text).source == "/dev/b"  # type: ignore[union-attr]
        assert medium.mount_of(Path("/database"), text).source == "/dev/root"  # type: ignore[union-attr]
        assert medium.mount_of(Path("/x"), "nonsense\n") is None


class TestCard:
    @pytest.mark.parametrize(
        ("files", "level", "said"),
        [
            ({"type": "MMC", "life_time": "0x02 0x01", "pre_eol_info": "0x01"}, "ok", "20 % of its life"),
            ({"type": "MMC", "life_time": "0x09 0x03", "pre_eol_info": "0x01"}, "warn", "90 %"),
            ({"type": "MMC", "life_time": "0x01 0x01", "pre_eol_info": "0x02"}, "warn", "spare"),
            ({"type": "MMC", "life_time": "0x0b 0x01", "pre_eol_info": "0x03"}, "fail", "end of its life"),
            ({"type": "MMC", "life_time": "0x0a 0x01", "pre_eol_info": "0x01"}, "warn", "100 %"),
            ({"type": "SD", "name": "SD64G", "date": "03/2024"}, "ok", "SD64G of 03/2024: an SD card"),
        ],
    )
    def test_wear_is_reported(self, tmp_path: Path, files: dict[str, str], level: str, said: str) -> None:
        system = {f"sys/block/mmcblk0/device/{name}": text + "\n" for name, text in files.items()}
        system |= mounts(f"36 22 179:3 / {tmp_path} rw - ext4 /dev/mmcblk0p3 rw")
        result = found(medium.card, machine(tmp_path, system, data=tmp_path))["card"]
        assert (result.level.value, said in result.seen) == (level, True)

    def test_card_of_the_system_is_checked_next_to_the_disk_of_the_data(self, tmp_path: Path) -> None:
        files = {"sys/block/mmcblk0/device/type": "MMC\n", "sys/block/mmcblk0/device/life_time": "0x0b 0x01\n"}
        system = {"sys/block/nvme0n1/device/model": "SNV2S250G\n", **files}
        lines = (f"36 22 259:1 / {tmp_path} rw - ext4 /dev/nvme0n1p1 rw", "37 1 179:2 / / ro - ext4 /dev/mmcblk0p2 ro")
        results = list(medium.card(machine(tmp_path, system | mounts(*lines), data=tmp_path)))
        assert [(each.level.value, each.seen.split()[0]) for each in results] == [
            ("ok", "nvme0n1"),
            ("warn", "mmcblk0"),
        ], "as in the gateway's own problems"


class TestSync:
    @pytest.mark.parametrize(
        ("middle", "slowest", "level"),
        [(0.003, 0.02, "ok"), (0.2, 0.5, "warn"), (0.01, 2.0, "warn"), (3.0, 4.0, "fail"), (1e-6, 1e-5, "warn")],
    )
    def test_sync_times_are_judged(self, middle: float, slowest: float, level: str) -> None:
        assert medium.latency_result(middle, slowest).level.value == level

    def test_sync_is_measured_and_leaves_no_file(self, tmp_path: Path) -> None:
        result = found(medium.sync_latency, machine(tmp_path / "root", data=tmp_path))["sync latency"]
        assert "median" in result.seen
        assert list(tmp_path.iterdir()) == []

    def test_read_only_directory_is_reported(self, tmp_path: Path) -> None:
        [result] = bad(medium.sync_latency(machine(tmp_path, data=Path("/proc/self"))))
        assert result.level is Level.FAIL
        assert "cannot be written" in result.seen


class TestClock:
    def test_good_clock_passes(self, tmp_path: Path) -> None:
        around = machine(tmp_path, {"sys/class/rtc/rtc0/since_epoch": f"{int(NOW)}\n"})
        assert levels(checks.clock(around)) == [("clock", "ok"), ("clock chip", "ok")]

    def test_clock_in_the_past_is_reported(self, tmp_path: Path) -> None:
        [result] = bad(checks.clock(machine(tmp_path, now=lambda: 0.0)))
        assert (result.level, "1970" in result.seen) == (Level.FAIL, True)

    def test_unsynchronized_clock_is_reported(self, tmp_path: Path) -> None:
        [result] = bad(checks.clock(machine(tmp_path, synchronized=lambda: False)))
        assert (result.name, result.level) == ("clock", Level.WARN)

    def test_clock_that_differs_from_the_chip_is_reported(self, tmp_path: Path) -> None:
        around = machine(tmp_path, {"sys/class/rtc/rtc0/since_epoch": f"{int(NOW) - 3600}\n"})
        assert [result.name for result in bad(checks.clock(around))] == ["clock chip"]


class TestMachine:
    def test_entropy_is_checked(self, tmp_path: Path) -> None:
        path = "proc/sys/kernel/random/entropy_avail"
        assert bad(checks.entropy(machine(tmp_path / "a", {path: "256\n"}))) == []
        assert len(bad(checks.entropy(machine(tmp_path / "b", {path: "17\n"})))) == 1

    @pytest.mark.parametrize(("available", "level"), [(400_000, "ok"), (60_000, "warn"), (9_000, "fail")])
    def test_memory_is_checked(self, tmp_path: Path, available: int, level: str) -> None:
        text = f"MemTotal: 948000 kB\nMemFree: 1 kB\nMemAvailable: {available} kB\nHugePages_Total: 0\n"
        assert found(checks.memory, machine(tmp_path, {"proc/meminfo": text}))["memory"].level.value == level

    @pytest.mark.parametrize(("device", "level"), [("/dev/zram0", "ok"), ("/dev/mmcblk0p4", "warn")])
    def test_swap_is_checked(self, tmp_path: Path, device: str, level: str) -> None:
        text = f"Filename Type Size Used Priority\n{device} partition 100 0 -2\n"
        assert found(checks.memory, machine(tmp_path, {"proc/swaps": text}))["swap"].level.value == level

    @pytest.mark.parametrize(("heat", "level"), [("47000", "ok"), ("78000", "warn"), ("86500", "fail")])
    def test_temperature_is_checked(self, tmp_path: Path, heat: str, level: str) -> None:
        files = {"sys/class/thermal/thermal_zone0/temp": heat, "sys/class/thermal/thermal_zone1/temp": "20000"}
        assert found(checks.heat, machine(tmp_path, files))["temperature"].level.value == level

    @pytest.mark.parametrize(
        ("bits", "level", "said"),
        [
            ("0", "ok", "never"),
            ("50005", "fail", "under-voltage"),
            ("50000", "warn", "throttled"),
            ("2", "warn", "capped"),
        ],
    )
    def test_power_is_checked(self, tmp_path: Path, bits: str, level: str, said: str) -> None:
        around = machine(tmp_path, {"sys/devices/platform/soc/soc:firmware/get_throttled": bits + "\n"})
        result = found(checks.heat, around)["power"]
        assert (result.level.value, said in result.seen) == (level, True)

    def test_open_files_are_checked(self, tmp_path: Path) -> None:
        enough = BrokerConfiguration(limits=Limits(connections_max=10))
        assert bad(checks.open_files(machine(tmp_path, configuration=enough))) == []
        many = BrokerConfiguration(limits=Limits(connections_max=2**40))
        [result] = bad(checks.open_files(machine(tmp_path, configuration=many)))
        assert "LimitNOFILE" in result.next_step

    def test_versions_are_reported(self, tmp_path: Path) -> None:
        [result] = checks.versions(machine(tmp_path))
        assert result.level is Level.OK
        assert "SQLite 3." in result.seen


def test_failing_check_is_a_result_and_does_not_stop_others(tmp_path: Path) -> None:
    def broken(_: CheckContext) -> list[object]:
        raise ZeroDivisionError("oh")

    results = list(
        examine((("a", broken), ("entropy", checks.entropy), ("versions", checks.versions)), machine(tmp_path))
    )  # type: ignore[arg-type]
    assert levels(results) == [("a", "warn"), ("versions", "ok")]
    assert "ZeroDivisionError: oh" in results[0].seen


def test_this_machine_can_be_examined() -> None:
    """No check of the machine fails on the real one."""
    names = ("clock", "entropy", "memory", "heat", "open_files", "versions")
    around = CheckContext()
    results = list(examine([(name, getattr(checks, name)) for name in names], around))
    assert len(results) >= 5
    assert all("could not be examined" not in result.seen for result in results)
