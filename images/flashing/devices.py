"""Disks of this machine, and which of them may be overwritten: cards and sticks that nothing uses.

The rules work on the output of `lsblk`, so tests can apply them to the output of other machines.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from images.errors import USAGE, ImageError
from images.programs import require, run_for_output

COLUMNS: Final = "NAME,PATH,RM,HOTPLUG,RO,SIZE,TYPE,TRAN,MODEL,SERIAL,MOUNTPOINTS"
CARD_BYTES_MAX: Final = 2 << 40
"""Size above which no disk is a card: SDXC ends there."""
SYSTEM: Final = ("/", "/boot", "/boot/efi", "/boot/firmware", "/etc", "/home", "/usr", "/var", "[SWAP]")
"""Mount points of disks that a machine cannot do without."""
VIRTUAL: Final = ("loop", "nbd", "ram", "zram")
"""Prefixes of disks that are not hardware: memory, files, the network."""
HOLDERS: Final = ("crypt", "lvm", "dm", "mpath", "raid")
"""Prefixes of the types of devices that are built on a disk and use it."""


class Disk(NamedTuple):
    """Disk as `lsblk` describes it."""

    path: str
    kind: str
    """``disk``, ``part``, ``loop`` and others."""
    size: int
    model: str
    serial: str
    transport: str
    removable: bool
    read_only: bool
    mounts: Sequence[str]
    """Mount points of the disk and all that is on it, including ``[SWAP]``."""
    holders: Sequence[str]
    """Devices that are built on it."""

    @property
    def title(self) -> str:
        """Path, size and model, for the choice of the right disk."""
        return f"{self.path}  {self.size / 1e9:.1f} GB  {self.model or 'no name'}"


def list_disks() -> list[Disk]:
    """Return the disks of this machine, with their partitions. Raises ImageError."""
    require("lsblk")
    return list(parse_lsblk(run_for_output("lsblk", "--json", "--bytes", "--output", COLUMNS), find_built_in()))


def find_built_in(system: Path = Path("/sys/block")) -> frozenset[str]:
    """Return memory that is part of the machine (eMMC). `lsblk` reports it as `mmc`, like a card in a slot."""
    kinds = system.glob("mmcblk*/device/type")
    return frozenset(f"/dev/{each.parent.parent.name}" for each in kinds if each.read_text().strip() == "MMC")


def hardware_disks(all_disks: Sequence[Disk]) -> Iterator[Disk]:
    """Yield the whole disks that are hardware, for a list."""
    for each in all_disks:
        if each.kind == "disk" and not Path(each.path).name.rstrip("0123456789").startswith(VIRTUAL):
            yield each


def parse_lsblk(listing: str, built_in: Container[str] = ()) -> Iterator[Disk]:
    """Yield disks and what is on them from the output of `lsblk --json`. `built_in`: paths of built-in disks."""
    for entry in json.loads(listing)["blockdevices"]:
        for each in _with_children(entry):
            yield _parse_disk(each, entry, is_built_in=entry["path"] in built_in)


def candidates(all_disks: Sequence[Disk], size: int) -> list[Disk]:
    """Return the disks that may be overwritten with an image of this size in bytes."""
    return [each for each in all_disks if not find_refusal(each, size)]


def find_refusal(disk: Disk, size: int, *, loop: bool = False) -> tuple[str, str] | None:
    """Return why a disk is not overwritten, and the next step; None if it may be.

    `loop`: accept a loop device.
    """
    return next(_list_refusals(disk, size, loop=loop), None)


def _list_refusals(disk: Disk, size: int, *, loop: bool) -> Iterator[tuple[str, str]]:
    """Yield the reasons, the most serious one first."""
    if disk.kind == "part":
        yield f"{disk.path} is a partition", "an image fills a whole card: name its disk"
    system = [mount for mount in disk.mounts if mount in SYSTEM]
    if system:
        yield f"{disk.path} holds the system of this machine ({', '.join(system)})", "it is never overwritten"
    if disk.mounts:
        words = f"{disk.path} is in use: mounted at {', '.join(disk.mounts)}"
        yield words, f"if it is the right one: sudo umount {shlex.join(disk.mounts)}"
    if disk.holders:
        yield f"{disk.path} is in use by {', '.join(disk.holders)}", "stop what uses it, or use another card"
    if disk.kind != "disk" and not (disk.kind == "loop" and loop):
        yield f"{disk.path} is not a card: lsblk calls it {disk.kind}", _SEE
    if disk.kind == "disk" and not disk.removable:
        yield f"{disk.path} is built into this machine", f"only cards and USB sticks are overwritten; {_SEE}"
    if disk.size == 0:
        yield f"{disk.path} is an empty reader", "insert the card; if it is inserted, another reader may help"
    if disk.read_only:
        yield f"{disk.path} is write-protected", "check the write-protect switch of the card or its adapter"
    if disk.size < size:
        words = f"{disk.path} has {disk.size / 1e9:.2f} GB, and the image needs {size / 1e9:.2f}"
        yield words, "use a larger card: 4 GB or more leave space for messages"
    if disk.size > CARD_BYTES_MAX:
        yield f"{disk.path} has {disk.size / 1e12:.1f} TB: that is not a card", _SEE


def find_disk(path: Path, all_disks: Sequence[Disk]) -> Disk:
    """Return the disk with this name, or the one that a link points to. Raises ImageError."""
    real = str(path.resolve())
    for each in all_disks:
        if each.path == real:
            return each
    raise ImageError(f"{path} is not a disk of this machine", hint=_SEE, code=USAGE)


_SEE: Final = "waypost flash --list shows the cards"


def _with_children(entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield entry
    for child in entry.get("children") or ():
        yield from _with_children(child)


def _parse_disk(entry: Mapping[str, Any], top: Mapping[str, Any], *, is_built_in: bool) -> Disk:
    whole = list(_with_children(entry))
    transport = str(top.get("tran") or "")
    return Disk(
        path=str(entry["path"]),
        kind=str(entry["type"]),
        size=int(entry["size"] or 0),
        model=" ".join(str(entry.get("model") or "").split()),
        serial=str(entry.get("serial") or ""),
        transport=transport,
        removable=not is_built_in and bool(top["rm"] or top["hotplug"] or transport in ("usb", "mmc")),
        read_only=bool(entry["ro"]),
        mounts=[str(mount) for each in whole for mount in each.get("mountpoints") or () if mount],
        holders=[str(each["path"]) for each in whole[1:] if each["type"] != "part"],
    )
