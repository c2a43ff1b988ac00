"""A gateway uses the disk it started from, although other cards of gateways are in a reader."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from images.disk.building import HERE
from images.programs import find
from images.rootfs.building import INITRAMFS, OVERLAY

LIBRARY = OVERLAY / "usr/lib/waypost-system"
ROOT_OF_DISK = INITRAMFS / "scripts/local-top/waypost"
IMAGE_ID = "67617465"
U_BOOT = f"root=PARTUUID={IMAGE_ID}-02 waypost.disk=%s rootfstype=ext4"


def stubs(folder: Path, bodies: Mapping[str, str]) -> dict[str, str]:
    """Write stub programs; return an environment for scripts that call them."""
    place = folder / "stubs"
    place.mkdir()
    for name, body in bodies.items():
        (place / name).write_text(f"#!/bin/sh\n{body}\n")
        (place / name).chmod(0o755)
    return {"PATH": f"{place}:{os.environ['PATH']}"}


class TestPartitionNames:
    @pytest.fixture
    def machine(self, tmp_path: Path) -> Path:
        """Return a root folder where mmcblk0p2 is mounted as /, and sda is another card."""
        for disk, numbers in (("mmcblk0/mmcblk0p", 10), ("sda/sda", 20)):
            for number in range(1, 6):
                device = tmp_path / "sys/devices" / f"{disk}{number}"
                device.mkdir(parents=True)
                for link in (f"class/block/{device.name}", f"dev/block/179:{numbers + number}"):
                    path = tmp_path / "sys" / link
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.symlink_to(device)
                (device / "partition").write_text(f"{number}\n")
                (device / "dev").write_text(f"179:{numbers + number}\n")
        disk = tmp_path / "sys/class/block/sdb"
        disk.mkdir()
        (disk / "dev").write_text("8:16\n")
        return tmp_path

    def _names(self, machine: Path, *, card: str = "waypost-data", mounted: str = "", **disks: str) -> dict[str, str]:
        """Return the names of all partitions and disks.

        `card`: label of the card's fourth partition. `mounted`: device at /data. `disks`: labels of other disks;
        `partition`: that of each partition.
        """
        bodies = {
            "mountpoint": f'case "$*" in "-d /") echo 179:12 ;; *) [ -n "{mounted}" ] && echo "{mounted}" ;; esac',
            "blkid": f'for last; do :; done; [ "${{last##*/}}" = mmcblk0p4 ] && echo {card}',
        }
        environment = stubs(machine, bodies)
        copied = disks.pop("partition", "")
        given = [(f"{disk}{number}", str(number), copied) for disk in ("mmcblk0p", "sda") for number in range(1, 6)]
        given += [(name, "", label) for name, label in disks.items()]
        found = {}
        for name, number, label in given:
            words = [str(LIBRARY / "own-partition"), name, number, label, str(machine)]
            done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
            if done.returncode == 0:
                found[name] = done.stdout.strip()
        return found

    OWN: ClassVar = {"mmcblk0p1": "boot", "mmcblk0p2": "root-a", "mmcblk0p3": "root-b", "mmcblk0p4": "data"}

    def test_only_partitions_of_the_root_disk_have_names(self, machine: Path) -> None:
        assert self._names(machine, sdb="waypost-data", sdc="waypost-00000000", sdd="") == self.OWN

    @pytest.mark.parametrize("label", ["", "other", "waypost-0"])
    def test_fourth_partition_without_the_label_of_the_data_is_not_used(self, machine: Path, label: str) -> None:
        assert self._names(machine, card=label, sdb=label) == {**self.OWN, "mmcblk0p4": "card-data"}

    def test_copy_of_the_card_is_not_the_disk(self, machine: Path) -> None:
        """Its fourth partition has the same label: only a whole disk holds data."""
        found = self._names(machine, card="waypost-1a2b3c4d", partition="waypost-1a2b3c4d")
        assert set(found) == set(self.OWN)

    def test_disk_keeps_its_name_while_it_is_mounted(self, machine: Path) -> None:
        """The card may be unreadable when udev looks again."""
        assert self._names(machine, card="", mounted="8:16", sdb="waypost-1a2b3c4d")["sdb"] == "data"

    def test_disk_with_the_label_of_the_card_holds_the_data(self, machine: Path) -> None:
        found = self._names(machine, card="waypost-1a2b3c4d", sdb="waypost-1a2b3c4d", sdc="waypost-00000000", sdd="x")
        assert found == {**self.OWN, "mmcblk0p4": "card-data", "sdb": "data"}

    def test_old_copy_is_not_the_data_where_the_disk_is_missing(self, machine: Path) -> None:
        assert self._names(machine, card="waypost-1a2b3c4d")["mmcblk0p4"] == "card-data"

    def test_names_stay_while_the_data_are_mounted(self, machine: Path) -> None:
        """The label of the card changes while it is mounted, and udev looks again."""
        assert self._names(machine, card="waypost-1a2b3c4d", mounted="179:14") == self.OWN

    def test_all_users_of_partitions_use_these_names(self) -> None:
        given = set(re.findall(r"echo (\S+?)(?: ;;|;)", (LIBRARY / "own-partition").read_text()))
        for file, wanted in (("etc/fstab", {"boot", "data"}), ("etc/rauc/system.conf", {"root-a", "root-b"})):
            used = set(re.findall(r"/dev/waypost/(\S+)", (OVERLAY / file).read_text()))
            assert used == wanted <= given


@pytest.mark.skipif(find("sfdisk") is None, reason="fdisk is not installed")
class TestCardId:
    TABLE = f"label: dos\nlabel-id: 0x{IMAGE_ID}\nstart=8192, size=8192, type=c, bootable\nstart=16384, type=83\n"

    @pytest.fixture
    def card(self, tmp_path: Path) -> Path:
        (tmp_path / "dev").mkdir()
        (tmp_path / "proc").mkdir()
        card = tmp_path / "dev/card"
        with card.open("wb") as file:
            file.write(b"\xeb" * 440)  # space of a boot loader
            file.truncate(16 << 20)
        self._sfdisk(card, given=self.TABLE)
        return card

    def _sfdisk(self, card: Path, *words: str, given: str = "") -> str:
        command = [find("sfdisk") or "", "-q", *words, str(card)]
        return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout

    def _start(self, card: Path, cmdline: str) -> None:
        top = card.parent.parent
        (top / "proc/cmdline").write_text(f"{cmdline}\n")
        if not (top / "stubs").exists():
            bodies = {"findmnt": "echo /dev/card2", "lsblk": "echo card", "udevadm": 'shift 2; exec "$@"'}
            self.environment = stubs(top, bodies)
        subprocess.run([str(LIBRARY / "disk-id"), str(top)], check=True, env=self.environment, timeout=60)

    def test_card_gets_its_id_at_the_first_start_and_keeps_it(self, card: Path) -> None:
        before = card.read_bytes()
        self._start(card, U_BOOT % "mmc")
        after = card.read_bytes()
        assert after[440:444] != before[440:444]
        assert (after[:440], after[444:]) == (before[:440], before[444:]), "only the id is another"
        self._start(card, U_BOOT % "mmc")
        assert card.read_bytes() == after
        assert "bootable" in self._sfdisk(card, "-d")

    def test_two_cards_get_different_ids(self, card: Path) -> None:
        found = set()
        for _ in range(2):
            self._sfdisk(card, given=self.TABLE)
            self._start(card, U_BOOT % "mmc")
            found.add(card.read_bytes()[440:444])
        assert len(found) == 2

    def test_older_u_boot_script_still_finds_its_root(self, card: Path) -> None:
        """The script is on the first partition, which updates do not write, and looks for the image's id."""
        before = card.read_bytes()
        self._start(card, f"root=PARTUUID={IMAGE_ID}-02 rootfstype=ext4")
        assert card.read_bytes() == before

    def test_replaced_id_is_that_of_the_image(self) -> None:
        assert f"disk-signature = 0x{IMAGE_ID}" in (HERE / "genimage.cfg").read_text()
        assert f"image_id=0x{IMAGE_ID}" in (LIBRARY / "disk-id").read_text()


