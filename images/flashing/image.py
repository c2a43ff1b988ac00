"""An image that was handed out, with its map, sums and signature: looked at before any card is touched."""

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
"""Of a block map: one with a range for every other block of 4 GB has 60 MB; ours has 100 kB."""
DECLARATIONS: Final = (b"<!DOCTYPE", b"<!ENTITY")
"""Entities that a map declared could unfold without end. A comment, as bmaptool writes one, is none."""
BLOCKS: Final = (512, 1 << 20)
"""Sizes a block of a map may have, bytes."""
CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
AGAIN: Final = "download it and what is beside it again; it is not written to any card"


class Range(NamedTuple):
    """Part of a card that an image fills; bytes."""

    begin: int
    end: int
    digest: str
    """SHA-256."""


class Layout(NamedTuple):
    """What a block map says."""

    size: int
    block: int
    ranges: list[Range]

    @property
    def mapped(self) -> int:
        """Bytes to write."""
        return sum(each.end - each.begin for each in self.ranges)


class Handed(NamedTuple):
    """An image and what belongs to it."""

    file: Path
    layout: Layout
    sums: str
    """Digest of the sums, by which it can be named."""

    def opened(self) -> IO[bytes]:
        """What is to be on a card, to be read from its start. Raises ImageError."""
        try:
            # The caller closes it.
            source = lzma.open(self.file) if self.file.suffix == ".xz" else self.file.open("rb")  # noqa: SIM115
        except OSError as error:
            raise ImageError(f"{self.file}: {error.strerror}", code=USAGE) from None
        if self.file.suffix == ".zst":
            return zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True, closefd=True)
        return source


def look_at(file: Path, certificate: Path | None, *, signed: bool = True, own: bool = False) -> Handed:
    """An image that is what its maker has signed. `certificate`: the maker's; `own`: this machine's, as none was named.

    Raises ImageError.
    """
    compressed = file.suffix in partition.COMPRESSED
    stem = Path(str(file).removesuffix(file.suffix if compressed else "").removesuffix(".img"))
    sums, mapping = stem.with_name(f"{stem.name}.sha256"), stem.with_name(f"{stem.name}.img.bmap")
    signature = sums.with_name(f"{sums.name}.p7s")
    beside = (sums, mapping, *((signature,) if signed else ()))
    for each in (file, *beside):
        if not each.is_file():
            hint = f"beside an image are {', '.join(path.name for path in beside)}: download these too"
            raise ImageError(f"{each} is not there", hint=hint, code=USAGE)
    if signed:
        _require_signature(sums, certificate, own=own)
    lines = (line.partition("  ") for line in sums.read_text("utf-8", "replace").splitlines())
    listed = {name: digest for digest, _, name in lines}
    for each in (mapping, file):
        known = listed.get(each.name)
        if known is None and (each is mapping or compressed):
            raise ImageError(f"{sums} does not name {each.name}", hint=AGAIN, code=INTEGRITY)
        if known is not None and filesystem.digest(each) != known:
            words = f"{each} is not what its sums say: it was not downloaded whole, or somebody has changed it"
            raise ImageError(words, hint=AGAIN, code=INTEGRITY)
    return Handed(file, layout_of(mapping), filesystem.digest(sums))


def layout_of(mapping: Path) -> Layout:
    """Read a block map (format 2.0, as of bmap-tools). Raises ImageError."""
    with mapping.open("rb") as source:
        text = source.read(MAP_BYTES_MAX + 1)
    try:
        layout = _layout(text)
    except (ValueError, ElementTree.ParseError):
        raise ImageError(f"{mapping} is not a block map", hint=AGAIN, code=INTEGRITY) from None
    in_order = all(one.end <= other.begin for one, other in pairwise(layout.ranges))
    if not layout.ranges or layout.ranges[0].begin != 0 or not in_order:
        raise ImageError(f"{mapping} is not a map of an image", hint=AGAIN, code=INTEGRITY)
    return layout


