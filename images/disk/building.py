"""Image of a card: boot partition, root slots A and B, data; and the files that are released with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

from edge.card.location import FILE
from edge.card.text import text_of
from images import source
from images.card.settings_page.rendering import PAGE, render_page
from images.disk import bmap, filesystem, imager, sbom, signing
from images.disk.signing import SigningKeys
from images.frozen import cross
from images.programs import require, run
from images.rootfs import building as rootfs
from images.steps import BuildSteps, Input, make_key, remove

HERE: Final = Path(__file__).parent
SYSTEM_PROGRAMS: Final = ("mke2fs", "debugfs", "systemctl")
PROGRAMS: Final = ("dtc", "fdtput", "genimage", "mcopy", "mkfs.vfat", "mkimage", "mkenvimage", "openssl", "xz", "zstd")
BOARDS: Final = {
    "pi3": ("bootcode.bin", "start.elf", "fixup.dat", "bcm2837-rpi-3-*.dtb", "bcm2837-rpi-cm3-*.dtb"),
    "pi4": ("start4.elf", "fixup4.dat", "bcm2711-rpi-*.dtb"),
    "pi5": ("bcm2712-rpi-5-b.dtb", "bcm2712-d-rpi-5-b.dtb"),
    "qemu": (),
    "zero2w": ("bootcode.bin", "start.elf", "fixup.dat", "bcm2837-rpi-zero-2-w.dtb"),
}
"""Files that the firmware of each board needs in addition to U-Boot. The emulator has its own."""
NAMES: Final = {
    "pi3": "Raspberry Pi 3 and Compute Module 3",
    "pi4": "Raspberry Pi 4, 400 and Compute Module 4",
    "pi5": "Raspberry Pi 5",
    "qemu": "QEMU (virt, arm64)",
    "zero2w": "Raspberry Pi Zero 2 W",
}
ON_CARD: Final = {"bcm2712-d-rpi-5-b.dtb": "bcm2712d0-rpi-5-b.dtb"}
"""Names on the card of files that the firmware knows by another name than Linux."""
CONFIGURATION: Final = {
    "pi3": "upstream_kernel=1\n",
    "pi4": "upstream_kernel=1\n",
    "pi5": "",
    "zero2w": "device_tree=bcm2837-rpi-zero-2-w.dtb\n",
}
"""Lines of a board in `config.txt`: how the firmware finds the device tree of Linux. That of a Raspberry Pi 5 has the
name that the firmware looks for.
"""
FAN_BOARDS: Final = ("pi3", "pi4")
"""Boards that the PoE HATs with a fan fit."""
FAN_LEVELS: Final = {"rpi-poe": "0 1 10 100 255", "rpi-poe-plus": "0 32 64 128 255"}
"""Levels of the fan of each PoE HAT, by the name of its overlay. A HAT has that name in its memory, and the firmware
loads it from the folder `OVERLAYS`. Device trees of a card that was flashed with Debian 12 have no symbols:
there it does nothing.
"""
OVERLAYS: Final = "overlays"

ROOT_MIB: Final = 768
DATA_MIB: Final = 64
ENVIRONMENT_BYTES: Final = 0x4000
ENVIRONMENT: Final = "BOOT_ORDER=A B\nBOOT_A_LEFT=3\nBOOT_B_LEFT=3\n"
NEITHER_DELAY_NOR_PROMPT: Final = -2
"""Value of U-Boot's `bootdelay`."""
LEVEL: Final = "-10"
"""Level of zstd: 30 s for an image. The highest saves a tenth and takes ten minutes."""
XZ_LEVEL: Final = "-1"
"""Level of xz, for programs that do not read zstd (balenaEtcher, and Raspberry Pi Imager on Windows).

The default would take many times as long and save a tenth.
"""


def image_name(board: str) -> str:
    """Return the name of an image's files, without the suffix."""
    return f"waypost-{source.read_version()}-{board}"


