"""Read and write files on the first (FAT) partition of a card image with mtools, without mounting it."""

from __future__ import annotations

import shlex
import struct
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from images.errors import INTEGRITY, USAGE, ImageError
from images.programs import find, require

SECTOR: Final = 512
COMPRESSED: Final = {".zst": "zstd -d", ".xz": "xz -dk"}
"""Suffixes of compressed images, and the commands that unpack them."""
FAT: Final = (0x0B, 0x0C, 0x0E)
"""Partition types with a FAT file system (MBR)."""
_ENVIRONMENT: Final = {"MTOOLS_SKIP_CHECK": "1", "MTOOLSRC": "/dev/null", "LC_ALL": "C", "PATH": "/usr/bin:/bin"}


class Partition(NamedTuple):
    """Begin and end, in bytes from the start of the card."""

    begin: int
    end: int


def parse_first_partition(head: bytes) -> Partition:
    """Return the first partition, given the first sector of a card. Raises ImageError."""
    if len(head) < SECTOR or head[510:512] != b"\x55\xaa" or head[446 + 4] not in FAT:
        raise ImageError("this is not an image of a card: a laptop could not open its first partition", code=INTEGRITY)
    begin, count = struct.unpack("<II", head[446 + 8 : 446 + 16])
    return Partition(begin * SECTOR, (begin + count) * SECTOR)


def find_first_partition(image: Path) -> Partition:
    """Return the first partition of an image file. Raises ImageError."""
    if image.suffix in COMPRESSED:
        hint = (
            "write the settings to a file, and give it to waypost flash (--config); or unpack the image: "
            f"{COMPRESSED[image.suffix]} {shlex.quote(str(image))}"
        )
        raise ImageError(f"{image} is compressed and signed, and is not changed", hint=hint, code=USAGE)
    try:
        with image.open("rb") as file:
            return parse_first_partition(file.read(SECTOR))
    except OSError as error:
        hint = "an image is expected; the name of a settings file ends with .yaml"
        raise ImageError(f"{image}: {error.strerror}", hint=hint, code=USAGE) from None
    except ImageError as error:
        raise ImageError(f"{image}: {error.message}", code=INTEGRITY) from None


def read_file(image: Path, begin: int, name: str) -> bytes | None:
    """Return the content of a file of the partition at `begin`; None if the file does not exist. Raises ImageError."""
    done = _run("mcopy", "-n", "-i", f"{image}@@{begin}", f"::/{name}", "-")
    if done.returncode == 0:
        return done.stdout
    if b"not found" in done.stderr:
        return None
    raise _explain_failure(image, done)


def write_file(image: Path, begin: int, name: str, content: bytes) -> None:
    """Write a file to the partition at `begin`, replacing one of the same name. Raises ImageError."""
    done = _run("mcopy", "-o", "-i", f"{image}@@{begin}", "-", f"::/{name}", given=content)
    if done.returncode:
        raise _explain_failure(image, done)
    if read_file(image, begin, name) != content:
        raise ImageError(f"{image}: the data read back differs from what was written", code=INTEGRITY)


def _run(program: str, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    require(program)
    return subprocess.run(  # noqa: S603 - a fixed program
        [find(program) or program, *words], input=given, capture_output=True, env=_ENVIRONMENT, check=False
    )


def _explain_failure(image: Path, done: subprocess.CompletedProcess[bytes]) -> ImageError:
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return ImageError(f"{image}: {lines[-1] if lines else 'mtools failed'}", code=INTEGRITY)
