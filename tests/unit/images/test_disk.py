"""Contents of images: file systems, maps, signed checksums, a software bill of materials."""

from __future__ import annotations

import contextlib
import hashlib
import json
import lzma
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest

from bridge.resources.parse import parse
from edge.appliance.main import run
from edge.configuration.kinds import KINDS
from edge.configuration.resources import SystemSpec
from images import programs, source
from images.building import build_bundle, build_image
from images.card import partition
from images.debian import Mirror
from images.disk import bmap, building, bundle, filesystem, imager, sbom, signing
from images.emulator import machine
from images.errors import ImageError
from images.frozen import cross
from images.programs import find
from images.rootfs import building as rootfs
from images.steps import BuildSteps
from tests.unit.images import published_image

DATE = 1_700_000_000
ALIGNED = 4 << 20
"""Bytes that a card of 2 to 32 GB erases at once, at most (SD Physical Layer specification, AU_SIZE)."""
FAT_SERIAL = 67
"""Place of the volume's serial number in the first sector of FAT32 (Microsoft, FAT specification 1.03, section 3.3)."""


def needs(*programs: str) -> pytest.MarkDecorator:
    lacking = [program for program in programs if find(program) is None]
    return pytest.mark.skipif(bool(lacking), reason=f"{', '.join(lacking)} is not installed")


class TestFileSystems:
    @needs("mke2fs", "debugfs")
    def test_same_tree_makes_the_same_bytes(self, tmp_path: Path) -> None:
        made = set()
        for turn in range(2):
            tree = tmp_path / str(turn)
            for name in sorted(("etc", "a b", "usr"), reverse=bool(turn)):
                (tree / name / "below").mkdir(parents=True)
                (tree / name / "file").write_text(name * 5000)
            (tree / "link").symlink_to("etc/file")
            os.utime(tree / "etc/file", (DATE - 1, DATE - 1))
            image = tmp_path / f"{turn}.ext4"
            filesystem.make(
                image, tree, mebibytes=8, label="waypost-root", date=DATE, journal=False, log=tmp_path / "log"
            )
            made.add(filesystem.compute_sha256(image))
            time.sleep(1.1)  # the next second, which shows in output that depends on the time
        assert len(made) == 1
        words = (find("debugfs") or "debugfs", "-R", "stat /etc/file", str(image))
        told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert f"mtime: 0x{DATE - 1:08x}" in told, "what is older stays so"
        checked = subprocess.run([find("e2fsck") or "e2fsck", "-fn", str(image)], capture_output=True, check=False)
        assert checked.returncode == 0, checked.stdout

    @needs("mke2fs", "debugfs")
    @pytest.mark.parametrize(("journal", "kept"), [(True, True), (False, False)])
    def test_reserve_of_the_data_partition_is_for_root(self, tmp_path: Path, journal: bool, kept: bool) -> None:
        """Root can write the settings of the card and the record of an update when the gateway's user filled the
        partition."""
        tree, image = tmp_path / "tree", tmp_path / "image"
        tree.mkdir()
        filesystem.make(image, tree, mebibytes=64, label="x", date=DATE, journal=journal, log=tmp_path / "log")
        words = (find("debugfs") or "debugfs", "-R", "stats -h", str(image))
        told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        [blocks] = re.findall(r"Reserved block count: +(\d+)", told)
        assert (int(blocks) * 4096 > 500_000) == kept


class TestMaps:
    def test_mapped_ranges_match_the_content(self, tmp_path: Path) -> None:
        image = tmp_path / "image"
        with image.open("wb") as out:
            out.truncate(1 << 20)
            out.seek(8 * bmap.BLOCK)
            out.write(b"x" * bmap.BLOCK * 3)
            out.seek((1 << 20) - 10)
            out.write(b"y" * 10)
        text = bmap.make_map(image)
        content = image.read_bytes()
        covered = bytearray(len(content))
        for digest, where in re.findall(r'<Range chksum="(\w+)"> (\S+) </Range>', text):
            first, _, last = where.partition("-")
            begin, end = int(first) * bmap.BLOCK, (int(last or first) + 1) * bmap.BLOCK
            assert hashlib.sha256(content[begin:end]).hexdigest() == digest
            covered[begin:end] = content[begin:end]
        assert covered == content, "what is not mapped is zero"
        said = re.search(r"<BmapFileChecksum> (\w+) ", text)
        assert said is not None
        assert hashlib.sha256(text.replace(said[1], "0" * 64).encode()).hexdigest() == said[1]

    @needs("bmaptool")
    def test_bmaptool_accepts_the_map(self, tmp_path: Path) -> None:
        image, copy = tmp_path / "image", tmp_path / "copy"
        image.write_bytes(os.urandom(3 * bmap.BLOCK))
        (tmp_path / "image.bmap").write_text(bmap.make_map(image))
        words = ["bmaptool", "copy", "--bmap", str(tmp_path / "image.bmap"), str(image), str(copy)]
        subprocess.run(words, check=True, capture_output=True, timeout=60)
        assert copy.read_bytes() == image.read_bytes()

    def test_empty_image_has_an_empty_map(self, tmp_path: Path) -> None:
        with (tmp_path / "image").open("wb") as out:
            out.truncate(1 << 20)
        assert "<Range" not in bmap.make_map(tmp_path / "image")


