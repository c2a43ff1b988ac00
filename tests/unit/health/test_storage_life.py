"""A failing medium is reported before it stops: eMMC, NVMe and ext4, in files as /sys shows them."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge.appliance.first_boot.attesting import system
from edge.appliance.first_boot.places import CardPaths
from edge.appliance.nvme import ADMIN_COMMAND, LOG_BYTES, parse_log, read_log, write_logs
from edge.broker.store.wear import BlockDevice
from edge.health.problems import Severity
from edge.health.storage_life import (
    NVME_LOGS,
    StorageLife,
    identify_storage,
    read_storage_life,
    storage_problems,
)


def disk(root: Path, name: str, /, **about: str) -> Path:
    """Make a disk with one partition; `about`: files of its device."""
    folder = root / "sys/devices" / name
    part = folder / f"{name}p4"
    part.mkdir(parents=True)
    (part / "partition").write_text("4\n")
    (folder / "device").mkdir()
    for key, text in about.items():
        (folder / "device" / key).write_text(f"{text}\n")
    return folder


NVME, CARD = os.makedev(259, 4), os.makedev(179, 4)


def link(root: Path, number: int, part: Path) -> None:
    """Let a device number lead to a partition, as in /sys."""
    links = root / "sys/dev/block"
    links.mkdir(parents=True, exist_ok=True)
    (links / f"{os.major(number)}:{os.minor(number)}").symlink_to(part)


def on_two_devices(monkeypatch: pytest.MonkeyPatch, numbers: dict[Path, int]) -> None:
    """Let paths be on devices of these numbers; all others are where they are."""
    true = os.stat

    def stat(path: Any, **options: Any) -> Any:
        number = numbers.get(path) if isinstance(path, Path) else None
        return true(path, **options) if number is None else SimpleNamespace(st_dev=number)

    monkeypatch.setattr("edge.broker.store.wear.os.stat", stat)


def found(life: StorageLife) -> list[tuple[Severity, str]]:
    return [(each.severity, each.what) for each in storage_problems("mmcblk0", life)]


@pytest.mark.parametrize(
    ("life_time", "pre_eol", "severity", "said"),
    [
        ("0x01 0x01", "0x01", None, ""), ("0x07 0x07", "0x01", None, ""), ("0x00 0x00", "0x00", None, ""),
        ("0x08 0x01", "0x01", Severity.NOTICE, "most of its life"), ("0x01 0x0a", "0x01", Severity.NOTICE, "most of"),
        ("0x01 0x01", "0x02", Severity.NOTICE, "spare blocks"), ("0x0b 0x01", "0x01", Severity.WARNING,
            "end of its life"),
        ("0x01 0x01", "0x03", Severity.WARNING, "end of its life"), ("nonsense", "0x09", None, ""), ("", "", None,
            ""),
    ],
)  # fmt: skip
def test_emmc_is_reported_by_its_registers(
    tmp_path: Path, life_time: str, pre_eol: str, severity: Severity | None, said: str
) -> None:
    device = disk(tmp_path, "mmcblk0", life_time=life_time, pre_eol_info=pre_eol)
    problems = found(read_storage_life(device, tmp_path))
    assert [each for each, _ in problems] == ([] if severity is None else [severity])
    assert all(said in what for _, what in problems)


def test_sd_card_is_reported_by_errors_of_its_file_system(tmp_path: Path) -> None:
    device = disk(tmp_path, "mmcblk0", type="SD")
    assert read_storage_life(device, tmp_path) == StorageLife()
    counted = tmp_path / "sys/fs/ext4/mmcblk0p4/errors_count"
    counted.parent.mkdir(parents=True)
    counted.write_text("0\n")
    assert found(read_storage_life(device, tmp_path)) == []
    counted.write_text("3\n")
    assert found(read_storage_life(device, tmp_path)) == [
        (Severity.WARNING, "ext4 found errors on mmcblk0: it may be failing")
    ]


def log_page(*, warning: int = 0, spare: int = 100, least: int = 10, used: int = 3, errors: int = 0) -> bytes:
    """Return a log page (NVM Express base specification 2.0, figure 207)."""
    head = struct.pack("<BHBBB", warning, 310, spare, least, used)
    return head.ljust(160, b"\0") + errors.to_bytes(16, "little") + bytes(LOG_BYTES - 176)


class TestNvme:
    @pytest.mark.parametrize(
        ("page", "severity"),
        [
            (log_page(), None), (log_page(used=79), None), (log_page(used=80), Severity.NOTICE),
            (log_page(used=100), Severity.NOTICE), (log_page(used=101), Severity.WARNING),
            (log_page(used=255), Severity.WARNING), (log_page(spare=9), Severity.WARNING),
            (log_page(warning=0x01), Severity.WARNING), (log_page(warning=0x02), None),
            (log_page(warning=0x04), Severity.WARNING), (log_page(warning=0x08), Severity.ERROR),
        ],
    )  # fmt: skip
    def test_log_is_judged(self, tmp_path: Path, page: bytes, severity: Severity | None) -> None:
        device = disk(tmp_path, "nvme0n1")
        self.written(tmp_path, page)
        life = read_storage_life(device, tmp_path)
        assert life.used_percent == page[5]
        assert [each for each, _ in found(life)] == ([] if severity is None else [severity])

    def written(self, root: Path, page: bytes) -> list[str]:
        """Write the log of a controller as the service does, from a driver that answers with this page."""
        (root / "dev").mkdir(exist_ok=True)
        for name in ("nvme0", "nvme0n1", "nvme0n1p1", "nvme1"):
            (root / "dev" / name).touch()

        def control(handle: int, request: int, command: bytearray) -> int:
            opcode, _, _, namespace, *_ = struct.unpack_from("<BBHI", command)
            address, _, length, words = struct.unpack_from("<QIII", command, 24)
            assert (request, opcode, namespace, length) == (ADMIN_COMMAND, 0x02, 0xFFFFFFFF, LOG_BYTES)
            assert words == 0x007F0002, "512 bytes of the log 2"
            if os.readlink(f"/proc/self/fd/{handle}").endswith("nvme1"):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            ctypes.memmove(address, page, len(page))
            return 0

        return write_logs(root, control)

    def test_disk_that_cannot_be_read_hides_no_other(self, tmp_path: Path) -> None:
        assert self.written(tmp_path, log_page()) == ["nvme1: Permission denied"]
        assert (tmp_path / NVME_LOGS).read_text() == (
            '{"nvme0":{"critical_warning":0,"spare_percent":100,"spare_percent_min":10,"used_percent":3,"media_errors":0}}'
        )

    def test_status_of_the_controller_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "nvme0").touch()
        with pytest.raises(OSError, match="NVMe status 0x2002"):
            read_log(tmp_path / "nvme0", lambda *_: 0x2002)

    def test_counters_are_read(self) -> None:
        assert parse_log(log_page(errors=7)).media_errors == 7
        assert parse_log(log_page(errors=1 << 100)).media_errors == (1 << 63) - 1

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"nvme0": {}}', '{"nvme1": {}}', "x" * 100_000])
    def test_damaged_file_is_no_log(self, tmp_path: Path, text: str) -> None:
        (tmp_path / NVME_LOGS).parent.mkdir(parents=True)
        (tmp_path / NVME_LOGS).write_text(text)
        assert read_storage_life(disk(tmp_path, "nvme0n1"), tmp_path) == StorageLife()

    def test_log_is_of_the_controller_of_the_disk(self, tmp_path: Path) -> None:
        self.written(tmp_path, log_page(used=50))
        assert read_storage_life(disk(tmp_path, "nvme10n1"), tmp_path) == StorageLife()


class TestIdentity:
    @pytest.mark.parametrize(
        ("about", "said"),
        [
            (
                {"type": "SD", "name": "SC16G", "serial": "0x1234abcd", "cid": "0353445343313647801234abcd0173b5"},
                "SD SC16G 0x1234abcd cid 0353445343313647801234abcd0173b5",
            ),
            ({"model": "KINGSTON  SNV2S250G", "serial": "50026B7"}, "KINGSTON SNV2S250G 50026B7"),
            ({}, ""), ({"name": "a\x1b[2J\nb"}, "a [2J b"),
        ],
    )  # fmt: skip
    def test_card_is_named_by_its_register(self, tmp_path: Path, about: dict[str, str], said: str) -> None:
        assert identify_storage(disk(tmp_path, "mmcblk0", **about)) == said

    def test_card_is_part_of_the_attestation(self, tmp_path: Path) -> None:
        places = CardPaths(tmp_path)
        places.data.mkdir(parents=True)
        device = disk(tmp_path, "mmcblk0", cid="0353", type="SD")
        link(tmp_path, places.data.stat().st_dev, device / "mmcblk0p4")
        assert system(places)["medium"] == "SD cid 0353"

    def test_card_is_named_next_to_the_disk_of_the_data(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        places = CardPaths(tmp_path)
        places.data.mkdir(parents=True)
        on_two_devices(monkeypatch, {places.data: NVME, places.root: CARD})
        link(tmp_path, NVME, disk(tmp_path, "nvme0n1", model="SNV2S250G", serial="50026B7") / "nvme0n1p4")
        link(tmp_path, CARD, disk(tmp_path, "mmcblk0", cid="0353", type="SD") / "mmcblk0p4")
        assert system(places)["medium"] == "SNV2S250G 50026B7; SD cid 0353"


def test_devices_are_named_once_in_the_order_of_the_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / name for name in ("data", "other", "network", "system")]
    on_two_devices(monkeypatch, dict(zip(paths, (NVME, NVME, os.makedev(0, 5), CARD), strict=True)))
    for number, name in ((NVME, "nvme0n1"), (CARD, "mmcblk0")):
        link(tmp_path, number, disk(tmp_path, name) / f"{name}p4")
    assert [each.name for each in BlockDevice.of_all(paths, tmp_path)] == ["nvme0n1", "mmcblk0"]
    assert BlockDevice.of_all((tmp_path / "network", tmp_path / "none"), tmp_path) == ()
