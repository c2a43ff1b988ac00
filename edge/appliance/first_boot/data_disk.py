"""Move the data of a gateway to an empty disk next to its card (`data.disk` of its settings). Runs as root, at a start.

Nothing serves while this runs: the card and the copy are the same. The move is one change of a label. The file system
of the disk is called `waypost-` and eight digits, and when the card's fourth partition gets the same label, the data
are on the disk: from the next start udev calls the disk /dev/waypost/data, and the partition /dev/waypost/card-data
(images/rootfs/overlay, `own-partition`). A power cut before that leaves the data on the card, and the next start moves
them; after it the old copy is removed. Without the disk the gateway does not start from the old copy, as that knows
neither later messages nor later numbers.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

import msgspec

from edge.appliance.first_boot.journal import SettingsRefusal
from edge.appliance.first_boot.places import CardPaths, write_whole

ON_CARD: Final = "waypost-data"
"""Label of the card's fourth partition while it holds the data."""
UNFINISHED: Final = "waypost-moving"
"""Label of the disk while it is written."""
PAIRED: Final = re.compile("waypost-[0-9a-f]{8}")
"""Label of the disk and of the card's partition once the data are on the disk."""
BYTES_MIN: Final = 2 << 30
"""Smallest disk: the store's least, and a bundle of an update, which is fetched before it is installed."""
FREE_SHARE: Final = 1.25
"""Size of the disk by the bytes that the data take on the card, at least: room for the file system and for growth."""
WAIT_S: Final = 30
"""Longest wait for an empty disk to appear, in seconds: a disk at USB has started by then."""
QUIET_S: Final = 8
"""Time without another disk after which all are there, in seconds."""
ENDS_BYTES: Final = 1 << 20
"""Part at both ends of a disk that is read before it counts as empty."""
MOVING: Final = "data/settings/moving"
"""File on the card with the label that the disk gets."""
EMPTIED: Final = "data/settings/card-emptied"
"""File on the disk: the old copy on the card has been removed."""


class DataDisk(NamedTuple):
    """Disk that could hold the data."""

    path: Path
    size: int
    """Bytes."""
    model: str
    content: str
    """Kind of what is on it. It is empty for an empty disk and after an interrupted move."""

    def __str__(self) -> str:
        return f"{self.path} ({' '.join(filter(None, (self.model, f'{self.size / 1e9:.0f} GB')))})"


class DiskRefused(Exception):
    """The data stay on the card."""

    def __init__(self, why: str, next_step: str) -> None:
        super().__init__(why)
        self.next_step = next_step


class _Row(msgspec.Struct):
    """Row of lsblk(8)."""

    path: str
    type: str
    size: int
    tran: str | None = None
    model: str | None = None
    ro: bool = False


class _Rows(msgspec.Struct):
    blockdevices: list[_Row] = []


def require_current_place(places: CardPaths, restart: Callable[[str], NoReturn]) -> None:
    """Restart the machine if it runs from data that were moved away, and else remove an old copy from the card.

    `restart(why)` restarts the machine and does not return, as nothing may serve in the meantime. Raises OSError.
    """
    device = _mounted_device(places)
    if device is None:  # not the system of a card
        return
    old = places.root / "dev/waypost/card-data"
    if old.exists() and old.resolve() != device.resolve():
        with contextlib.suppress(
            DiskRefused, OSError
        ):  # the card may be worn out, and settings are applied all the same
            empty_card(places, old, device)
    elif PAIRED.fullmatch(label := read_label(device)):
        # A power cut left the label in the journal only: udev did not see it when it looked.
        restart(f"the data are on a disk whose file system is called {label}")


def move_data(
    places: CardPaths, kind: str | None, say: Callable[[str], None], restart: Callable[[str], NoReturn]
) -> SettingsRefusal | None:
    """Move the data to a disk of this kind (`usb`, `nvme`; None: to none), unless they are on one.

    `say` takes a line for people, and `restart` is as above. Returns why the data stay on the card; None when they are
    where they belong. Raises OSError.
    """
    device = _mounted_device(places)
    if kind is None or device is None or read_label(device) != ON_CARD:
        return None
    try:
        found = find_disks(kind, device, _read_pending(places))
        disk = choose_disk(found, kind, _used_bytes(places.root / "data"))
        say(f"copying the data to {disk}")
        copy_data(places, disk.path)
        switch_to(places, disk.path, device)
    except DiskRefused as refused:
        return SettingsRefusal(why=f"the data are still on the card: {refused}", next_step=refused.next_step)
    return restart(f"the data are on {disk}")