def boot_partition(handed: Handed, name: str, content: bytes) -> dict[int, bytes]:
    """Blocks of a card that are others than in the image once its first partition has this file: by where they begin.

    Raises ImageError.
    """
    block = handed.layout.block
    with tempfile.TemporaryDirectory(prefix="waypost-flash-") as folder:
        before, after = Path(folder) / "before", Path(folder) / "after"
        with handed.opened() as source:
            place = partition.first(_head(source, partition.SECTOR, before))
            _copy(source, before, place.end - partition.SECTOR)
        _duplicate(before, after)
        partition.put(after, place.begin, name, content)
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
"""Beginnings of XML with two bytes or more a character, in which declarations would be spelled otherwise."""


def _require_signature(sums: Path, certificate: Path | None, *, own: bool) -> None:
    if certificate is None:
        hint = "--certificate FILE is the maker's certificate; --unsigned takes the image as it is"
        raise ImageError(f"whose signature is to be under {sums.name}?", hint=hint, code=USAGE)
    try:
        text = certificate.read_bytes()
    except OSError as error:
        raise ImageError(f"{certificate}: {error.strerror}", hint="name the maker's certificate", code=USAGE) from None
    if CERTIFICATE not in text:
        raise ImageError(f"{certificate} is no certificate", hint="it begins with BEGIN CERTIFICATE (PEM)", code=USAGE)
    require("openssl")
    with tempfile.TemporaryDirectory(prefix="waypost-flash-") as folder:
        try:
            signing.verify(sums, certificate, Path(folder) / "log")
        except ImageError:
            words = f"the signature under {sums} is not that of {certificate}, or the sums were changed"
            hint = "do not use this image; ask who made it"
            if own:
                hint = f"it is of another maker: --certificate FILE is the maker's. It is of this machine: {hint}"
            raise ImageError(words, hint=hint, code=INTEGRITY) from None


def _layout(text: bytes) -> Layout:
    """Raises ValueError, ElementTree.ParseError."""
    if len(text) > MAP_BYTES_MAX or any(each in text for each in DECLARATIONS) or text[:2] in _WIDE:
        raise ValueError("too large, or with declarations")
    root = ElementTree.fromstring(text)  # noqa: S314 - without declarations
    size, block = (int(root.findtext(name, "")) for name in ("ImageSize", "BlockSize"))
    kind = root.findtext("ChecksumType", "").strip()
    if kind != "sha256" or not BLOCKS[0] <= block <= BLOCKS[1]:
        raise ValueError(f"{kind}, blocks of {block} bytes")
    return Layout(size, block, [_range(each, size, block) for each in root.iter("Range")])


def _range(entry: ElementTree.Element, size: int, block: int) -> Range:
    first, _, last = (entry.text or "").strip().partition("-")
    begin, end = int(first) * block, min((int(last or first) + 1) * block, size)
    digest = entry.get("chksum", "")
    if not re.fullmatch("[0-9a-f]{64}", digest) or begin >= end:
        raise ValueError
    return Range(begin, end, digest)


def _head(source: IO[bytes], count: int, target: Path) -> bytes:
    head = source.read(count)
    target.write_bytes(head)
    return head


def _pieces(source: IO[bytes], count: int) -> Iterator[bytes]:
    while count > 0 and (piece := source.read(min(PIECE, count))):
        count -= len(piece)
        yield piece


def _copy(source: IO[bytes], target: Path, count: int) -> None:
    """Append, with holes where there are zeros."""
    with target.open("r+b") as out:
        at = out.seek(0, 2)
        for piece in _pieces(source, count):
            if piece.strip(b"\0"):
                out.seek(at)
                out.write(piece)
            at += len(piece)
        out.truncate(at)


def _duplicate(source: Path, target: Path) -> None:
    target.touch()
    with source.open("rb") as original:
        _copy(original, target, source.stat().st_size)
