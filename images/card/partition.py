"""Files on the first partition of a card (FAT), in an image or a part of one, without mounting it: mtools."""

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
"""Ends of the names of images that are compressed, and what unpacks them."""
FAT: Final = (0x0B, 0x0C, 0x0E)
"""Types of partitions with a FAT file system (MBR)."""
_ENVIRONMENT: Final = {"MTOOLS_SKIP_CHECK": "1", "MTOOLSRC": "/dev/null", "LC_ALL": "C", "PATH": "/usr/bin:/bin"}


class Partition(NamedTuple):
    """Bytes from the start of the card."""

    begin: int
    end: int


def first(head: bytes) -> Partition:
    """The first partition, by the first sector of a card. Raises ImageError."""
    if len(head) < SECTOR or head[510:512] != b"\x55\xaa" or head[446 + 4] not in FAT:
        raise ImageError("this is no image of a card: its first partition is none a laptop can open", code=INTEGRITY)
    begin, count = struct.unpack("<II", head[446 + 8 : 446 + 16])
    return Partition(begin * SECTOR, (begin + count) * SECTOR)


def of_image(image: Path) -> Partition:
    """The same of a file. Raises ImageError."""
    if image.suffix in COMPRESSED:
        hint = (
            "write the settings to a file, and give it to waypost flash (--config); or unpack the image: "
            f"{COMPRESSED[image.suffix]} {shlex.quote(str(image))}"
        )
        raise ImageError(f"{image} is compressed and signed, and stays as it is", hint=hint, code=USAGE)
    try:
        with image.open("rb") as file:
            return first(file.read(SECTOR))
    except OSError as error:
        hint = "an image is wanted; the name of a file of settings ends with .yaml"
        raise ImageError(f"{image}: {error.strerror}", hint=hint, code=USAGE) from None
    except ImageError as error:
        raise ImageError(f"{image}: {error.message}", code=INTEGRITY) from None


def get(image: Path, begin: int, name: str) -> bytes | None:
    """The content of a file of the partition that begins there; None: it is not there. Raises ImageError."""
    done = _run("mcopy", "-n", "-i", f"{image}@@{begin}", f"::/{name}", "-")
    if done.returncode == 0:
        return done.stdout
    if b"not found" in done.stderr:
        return None
    raise _failed(image, done)


def put(image: Path, begin: int, name: str, content: bytes) -> None:
    """Write a file there, in the place of one of its name. Raises ImageError."""
    done = _run("mcopy", "-o", "-i", f"{image}@@{begin}", "-", f"::/{name}", given=content)
    if done.returncode:
        raise _failed(image, done)
    if get(image, begin, name) != content:
        raise ImageError(f"{image}: what was written is not what is read", code=INTEGRITY)


def _run(program: str, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    require(program)
    return subprocess.run(  # noqa: S603 - a fixed program
        [find(program) or program, *words], input=given, capture_output=True, env=_ENVIRONMENT, check=False
    )


def _failed(image: Path, done: subprocess.CompletedProcess[bytes]) -> ImageError:
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return ImageError(f"{image}: {said[-1] if said else 'mtools failed'}", code=INTEGRITY)