def find_disks(kind: str, own: Path, pending: str = "", pause: Callable[[float], None] = time.sleep) -> list[DataDisk]:
    """Return the disks of this kind, except that of the partition `own`, once no other one has appeared for a time.

    `pending`: label of the disk of an interrupted move. Raises DiskRefused.
    """
    used, found, quiet = _parent_of(own), list[DataDisk](), 0
    for _ in range(WAIT_S):
        before = {disk.path for disk in found}
        found = [
            DataDisk(Path(row.path), row.size, (row.model or "").strip(), read_content(Path(row.path), pending))
            for row in _list_rows()
            if (row.tran, row.type) == (kind, "disk") and row.size and not row.ro and Path(row.path) != used
        ]
        quiet = quiet + 1 if {disk.path for disk in found} == before else 0
        if quiet >= QUIET_S and any(not disk.content for disk in found):
            break
        pause(1)
    return found


def choose_disk(found: Sequence[DataDisk], kind: str, used_bytes: int) -> DataDisk:
    """Return the only empty disk that is large enough. Raises DiskRefused with what to do."""
    if not found:
        raise DiskRefused(f"no {kind} disk is connected", "connect an empty one, and switch the gateway off and on")
    empty = [disk for disk in found if not disk.content]
    if not empty:
        listed = ", ".join(f"{disk} holds {disk.content}" for disk in found)
        step = "erase it on another machine (Linux: wipefs --all; Windows: diskpart, clean), or connect an empty one"
        raise DiskRefused(f"no {kind} disk is empty: {listed}", step)
    if len(empty) > 1:
        raise DiskRefused(
            f"several {kind} disks are empty: {', '.join(map(str, empty))}", "leave one of them connected"
        )
    needed = max(BYTES_MIN, int(used_bytes * FREE_SHARE))
    if empty[0].size < needed:
        raise DiskRefused(f"{empty[0]} is too small", f"connect a disk of {needed / 1e9:.0f} GB or more")
    return empty[0]


def copy_data(places: CardPaths, disk: Path) -> None:
    """Write a file system with a copy of /data to a disk, and compare both. Raises DiskRefused, OSError."""
    options = ("-q", "-F", "-t", "ext4", "-b", "4096", "-m", "1", "-E", "root_owner=0:0")
    _run("mke2fs", *options, "-O", "^orphan_file,^metadata_csum_seed", "-L", UNFINISHED, disk)
    source = places.root / "data"
    with _mounted(places, disk) as copy:
        _run("cp", "--archive", f"{source}/.", copy)
        _run("sync", "--file-system", copy)
    with _mounted(places, disk, "ro") as copy:  # mounted again: what is compared comes from the disk
        _run("diff", "--recursive", "--brief", "--no-dereference", source, copy)


def switch_to(places: CardPaths, disk: Path, card: Path) -> None:
    """Declare that the data are on `disk`: it and the partition `card` get one label. Raises DiskRefused, OSError."""
    label = f"waypost-{secrets.token_hex(4)}"
    write_whole(places.root / MOVING, label.encode(), mode=0o644)  # after a power cut the disk is recognised by it
    _run("e2label", disk, label)
    _run("blockdev", "--flushbufs", disk)
    try:
        _run("e2label", card, label)
    except DiskRefused:
        if read_label(card) == ON_CARD:
            raise
    # Now the data are on the disk, whatever fails: this returns, and the machine restarts.
    with contextlib.suppress(DiskRefused):
        for words in (("--freeze",), ("--unfreeze",)):  # writes the journal to its places, where udev reads the label
            _run("fsfreeze", *words, places.root / "data")


def empty_card(places: CardPaths, old: Path, device: Path) -> None:
    """Remove the old copy from the card, once. Raises DiskRefused, OSError."""
    if (places.root / EMPTIED).exists() or read_label(old) != read_label(device):
        return
    with _mounted(places, old) as folder:
        for each in folder.iterdir():
            _run("rm", "--recursive", "--force", "--one-file-system", each)
    write_whole(places.root / EMPTIED, b"", mode=0o644)


