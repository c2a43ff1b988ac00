"""Verify a released image with its map, checksums and signature, before a card is touched."""

from __future__ import annotations

import codecs
import lzma
import re
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Final, NamedTuple
from xml.etree import ElementTree

import zstandard

from images.card import partition
from images.disk import filesystem, signing
from images.errors import INTEGRITY, USAGE, ImageError
from images.programs import require

PIECE: Final = 1 << 20
MAP_BYTES_MAX: Final = 16 << 20
"""Bytes of a block map. One with a range for every other block of 4 GB has 60 MB; ours has 100 kB."""
DECLARATIONS: Final = (b"<!DOCTYPE", b"<!ENTITY")
"""Declarations of entities, which could expand without end. A comment, as bmaptool writes one, is harmless."""
BLOCKS: Final = (512, 1 << 20)
"""Smallest and largest size of a block in a map, bytes."""
CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
AGAIN: Final = "download it and the files next to it again; nothing was written"


class BlockRange(NamedTuple):
    """Part of a card that an image fills, in bytes."""

    begin: int
    end: int
    digest: str
    """SHA-256 of the part."""


class ImageLayout(NamedTuple):
    """Content of a block map."""

    size: int
    block: int
    ranges: list[BlockRange]

    @property
    def mapped(self) -> int:
        """Bytes to write."""
        return sum(each.end - each.begin for each in self.ranges)


class VerifiedImage(NamedTuple):
    """Image with a valid signature and checksums, and its layout."""

    file: Path
    layout: ImageLayout
    sums: str
    """Digest of the checksum file; it identifies the image."""

    def open(self) -> IO[bytes]:
        """Open the uncompressed content of the image. Raises ImageError."""
        try:
            # The caller closes it.
            source = lzma.open(self.file) if self.file.suffix == ".xz" else self.file.open("rb")  # noqa: SIM115
        except OSError as error:
            raise ImageError(f"{self.file}: {error.strerror}", code=USAGE) from None
        if self.file.suffix == ".zst":
            return zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True, closefd=True)
        return source


def verify_image(file: Path, certificate: Path | None, *, signed: bool = True, own: bool = False) -> VerifiedImage:
    """Verify an image against the signature of its maker, and return it. Raises ImageError.

    `certificate`: the maker's; `own`: it is this machine's, as none was named.
    """
    compressed = file.suffix in partition.COMPRESSED
    stem = Path(str(file).removesuffix(file.suffix if compressed else "").removesuffix(".img"))
    sums, mapping = stem.with_name(f"{stem.name}.sha256"), stem.with_name(f"{stem.name}.img.bmap")
    signature = sums.with_name(f"{sums.name}.p7s")
    companions = (sums, mapping, *((signature,) if signed else ()))
    for each in (file, *companions):
        if not each.is_file():
            hint = f"an image comes with {', '.join(path.name for path in companions)}: download them, too"
            raise ImageError(f"{each} does not exist", hint=hint, code=USAGE)
    if signed:
        _require_signature(sums, certificate, own=own)
    lines = (line.partition("  ") for line in sums.read_text("utf-8", "replace").splitlines())
    listed = {name: digest for digest, _, name in lines}
    for each in (mapping, file):
        known = listed.get(each.name)
        if known is None and (each is mapping or compressed):
            raise ImageError(f"{sums} does not name {each.name}", hint=AGAIN, code=INTEGRITY)
        if known is not None and filesystem.compute_sha256(each) != known:
            words = f"{each} does not match its checksum: the download is incomplete, or the file was changed"
            raise ImageError(words, hint=AGAIN, code=INTEGRITY)
    return VerifiedImage(file, read_layout(mapping), filesystem.compute_sha256(sums))


def read_layout(mapping: Path) -> ImageLayout:
    """Read a block map (format 2.0 of bmap-tools). Raises ImageError."""
    with mapping.open("rb") as source:
        text = source.read(MAP_BYTES_MAX + 1)
    try:
        layout = _parse_layout(text)
    except (ValueError, ElementTree.ParseError):
        raise ImageError(f"{mapping} is not a block map", hint=AGAIN, code=INTEGRITY) from None
    in_order = all(one.end <= other.begin for one, other in pairwise(layout.ranges))
    if not layout.ranges or layout.ranges[0].begin != 0 or not in_order:
        raise ImageError(f"{mapping} is not the map of an image", hint=AGAIN, code=INTEGRITY)
    return layout


