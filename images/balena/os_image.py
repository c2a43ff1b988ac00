"""balenaOS images, and the configuration with which a card joins a fleet."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from images.balena.account import BalenaAccount, translate_errors
from images.card import partition
from images.errors import INTEGRITY, USAGE, ImageError

GPT_ENTRIES_MAX, GPT_ENTRY_BYTES_MAX = 128, 512
"""Bounds of a partition table; every tool creates 128 entries of 128 bytes."""
FAT_NAMES: Final = ((54, b"FAT12   "), (54, b"FAT16   "), (82, b"FAT32   "))
"""Offsets at which a boot sector names its file system (Microsoft FAT specification 1.03, sections 3.1 and 3.2)."""
CONFIGURATION: Final = "config.json"
KEYS: Final = ("applicationId", "apiEndpoint", "deviceType")
"""Keys that the supervisor of balenaOS needs to find its fleet."""
PIECE: Final = 1 << 20


def versions(account: BalenaAccount, device_type: str) -> list[str]:
    """Return the released versions of balenaOS for a device type, newest first. Raises ImageError."""
    with translate_errors(account.endpoint):
        found = account.sdk.models.os.get_available_os_versions(device_type)
    return [str(each["raw_version"]) for each in found]


def download(
    account: BalenaAccount, device_type: str, version: str, out: Path, *, progress: Callable[[int, int], None]
) -> Path:
    """Download an image of balenaOS atomically. Raises ImageError.

    `progress` gets the bytes received and the total (0: unknown).
    """
    part = out.with_name(f"{out.name}.part")
    models = account.sdk.models
    with translate_errors(account.endpoint), models.os.download(device_type, version, {"fileType": ".img"}) as answer:
        answer.raise_for_status()
        # The length of a compressed transfer is not the length of the image.
        length = 0 if "Content-Encoding" in answer.headers else int(answer.headers.get("Content-Length") or 0)
        received = 0
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                for piece in answer.iter_content(PIECE):
                    file.write(piece)
                    received += len(piece)
                    progress(received, length)
                file.flush()
                os.fsync(file.fileno())
            if length and received != length:
                raise ImageError(
                    f"{version}: the download ended after {received:,} of {length:,} bytes", hint="download it again"
                )
            part.replace(out)
        except OSError as error:
            raise _explain_file_error(error, out) from None
        finally:
            with suppress(OSError):
                part.unlink()
    return out


def _explain_file_error(error: OSError, out: Path) -> Exception:
    """Return the error to raise for an OSError. Failures of SDK requests are OSErrors, too, and stay as they are."""
    return error if error.filename is None and error.errno is None else ImageError(f"{out}: {error.strerror}")


def make_configuration(
    account: BalenaAccount, fleet: str, version: str, *, wifi: tuple[str, str] | None, uuid: str | None
) -> dict[str, Any]:
    """Return the configuration with which a card joins a fleet. Raises ImageError.

    `uuid`: join as this registered device.
    """
    options: dict[str, Any] = {"version": version, "network": "ethernet"}
    if wifi is not None:
        options |= {"network": "wifi", "wifiSsid": wifi[0], "wifiKey": wifi[1]}
    models = account.sdk.models
    with translate_errors(account.endpoint):
        made = models.os.get_config(fleet, options)
        if not isinstance(made, dict) or not set(KEYS) <= made.keys():
            raise ImageError(f"{fleet}: balena returned no configuration but {' '.join(str(made).split())[:200]!r}")
        if uuid is not None:
            device = models.device.get(uuid, {"$select": ["id", "uuid"]})
            key = models.device.generate_device_key(device["id"])
            if not isinstance(key, str):
                raise ImageError(f"{uuid}: balena returned no key but {' '.join(str(key).split())[:200]!r}")
            made |= {"uuid": device["uuid"], "deviceId": device["id"], "deviceApiKey": key, "registered_at": 1}
            # Remove the key that can register further devices from the card.
            made.pop("apiKey", None)
    return made


def write_configuration(image: Path, made: Mapping[str, Any]) -> None:
    """Write `config.json` into the boot partition of a balenaOS image, without mounting it.

    Raises ImageError if the image has no boot partition.
    """
    partition.write_file(image, find_boot_partition(image), CONFIGURATION, f"{json.dumps(made, indent=2)}\n".encode())


def read_configuration(image: Path) -> dict[str, Any]:
    """Return the `config.json` of an image. Raises ImageError."""
    content = partition.read_file(image, find_boot_partition(image), CONFIGURATION)
    try:
        made: dict[str, Any] = json.loads(content or b"")
    except ValueError:
        raise ImageError(f"{image}: {CONFIGURATION} is missing or is not JSON", code=INTEGRITY) from None
    return made


def find_boot_partition(image: Path) -> int:
    """Return the offset of the first FAT file system of an image, in bytes. Raises ImageError."""
    try:
        with image.open("rb") as disk:
            for start in _read_partition_starts(disk):
                disk.seek(start * partition.SECTOR)
                sector = disk.read(partition.SECTOR)
                if any(sector[at : at + len(name)] == name for at, name in FAT_NAMES):
                    return start * partition.SECTOR
    except OSError as error:
        raise ImageError(f"{image}: {error.strerror}", code=USAGE) from None
    raise ImageError(
        f"{image} is not a balenaOS image: it has no FAT partition",
        hint="unpack it first, if it is a .zip or .gz",
        code=USAGE,
    )


def _read_partition_starts(disk: BinaryIO) -> list[int]:
    """Return the first sectors of the partitions of an MBR or a GPT (UEFI 2.10, section 5.3)."""
    table = disk.read(2 * partition.SECTOR)
    if table[510:512] != b"\x55\xaa":
        return []
    entries = [struct.unpack_from("<B3xB3xII", table, 446 + 16 * number) for number in range(4)]
    if all(kind != 0xEE for _, kind, _, _ in entries):
        return [start for _, kind, start, _ in entries if kind]
    if table[partition.SECTOR : partition.SECTOR + 8] != b"EFI PART":
        return []
    first, count, size = struct.unpack_from("<QII", table, partition.SECTOR + 72)
    if not 48 <= size <= GPT_ENTRY_BYTES_MAX or count > GPT_ENTRIES_MAX:
        return []
    disk.seek(first * partition.SECTOR)
    listed = disk.read(count * size)
    firsts = (struct.unpack_from("<16x16xQ", listed, at)[0] for at in range(0, len(listed) - size + 1, size))
    return [start for start in firsts if start]