class TestSignatures:
    @needs("openssl")
    def test_changed_file_and_another_key_are_refused(self, tmp_path: Path) -> None:
        log, file = tmp_path / "log", tmp_path / "sums"
        file.write_text("1  a\n")
        pair = signing.load_keys(tmp_path / "one", None, None)
        assert pair == signing.load_keys(tmp_path / "one", None, None)
        assert pair.key.stat().st_mode & 0o077 == 0
        signing.sign(file, pair, log)
        signing.verify(file, pair.certificate, log)
        with pytest.raises(ImageError):
            signing.verify(file, signing.load_keys(tmp_path / "two", None, None).certificate, log)
        file.write_text("2  a\n")
        with pytest.raises(ImageError):
            signing.verify(file, pair.certificate, log)

    @needs("openssl")
    def test_only_certificates_get_into_images(self, tmp_path: Path) -> None:
        """A file with key and certificate is usual; of the keyring everybody can read all."""
        pair, other = (signing.load_keys(tmp_path / name, None, None) for name in ("one", "two"))
        certificate, der = pair.certificate.read_bytes(), tmp_path / "der"
        programs.run("openssl", "x509", "-in", other.certificate, "-outform", "DER", "-out", der, log=tmp_path / "log")
        for content, why in (
            (certificate + pair.key.read_bytes(), "has a private key"),
            (certificate + other.certificate.read_bytes(), "has 2 certificates"),
            (der.read_bytes(), "is not a certificate in PEM"),
        ):
            (tmp_path / "given.pem").write_bytes(content)
            with pytest.raises(ImageError, match=why):
                signing.load_keys(tmp_path / "one", None, None, [tmp_path / "given.pem"])
            with pytest.raises(ImageError):
                signing.load_keys(tmp_path / "none", pair.key, tmp_path / "given.pem")
        (tmp_path / "given.pem").write_bytes(b"a note\n" + other.certificate.read_bytes().rstrip() + b"\nmore")
        both = signing.load_keys(tmp_path / "keys", pair.key, pair.certificate, [tmp_path / "given.pem"])
        assert both.keyring == certificate + other.certificate.read_bytes()

    def test_key_without_certificate_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ImageError, match="go together"):
            signing.load_keys(tmp_path, tmp_path / "key.pem", None)

    @needs("openssl")
    def test_key_and_certificate_must_match(self, tmp_path: Path) -> None:
        one, other = (signing.load_keys(tmp_path / name, None, None) for name in ("one", "other"))
        assert signing.load_keys(tmp_path, one.key, one.certificate) == one
        with pytest.raises(ImageError, match="not the certificate"):
            signing.load_keys(tmp_path, one.key, other.certificate)
        with pytest.raises(ImageError, match=r"certificate\.pem .*key") as refused:
            signing.load_keys(tmp_path, one.certificate, one.certificate)
        assert "\n" not in refused.value.message
        with pytest.raises(ImageError, match="is not a certificate"):
            signing.load_keys(tmp_path, one.key, one.key)

    @needs("openssl")
    def test_simultaneous_builds_create_one_key(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        both, begun = threading.Barrier(2), []

        def slow(*words: str | Path, log: Path) -> None:
            begun.append(words)
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(1)
            programs.run(*words, log=log)

        monkeypatch.setattr(signing, "run", slow)
        with ThreadPoolExecutor(2) as builds:
            pairs = {
                each.result() for each in [builds.submit(signing.load_keys, tmp_path, None, None) for _ in range(2)]
            }
        assert (len(begun), len(pairs)) == (1, 1)


@pytest.mark.parametrize("build", [
    lambda steps, cache: build_image(steps, cache, "pi4", Mirror(), (None, None)),
    lambda steps, cache: build_bundle(steps, cache, Mirror(), (None, None)),
], ids=["image", "bundle"])  # fmt: skip
def test_all_missing_tools_are_reported_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[[BuildSteps, Path], object]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("images.programs.find", lambda _: None)
    with pytest.raises(ImageError, match="missing") as refused:
        build(BuildSteps(tmp_path / "cache"), tmp_path)
    packages = set(refused.value.hint.split())
    assert {"mmdebstrap", "gcc-aarch64-linux-gnu", "dpkg", "e2fsprogs"} < packages
    assert packages & {"genimage", "rauc"}
    assert not (tmp_path / "cache").exists()


STATUS = """\
Package: zlib1g
Status: install ok installed
Architecture: arm64
Source: zlib
Version: 1:1.2.13
Description: compression
 more: of it

Package: gone
Status: deinstall ok config-files
Architecture: arm64
Version: 1

Package: adduser
Status: install ok installed
Architecture: all
Version: 3.134
"""


def test_bill_of_materials_names_the_packages_of_system_and_gateway() -> None:
    ours = "\nPackage: waypost\nStatus: install ok installed\nArchitecture: arm64\nVersion: 0.1.0\n"
    ours += "Built-Using: openssl (= 3.0.22-1~deb12u2), python3.11 (= 3.11.2-6+deb12u6), xz-utils (= 5.4.1-1)\n"
    found = sbom.parse_packages(STATUS + ours)
    assert [each.name for each in found] == ["adduser", "waypost", "zlib1g"]
    document = sbom.make_document("card", found, {"msgspec": "0.22.0", "odd": "1!2.0+local"}, "0" * 64, 0)
    assert document["creationInfo"]["created"] == "1970-01-01T00:00:00Z"
    references = [ref["referenceLocator"] for each in document["packages"][1:] for ref in each["externalRefs"]]
    assert references == [
        "pkg:deb/debian/adduser@3.134?arch=all", "pkg:generic/waypost@0.1.0",
        "pkg:deb/debian/openssl@3.0.22-1~deb12u2?arch=source",
        "pkg:deb/debian/python3.11@3.11.2-6%2Bdeb12u6?arch=source", "pkg:deb/debian/xz-utils@5.4.1-1?arch=source",
        "pkg:deb/debian/zlib1g@1:1.2.13?arch=arm64", "pkg:pypi/msgspec@0.22.0", "pkg:pypi/odd@1%212.0%2Blocal",
    ]  # fmt: skip
    kernel = sbom.Package("linux-image-7.3.4+deb13-arm64", "7.3.4-1~bpo13+1", "arm64", "linux-signed-arm64")
    assert sbom.name_kernel([*found, kernel]) == f"kernel: {kernel.name} {kernel.version}"
    assert document["packages"][0]["comment"].endswith("kernel: none")
    licences = {each["name"]: each["licenseDeclared"] for each in document["packages"] if "licenseDeclared" in each}
    assert licences == {"openssl": "Apache-2.0", "python3.11": "PSF-2.0", "xz-utils": "NOASSERTION"}
    names = {each["SPDXID"]: each["name"] for each in document["packages"]} | {"SPDXRef-DOCUMENT": ""}
    relations = [
        (names[each["spdxElementId"]], names[each["relatedSpdxElement"]]) for each in document["relationships"]
    ]
    assert relations == [
        ("", "card"), ("card", "adduser"), ("card", "waypost"), ("waypost", "openssl"), ("waypost", "python3.11"),
        ("waypost", "xz-utils"), ("card", "zlib1g"), ("waypost", "msgspec"), ("waypost", "odd"),
    ]  # fmt: skip
    assert {"python-qpid-proton", "cryptography", "pyinstaller"} <= set(cross.pinned_versions())


IMAGER_SCHEMA: Final = Path(__file__).with_name("os-list-schema.json")
"""Schema of a manifest: doc/json-schema/os-list-schema.json of raspberrypi/rpi-imager 2.0.11.1 (Apache-2.0)."""


class ImagerReader:
    """Reader of a manifest by the rules of Raspberry Pi Imager 2 (src/hwlistmodel.cpp, src/imagewriter.cpp,
    src/oslistmodel.cpp, doc/json-schema/os-list-schema.json)."""

    INIT_FORMATS = ("", "systemd", "cloudinit", "cloudinit-rpi", "rpi-preseed", "none")
    REQUIRED: Mapping[str, type] = {
        "name": str, "description": str, "icon": str, "url": str, "extract_size": int, "extract_sha256": str,
        "image_download_size": int, "release_date": str, "devices": list,
    }  # fmt: skip

    def __init__(self, text: str) -> None:
        self._document = json.loads(text)
        assert self._document.keys() <= {"imager", "os_list"}

    def boards(self) -> list[dict[str, Any]]:
        """Return the boards on the first page. An empty list stays on that page."""
        imager_part = self._document.get("imager")
        listed = imager_part.get("devices") if isinstance(imager_part, dict) else None
        if not isinstance(listed, list):
            return []
        assert all(isinstance(each.get(key), str) for each in listed for key in ("name", "description"))
        assert all(isinstance(each.get("tags"), list) for each in listed)
        return listed

    def systems(self, board: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the systems on the second page, for a board."""
        inclusive = board.get("matching_type") == "inclusive"
        found = []
        for each in self._document["os_list"]:
            missing = [key for key, kind in self.REQUIRED.items() if not isinstance(each.get(key), kind)]
            assert not missing
            fits = bool(set(each["devices"]) & set(board["tags"])) if "devices" in each else inclusive
            if fits and each.get("init_format", "") in self.INIT_FORMATS:
                found.append(each)
        return found


@pytest.mark.parametrize("board", sorted(imager.DEVICES))
def test_raspberry_pi_imager_finds_the_image_from_its_first_page(tmp_path: Path, board: str) -> None:
    image, compressed = tmp_path / "x.img", tmp_path / "x.img.xz"
    image.write_bytes(b"image")
    compressed.write_bytes(b"packed")
    entry = imager.make_entry("Waypost", image, compressed, "2026-01-01", imager.DEVICES[board])
    manifest = imager.make_manifest(entry, "file:///here/")
    jsonschema.validate(json.loads(manifest), json.loads(IMAGER_SCHEMA.read_text()))
    reader = ImagerReader(manifest)
    [shown] = reader.boards()
    [one] = reader.systems(shown)
    assert (one["url"], one["bmap_url"]) == ("file:///here/x.img.xz", "file:///here/x.img.bmap")
    assert (one["init_format"], one["extract_size"], one["image_download_size"]) == ("cloudinit", 5, 6)
    assert one["extract_sha256"] == hashlib.sha256(b"image").hexdigest()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", one["release_date"])
    tags = {tag for device in imager.DEVICES.values() for tag in device.tags} - set(imager.DEVICES[board].tags)
    others: list[dict[str, Any]] = [
        *({"tags": [tag], "matching_type": "exclusive"} for tag in tags),
        {"tags": ["pi3-32bit", "pi4-32bit"]},
    ]
    assert not [each for each in others if reader.systems(each)], "it starts on no other board"


def test_examples_add_nothing_to_the_sources() -> None:
    """Examples run in a checkout, and output in a folder of its sources would be packaged."""
    texts = [*(source.ROOT / "images").rglob("*.md"), *(source.ROOT / "images").rglob("cli.py")]
    named = {place for text in texts for place in re.findall(r"--out (?:\./)?([\w-]+)", text.read_text())}
    assert named
    assert not [place for place in named if (source.ROOT / place / "__init__.py").exists()]


@needs("openssl")
def test_gateways_trust_the_next_key_too(tmp_path: Path) -> None:
    own, fresh = (signing.load_keys(tmp_path / name, None, None) for name in ("own", "fresh"))
    both = signing.load_keys(tmp_path / "own", None, None, [fresh.certificate])
    assert own.keyring == own.certificate.read_bytes()
    assert both.keyring == own.certificate.read_bytes() + fresh.certificate.read_bytes()
    named = signing.load_keys(tmp_path, own.key, own.certificate, [fresh.certificate])
    assert named.keyring == both.keyring
    with pytest.raises(ImageError, match=r"key\.pem is not a certificate"):
        signing.load_keys(tmp_path, own.key, own.certificate, [fresh.key])


@needs("openssl", "sha256sum")
def test_documented_command_checks_the_published_files(tmp_path: Path) -> None:
    """Run both commands of the guide; each fails when a file has changed."""
    readme = (source.ROOT / "docs" / "how-to" / "build-images.md").read_text()
    [commands] = re.findall(r"```sh\n(openssl cms -verify .*?)```", readme, re.DOTALL)
    pair = signing.load_keys(tmp_path, None, None)
    (tmp_path / "certificate.pem").write_bytes(pair.certificate.read_bytes())
    sums, file = tmp_path / "X.sha256", tmp_path / "X.img.zst"
    file.write_bytes(b"image")
    sums.write_text(f"{filesystem.compute_sha256(file)}  {file.name}\n")
    signing.sign(sums, pair, tmp_path / "log")

    def right() -> bool:
        done = subprocess.run(["sh", "-e", "-c", commands], cwd=tmp_path, capture_output=True, check=False)
        return done.returncode == 0

    assert right()
    file.write_bytes(b"other")
    assert not right()
    sums.write_text(f"{filesystem.compute_sha256(file)}  {file.name}\n")
    assert not right()


class TestPackageLists:
    def test_own_units_exist(self) -> None:
        units = rootfs.OVERLAY / "etc/systemd/system"
        ours = {path.name for path in units.glob("*.service")}
        watching = {path.name for end in ("path", "timer") for path in units.glob(f"*.{end}")}
        started = {f"{name.partition('.')[0]}.service" for name in watching}  # each starts the service of its name
        started |= {name for unit in ours for name in re.findall(r"OnSuccess=(\S+)", (units / unit).read_text())}
        named = {line.lstrip("-") for line in rootfs.read_list(rootfs.UNITS)}
        started |= {name for name in ours if "@" in name}  # and udev starts the templates
        assert ours - started | watching <= named
        for name in ours:
            [program, *_] = re.findall(
                r"(?m)^ExecStart=(\S+)", (rootfs.OVERLAY / "etc/systemd/system" / name).read_text()
            )
            if program.startswith("/usr/lib/waypost-system/"):
                assert (rootfs.OVERLAY / program.lstrip("/")).stat().st_mode & 0o100

    def test_regulatory_rules_are_included(self) -> None:
        """`iw` only recommends the package; without it the kernel allows only the channels of the world domain."""
        assert "wireless-regdb" in rootfs.read_list(rootfs.PACKAGES)

    def test_exclusions_are_patterns_of_dpkg(self) -> None:
        for line in rootfs.read_list(rootfs.EXCLUDES):
            assert line.removeprefix("!").startswith("/")
            assert "{" not in line

    def test_scripts_are_posix(self) -> None:
        for path in (rootfs.OVERLAY / "usr/lib/waypost-system").iterdir():
            subprocess.run(["/bin/sh", "-n", str(path)], check=True)

    def test_partitions_are_not_found_by_ids_that_two_cards_may_share(self) -> None:
        """Only U-Boot names the id, that of its own disk; all other parts use the disk of the root."""
        signature = re.search(r"disk-signature = 0x(\w+)", (building.HERE / "genimage.cfg").read_text())
        assert signature is not None
        naming = {path for path in rootfs.OVERLAY.rglob("*") if path.is_file() and signature[1] in path.read_text()}
        assert naming == {rootfs.OVERLAY / "usr/lib/waypost-system/disk-id"}, "it replaces the image's id"
        assert not [path for path in rootfs.OVERLAY.rglob("*") if path.is_file() and "PARTUUID" in path.read_text()]
        assert "part uuid ${devtype} ${devnum}:${part}" in (building.HERE / "boot.cmd").read_text()

    def test_partition_sizes_are_those_of_their_file_systems_and_aligned(self) -> None:
        sizes = re.findall(r"size = (\S+)M", (building.HERE / "genimage.cfg").read_text())
        assert sizes[1:] == ["@ROOT_MIB@"] * 2 + ["@DATA_MIB@"]
        assert not [size for size in (int(sizes[0]), building.ROOT_MIB, building.DATA_MIB) if size % 4]


@needs(
    "dtc",
    "genimage",
    "mcopy",
    "mkfs.vfat",
    "mkimage",
    "mkenvimage",
    "mke2fs",
    "debugfs",
    "openssl",
    "zstd",
    "xz",
    "sfdisk",
)
def test_image_of_a_stub_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Build an image with stub content twice: layout, boot partition, output files, and identical bytes."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(DATE))
    monkeypatch.setattr(building, "LEVEL", "-1")
    monkeypatch.setattr(building, "ROOT_MIB", 8)  # compressing 1.7 GB takes half a minute
    monkeypatch.setattr(building, "DATA_MIB", 8)
    system, log = tmp_path / "system", tmp_path / "log"
    (system / "firmware").mkdir(parents=True)
    for name in ("start4.elf", "fixup4.dat", "u-boot.bin", "bootcode.bin"):
        (system / "firmware" / name).write_text(name)
    device_tree = system / "firmware" / "bcm2711-rpi-4-b.dtb"
    compiler = [find("dtc") or "dtc", "-q", "-o", str(device_tree), "-"]
    subprocess.run(compiler, input='/dts-v1/; / { model = "stub"; };', text=True, check=True)
    tree = tmp_path / "tree"
    (tree / "etc").mkdir(parents=True)
    for name in ("root", "data"):
        filesystem.make(system / f"{name}.ext4", tree, mebibytes=8, label=name, date=DATE, journal=False, log=log)
    (system / "root.sha256").write_text("0" * 64 + "\n")
    (system / "status").write_text(STATUS)
    pair = signing.load_keys(tmp_path, None, None)
    sums = []
    for turn in ("first", "second"):
        out = tmp_path / turn
        out.mkdir()
        building.make_image(out, "pi4", system, pair, log)
        sums.append((out / f"{building.image_name('pi4')}.sha256").read_text())
    assert sums[0] == sums[1]
    kinds = {path.name.removeprefix(building.image_name("pi4")) for path in out.iterdir()} - {
        "root.sha256",
        imager.FILE,
    }
    assert kinds == {".img.zst", ".img.xz", ".img.bmap", ".spdx.json", ".sha256", ".sha256.p7s"}
    reader = ImagerReader((out / imager.FILE).read_text())
    [one] = reader.systems(reader.boards()[0])
    unpacked = lzma.decompress((out / one["url"]).read_bytes())
    assert (len(unpacked), hashlib.sha256(unpacked).hexdigest()) == (one["extract_size"], one["extract_sha256"])
    assert filesystem.compute_sha256(out / one["url"]) == one["image_download_sha256"]
    assert (out / one["bmap_url"]).is_file()
    image = tmp_path / "image"
    subprocess.run(
        ["zstd", "-q", "-d", str(out / f"{building.image_name('pi4')}.img.zst"), "-o", str(image)], check=True
    )
    layout = subprocess.run([find("sfdisk") or "", "-d", str(image)], capture_output=True, text=True, check=True).stdout
    assert "label-id: 0x67617465" in layout
    starts = [int(each) * partition.SECTOR for each in re.findall(r"start= *(\d+)", layout)]
    ends = [begin + int(size) * 512 for begin, size in zip(starts, re.findall(r"size= *(\d+)", layout), strict=True)]
    assert [each % ALIGNED for each in (*starts, *ends)] == [0] * 8, "what a card erases at once is in one partition"
    with image.open("rb") as file:
        file.seek(starts[0] + FAT_SERIAL)
        assert file.read(4) == 0x67617465.to_bytes(4, "little")
    assert re.findall(r"type=(\w+)", layout) == ["c", "83", "83", "83"]
    start = re.search(r"start= *(\d+)", layout)
    assert start is not None
    place = f"{image}@@{int(start[1]) * 512}"
    listed = subprocess.run(
        ["mdir", "-b", "-i", place, "::/"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {name.removeprefix("::/") for name in listed} == {
        "boot.scr", "rauc.bak", "rauc.env", "root.sha256", "waypost.yaml", "settings.html",
        "config.txt", "u-boot.bin", "start4.elf", "fixup4.dat", "bcm2711-rpi-4-b.dtb", "overlays/",
    }  # fmt: skip
    subprocess.run(["mcopy", "-i", place, "::/overlays/rpi-poe.dtbo", str(tmp_path)], check=True)
    subprocess.run(["mcopy", "-i", place, f"::/{device_tree.name}", str(tmp_path)], check=True)
    said = ["fdtget", "-t", "i", str(tmp_path / device_tree.name), "/config", "bootdelay"]
    assert subprocess.run(said, capture_output=True, text=True, check=True).stdout == "-2\n"


SPEEDS = ("slow", "medium", "fast", "full")
MAINLINE_TREE = """
/dts-v1/;
/ {
    thermal-zones {
        cpu_thermal: cpu-thermal { trips { cpu-crit { temperature = <90000>; }; }; cooling-maps { }; };
    };
    soc { firmware: rpi-firmware { compatible = "raspberrypi,bcm2835-firmware", "simple-mfd"; }; };
};
"""
"""Labels and nodes of the device tree of a Raspberry Pi 4 in Linux 7.3 that the overlays refer to."""


@needs("dtc", "fdtget", "fdtoverlay", "fdtput", "mkimage", "mkenvimage")
class TestBoards:
    FIRMWARE = ("bootcode.bin", "start.elf", "fixup.dat", "start4.elf", "fixup4.dat", "u-boot.bin")
    TREES = ("bcm2711-rpi-4-b", "bcm2711-rpi-400", "bcm2712-rpi-5-b", "bcm2712-d-rpi-5-b", "bcm2837-rpi-3-b",
             "bcm2837-rpi-cm3-io3", "bcm2837-rpi-zero-2-w")  # fmt: skip

    @pytest.mark.parametrize(("board", "own"), [
        ("pi3", {"bootcode.bin", "start.elf", "fixup.dat", "bcm2837-rpi-3-b.dtb", "bcm2837-rpi-cm3-io3.dtb"}),
        ("pi4", {"start4.elf", "fixup4.dat", "bcm2711-rpi-4-b.dtb", "bcm2711-rpi-400.dtb"}),
        ("pi5", {"bcm2712-rpi-5-b.dtb", "bcm2712d0-rpi-5-b.dtb"}),
        ("zero2w", {"bootcode.bin", "start.elf", "fixup.dat", "bcm2837-rpi-zero-2-w.dtb"}),
        ("qemu", set()),
    ])  # fmt: skip
    def test_boot_partition_has_the_files_of_its_board(self, tmp_path: Path, board: str, own: set[str]) -> None:
        system, parts = tmp_path / "system", tmp_path / "parts"
        (system / "firmware").mkdir(parents=True)
        parts.mkdir()
        (system / "root.sha256").write_text("0" * 64)
        for name in self.FIRMWARE:
            (system / "firmware" / name).write_text(name)
        for name in self.TREES:
            words = [find("dtc") or "dtc", "-q", "-o", str(system / "firmware" / f"{name}.dtb"), "-"]
            subprocess.run(words, input='/dts-v1/; / { model = "stub"; };', text=True, check=True)
        found = building.make_boot_files(parts, board, system, tmp_path / "log")
        fans = {"overlays/rpi-poe.dtbo", "overlays/rpi-poe-plus.dtbo"} if board in {"pi3", "pi4"} else set()
        assert set(found) == (own | fans | {"u-boot.bin", "config.txt"} if own else set())
        assert not [name for name in found if not (parts / name).is_file()]
        assert (parts / "rauc.bak").read_bytes() == (parts / "rauc.env").read_bytes()

    def test_overlay_of_a_hat_adds_its_fan_to_the_device_tree(self, tmp_path: Path) -> None:
        tree, whole = tmp_path / "tree.dtb", tmp_path / "whole.dtb"
        words = [find("dtc") or "dtc", "-q", "-@", "-o", str(tree), "-"]
        subprocess.run(words, input=MAINLINE_TREE, text=True, check=True)
        names = building.make_fan_overlays(tmp_path, tmp_path / "log")
        for name, levels in zip(names, building.FAN_LEVELS.values(), strict=True):
            words = [find("fdtoverlay") or "fdtoverlay", "-i", str(tree), "-o", str(whole), str(tmp_path / name)]
            subprocess.run(words, check=True)

            def read(node: str, value: str) -> list[str]:
                done = subprocess.run(["fdtget", str(whole), node, value], capture_output=True, text=True, check=True)
                return done.stdout.split()

            assert read("/soc/rpi-firmware/pwm", "compatible") == ["raspberrypi,firmware-poe-pwm"]
            assert read("/pwm-fan", "cooling-levels") == levels.split()
            assert read("/pwm-fan", "pwms")[0] == read("/soc/rpi-firmware/pwm", "phandle")[0]
            zone = "/thermal-zones/cpu-thermal"
            temperatures = [read(f"{zone}/trips/fan-{speed}", "temperature") for speed in SPEEDS]
            assert temperatures == [["40000"], ["45000"], ["50000"], ["55000"]]
            for level, speed in enumerate(SPEEDS):
                fan = read("/pwm-fan", "phandle")[0]
                assert read(f"{zone}/cooling-maps/fan-{speed}", "cooling-device") == [fan, f"{level}", f"{level + 1}"]

    def test_every_board_has_a_name_and_settings_of_the_firmware(self) -> None:
        assert building.BOARDS.keys() == building.NAMES.keys() == {*building.CONFIGURATION, "qemu"}
        assert imager.DEVICES.keys() == building.CONFIGURATION.keys()


class TestEmulator:
    def test_ports_are_forwarded(self) -> None:
        assert machine.parse_ports(["1:2", "3:4"]) == {1: 2, 3: 4}
        assert machine.parse_ports([])[21883] == 1883
        with pytest.raises(ImageError, match="is used twice"):
            machine.parse_ports(["1:2", "1:3"])
        for wrong in ("1883", "a:b", "0:1", "1:70000"):
            with pytest.raises(ImageError, match="two ports"):
                machine.parse_ports([wrong])

    def test_comma_in_a_file_name_is_escaped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "require", lambda *_, **__: None)
        assert "file=/a,,b.qcow2,if=none" in " ".join(machine.build_command(Path("/a,b.qcow2"), {}))

    def test_suggested_ports_are_valid(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "require", lambda *_, **__: None)
        monkeypatch.setattr(machine, "_is_free", lambda _: False)
        with pytest.raises(ImageError) as refused:
            machine.check_prerequisites({65000: 1883})
        assert "--port 64000:1883" in refused.value.hint

    def test_all_missing_tools_are_reported_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(programs, "find", lambda _: None)
        monkeypatch.setattr(machine, "U_BOOT", str(tmp_path / "u-boot.bin"))
        (tmp_path / "x.img.zst").touch()
        assert run(["image", "run", str(tmp_path / "x.img.zst")]) == 2
        assert "sudo apt install qemu-system-arm qemu-utils u-boot-qemu zstd\n" in capsys.readouterr().err

    def test_occupied_ports_are_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(machine, "require", lambda *_, **__: None)
        (tmp_path / "x.img.zst").touch()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            assert run(["image", "run", str(tmp_path / "x.img.zst"), "--port", f"{port}:1883"]) == 1
        said = capsys.readouterr().err
        assert f"in use on this machine: port {port}" in said
        assert f"--port {port + 1000}:1883" in said

    def test_missing_image_is_reported_first(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The missing image is reported before the ports that are in use."""
        monkeypatch.setattr(machine, "_is_free", lambda _: False)
        assert run(["image", "run", str(tmp_path / "none.img.zst")]) == 2
        assert "none.img.zst does not exist" in capsys.readouterr().err
        (tmp_path / "x.img").touch()
        screen = str(tmp_path / "x.img" / "screen.svg")
        assert run(["image", "run", str(tmp_path / "x.img"), "--screenshot", screen]) == 2
        assert "x.img is not a folder" in capsys.readouterr().err, "and not when it has served"

    @needs("zstd")
    def test_disk_error_does_not_name_a_deleted_log(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "require", lambda *_: None)
        (tmp_path / "x.img.zst").write_bytes(b"torn")
        with pytest.raises(ImageError, match="zstd ended with 1") as failed:
            machine.make_disk(tmp_path / "x.img.zst", tmp_path, tmp_path / "log")
        assert "log" not in failed.value.hint
        assert "TMPDIR" in failed.value.hint

    def test_missing_image_is_reported(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "require", lambda *_: None)
        with pytest.raises(ImageError, match="does not exist") as caught:
            machine.make_disk(tmp_path / "none.img", tmp_path, tmp_path / "log")
        assert "waypost image build" in caught.value.hint

    @needs("qemu-img", "zstd", "mkfs.vfat", "mcopy")
    def test_kept_card_is_complete(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        plain, kept, log = published_image.card(tmp_path), tmp_path / "kept.qcow2", tmp_path / "log"

        def cut_off(*words: str | Path, log: Path) -> None:
            if "resize" in words:
                raise ImageError("no room")
            programs.run(*words, log=log)

        with monkeypatch.context() as patched:
            patched.setattr(machine, "run", cut_off)
            with pytest.raises(ImageError, match="no room"):
                machine.make_disk(plain, tmp_path, log, kept=kept)
        assert not kept.exists()
        assert machine.make_disk(plain, tmp_path, log, kept=kept) == kept
        again = tmp_path / "again"
        subprocess.run(["qemu-img", "convert", "-O", "raw", str(kept), str(again)], check=True)
        size = plain.stat().st_size
        with again.open("rb") as file:
            assert file.read(size) == plain.read_bytes()
        kept.write_bytes(b"written to since")
        assert machine.make_disk(plain, tmp_path, log, kept=kept).read_bytes() == b"written to since"

    def test_file_that_is_no_image_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "require", lambda *_: None)
        file = tmp_path / "hall.yaml"
        file.write_text("name: hall\n")
        with pytest.raises(ImageError, match="not an image"):
            machine.make_disk(file, tmp_path, tmp_path / "log")


@pytest.mark.parametrize(("words", "first"), [
    (("freeze",), "images.frozen.by_machine.freeze"), (("package",), "images.frozen.by_machine.freeze"),
    (("build", "--board", "pi4"), "images.building.build_image"), (("bundle",), "images.building.build_bundle"),
    (("container", "hub"), "images.container.building.build_hub"),
])  # fmt: skip
def test_unusable_folder_is_reported_before_the_first_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: Sequence[str],
    first: str,
) -> None:
    """The build reports the invalid folder before its first step."""

    def begun(*_: object, **__: object) -> None:
        raise ImageError("begun")

    monkeypatch.setattr(first, begun)
    (tmp_path / "file").touch()
    command = ["image", *words, "--cache", str(tmp_path / "cache"), "--out"]
    assert run([*command, str(tmp_path / "file" / "cards")]) == 2
    assert "file is not a folder" in capsys.readouterr().err
    assert run([*command, str(tmp_path / "new" / "cards")]) == 1
    assert "begun" in capsys.readouterr().err


def test_missing_bundle_folder_is_reported_before_the_first_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["image", "bundle", "--url", "files.example/waypost"]) == 2
    assert "--url files.example/waypost: expected https://host/path" in capsys.readouterr().err


def test_published_bundle_is_described_by_a_resource(tmp_path: Path) -> None:
    file = tmp_path / "waypost-2-arm64.raucb"
    file.write_bytes(b"bundle")
    told = bundle.make_resource(bundle.UpdateBundle(file, "2", "b" * 64), "https://files.example/waypost/")
    [read] = parse(KINDS, told, "test")
    assert isinstance(read.spec, SystemSpec)
    assert read.spec.url == "https://files.example/waypost/waypost-2-arm64.raucb"
    assert (read.spec.version, read.spec.size, read.spec.sha256) == ("2", 6, hashlib.sha256(b"bundle").hexdigest())
    told = bundle.make_resource(bundle.UpdateBundle(file, "2", "b" * 64), "hub:")
    [read] = parse(KINDS, told, "test")
    assert isinstance(read.spec, SystemSpec)
    assert read.spec.url == "hub:waypost-2-arm64.raucb"
