"""Log of an NVMe disk about its health, by the admin command Get Log Page of Linux (linux/nvme_ioctl.h). Needs root."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from edge.appliance.first_boot.places import write_whole
from edge.health.storage_life import NVME_LOGS, NvmeLog

ADMIN_COMMAND: Final = 0xC0484E41
"""_IOWR('N', 0x41, struct nvme_admin_cmd), of 72 bytes."""
GET_LOG_PAGE: Final = 0x02
SMART_LOG: Final = 0x02
LOG_BYTES: Final = 512
ALL_NAMESPACES: Final = 0xFFFFFFFF
TIMEOUT_MS: Final = 10_000
_COMMAND: Final = struct.Struct("<BBHIIIQQIIIIIIIIII")
_COUNTER: Final = slice(160, 176)
"""Place of the media and data integrity errors."""

ControlDevice = Callable[[int, int, Any], int]


def read_log(device: Path, control: ControlDevice = fcntl.ioctl) -> NvmeLog:
    """Return the log of a controller (/dev/nvme0). Raises OSError."""
    content = ctypes.create_string_buffer(LOG_BYTES)
    words = SMART_LOG | (LOG_BYTES // 4 - 1) << 16
    address = ctypes.addressof(content)
    values = (0, LOG_BYTES, words, 0, 0, 0, 0, 0, TIMEOUT_MS, 0)
    command = bytearray(_COMMAND.pack(GET_LOG_PAGE, 0, 0, ALL_NAMESPACES, 0, 0, 0, address, *values))
    handle = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = control(handle, ADMIN_COMMAND, command)
    finally:
        os.close(handle)
    if status:
        raise OSError(0, f"NVMe status {status:#x}", str(device))
    return parse_log(content.raw)


def parse_log(content: bytes) -> NvmeLog:
    """Parse the log page SMART / Health Information."""
    return NvmeLog(
        critical_warning=content[0],
        spare_percent=content[3],
        spare_percent_min=content[4],
        used_percent=content[5],
        media_errors=min(int.from_bytes(content[_COUNTER], "little"), (1 << 63) - 1),
    )


def write_logs(root: Path, control: ControlDevice = fcntl.ioctl) -> list[str]:
    """Write the logs of all NVMe controllers where the gateway reads them; return what could not be read.

    Raises OSError when they cannot be written.
    """
    logs: dict[str, NvmeLog] = {}
    faults = []
    for device in sorted((root / "dev").glob("nvme[0-9]*")):
        if not device.name.removeprefix("nvme").isdigit():
            continue  # a namespace or a partition
        try:
            logs[device.name] = read_log(device, control)
        except OSError as error:
            faults.append(f"{device.name}: {error.strerror}")
    write_whole(root / NVME_LOGS, msgspec.json.encode(logs), mode=0o644)
    return faults