def change_boot_partition(handed: VerifiedImage, name: str, content: bytes) -> dict[int, bytes]:
    """Return the blocks of a card that differ from the image once its first partition has this file.

    The keys are offsets in bytes. Raises ImageError.
    """
    block = handed.layout.block
    with tempfile.TemporaryDirectory(prefix="waypost-flash-") as folder:
        before, after = Path(folder) / "before", Path(folder) / "after"
        with handed.open() as source:
            place = partition.parse_first_partition(_read_head(source, partition.SECTOR, before))
            _copy(source, before, place.end - partition.SECTOR)
        _duplicate(before, after)
        partition.write_file(after, place.begin, name, content)
        changed = {}
        with before.open("rb") as old, after.open("rb") as new:
            at = 0
            while fresh := new.read(block):
                if fresh != old.read(block):
                    changed[at] = fresh
                at += len(fresh)
    return changed


# --- inside ---------------------------------------------------------------------------------------------------------


_WIDE: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, b"\0<", b"<\0")
"""Beginnings of XML in encodings of two or more bytes a character, in which declarations would look different."""


def _require_signature(sums: Path, certificate: Path | None, *, own: bool) -> None:
    if certificate is None:
        hint = "--certificate FILE names the maker's certificate; --unsigned skips the signature"
        raise ImageError(f"a certificate is needed to verify {sums.name}", hint=hint, code=USAGE)
    try:
        text = certificate.read_bytes()
    except OSError as error:
        raise ImageError(f"{certificate}: {error.strerror}", hint="name the maker's certificate", code=USAGE) from None
    if CERTIFICATE not in text:
        raise ImageError(
            f"{certificate} is not a certificate", hint="it begins with BEGIN CERTIFICATE (PEM)", code=USAGE
        )
    require("openssl")
    with tempfile.TemporaryDirectory(prefix="waypost-flash-") as folder:
        try:
            signing.verify(sums, certificate, Path(folder) / "log")
        except ImageError:
            words = f"the signature of {sums} does not match {certificate}, or the checksums were changed"
            hint = "do not use this image; ask its maker"
            if own:
                hint = f"if another machine built it, name the maker's certificate with --certificate FILE; else {hint}"
            raise ImageError(words, hint=hint, code=INTEGRITY) from None


def _parse_layout(text: bytes) -> ImageLayout:
    """Parse a block map. Raises ValueError and ElementTree.ParseError."""
    if len(text) > MAP_BYTES_MAX or any(each in text for each in DECLARATIONS) or text[:2] in _WIDE:
        raise ValueError("too large, or with declarations")
    root = ElementTree.fromstring(text)  # noqa: S314 - declarations are refused above
    size, block = (int(root.findtext(name, "")) for name in ("ImageSize", "BlockSize"))
    kind = root.findtext("ChecksumType", "").strip()
    if kind != "sha256" or not BLOCKS[0] <= block <= BLOCKS[1]:
        raise ValueError(f"{kind}, blocks of {block} bytes")
    return ImageLayout(size, block, [_parse_range(each, size, block) for each in root.iter("Range")])


def _parse_range(entry: ElementTree.Element, size: int, block: int) -> BlockRange:
    first, _, last = (entry.text or "").strip().partition("-")
    begin, end = int(first) * block, min((int(last or first) + 1) * block, size)
    digest = entry.get("chksum", "")
    if not re.fullmatch("[0-9a-f]{64}", digest) or begin >= end:
        raise ValueError
    return BlockRange(begin, end, digest)


def _read_head(source: IO[bytes], count: int, target: Path) -> bytes:
    head = source.read(count)
    target.write_bytes(head)
    return head


def _read_pieces(source: IO[bytes], count: int) -> Iterator[bytes]:
    while count > 0 and (piece := source.read(min(PIECE, count))):
        count -= len(piece)
        yield piece


def _copy(source: IO[bytes], target: Path, count: int) -> None:
    """Append data, leaving holes for zeros."""
    with target.open("r+b") as out:
        at = out.seek(0, 2)
        for piece in _read_pieces(source, count):
            if piece.strip(b"\0"):
                out.seek(at)
                out.write(piece)
            at += len(piece)
        out.truncate(at)


def _duplicate(source: Path, target: Path) -> None:
    target.touch()
    with source.open("rb") as original:
        _copy(original, target, source.stat().st_size)
