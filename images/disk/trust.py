"""Read from a built system which keys gateways that run it accept updates of.

A root file system has their certificates in a file. It is read from the system itself, in its distributed form, as
nothing else shows what gateways will do.
"""

from __future__ import annotations

import lzma
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

import zstandard

from images.errors import INTEGRITY, ImageError
from images.programs import run, run_for_output

KEYRING: Final = "/etc/rauc/keyring.pem"
"""Also stated in `rauc/system.conf` of a root."""
PROGRAMS: Final = {".raucb": ("unsquashfs", "debugfs"), ".sha256": ("debugfs",)}
"""Programs that read the system of a bundle, and of the image that checksums name."""
IMAGES: Final = (".img.zst", ".img.xz")
"""Suffixes of images in their distributed forms."""
ROOT: Final = "rootfs.ext4"
SECTOR: Final = 512
PIECE: Final = 1 << 20
LINUX: Final = 0x83
"""Type of the root partitions (MBR)."""
CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]+-----END CERTIFICATE-----\n", re.ASCII)


def read_bundle(file: Path, work: Path) -> frozenset[str]:
    """Return the certificates in the system of a bundle that RAUC has verified. Raises ImageError."""
    folder = work / "content"
    run("unsquashfs", "-no-progress", "-no-xattrs", "-dest", folder, file, ROOT, log=work / "log")
    return _read_root(folder / ROOT, file, work)


def read_image(file: Path, work: Path) -> frozenset[str]:
    """Return the certificates in the first root partition of a compressed image. Raises ImageError."""
    root = work / ROOT
    try:
        with _open(file) as source:
            _copy_root(source, root)
    except (OSError, EOFError, ValueError, lzma.LZMAError, zstandard.ZstdError) as error:
        raise _unreadable(file, str(error)) from None
    return _read_root(root, file, work)


def read_certificates(files: Sequence[Path]) -> frozenset[str]:
    """Return certificates as a build writes them into a system. Raises ImageError."""
    return frozenset(run_for_output("openssl", "x509", "-in", each) for each in files)


# --- inside ---------------------------------------------------------------------------------------------------------


def _open(file: Path) -> IO[bytes]:
    """Open the content of a compressed image; the caller closes it."""
    if file.suffix == ".xz":
        return lzma.open(file)
    return zstandard.ZstdDecompressor().stream_reader(file.open("rb"), read_across_frames=True, closefd=True)


def _copy_root(source: IO[bytes], target: Path) -> None:
    """Copy the second partition, which is root-a, and leave holes for zeros. Raises ValueError."""
    head = source.read(SECTOR)
    if len(head) < SECTOR or head[510:512] != b"\x55\xaa" or head[446 + 16 + 4] != LINUX:
        raise ValueError("it has no root partition")
    begin, count = (sectors * SECTOR for sectors in struct.unpack_from("<II", head, 446 + 16 + 8))
    _skip(source, begin - SECTOR)
    with target.open("wb") as out:
        at = 0
        while at < count and (piece := source.read(min(PIECE, count - at))):
            if piece.strip(b"\0"):
                out.seek(at)
                out.write(piece)
            at += len(piece)
        out.truncate(at)
    if at < count:
        raise ValueError("its root partition is incomplete")


def _skip(source: IO[bytes], count: int) -> None:
    while count > 0 and (piece := source.read(min(PIECE, count))):
        count -= len(piece)


def _read_root(root: Path, file: Path, work: Path) -> frozenset[str]:
    """Return the certificates in a root file system, and delete it. Raises ImageError unless all can be read."""
    copy = work / "keyring.pem"
    copy.unlink(missing_ok=True)  # of the file before
    try:
        run("debugfs", "-R", f'dump {KEYRING} "{copy}"', root, log=work / "log")
        text = copy.read_bytes().decode("ascii", "replace")
    except OSError:
        raise _unreadable(file, f"its system has no {KEYRING}") from None
    except ImageError as error:
        raise _unreadable(file, error.message) from None
    finally:
        root.unlink(missing_ok=True)
    found = CERTIFICATE.findall(text)
    if not found or "".join(found) != text:
        raise _unreadable(file, f"{KEYRING} of its system has other content than certificates")
    return frozenset(found)


def _unreadable(file: Path, why: str) -> ImageError:
    words = f"{file}: cannot read which keys its system trusts: {why}"
    return ImageError(words, hint="build it with this version of Waypost; nothing was signed", code=INTEGRITY)