def read_label(device: Path) -> str:
    """Return the label of a file system, empty without one, past the cache of blkid(8)."""
    return _probe(device, "LABEL").stdout.strip()


def read_content(device: Path, pending: str = "") -> str:
    """Return the kind of the file system or partition table on a disk; empty for a disk that may be written.

    `pending`: label of the disk of an interrupted move. What cannot be read is not empty.
    """
    found = _probe(device, "LABEL", "TYPE", "PTTYPE")
    values = dict(line.partition("=")[::2] for line in found.stdout.splitlines())
    if found.returncode == _FOUND:
        ours = {UNFINISHED, *filter(None, [pending])}
        return "" if values.get("LABEL") in ours else values.get("TYPE") or values.get("PTTYPE") or "unknown data"
    if found.returncode != _NOTHING_FOUND:
        return "several file systems at once"
    try:
        with device.open("rb") as disk:
            for place, origin in ((0, os.SEEK_SET), (-ENDS_BYTES, os.SEEK_END)):
                disk.seek(place, origin)
                if len(disk.read(ENDS_BYTES)) < ENDS_BYTES:
                    return "less than its size"
    except OSError as error:
        return f"what cannot be read ({error.strerror})"
    return ""


# --- inside -----------------------------------------------------------------------------------------------------------

_FOUND: Final = 0
_NOTHING_FOUND: Final = 2
"""Exit codes of blkid(8). It also exits with 2 where it cannot read."""


def _probe(device: Path, *tags: str) -> subprocess.CompletedProcess[str]:
    """Read tags of what is on a device: the value of one, or NAME=value lines of several."""
    wanted = [word for tag in tags for word in ("--match-tag", tag)]
    form = "value" if len(tags) == 1 else "export"
    words = ["blkid", "--probe", *wanted, "--output", form, str(device)]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        return subprocess.CompletedProcess(words, 1, "", error.strerror or "")


def _list_rows() -> list[_Row]:
    """Return the disks of this machine. Raises DiskRefused."""
    columns = "PATH,TYPE,SIZE,TRAN,MODEL,RO"
    return msgspec.json.decode(
        _run("lsblk", "--json", "--bytes", "--nodeps", "--output", columns), type=_Rows
    ).blockdevices


def _run(*words: str | Path) -> bytes:
    """Run a program; return its output. Raises DiskRefused with its last line."""
    try:
        done = subprocess.run([str(word) for word in words], capture_output=True, check=False)  # noqa: S603
    except OSError as error:
        raise DiskRefused(f"{words[0]}: {error.strerror}", _FAILED_STEP) from None
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise DiskRefused(f"{words[0]} failed: {said[-1] if said else done.returncode}", _FAILED_STEP)
    return done.stdout


_FAILED_STEP: Final = "take another disk; the gateway tries again at its next start"


def _read_pending(places: CardPaths) -> str:
    try:
        return (places.root / MOVING).read_text()
    except (FileNotFoundError, UnicodeDecodeError):
        return ""


def _mounted_device(places: CardPaths) -> Path | None:
    """Return the device that is mounted at /data; None when nothing is."""
    try:
        name = _run("findmnt", "--noheadings", "--first-only", "--output", "SOURCE", places.root / "data")
    except DiskRefused:
        return None
    return Path(name.decode().strip())


def _parent_of(partition: Path) -> Path:
    """Return the disk of a partition, or the disk itself."""
    name = _run("lsblk", "--nodeps", "--noheadings", "--output", "PKNAME", partition).decode().strip()
    return Path("/dev") / name if name else partition


def _used_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


@contextlib.contextmanager
def _mounted(places: CardPaths, device: Path, *options: str) -> Iterator[Path]:
    """Mount a file system for the body. Raises DiskRefused."""
    folder = places.root / "run/waypost-settings/disk"
    folder.mkdir(parents=True, exist_ok=True)
    chosen = ",".join(("nodev", "nosuid", "noexec", *options))
    _run("mount", "-t", "ext4", "-o", chosen, device, folder)
    try:
        yield folder
    finally:
        _run("umount", folder)
