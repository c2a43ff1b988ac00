"""Disks of this machine, and which of them may be written over: cards and sticks that nothing uses.

The judgement is about what `lsblk` says, so that it is tried on what other machines said.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from images.errors import USAGE, ImageError
from images.programs import output, require

COLUMNS: Final = "NAME,PATH,RM,HOTPLUG,RO,SIZE,TYPE,TRAN,MODEL,SERIAL,MOUNTPOINTS"
CARD_BYTES_MAX: Final = 2 << 40
"""A larger disk is no card, whatever it is plugged into; SDXC ends there."""
SYSTEM: Final = ("/", "/boot", "/boot/efi", "/boot/firmware", "/etc", "/home", "/usr", "/var", "[SWAP]")
"""Where a disk is mounted that a machine cannot do without."""
VIRTUAL: Final = ("loop", "nbd", "ram", "zram")
"""Beginnings of the names of disks that are not hardware: memory, files, the network."""
HOLDERS: Final = ("crypt", "lvm", "dm", "mpath", "raid")
"""Beginnings of the types of what is made of a disk, and uses it."""


class Disk(NamedTuple):
    """A disk as `lsblk` tells of it."""

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
    """Of the disk and all that is on it; ``[SWAP]`` among them."""
    holders: Sequence[str]
    """What is made of it."""

    @property
    def title(self) -> str:
        """For a person who looks for the right one."""
        return f"{self.path}  {self.size / 1e9:.1f} GB  {self.model or 'no name'}"


def found() -> list[Disk]:
    """The disks of this machine, with their partitions. Raises ImageError."""
    require("lsblk")
    return list(disks(output("lsblk", "--json", "--bytes", "--output", COLUMNS), soldered()))


def soldered(system: Path = Path("/sys/block")) -> frozenset[str]:
    """Memory that is part of the machine (eMMC): `lsblk` says `mmc` of it, as of a card in a slot."""
    kinds = system.glob("mmcblk*/device/type")
    return frozenset(f"/dev/{each.parent.parent.name}" for each in kinds if each.read_text().strip() == "MMC")


def pieces(all_disks: Sequence[Disk]) -> Iterator[Disk]:
    """Yield the whole disks that are hardware, for a list."""
    for each in all_disks:
        if each.kind == "disk" and not Path(each.path).name.rstrip("0123456789").startswith(VIRTUAL):
            yield each


def disks(said: str, built_in: Container[str] = ()) -> Iterator[Disk]:
    """Out of what `lsblk --json` has printed: disks, and then what is on them. `built_in`: paths of those that are."""
    for entry in json.loads(said)["blockdevices"]:
        for each in _with_children(entry):
            yield _disk(each, entry, is_built_in=entry["path"] in built_in)


def candidates(all_disks: Sequence[Disk], size: int) -> list[Disk]:
    """Those that may be written over with an image of so many bytes."""
    return [each for each in all_disks if not refusal(each, size)]


def refusal(disk: Disk, size: int, *, loop: bool = False) -> tuple[str, str] | None:
    """Why a disk is not written over, and what helps; None: it may be. `loop`: a loop device may be, too."""
    return next(_refusals(disk, size, loop=loop), None)


def _refusals(disk: Disk, size: int, *, loop: bool) -> Iterator[tuple[str, str]]:
    """The gravest comes first."""
    if disk.kind == "part":
        yield f"{disk.path} is a part of a disk", "an image is of a whole card: name the disk it is on"
    system = [mount for mount in disk.mounts if mount in SYSTEM]
    if system:
        yield f"{disk.path} is what this machine runs on ({', '.join(system)})", "it is never written over"
    if disk.mounts:
        words = f"{disk.path} is in use: mounted at {', '.join(disk.mounts)}"
        yield words, f"if it is the right one: sudo umount {shlex.join(disk.mounts)}"
    if disk.holders:
        yield f"{disk.path} is in use by {', '.join(disk.holders)}", "end what uses it, or take another card"
    if disk.kind != "disk" and not (disk.kind == "loop" and loop):
        yield f"{disk.path} is no card: lsblk calls it {disk.kind}", _SEE
    if disk.kind == "disk" and not disk.removable:
        yield f"{disk.path} is built into this machine", f"only cards and USB sticks are written over; {_SEE}"
    if disk.size == 0:
        yield f"{disk.path} is an empty reader", "put the card in; where it is in, another reader may help"
    if disk.read_only:
        yield f"{disk.path} is write-protected", "look at the switch at the side of the card or of its adapter"
    if disk.size < size:
        words = f"{disk.path} has {disk.size / 1e9:.2f} GB, and the image wants {size / 1e9:.2f}"
        yield words, "take a larger card: 4 GB or more leave room for messages"
    if disk.size > CARD_BYTES_MAX:
        yield f"{disk.path} has {disk.size / 1e12:.1f} TB: that is no card", _SEE


def of_path(path: Path, all_disks: Sequence[Disk]) -> Disk:
    """The disk of this name, or of a link to it. Raises ImageError."""
    real = str(path.resolve())
    for each in all_disks:
        if each.path == real:
            return each
    raise ImageError(f"{path} is no disk of this machine", hint=_SEE, code=USAGE)


_SEE: Final = "waypost flash --list shows the cards that are there"


def _with_children(entry: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield entry
    for child in entry.get("children") or ():
        yield from _with_children(child)


def _disk(entry: Mapping[str, Any], top: Mapping[str, Any], *, is_built_in: bool) -> Disk:
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
