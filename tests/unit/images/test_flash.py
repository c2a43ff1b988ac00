"""Flashing: images and cards that are refused, the content of a card afterwards, and its state after any cut."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import lzma
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.appliance.main import run
from edge.card.location import FILE
from images.card import partition
from images.card.settings import apply_arguments
from images.disk import bmap, filesystem, signing
from images.errors import ImageError
from images.flashing import cards, devices, image, writing
from images.programs import find
from tests.support.command import items_in
from tests.support.simulated_kill import SimulatedKill
from tests.unit.images import published_image as made

pytestmark = pytest.mark.skipif(
    any(find(program) is None for program in made.PROGRAMS), reason="mtools, dosfstools or openssl is not installed"
)


def entry(name: str, **changes: Any) -> dict[str, Any]:
    """Return a card in a USB reader as lsblk describes it, with these changes."""
    path = f"/dev/{name}"
    return {
        "name": name, "path": path, "rm": True, "hotplug": True, "ro": False, "size": 31914983424, "type": "disk",
        "tran": "usb", "model": "STORAGE DEVICE  ", "serial": "000000001206", "mountpoints": [None], **changes,
    }  # fmt: skip


def part(name: str, *mounts: str, kind: str = "part", children: tuple[Any, ...] = ()) -> dict[str, Any]:
    return entry(name, type=kind, tran=None, mountpoints=list(mounts), children=list(children))


def seen(*entries: dict[str, Any]) -> list[devices.Disk]:
    return list(devices.parse_lsblk(json.dumps({"blockdevices": list(entries)})))


FIXED: dict[str, Any] = {"rm": False, "hotplug": False}
SIZE = 2_000_000_000


CRYPT = part("dm-0", kind="crypt", children=(part("dm-1", "/home", kind="lvm"),))


class TestDisks:
    @pytest.mark.parametrize("card", [
        entry("sdb"), entry("mmcblk0", rm=False, tran=None, hotplug=True), entry("sdc", rm=False, hotplug=False),
        entry("mmcblk1", rm=False, hotplug=False, tran="mmc"), entry("sdb", children=[part("sdb1")]),
    ])  # fmt: skip
    def test_cards_are_listed(self, card: dict[str, Any]) -> None:
        found = seen(card, entry("nvme0n1", **FIXED, tran="nvme", children=[part("nvme0n1p2", "/")]))
        assert [each.path for each in devices.candidates(found, SIZE)] == [card["path"]]

    @pytest.mark.parametrize(("disk", "said"), [
        (entry("sda", children=[part("sda1"), part("sda2", "/")]), "holds the system of this machine (/)"),
        (entry("sda", children=[part("sda1", "/boot/efi")]), "holds the system of this machine"),
        (entry("sda", children=[part("sda3", "[SWAP]")]), "holds the system of this machine ([SWAP])"),
        (entry("sda", children=[part("sda1", children=(CRYPT,))]), "holds the system of this machine (/home)"),
        (entry("sdb", children=[part("sdb1", "/media/ann/WAYPOST")]), "mounted at /media/ann/WAYPOST"),
        (entry("sdb", mountpoints=["/mnt"]), "mounted at /mnt"),
        (entry("sdb", children=[part("sdb1", children=(part("md0", kind="raid1"),))]), "in use by /dev/md0"),
        (entry("sdb", children=[part("sdb1", children=(part("md0", kind="linear"),))]), "in use by /dev/md0"),
        (entry("sdb", children=[part("bcache0", kind="disk")]), "in use by /dev/bcache0"),
        (entry("sdb", ro=True), "write-protected"), (entry("sdb", size=0), "an empty reader"),
        (entry("sdb", size=SIZE - 1), "2.00 GB, and the image needs 2.00"),
        (entry("sdb", size=3 << 40), "that is not a card"),
        (entry("nvme1n1", **FIXED, tran="nvme"), "built into this machine"),
        (entry("vdb", **FIXED, tran=None), "built into"),
        (entry("sr0", type="rom"), "is not a card: lsblk calls it rom"),
        (entry("loop7", type="loop", **FIXED, tran=None), "calls it loop"),
    ])  # fmt: skip
    def test_refused_disks_have_a_reason(self, disk: dict[str, Any], said: str) -> None:
        refused = devices.find_refusal(seen(disk)[0], SIZE)
        assert refused is not None
        assert said in refused[0]
        assert refused[1]

    def test_built_in_memory_is_not_a_card(self, tmp_path: Path) -> None:
        """lsblk describes eMMC like a card in a slot; it may hold another system of the machine."""
        for name, kind in (("mmcblk0", "MMC"), ("mmcblk1", "SD")):
            (tmp_path / name / "device").mkdir(parents=True)
            (tmp_path / name / "device" / "type").write_text(f"{kind}\n")
        mmc = {"rm": False, "hotplug": True, "tran": "mmc"}
        told = json.dumps(
            {"blockdevices": [entry("mmcblk0", **mmc, children=[part("mmcblk0p1")]), entry("mmcblk1", **mmc)]}
        )
        found = list(devices.parse_lsblk(told, devices.find_built_in(tmp_path)))
        assert [each.path for each in devices.candidates(found, SIZE)] == ["/dev/mmcblk1"]
        refused = devices.find_refusal(found[0], SIZE)
        assert refused is not None
        assert "built into this machine" in refused[0]

    def test_list_is_available_as_json(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        disks = seen(entry("sdb", children=[part("sdb1")]), entry("nvme0n1", **FIXED, tran="nvme"))
        monkeypatch.setattr(devices, "list_disks", lambda: disks)
        assert run(["flash", "--list", "--json"]) == 0
        card, built_in = items_in(capsys.readouterr().out)
        assert (card["path"], card["card"], card["why"]) == ("/dev/sdb", True, "")
        assert (built_in["card"], "built into" in built_in["why"]) == (False, True)
        assert run(["flash", "--json"]) == 2

    @pytest.mark.parametrize("words", [("--list",), ("--list", "--json")])
    def test_virtual_devices_are_not_listed(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
    ) -> None:
        """lsblk calls compressed memory a disk."""
        virtual = [entry(name, **FIXED, tran=None) for name in ("zram0", "ram1", "nbd0")]
        loop = entry("loop0", type="loop", **FIXED, tran=None)
        disks = seen(entry("sdb"), *virtual, loop, entry("nvme0n1", **FIXED, tran="nvme"))
        monkeypatch.setattr(devices, "list_disks", lambda: disks)
        assert run(["flash", *words]) == 0
        listed = capsys.readouterr().out
        assert re.findall(r"/dev/\w+", listed)[0] == "/dev/sdb"
        assert "/dev/nvme0n1" in listed
        assert not re.search(r"/dev/(zram|ram|nbd|loop)", listed)

    def test_unmount_command_can_be_pasted(self) -> None:
        disk = seen(entry("sdb", children=[part("sdb1", "/media/ann/WAYPOST"), part("sdb2", "/media/ann/MY CARD")]))[0]
        refused = devices.find_refusal(disk, SIZE)
        assert refused is not None
        assert refused[1].endswith("sudo umount /media/ann/WAYPOST '/media/ann/MY CARD'")

    def test_partition_is_refused(self) -> None:
        found = seen(entry("sdb", children=[part("sdb1")]))
        refused = devices.find_refusal(devices.find_disk(Path("/dev/sdb1"), found), SIZE)
        assert refused is not None
        assert "is a partition" in refused[0]
        with pytest.raises(ImageError, match="not a disk"):
            devices.find_disk(Path("/dev/nothing"), found)

    @pytest.mark.skipif(shutil.which("lsblk") is None, reason="lsblk is not installed")
    def test_disks_of_this_machine_can_be_read(self) -> None:
        assert not [
            each for each in devices.candidates(devices.list_disks(), 0) if set(each.mounts) & set(devices.SYSTEM)
        ]


class Made:
    """An image in its distributed form."""

    def __init__(self, folder: Path) -> None:
        self.plain = made.card(folder)
        self.file, self.certificate = made.hand_out(folder, self.plain)
        self.handed = image.verify_image(self.file, self.certificate)

    def words(self, *more: str) -> list[str]:
        return ["flash", str(self.file), *more, "--certificate", str(self.certificate), "--yes"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("image"))


@pytest.fixture
def copy(whole: Made, tmp_path: Path) -> Path:
    """Return a copy of the image and its files, for tests that damage it."""
    for path in whole.file.parent.glob("waypost-*"):
        shutil.copy(path, tmp_path)
    return tmp_path / whole.file.name


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


class TestImageChecks:
    """The target is opened only after the image has been verified."""

    def refused(self, file: Path, whole: Made, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
        target = file.parent / "target"
        code = run(["flash", str(file), str(target), "--certificate", str(whole.certificate), "--yes", *more])
        assert not target.exists()
        return code, said(capsys)

    def test_incomplete_download_is_refused(self, copy: Path, whole: Made, capsys: pytest.CaptureFixture[str]) -> None:
        os.truncate(copy, copy.stat().st_size - 1000)
        code, words = self.refused(copy, whole, capsys)
        assert code == 4
        assert "the download is incomplete" in words
        assert "download it" in words

    @pytest.mark.parametrize("name", ["img.zst", "img.bmap"])
    def test_wrong_checksum_is_refused(
        self, copy: Path, whole: Made, capsys: pytest.CaptureFixture[str], name: str
    ) -> None:
        file = copy.with_name(f"waypost-1-pi4.{name}")
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        assert self.refused(copy, whole, capsys)[0] == 4

    def test_invalid_signature_is_refused(self, copy: Path, whole: Made, capsys: pytest.CaptureFixture[str]) -> None:
        sums = copy.with_name("waypost-1-pi4.sha256")
        sums.write_text(sums.read_text() + "\n")
        code, words = self.refused(copy, whole, capsys)
        assert (code, "does not match" in words) == (4, True), words
        other = signing.load_keys(copy.parent / "other", None, None)
        signing.sign(sums, other, copy.with_name("log"))
        assert self.refused(copy, whole, capsys)[0] == 4

    def test_missing_certificate_is_reported(
        self, copy: Path, whole: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A foreign image without a known certificate gets an error that names the certificate, not the image."""
        monkeypatch.setattr("images.flashing.cli.default_cache", lambda: copy.parent / "cache")
        words = ["flash", str(copy), str(copy.parent / "target"), "--yes"]
        assert run(words) == 2
        assert "a certificate is needed" in said(capsys)
        signing.load_keys(copy.parent / "cache", None, None)
        assert run(words) == 4
        assert "if another machine built it, name the maker's certificate with --certificate FILE" in said(capsys)
        assert run([*words, "--certificate", str(copy.with_name("waypost-1-pi4.sha256"))]) == 2
        assert "is not a certificate" in said(capsys)
        assert run([*words, "--certificate", str(copy.parent)]) == 2
        assert "name the maker's certificate" in said(capsys)
        monkeypatch.setenv("WAYPOST_IMAGE_CACHE", str(whole.certificate.parent.parent))
        assert run(["flash", str(copy), str(copy.parent / "of-own"), "--yes"]) == 0, "where this machine builds them"
        assert not copy.with_name("target").exists()

    @pytest.mark.parametrize("name", ["sha256", "sha256.p7s", "img.bmap", "img.zst"])
    def test_missing_files_are_named(
        self, copy: Path, whole: Made, capsys: pytest.CaptureFixture[str], name: str
    ) -> None:
        copy.with_name(f"waypost-1-pi4.{name}").unlink()
        code, words = self.refused(copy, whole, capsys)
        assert (code, f"{name} does not exist" in words) == (2, True), words

    def test_unsigned_image_is_refused(self, copy: Path, whole: Made, capsys: pytest.CaptureFixture[str]) -> None:
        copy.with_name("waypost-1-pi4.sha256.p7s").unlink()
        assert run(["flash", str(copy), str(copy.parent / "target"), "--unsigned", "--yes"]) == 0

    @pytest.mark.parametrize("text", [
        b"", b"x", b"<bmap/>", b'<!DOCTYPE x [<!ENTITY y "z">]><bmap/>',
        b"<bmap><ImageSize>8192</ImageSize><BlockSize>4096</BlockSize><ChecksumType>sha256</ChecksumType></bmap>",
        b"<bmap><ImageSize>8192</ImageSize><BlockSize>4096</BlockSize><ChecksumType>sha256</ChecksumType><BlockMap>"
        b'<Range chksum="' + b"0" * 64 + b'">1</Range></BlockMap></bmap>',
    ])  # fmt: skip
    def test_invalid_maps_are_refused(self, tmp_path: Path, text: bytes) -> None:
        (tmp_path / "map").write_bytes(text)
        with pytest.raises(ImageError, match=r"not .* map"):
            image.read_layout(tmp_path / "map")

    @pytest.mark.parametrize("text", [
        '<!DOCTYPE bmap [<!ENTITY a "b">]>', '<!DOCTYPE bmap SYSTEM "file:///etc/passwd">',
    ])  # fmt: skip
    @pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be"])
    def test_map_with_declarations_is_refused(self, whole: Made, tmp_path: Path, text: str, encoding: str) -> None:
        right = bmap.make_map(whole.plain)
        head, line, rest = right.partition("\n")
        head = head.replace("?>", f'encoding="{encoding}"?>')
        (tmp_path / "map").write_bytes(f"{head}{line}{text}{line}{rest}".encode(encoding))
        with pytest.raises(ImageError, match="block map"):
            image.read_layout(tmp_path / "map")

    @pytest.mark.skipif(find("bmaptool") is None, reason="bmap-tools is not installed")
    def test_map_of_bmaptool_is_read(self, whole: Made, tmp_path: Path) -> None:
        """bmaptool writes a comment at its beginning."""
        mapping = tmp_path / "card.img.bmap"
        subprocess.run(
            ["bmaptool", "create", "-o", str(mapping), str(whole.plain)], check=True, capture_output=True, timeout=60
        )
        assert "<!--" in mapping.read_text()
        assert image.read_layout(mapping) == whole.handed.layout

    def test_map_with_a_comment_is_read(self, whole: Made, tmp_path: Path) -> None:
        head, line, rest = bmap.make_map(whole.plain).partition("\n")
        (tmp_path / "map").write_text(f"{head}{line}<!-- This file contains the block map. -->{line}{rest}")
        assert image.read_layout(tmp_path / "map") == whole.handed.layout

    def test_map_survives_a_round_trip(self, whole: Made, tmp_path: Path) -> None:
        layout = whole.handed.layout
        assert layout.size == whole.plain.stat().st_size
        assert layout.mapped < layout.size / 2
        assert layout.block == bmap.BLOCK


