"""Life of the medium that holds the data, as it reports it: eMMC (JEDEC JESD84-B51), NVMe (SMART), and errors of ext4.

An SD card reports no wear; errors of its file system are the first sign. All but the log of an NVMe is in /sys. That
log needs root: `waypost-medium.service` writes it where the gateway reads it (`edge.appliance.nvme`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from edge.health.problems import FoundProblem, Severity

NVME_LOGS: Final = "run/waypost/nvme.json"
"""File with the logs of all NVMe disks, by the name of their controller."""
NVME_LOGS_BYTES_MAX: Final = 64 << 10
LIFE_STEP_PERCENT: Final = 10
"""Step of an eMMC's life time estimate: step n means that 10 (n - 1) to 10 n percent are used."""
USED_WARN_PERCENT: Final = 80
"""Used share of the life from which a replacement is advised: weeks to years are left, enough to plan it."""
USED_FULL_PERCENT: Final = 100
REPLACE_STEP: Final = "move the gateway to a new card or disk while this one can be read: waypost replace --help"


class SpareBlocks(enum.IntEnum):
    """Reserved blocks of a medium, which replace worn ones (JEDEC JESD84-B51, PRE_EOL_INFO)."""

    UNKNOWN = 0
    NORMAL = 1
    LOW = 2
    """80 % are used up."""
    USED_UP = 3


class NvmeLog(msgspec.Struct, frozen=True):
    """Part of the log page SMART / Health Information (NVM Express base specification 2.0, figure 207)."""

    critical_warning: int
    """Bits of `NvmeWarning`."""
    spare_percent: int
    spare_percent_min: int
    used_percent: int
    """May exceed 100."""
    media_errors: int


class NvmeWarning(enum.IntFlag):
    """Bits of the critical warning that concern the data."""

    SPARE_LOW = 1 << 0
    UNRELIABLE = 1 << 2
    READ_ONLY = 1 << 3


class StorageLife(NamedTuple):
    """State of a medium."""

    used_percent: int | None = None
    """Largest share of its life that may be used; None: not reported."""
    spare: SpareBlocks = SpareBlocks.UNKNOWN
    read_only: bool = False
    unreliable: bool = False
    file_system_errors: int = 0
    """Errors that ext4 found since its last check."""


def read_storage_life(device: Path, root: Path = Path("/")) -> StorageLife:
    """Return the state of a whole disk, by its folder in /sys."""
    life = _read_emmc(device / "device")
    log = _read_nvme(device.name, root)
    if log is not None:
        warning = NvmeWarning(log.critical_warning & sum(NvmeWarning))
        low = NvmeWarning.SPARE_LOW in warning or log.spare_percent < log.spare_percent_min
        life = StorageLife(
            used_percent=log.used_percent,
            spare=SpareBlocks.USED_UP if low else SpareBlocks.NORMAL,
            read_only=NvmeWarning.READ_ONLY in warning,
            unreliable=NvmeWarning.UNRELIABLE in warning,
        )
    return life._replace(file_system_errors=_count_errors(device, root))


def identify_storage(device: Path) -> str:
    """Return kind, model and serial numbers of a whole disk, for people and inventories; empty when unknown."""
    about = device / "device"
    parts = [_text(about / name) for name in ("type", "vendor", "model", "name", "serial")]
    cid = _text(about / "cid")  # Card Identification register: maker, product, serial number, date (SD, eMMC)
    found = " ".join(part for part in dict.fromkeys(parts) if part)
    return f"{found} cid {cid}".strip() if cid else found


def storage_problems(name: str, life: StorageLife) -> Iterator[FoundProblem]:
    """Yield the problem of a medium that fails or soon will. `name`: of the block device."""
    if life.read_only:
        yield FoundProblem("medium", f"{name} refuses writes: it is worn out", REPLACE_STEP)
    elif life.unreliable:
        yield FoundProblem("medium", f"{name} reports that its data may be wrong", REPLACE_STEP, Severity.WARNING)
    elif life.spare is SpareBlocks.USED_UP or (life.used_percent or 0) > USED_FULL_PERCENT:
        what = f"{name} is at the end of its life, as it reports: it may soon refuse writes"
        yield FoundProblem("medium", what, REPLACE_STEP, Severity.WARNING)
    elif life.spare is SpareBlocks.LOW or (life.used_percent or 0) >= USED_WARN_PERCENT:
        what = f"{name} has used up most of its life or of its spare blocks, as it reports"
        yield FoundProblem("medium", what, REPLACE_STEP, Severity.NOTICE)
    if life.file_system_errors:
        what = f"ext4 found errors on {name}: it may be failing"
        step = f"look for I/O errors in dmesg; {REPLACE_STEP}. Without any: e2fsck -f at the next chance clears this"
        yield FoundProblem("medium", what, step, Severity.WARNING)


# --- inside -----------------------------------------------------------------------------------------------------------


def _read_emmc(about: Path) -> StorageLife:
    steps = max((_number(each) for each in _text(about / "life_time").split()), default=0)
    spare = _number(_text(about / "pre_eol_info"))
    known = spare if spare in SpareBlocks._value2member_map_ else SpareBlocks.UNKNOWN
    return StorageLife(steps * LIFE_STEP_PERCENT if steps else None, SpareBlocks(known))


def _read_nvme(name: str, root: Path) -> NvmeLog | None:
    """Return the log of a namespace's controller (nvme0n1: nvme0); None without one."""
    if not name.startswith("nvme"):
        return None
    try:
        with (root / NVME_LOGS).open("rb") as source:
            logs = msgspec.json.decode(source.read(NVME_LOGS_BYTES_MAX), type=dict[str, NvmeLog])
    except (OSError, msgspec.DecodeError):
        return None
    return logs.get(f"nvme{name.removeprefix('nvme').partition('n')[0]}")


def _count_errors(device: Path, root: Path) -> int:
    """Return the errors of the file systems on a disk and its partitions."""
    names = [device.name, *(path.name for path in device.glob(f"{device.name}*") if (path / "partition").exists())]
    return sum(_number(_text(root / "sys/fs/ext4" / name / "errors_count")) for name in names)


def _number(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        return 0


def _text(file: Path) -> str:
    """Return the printable content of a small file of /sys, in one line; empty without one."""
    try:
        with file.open(encoding="utf-8", errors="replace") as source:
            return " ".join("".join(each if each.isprintable() else " " for each in source.read(256)).split())
    except OSError:
        return ""
