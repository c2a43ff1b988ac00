"""A small image in its distributed form: a FAT partition, random data, holes; with map, checksums and signature."""

from __future__ import annotations

import random
import struct
import subprocess
from pathlib import Path

import zstandard

from images.card import partition
from images.disk import bmap, filesystem, signing
from images.programs import find

PROGRAMS = ("mcopy", "mkfs.vfat", "openssl")
BEGIN = 1 << 20
"""Offset of the first partition."""
FAT = 34
"""Mebibytes of the FAT partition; FAT32 has a minimum size."""


def card(folder: Path, *, fat: int = FAT, data: int = 2, hole: int = 40) -> Path:
    """Make an image with parts of these mebibytes: a FAT partition, random data, a hole, random data again."""
    image, part = folder / "card.img", folder / "fat"
    with part.open("wb") as out:
        out.truncate(fat << 20)
    subprocess.run([find("mkfs.vfat") or "", "-F", "32", str(part)], check=True, capture_output=True)
    partition.write_file(part, 0, "boot.scr", b"boot\n")
    entry = struct.pack("<BxxxBxxxII", 0x80, 0x0C, BEGIN // 512, fat << 11)
    drawn = random.Random(7)
    files = part.read_bytes()
    with image.open("wb") as out:
        out.write((bytes(446) + entry + bytes(48) + b"\x55\xaa").ljust(4096, b"\0"))
        for at in range(0, fat << 20, 4096):
            block = files[at : at + 4096]
            if block.strip(b"\0") or at < 2 << 20:  # the tables are written, including zeros
                out.seek(BEGIN + at)
                out.write(block)
        out.seek(BEGIN + (fat << 20))
        out.write(drawn.randbytes(data << 20))
        out.seek(hole << 20, 1)
        out.write(drawn.randbytes(1 << 20))
    part.unlink()
    return image


def hand_out(folder: Path, image: Path) -> tuple[Path, Path]:
    """Compress an image and make its map, checksums and signature; return (compressed image, certificate)."""
    name = "waypost-1-pi4"
    compressed, sums = folder / f"{name}.img.zst", folder / f"{name}.sha256"
    mapping = folder / f"{name}.img.bmap"
    mapping.write_text(bmap.make_map(image))
    compressed.write_bytes(zstandard.ZstdCompressor(3).compress(image.read_bytes()))
    keys = signing.load_keys(folder, None, None)
    return signed(compressed, mapping, sums, keys), keys.certificate


def signed(compressed: Path, mapping: Path, sums: Path, keys: signing.SigningKeys) -> Path:
    """Write checksums of both files and their signature; return the image."""
    sums.write_text("".join(f"{filesystem.compute_sha256(path)}  {path.name}\n" for path in (mapping, compressed)))
    signing.sign(sums, keys, sums.with_name("log"))
    return compressed