def build(
    steps: BuildSteps,
    board: str,
    *,
    archive: Path,
    package: Path,
    keys: SigningKeys,
) -> Path:
    """Return the folder with an image for a board and its files. Needs root. Raises ImageError."""
    require(*PROGRAMS)
    made = build_system(steps, archive=archive, package=package, keys=keys)
    return steps.result(
        f"image-{board}",
        f"image for {NAMES[board]}",
        [made.name, board, make_key([keys.certificate]), HERE, text_of(None), render_page(), str(source.build_date())],
        lambda folder, log: make_image(folder, board, made, keys, log),
    )


def build_system(steps: BuildSteps, *, archive: Path, package: Path, keys: SigningKeys) -> Path:
    """Return the folder with what all boards share: root and data file systems, and the firmware.

    Needs root. Raises ImageError.
    """
    require(*SYSTEM_PROGRAMS)
    parts: list[Input] = [HERE, rootfs.OVERLAY, rootfs.UNITS, Path(rootfs.__file__), str(source.build_date())]
    return steps.result(
        "root-arm64",
        "root file system",
        [archive.parent.name, package.parent.name, keys.keyring, *parts],
        lambda folder, log: _make_root(folder, archive, package, keys, log),
    )


def _make_root(folder: Path, archive: Path, package: Path, keys: SigningKeys, log: Path) -> None:
    """Make the root file system with its hash and package list, the data file system, and the firmware."""
    tree, date = folder / rootfs.TREE, source.build_date()
    keyring = folder / "keyring.pem"
    keyring.write_bytes(keys.keyring)
    rootfs.lay_out(tree, archive, package, keyring, log)
    shutil.copy(tree / "var/lib/dpkg/status", folder / "status")
    filesystem.make(
        folder / "root.ext4", tree, mebibytes=ROOT_MIB, label="waypost-root", date=date, journal=False, log=log
    )
    (folder / "root.sha256").write_text(filesystem.compute_sha256(folder / "root.ext4") + "\n")
    data = folder / "data"
    for each in rootfs.STATE:
        (data / each).mkdir(parents=True, mode=0o700)
        (data / each).chmod(0o700)
    uid, gid = rootfs.find_owner(tree, rootfs.STATE[0])
    shutil.chown(data / rootfs.STATE[0], uid, gid)
    filesystem.make(
        folder / "data.ext4", data, mebibytes=DATA_MIB, label="waypost-data", date=date, journal=True, log=log
    )
    remove(tree)
    remove(data)


def make_image(folder: Path, board: str, system: Path, keys: SigningKeys, log: Path) -> None:
    """Fill a folder with an image and its files. `system`: see `_make_root`. Raises ImageError."""
    work = folder / "work"
    parts = work / "input"
    parts.mkdir(parents=True)
    names = make_boot_files(parts, board, system, log)
    for each in ("root.ext4", "data.ext4"):
        (parts / each).symlink_to(system / each)
    lines = "".join(f'        file "{each}" {{ image = "{each}" }}\n' for each in names)
    text = (HERE / "genimage.cfg").read_text()
    for name, value in (("@FIRMWARE@\n", lines), ("@ROOT_MIB@", f"{ROOT_MIB}"), ("@DATA_MIB@", f"{DATA_MIB}")):
        text = text.replace(name, value)
    (work / "genimage.cfg").write_text(text)
    (work / "empty").mkdir()
    words = (
        "--rootpath",
        work / "empty",
        "--tmppath",
        work / "tmp",
        "--inputpath",
        parts,
        "--outputpath",
        work / "out",
    )
    environment = {"SOURCE_DATE_EPOCH": str(source.build_date())}
    run("genimage", *words, "--config", work / "genimage.cfg", log=log, environment=environment)
    image = work / "out" / "waypost.img"
    write_release_files(folder, board, image, system, keys, log)
    remove(work)