class TestWriting:
    def test_mapped_ranges_are_written_and_the_rest_is_unchanged(self, whole: Made, tmp_path: Path) -> None:
        """The target holds other data, and its file is not replaced."""
        target = tmp_path / "card"
        size = whole.handed.layout.size + (1 << 20)
        mark = (size - writing.FIRST).to_bytes(8, "big") * (writing.FIRST // 8)
        target.write_bytes(b"\xaa" * size)
        descriptor = os.open(target, os.O_RDWR)
        try:
            writing.flash(
                whole.handed, writing.CardTarget(target, descriptor, is_disk=False), {}, lambda _what, _count: None
            )
        finally:
            os.close(descriptor)
        is_, should = target.read_bytes(), whole.plain.read_bytes()
        at = 0
        for each in whole.handed.layout.ranges:
            assert is_[each.begin : each.end] == should[each.begin : each.end]
            assert not is_[at : each.begin].strip(b"\xaa")
            at = each.end
        assert is_[at:] == b"\xaa" * (size - at - len(mark)) + mark, "with a mark at its end: so large it is"

    def test_settings_are_on_the_first_partition(self, whole: Made, tmp_path: Path) -> None:
        target = tmp_path / "card"
        (tmp_path / "hall.yaml").write_bytes(
            apply_arguments(["name=hall", "wifi.ssid=x", "wifi.country=DE"], None).card.text
        )
        assert run(whole.words(str(target), "--config", str(tmp_path / "hall.yaml"))) == 0
        assert partition.read_file(target, made.BEGIN, FILE) == (tmp_path / "hall.yaml").read_bytes()
        assert partition.read_file(target, made.BEGIN, "boot.scr") == b"boot\n"
        assert target.stat().st_mode & 0o777 == 0o600
        assert target.stat().st_blocks * 512 < target.stat().st_size / 2, "what the image has no data for stays a hole"
        behind = made.BEGIN + (made.FAT << 20)
        assert target.read_bytes()[behind:] == whole.plain.read_bytes()[behind:]

    def test_xz_image_is_written(self, whole: Made, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The xz file for Etcher and Imager is flashed like the other one."""
        packed, sums = copy.with_suffix(".xz"), copy.with_name("waypost-1-pi4.sha256")
        packed.write_bytes(lzma.compress(whole.plain.read_bytes(), preset=0))
        with sums.open("a") as text:
            text.write(f"{filesystem.compute_sha256(packed)}  {packed.name}\n")
        words = ["flash", str(packed), str(copy.parent / "card"), "--unsigned", "--yes"]
        assert run(words) == 0
        assert (copy.parent / "card").read_bytes() == whole.plain.read_bytes()
        torn = packed.read_bytes()[:-1000]
        packed.write_bytes(torn)
        sums.write_text(
            "".join(f"{filesystem.compute_sha256(each)}  {each.name}\n" for each in (packed, copy.with_suffix(".bmap")))
        )
        assert run(words) == 4
        assert "the image cannot be read" in said(capsys)

    def test_uncompressed_image_is_written(self, whole: Made, copy: Path) -> None:
        plain = copy.with_suffix("")
        shutil.copy(whole.plain, plain)
        words = ["flash", str(plain), str(copy.parent / "card"), "--certificate", str(whole.certificate), "--yes"]
        assert run(words) == 0
        with plain.open("r+b") as file:
            file.seek(made.BEGIN + (made.FAT << 20) + 5000)
            file.write(b"changed")
        assert run(words) == 4

    def test_configured_image_is_written(self, whole: Made, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The error is not about a damaged download, as a new download would not help."""
        plain = copy.with_suffix("")
        shutil.copy(whole.plain, plain)
        assert run(["image", "configure", str(plain), "name=hall"]) == 0
        target = copy.parent / "card"
        assert run(["flash", str(plain), str(target), "--certificate", str(whole.certificate), "--yes"]) == 4
        words = said(capsys)
        assert "image configure" in words
        assert "--config" in words
        assert "does not start now" in words
        assert not target.read_bytes()[: writing.FIRST].strip(b"\0")

    def test_several_cards_are_written_with_labels_although_one_fails(
        self, whole: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "fleet.csv").write_text("name,hostname\nnorth,n1\nsouth,\nwest,\n")
        targets = [str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "c")]
        (tmp_path / "b").symlink_to(tmp_path / "missing" / "b")
        more = ("--config", str(tmp_path / "fleet.csv"), "--labels", str(tmp_path / "labels.html"))
        assert run(whole.words(*targets, *more)) == 1
        out, err = capsys.readouterr()
        assert f"{targets[0]}: north: written and read back" in out
        assert f"{targets[2]}: west: written and read back" in out
        assert f"{targets[1]}: south: " in err
        assert "1 of 3 cards were not" in err
        labels = (tmp_path / "labels.html").read_text()
        assert "<b>north</b>n1<br>" in labels
        assert "<b>west</b>" in labels
        assert "south" not in labels
        assert labels.count("<svg ") == 2
        for target, name in ((targets[0], "north"), (targets[2], "west")):
            text = partition.read_file(Path(target), made.BEGIN, FILE)
            assert text is not None
            assert f"name: {name}".encode() in text

    def test_rows_and_cards_must_be_equal_in_number(
        self, whole: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "fleet.csv").write_text("name\nnorth\nsouth\n")
        more = ("--config", str(tmp_path / "fleet.csv"))
        assert run(whole.words(str(tmp_path / "a"), *more)) == 2
        assert "1 card, and settings for 2 gateways: north, south" in said(capsys)
        assert run(whole.words(str(tmp_path / "a"), *more, "--only", "east")) == 2
        assert run(whole.words(str(tmp_path / "a"), "--only", "north")) == 2
        assert not (tmp_path / "a").exists()
        assert run(whole.words(str(tmp_path / "a"), *more, "--only", "south")) == 0
        assert run(whole.words(str(tmp_path / "b"), str(tmp_path / "c"), *more, *("--only", "south") * 2)) == 2
        assert "named twice: south" in said(capsys)
        assert not (tmp_path / "b").exists()
        assert len(cards.assign_jobs([(tmp_path, None)], [], [])) == 1

    def test_confirmation_requires_the_name(self, whole: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "there").write_bytes(b"mine")
        monkeypatch.setattr("click.prompt", lambda *_, **__: "y")
        assert run(whole.words(str(tmp_path / "there"))[:-1]) == 2
        assert (tmp_path / "there").read_bytes() == b"mine"

    def test_missing_terminal_is_reported(
        self, whole: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "there").write_bytes(b"mine")
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        assert run(whole.words(str(tmp_path / "there"))[:-1]) == 2
        assert "--yes skips this question" in said(capsys)
        assert (tmp_path / "there").read_bytes() == b"mine"

    def test_missing_labels_are_a_failure(
        self, whole: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "labels.html").symlink_to("/dev/full")
        assert run(whole.words(str(tmp_path / "card"), "--labels", str(tmp_path / "labels.html"))) == 1
        out, err = capsys.readouterr()
        assert "written and read back" in out
        assert "no labels were written" in err


class TestMissingArguments:
    """No card is written, and the error names the missing argument."""

    @pytest.mark.parametrize("more", [["--yes"], ["--config", "fleet.csv"], ["--only", "north"]])
    def test_missing_card_is_reported(
        self,
        whole: Made,
        more: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """A script may pass an empty list of cards."""
        monkeypatch.chdir(tmp_path)
        Path("fleet.csv").write_text("name\n")
        assert run(["flash", str(whole.file), *more]) == 2
        assert "no card is named, and none was written" in said(capsys)

    def test_listing_is_no_error(self, whole: Made) -> None:
        assert run(["flash", str(whole.file)]) == run(["flash", "--list", "--yes"]) == run(["flash"]) == 0

    @pytest.mark.parametrize(("words", "what"), [
        (["/dev/sdx"], "/dev/sdx is not an image"), (["/dev/sdx", "a.img.zst"], "/dev/sdx is not an image"),
        (["none.img.zst"], "none.img.zst does not exist"), (["none.img.zst", "card"], "none.img.zst does not exist"),
        (["/"], "/ is a folder"),
    ])  # fmt: skip
    def test_missing_image_is_reported(self, words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["flash", *words]) == 2
        shown = said(capsys)
        assert what in shown
        assert "the image comes first" in shown


class Worn(writing.CardTarget):
    """Card that changes written data."""

    def write(self, at: int, content: bytes) -> None:
        spoilt = bytearray(content)
        if at > 35 << 20:
            spoilt[len(spoilt) // 2] ^= 1
        super().write(at, bytes(spoilt))


class Smaller(writing.CardTarget):
    """Card that claims a larger size: writes behind its real end are lost, or start again at its beginning."""

    def __init__(self, path: Path, descriptor: int, *, is_disk: bool, real: int, begins_anew: bool) -> None:
        super().__init__(path, descriptor, is_disk=is_disk)
        self._real, self._begins_anew = real, begins_anew

    def write(self, at: int, content: bytes) -> None:
        if at < self._real or self._begins_anew:
            super().write(at % self._real, content)

    def read(self, begin: int, end: int) -> Iterator[bytes]:
        if begin < self._real or self._begins_anew:
            yield from super().read(begin % self._real, begin % self._real + end - begin)
        else:
            yield bytes(end - begin)


STOPPED = """
import os, signal, sys, threading
from edge.appliance.main import run
from images.flashing import cards, writing

image, certificate, target = sys.argv[1:]
noticed, waiting = threading.Event(), threading.Event()
real_write, real_wait = writing.CardTarget.write, cards.wait

def write(self, at, content):
    real_write(self, at, content)
    if at > 35 << 20 and not noticed.is_set():
        waiting.wait(60)
        os.kill(os.getpid(), signal.SIGINT)
        noticed.wait(60)

def wait(futures, timeout):
    waiting.set()
    return real_wait(futures, timeout)

def interrupt(number, frame):
    noticed.set()
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupt)
writing.CardTarget.write, cards.wait = write, wait
sys.exit(run(["flash", image, target, "--certificate", certificate, "--yes"]))
"""
"""Simulate Ctrl-C while the data behind the first partition is being written."""


class TestFailures:
    def test_card_that_does_not_keep_data_is_reported(self, whole: Made, tmp_path: Path) -> None:
        target = tmp_path / "card"
        target.touch()
        descriptor = os.open(target, os.O_RDWR)
        worn = Worn(target, descriptor, is_disk=False)
        with pytest.raises(ImageError, match="written data") as failed:
            writing.flash(whole.handed, worn, {}, lambda _what, _count: None)
        os.close(descriptor)
        assert "another card" in failed.value.hint
        assert not target.read_bytes()[: writing.FIRST].strip(b"\0"), "it starts nothing"

    @pytest.mark.parametrize(("claimed", "real"), [
        (512 << 20, 128 << 20), (200 << 20, 128 << 20), (130 << 20, 128 << 20),
        ((173 << 20) + (1 << 19), 96 << 20),  # its end lies within data of the image
    ])  # fmt: skip
    @pytest.mark.parametrize("begins_anew", [True, False])
    def test_card_smaller_than_claimed_is_reported(
        self, whole: Made, tmp_path: Path, claimed: int, real: int, begins_anew: bool
    ) -> None:
        assert whole.handed.layout.size <= real
        card = tmp_path / "card"
        with card.open("wb") as file:
            file.truncate(claimed)
        descriptor = os.open(card, os.O_RDWR)
        target = Smaller(card, descriptor, is_disk=False, real=real, begins_anew=begins_anew)
        with pytest.raises(ImageError, match="written data") as failed:
            writing.flash(whole.handed, target, {}, lambda *_: None)
        assert "smaller than it claims" in failed.value.hint
        os.close(descriptor)
        with card.open("rb") as file:
            assert file.read(partition.SECTOR)[-2:] != b"\x55\xaa", "it starts nothing"

    def test_larger_card_passes(self, whole: Made, tmp_path: Path) -> None:
        card = tmp_path / "card"
        for size in (whole.handed.layout.size + 4096, (300 << 20) + 512, 64 << 30):
            with card.open("wb") as file:
                file.truncate(size)
            descriptor = os.open(card, os.O_RDWR)
            writing.flash(whole.handed, writing.CardTarget(card, descriptor, is_disk=False), {}, lambda *_: None)
            os.close(descriptor)

    @pytest.mark.parametrize(("number", "said"), [
        (errno.ENODEV, "removed"), (errno.ENOMEDIUM, "removed"), (errno.EIO, "removed"),
        (errno.EROFS, "write-protect switch"), (errno.ENOSPC, "free some space"), (errno.EUCLEAN, "another card"),
    ])  # fmt: skip
    def test_errors_of_the_system_have_a_next_step(
        self, whole: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
    ) -> None:
        """The error comes in the middle of writing."""
        real, left = os.pwrite, 5

        def failing(descriptor: int, content: bytes, at: int) -> int:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(number, os.strerror(number))
            return real(descriptor, content, at)

        monkeypatch.setattr("images.flashing.writing.os.pwrite", failing)
        card = tmp_path / "card"
        with (
            pytest.raises(ImageError, match="cannot be written") as failed,
            writing.open_target(card, 1 << 28) as target,
        ):
            writing.flash(whole.handed, target, {}, lambda *_: None)
        assert said in failed.value.hint
        with card.open("rb") as file:
            assert not file.read(writing.FIRST).strip(b"\0"), "it starts nothing"

    def test_interrupted_card_does_not_start(self, whole: Made, tmp_path: Path) -> None:
        drawn = random.Random(5)
        for turn in range(4):
            target = tmp_path / str(turn)
            shutil.copy(whole.plain, target)  # a card that booted before
            left = drawn.randrange(2 * whole.handed.layout.mapped - writing.FIRST)

            def progress(_what: str, count: int) -> None:
                nonlocal left
                left -= count
                if left < 0:
                    raise SimulatedKill

            descriptor = os.open(target, os.O_RDWR)
            with pytest.raises(SimulatedKill):
                writing.flash(whole.handed, writing.CardTarget(target, descriptor, is_disk=False), {}, progress)
            os.close(descriptor)
            with target.open("rb") as file:
                assert not file.read(writing.FIRST).strip(b"\0")

    def test_interrupt_ends_at_once_and_reports_the_state_of_the_card(self, whole: Made, tmp_path: Path) -> None:
        """The test sends Ctrl-C to a process, as threads do not get it."""
        target = tmp_path / "card"
        words = [sys.executable, "-c", STOPPED, str(whole.file), str(whole.certificate), str(target)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 130, done.stdout + done.stderr
        assert f"{target}: stopped: the card does not start now" in done.stderr
        assert "written and read back" not in done.stdout
        assert not target.read_bytes()[: writing.FIRST].strip(b"\0")

    def test_full_disk_is_reported(self, whole: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        place = tmp_path / "small"
        place.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
        if os.geteuid() != 0 or subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("no right to mount")
        try:
            assert run(whole.words(str(place / "card"))) == 1
        finally:
            subprocess.run(["umount", str(place)], check=True)
        assert "free some space" in said(capsys)

    def test_input_is_not_overwritten(self, whole: Made, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
        plain, settings = copy.with_suffix(""), copy.with_name("hall.yaml")
        shutil.copy(whole.plain, plain)
        assert run(["image", "configure", str(settings), "name=hall"]) == 0
        for target, more in ((plain, ()), (settings, ("--config", str(settings)))):
            before = target.read_bytes()
            words = ["flash", str(plain), str(target), "--certificate", str(whole.certificate), "--yes", *more]
            assert run(words) == 2
            assert "would be overwritten" in said(capsys)
            assert target.read_bytes() == before

    @pytest.mark.parametrize("labels", ["", "missing/labels.html"])
    def test_unwritable_labels_are_reported_first(self, whole: Made, tmp_path: Path, labels: str) -> None:
        assert run(whole.words(str(tmp_path / "card"), "--labels", str(tmp_path / labels))) == 2
        assert not (tmp_path / "card").exists()

    @pytest.mark.parametrize("target", ["/dev/no-such-disk", "/dev/disk/by-id/no-such-disk", "/", "/missing/card"])
    def test_unsuitable_targets_are_refused(self, whole: Made, target: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(whole.words(target)) == 2
        assert target in said(capsys)
        assert not Path(target).is_file()

    def test_card_removed_before_opening_is_reported(self, whole: Made, tmp_path: Path) -> None:
        """The program creates no file in the place of the device: that would be in memory, and pass for the card."""
        card, disk = tmp_path / "sdb", seen(entry("sdb"))[0]
        for found in (None, b"a file by then"):
            if found is not None:
                card.write_bytes(found)
            (done,) = cards.write_cards(whole.handed, [cards.CardJob(card, disk, None)], lambda *_: None)
            assert done.written is None
            assert done.error is not None
            assert "No such device" in done.error.message
            assert "removed" in done.error.hint
            assert (card.read_bytes() if card.exists() else None) == found


@contextlib.contextmanager
def looped(file: Path, size: int, *options: str) -> Iterator[str]:
    """Yield a loop device over a new file of this size."""
    with file.open("wb") as out:
        out.truncate(size)
    losetup = find("losetup") or "false"
    words = [losetup, "--find", "--show", *options, str(file)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no loop devices here")
    try:
        yield done.stdout.strip()
    finally:
        subprocess.run([losetup, "--detach", done.stdout.strip()], check=True)


@pytest.mark.skipif(shutil.which("lsblk") is None, reason="lsblk is not installed")
class TestLoopDevices:
    def test_loop_device_is_written_like_a_card(
        self, whole: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        layout, file = whole.handed.layout, tmp_path / "behind"
        with looped(file, layout.size + (4 << 20)) as device:
            assert run(whole.words(device)) == 2
            assert "calls it loop" in said(capsys)
            assert run(whole.words(device, "--allow-loop")) == 0
            is_, should = Path(device).read_bytes(), bytearray(whole.plain.read_bytes())
        assert is_[writing.DISK_ID] != should[writing.DISK_ID], "each card has an id of its own"
        should[writing.DISK_ID] = is_[writing.DISK_ID]
        assert all(is_[each.begin : each.end] == should[each.begin : each.end] for each in layout.ranges)

    def test_two_cards_have_two_ids(self, whole: Made, tmp_path: Path) -> None:
        """One machine can tell the two cards apart."""
        size = whole.handed.layout.size
        with looped(tmp_path / "one", size) as one, looped(tmp_path / "other", size) as other:
            assert run(whole.words(one, other, "--allow-loop")) == 0
            ids = {Path(device).read_bytes()[writing.DISK_ID] for device in (one, other)}
        assert len(ids - {bytes(4)}) == 2

    @pytest.mark.parametrize(("mebibytes", "options", "what"), [
        (8, (), "the image needs"), (200, ("--read-only",), "write-protected"),
    ])  # fmt: skip
    def test_loop_device_is_refused_by_default(
        self, whole: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str],
        mebibytes: int, options: tuple[str, ...], what: str,
    ) -> None:  # fmt: skip
        with looped(tmp_path / "behind", mebibytes << 20, *options) as device:
            assert run(whole.words(device, "--allow-loop")) == 2
        assert what in said(capsys)


class Paced(writing.CardTarget):
    """Card that writes 40 MB/s and reads 80 MB/s."""

    def write(self, at: int, content: bytes) -> None:
        time.sleep(len(content) / 40e6)
        super().write(at, content)

    def read(self, begin: int, end: int) -> Iterator[bytes]:
        for piece in super().read(begin, end):
            time.sleep(len(piece) / 80e6)
            yield piece


@pytest.mark.slow
def test_sparse_writing_takes_less_time_than_a_plain_copy(tmp_path: Path) -> None:
    """A quarter of the image is data, as in real ones; both copies run at the pace of a card and are read back
    completely."""
    plain = made.card(tmp_path, data=120, hole=400)
    handed = image.verify_image(*made.hand_out(tmp_path, plain))
    everything = image.BlockRange(0, handed.layout.size, filesystem.compute_sha256(plain))
    seconds = {}
    for name, ranges in (("sparse", handed.layout.ranges), ("plain", [everything])):
        layout = handed.layout._replace(ranges=ranges)
        with writing.open_target(tmp_path / name, layout.size) as opened:
            descriptor = os.open(opened.path, os.O_RDWR)
            done = writing.flash(
                handed._replace(layout=layout), Paced(opened.path, descriptor, is_disk=False), {}, lambda *_: None
            )
            os.close(descriptor)
        seconds[name] = done.seconds
        assert filesystem.compute_sha256(tmp_path / name) == everything.digest
    ratio = seconds["sparse"] / seconds["plain"]
    print(f"sparse {seconds['sparse']:.2f} s, plain copy {seconds['plain']:.2f} s: {ratio:.2f}")
    assert ratio <= 0.6