class TestRootDisk:
    def _said(self, folder: Path, cmdline: str, partitions: Mapping[str, str], *words: str) -> tuple[str, str]:
        """Return (output, root it names) for partitions with these ids."""
        for name in ("proc", "dev", "conf"):
            (folder / name).mkdir()
        (folder / "proc/cmdline").write_text(f"{cmdline}\n")
        for name in partitions:
            (folder / "dev" / name).touch()
        ids = "".join(f"*/{name}) echo {partition_id} ;; " for name, partition_id in partitions.items())
        bodies = {"blkid": f"for last; do :; done; case $last in {ids}*) exit 2 ;; esac", "sleep": ""}
        command = [str(ROOT_OF_DISK), *(words or (str(folder),))]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60, env=stubs(folder, bodies)
        )
        chosen = folder / "conf/param.conf"
        return done.stdout, chosen.read_text().strip().replace(str(folder), "") if chosen.exists() else ""

    @pytest.mark.parametrize(
        ("kind", "root"), [("mmc", "/dev/mmcblk1p2"), ("usb", "/dev/sda2"), ("virtio", "/dev/vdb2")]
    )
    def test_disk_of_the_kind_that_u_boot_started_from_is_chosen(self, tmp_path: Path, kind: str, root: str) -> None:
        same = f"{IMAGE_ID}-02"
        partitions = {"mmcblk0p2": "1-02", "mmcblk1p2": same, "sda2": same, "vda2": "2-02", "vdb2": same}
        assert self._said(tmp_path, U_BOOT % kind, partitions) == ("", f"ROOT={root}")

    def test_choice_of_the_kernel_remains_where_no_disk_of_the_kind_matches(self, tmp_path: Path) -> None:
        said, root = self._said(tmp_path, U_BOOT % "mmc", {"sda2": f"{IMAGE_ID}-02"})
        assert "no mmc disk has the partition" in said
        assert root == ""

    @pytest.mark.parametrize("cmdline", [f"root=PARTUUID={IMAGE_ID}-02", U_BOOT % "scsi", "quiet"])
    def test_older_u_boot_script_gives_no_hint(self, tmp_path: Path, cmdline: str) -> None:
        assert self._said(tmp_path, cmdline, {"mmcblk0p2": f"{IMAGE_ID}-02"}) == ("", "")

    def test_script_depends_on_no_earlier_script(self, tmp_path: Path) -> None:
        assert self._said(tmp_path, "", {}, "prereqs") == ("", "")
