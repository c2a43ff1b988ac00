"""The data of a gateway move to an empty disk next to its card: real file systems on loop devices."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from edge.appliance.first_boot import data_disk
from edge.appliance.first_boot.data_disk import (
    BYTES_MIN,
    ON_CARD,
    PAIRED,
    UNFINISHED,
    DataDisk,
    DiskRefused,
    choose_disk,
    copy_data,
    move_data,
    read_content,
    read_label,
    require_current_place,
    switch_to,
)
from edge.appliance.first_boot.places import CardPaths

GIB = 1 << 30
PROGRAMS = ("losetup", "mount", "umount", "findmnt", "blkid", "blockdev", "mke2fs", "e2label", "fsfreeze")


def missing(program: str) -> bool:
    return shutil.which(program) is None


def disk(name: str = "sda", size: int = 64 * GIB, content: str = "") -> DataDisk:
    return DataDisk(Path("/dev") / name, size, "SSD", content)


class TestFinding:
    def _find(
        self, looks: Sequence[Sequence[dict[str, object]]], monkeypatch: pytest.MonkeyPatch
    ) -> tuple[list[str], int]:
        """Return the disks that are found, and the seconds; `looks`: rows of lsblk(8), second by second."""
        asked: list[float] = []

        def rows() -> list[data_disk._Row]:
            shown = looks[min(len(asked), len(looks) - 1)]
            return [data_disk._Row(**{"type": "disk", "size": 64 * GIB, "tran": "usb", **row}) for row in shown]  # type: ignore[arg-type]

        monkeypatch.setattr(data_disk, "_list_rows", rows)
        monkeypatch.setattr(data_disk, "_parent_of", lambda _: Path("/dev/sda"))
        monkeypatch.setattr(data_disk, "read_content", lambda path, _: "vfat" if path.name == "stick" else "")
        found = data_disk.find_disks("usb", Path("/dev/sda4"), "", asked.append)
        return [disk.path.name for disk in found], len(asked)

    def test_second_disk_is_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first, second = {"path": "/dev/sdb"}, {"path": "/dev/sdc"}
        assert self._find([[], [first], [first], [first, second]], monkeypatch)[0] == ["sdb", "sdc"]

    def test_disk_that_starts_after_a_stick_is_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stick, disk = {"path": "/dev/stick"}, {"path": "/dev/sdb"}
        assert self._find([[stick]] * 12 + [[stick, disk]], monkeypatch)[0] == ["stick", "sdb"]

    def test_search_ends_without_a_disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        own, other = {"path": "/dev/sda"}, {"path": "/dev/nvme0n1", "tran": "nvme"}
        rest = [
            {"path": "/dev/sdb", "ro": True},
            {"path": "/dev/sdc", "size": 0},
            {"path": "/dev/sdd1", "type": "part"},
        ]
        assert self._find([[own, other, *rest]], monkeypatch) == ([], data_disk.WAIT_S)


@pytest.mark.skipif(missing("blkid") or missing("mke2fs"), reason="blkid or mke2fs is not on PATH")
class TestContent:
    @pytest.fixture
    def disk(self, tmp_path: Path) -> Path:
        file = tmp_path / "disk"
        with file.open("wb") as made:
            made.truncate(8 << 20)
        return file

    def test_disk_without_signatures_is_empty(self, disk: Path) -> None:
        assert read_content(disk) == ""

    def test_file_system_of_another_gateway_is_not_empty(self, disk: Path) -> None:
        subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-L", "waypost-1a2b3c4d", str(disk)], check=True)
        assert read_content(disk) == "ext4"
        assert read_content(disk, "waypost-1a2b3c4d") == "", "it is that of the interrupted move"

    def test_several_file_systems_at_once_are_not_empty(
        self, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """blkid(8) exits with 8 then, and prints nothing."""
        stub = tmp_path / "stubs/blkid"
        stub.parent.mkdir()
        stub.write_text("#!/bin/sh\nexit 8\n")
        stub.chmod(0o755)
        monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
        assert read_content(disk) == "several file systems at once"

    def test_disk_that_cannot_be_read_is_not_empty(self, disk: Path) -> None:
        assert read_content(disk.with_name("missing")) != ""
        assert read_content(disk.parent) != ""


class TestChoice:
    def test_only_empty_disk_is_taken(self) -> None:
        assert choose_disk([disk("sda", content="exfat"), disk("sdb")], "usb", 0) == disk("sdb")

    @pytest.mark.parametrize(
        ("found", "used", "named"),
        [
            ([], 0, "usb"),
            ([disk(content="exfat")], 0, "exfat"),
            ([disk("sda"), disk("sdb")], 0, "sdb"),
            ([disk(size=BYTES_MIN - 1)], 0, "sda"),
            ([disk(size=4 * GIB)], 4 * GIB, "sda"),
        ],
    )
    def test_refusal_names_disk_and_next_step(self, found: Sequence[DataDisk], used: int, named: str) -> None:
        with pytest.raises(DiskRefused) as refused:
            choose_disk(found, "usb", used)
        assert named in str(refused.value)
        assert refused.value.next_step

    def test_disk_of_exactly_the_smallest_size_is_taken(self) -> None:
        assert choose_disk([disk(size=BYTES_MIN)], "usb", 0).size == BYTES_MIN


class Restarted(BaseException):
    """The machine restarts."""


def restart(why: str) -> NoReturn:
    raise Restarted(why)


class Machine:
    """A card's data partition, mounted at /data, and an empty disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = dict(os.environ)
        self._loops: list[Path] = []
        self.places = CardPaths(folder / "root")
        self.data = self.places.root / "data"
        for name in ("data", "dev/waypost", "run"):
            (self.places.root / name).mkdir(parents=True)

    def switch_on(self) -> None:
        """Attach both and mount the card's; skip the test where that is not allowed."""
        self.card, self.disk = self._attach("card"), self._attach("disk")
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-L", ON_CARD, str(self.card)], check=True)
        self.mount(self.card)
        (self.data / "waypost").mkdir(mode=0o700)
        (self.data / "waypost/store").write_bytes(os.urandom(300_000))
        (self.data / "settings").mkdir()
        (self.data / "waypost/link").symlink_to("store")

    def _attach(self, name: str) -> Path:
        file = self._folder / name
        with file.open("wb") as made:
            made.truncate(32 << 20)
        done = subprocess.run(["losetup", "--find", "--show", str(file)], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no loop devices: {done.stderr.strip()}")
        self._loops.append(Path(done.stdout.strip()))
        return self._loops[-1]

    def mount(self, device: Path) -> None:
        done = subprocess.run(["mount", str(device), str(self.data)], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no right to mount: {done.stderr.strip()}")

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.data)], check=True)

    def start_from(self, device: Path) -> None:
        """Start again, with names as udev gives them."""
        self.unmount()
        self.mount(device)
        name = self.places.root / "dev/waypost/card-data"
        if device != self.card and not name.exists():
            name.symlink_to(self.card)

    def content(self) -> dict[str, bytes]:
        files = (path for path in self.data.rglob("*") if path.is_file() and not path.is_symlink())
        return {str(path.relative_to(self.data)): path.read_bytes() for path in files}

    def close(self) -> None:
        words = [["umount", str(self.places.root / "run/waypost-settings/disk")], ["umount", str(self.data)]]
        words += [["losetup", "--detach", str(device)] for device in self._loops]
        for each in words:  # with the programs of the machine, whatever the test has put in front of them
            subprocess.run(each, capture_output=True, check=False, env=self._environment)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(tmp_path)
    monkeypatch.setattr(
        data_disk, "find_disks",
        lambda _kind, _own, pending: [DataDisk(made.disk, 64 * GIB, "SSD", read_content(made.disk, pending))],
    )  # fmt: skip
    try:
        made.switch_on()
        yield made
    finally:
        made.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.skipif(any(map(missing, PROGRAMS)), reason=f"needs {', '.join(PROGRAMS)} on PATH")