def make_boot_files(parts: Path, board: str, system: Path, log: Path) -> list[str]:
    """Write the files of the boot partition; return the names of those that the board needs."""
    environment = {"SOURCE_DATE_EPOCH": str(source.build_date())}
    script = ("-A", "arm64", "-O", "linux", "-T", "script", "-C", "none", "-n", "waypost", "-d", HERE / "boot.cmd")
    run("mkimage", *script, parts / "boot.scr", log=log, environment=environment)
    variables = parts / "rauc.env.txt"
    variables.write_text(ENVIRONMENT)
    run("mkenvimage", "-s", str(ENVIRONMENT_BYTES), "-o", parts / "rauc.env", variables, log=log)
    shutil.copy(parts / "rauc.env", parts / "rauc.bak")
    (parts / FILE).write_text(text_of(None))  # to be filled in on any laptop
    (parts / PAGE).write_text(render_page())  # makes it in a browser, without a network
    shutil.copy(system / "root.sha256", parts)
    firmware = system / "firmware"
    found = [path for pattern in BOARDS[board] for path in sorted(firmware.glob(pattern))]
    if found:
        found.append(firmware / "u-boot.bin")
        (parts / "config.txt").write_text((HERE / "config.txt").read_text() + CONFIGURATION[board])
    names = []
    for path in found:
        names.append(ON_CARD.get(path.name, path.name))
        shutil.copy(path, parts / names[-1])
        if path.suffix == ".dtb":
            disable_prompt(parts / names[-1], log)
    if board in FAN_BOARDS:
        names += make_fan_overlays(parts, log)
    return names + (["config.txt"] if found else [])


def make_fan_overlays(parts: Path, log: Path) -> list[str]:
    """Compile the overlays that control the fans of PoE HATs, and return their names."""
    (parts / OVERLAYS).mkdir()
    text = (HERE / "poe-fan.dts").read_text()
    names = [f"{OVERLAYS}/{name}.dtbo" for name in FAN_LEVELS]
    for name, levels in zip(names, FAN_LEVELS.values(), strict=True):
        run("dtc", "-I", "dts", "-O", "dtb", "-o", parts / name, "-", log=log, given=text.replace("@LEVELS@", levels))
    return names


def disable_prompt(tree: Path, log: Path) -> None:
    """Keep U-Boot from reading keys on the console.

    The device tree of a board says so, and overrides the environment (U-Boot, common/autoboot.c).
    """
    run("fdtput", "-c", tree, "/config", log=log)
    run("fdtput", "-t", "x", tree, "/config", "bootdelay", f"{NEITHER_DELAY_NOR_PROMPT & 0xFFFFFFFF:x}", log=log)


def write_release_files(
    folder: Path,
    board: str,
    image: Path,
    system: Path,
    keys: SigningKeys,
    log: Path,
) -> None:
    """Compress an image in two ways, and write its map, checksums, signature, bill of materials and Imager entry."""
    target = folder / image_name(board)
    Path(f"{target}.img.bmap").write_text(bmap.make_map(image))
    run("zstd", "--quiet", "--force", "-T0", LEVEL, image, "-o", Path(f"{target}.img.zst"), log=log)
    unpacked, compressed = folder / f"{target.name}.img", Path(f"{target}.img.xz")
    image.rename(unpacked)
    run("xz", "--quiet", "--force", "--keep", "-T0", XZ_LEVEL, unpacked, log=log)
    unpacked.rename(image)
    root_hash = (system / "root.sha256").read_text().strip()
    packages = sbom.parse_packages((system / "status").read_text())
    document = sbom.make_document(image_name(board), packages, cross.pinned_versions(), root_hash, source.build_date())
    Path(f"{target}.spdx.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    if (device := imager.DEVICES.get(board)) is not None:
        title = f"Waypost {source.read_version()} ({NAMES[board]})"
        entry = imager.make_entry(title, image, compressed, sbom.format_time(source.build_date())[:10], device)
        (folder / imager.FILE).write_text(entry)
    (folder / "root.sha256").write_text(f"{root_hash}\n")
    files = sorted(path for path in folder.iterdir() if path.name.startswith(target.name))
    sums = folder / f"{target.name}.sha256"
    sums.write_text("".join(f"{filesystem.compute_sha256(path)}  {path.name}\n" for path in files))
    signing.sign(sums, keys, log)