class TestMove:
    def test_data_are_on_the_disk_and_the_old_copy_is_removed(self, machine: Machine) -> None:
        before = machine.content()
        with pytest.raises(Restarted):
            move_data(machine.places, "usb", print, restart)
        assert PAIRED.fullmatch(read_label(machine.disk))
        assert read_label(machine.card) == read_label(machine.disk)
        machine.start_from(machine.disk)
        assert machine.content() == before
        assert (machine.data / "waypost/link").readlink() == Path("store")
        assert (machine.data / "waypost").stat().st_mode & 0o777 == 0o700
        require_current_place(machine.places, restart)
        assert move_data(machine.places, "usb", print, restart) is None, "they are where they belong"
        machine.start_from(machine.card)
        assert list(machine.data.iterdir()) == []

    def test_gateway_without_the_setting_changes_nothing(self, machine: Machine) -> None:
        assert move_data(machine.places, None, print, restart) is None
        require_current_place(machine.places, restart)
        assert (read_label(machine.card), read_content(machine.disk)) == (ON_CARD, "")

    def test_copy_is_never_used_after_the_card_was_relabelled(self, machine: Machine) -> None:
        """The new label may be in the journal of the card only when udev looks: it is there once it is mounted."""
        with pytest.raises(Restarted):
            move_data(machine.places, "usb", print, restart)
        machine.start_from(machine.card)
        with pytest.raises(Restarted):
            require_current_place(machine.places, restart)

    @pytest.mark.parametrize("failing", ["cp", "diff", "umount"])
    def test_failed_copy_leaves_the_data_on_the_card_and_is_repeated(
        self, machine: Machine, failing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        before, path = machine.content(), os.environ["PATH"]
        stub = tmp_path / "stubs" / failing
        stub.parent.mkdir()
        stub.write_text("#!/bin/sh\necho input/output error >&2\nexit 1\n")
        stub.chmod(0o755)
        monkeypatch.setenv("PATH", f"{stub.parent}:{path}")
        refusal = move_data(machine.places, "usb", print, restart)
        assert refusal is not None
        assert "input/output error" in refusal.why
        monkeypatch.setenv("PATH", path)
        subprocess.run(["umount", str(machine.places.root / "run/waypost-settings/disk")], check=False)
        assert (read_label(machine.card), machine.content()) == (ON_CARD, before)
        assert (read_label(machine.disk), read_content(machine.disk)) == (UNFINISHED, ""), "it may be written again"
        with pytest.raises(Restarted):
            move_data(machine.places, "usb", print, restart)
        machine.start_from(machine.disk)
        assert machine.content() == before

    def test_faulty_disk_is_noticed(self, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A disk that returns other bytes than were written."""
        real = shutil.which("sync")
        stub = tmp_path / "stubs/sync"
        stub.parent.mkdir()
        stub.write_text(f'#!/bin/sh\nfor last; do :; done\nprintf x >> "$last/waypost/store"\nexec {real} "$@"\n')
        stub.chmod(0o755)
        monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
        with pytest.raises(DiskRefused):
            copy_data(machine.places, machine.disk)
        assert read_label(machine.card) == ON_CARD

    def test_power_cut_between_the_two_labels_is_continued(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        stub = tmp_path / "stubs/blockdev"
        stub.parent.mkdir()
        stub.write_text("#!/bin/sh\nexit 1\n")
        stub.chmod(0o755)
        path = os.environ["PATH"]
        monkeypatch.setenv("PATH", f"{stub.parent}:{path}")
        assert move_data(machine.places, "usb", print, restart) is not None
        assert PAIRED.fullmatch(read_label(machine.disk))
        monkeypatch.setenv("PATH", path)
        with pytest.raises(Restarted):
            move_data(machine.places, "usb", print, restart)
        assert read_label(machine.card) == read_label(machine.disk)

    def test_move_counts_even_if_the_end_of_the_switch_fails(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        copy_data(machine.places, machine.disk)
        stub = tmp_path / "stubs/fsfreeze"
        stub.parent.mkdir()
        stub.write_text("#!/bin/sh\nexit 1\n")
        stub.chmod(0o755)
        monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
        switch_to(machine.places, machine.disk, machine.card)
        assert PAIRED.fullmatch(read_label(machine.card))
