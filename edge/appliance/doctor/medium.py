"""Checks of the card or disk of the store: durability, wear, free space, and speed."""

from __future__ import annotations

import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from edge.appliance.doctor.check import CheckContext, CheckResult, fail, ok, warn
from edge.health.problems import Severity
from edge.health.storage_life import read_storage_life, storage_problems
from edge.output.amounts import size
from edge.output.text import word

FREE_BYTES_WARN: Final = 500_000_000
FREE_BYTES_FAIL: Final = 50_000_000
"""Free space for a checkpoint of the store and an update of the system."""
INODES_WARN: Final = 1000
SYNCS: Final = 32
"""Writes that are timed: a second on a slow card, with negligible wear."""
SYNC_BYTES: Final = 4096
SYNC_WARN_S: Final = 0.1
"""With this latency a device that awaits each acknowledgement publishes ten messages a second."""
SYNC_FAIL_S: Final = 1.0
SYNC_UNTRUE_S: Final = 20e-6
"""Shorter than a durable write on any medium: NVMe with power-loss protection takes 20-30 us."""

FORGETS: Final = {"tmpfs", "ramfs"}
REMOTE: Final = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs"}
UNJOURNALED: Final = {"vfat", "exfat", "msdos", "ext2"}
UNSAFE_OPTIONS: Final = {
    "nobarrier": "the card may reorder writes: a power cut can lose what was synced",
    "barrier=0": "the card may reorder writes: a power cut can lose what was synced",
    "data=writeback": "after a power cut files can hold what was never written to them",
    "async_commit": "the journal commits without waiting for what it describes",
}

DISK: Final = re.compile(r"/dev/(mmcblk\d+|nvme\d+n\d+|[hsv]d[a-z]+)")
"""Device of a mount; its group is the whole disk."""


class Mount(NamedTuple):
    """Line of /proc/self/mountinfo (proc(5))."""

    point: str
    kind: str
    source: str
    options: frozenset[str]


def mount_of(path: Path, mountinfo: str) -> Mount | None:
    """Return the mount of a path: the longest mount point above it, and of equal ones the last."""
    found: Mount | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) < 6 or len(rest) < 3:
            continue
        point = _unescaped(fields[4])
        if path.is_relative_to(point) and (found is None or len(point) >= len(found.point)):
            found = Mount(point, rest[0], rest[1], frozenset((fields[5] + "," + rest[2]).split(",")))
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), text)


def _existing_path(context: CheckContext) -> Path | None:
    """Return the data directory, or its nearest existing parent."""
    if context.data is None:
        return None
    path = context.data.resolve()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def file_system(context: CheckContext) -> Iterator[CheckResult]:
    """Check that the file system keeps synced data over a power cut."""
    place, name = _existing_path(context), "file system"
    if place is None:
        return
    mountinfo = context.text("proc", "self", "mountinfo")
    if mountinfo is None:
        yield warn(name, f"{place}: its file system is not known without /proc", "mount it: mount -t proc proc /proc")
        return
    mount = mount_of(place, mountinfo)
    if mount is None:
        seen = f"{place}: below no mount in /proc/self/mountinfo, as in a chroot without a mounted root"
        yield warn(name, seen, "run the doctor outside of the chroot, with --data for the directory as seen from there")
        return
    seen = f"{mount.kind} on {mount.source}, mounted at {mount.point}"
    local = "move the data directory to a local ext4 file system"
    if "ro" in mount.options:
        yield fail(
            name, f"{seen}, read-only", f"look for errors in dmesg, then: mount -o remount,rw {word(mount.point)}"
        )
    elif mount.kind in FORGETS:
        yield fail(name, f"{seen}: in memory, which is lost in a power cut", local)
    elif mount.kind in REMOTE:
        yield fail(name, f"{seen}: the store's write-ahead log does not work over a network", local)
    elif mount.kind in UNJOURNALED:
        yield warn(name, f"{seen}: without a journal a power cut can damage it", local)
    elif mount.kind == "overlay":
        yield warn(name, f"{seen}: data may be removed with the container", "mount a volume for the data")
    else:
        yield ok(name, seen)
    for option, why in UNSAFE_OPTIONS.items():
        if option in mount.options:
            yield fail("mount options", f"{option}: {why}", f"remove {option} from /etc/fstab and remount")


def card(context: CheckContext) -> Iterator[CheckResult]:
    """Check the wear that the media of data and system report, and errors of their file systems."""
    place = _existing_path(context)
    if place is None:
        return
    mountinfo = context.text("proc", "self", "mountinfo") or ""
    mounts = (mount_of(each, mountinfo) for each in (place, Path("/")))
    found = (DISK.match(mount.source) for mount in mounts if mount is not None)
    devices = dict.fromkeys(match[1] for match in found if match is not None)
    for number, device in enumerate(devices):
        yield from _check_disk(context, device, worst=fail if number == 0 else warn)


def _check_disk(context: CheckContext, device: str, *, worst: Callable[..., CheckResult]) -> Iterator[CheckResult]:
    """Check a disk. `worst`: kind of result for a serious problem; a warning for the system's own disk, as in
    `waypost status`: nothing is written there."""
    life = read_storage_life(context.root / "sys/block" / device, context.root)
    kind = context.text("sys", "block", device, "device", "type") or ""
    model = context.text("sys", "block", device, "device", "name") or context.text(
        "sys", "block", device, "device", "model"
    )
    seen = " ".join(part for part in (device, kind, model, _made_on(context, device)) if part)
    if life.used_percent is not None:
        seen += f", {min(life.used_percent, 100)} % of its life used"
    problems = list(storage_problems(device, life))
    for problem in problems:
        level = warn if problem.severity is Severity.NOTICE else worst
        yield level("card", f"{seen}: {problem.what}", problem.next_step)
    if not problems:
        silent = kind == "SD" and life.used_percent is None
        yield ok("card", f"{seen}: an SD card does not report its wear" if silent else seen)


def _made_on(context: CheckContext, device: str) -> str:
    date = context.text("sys", "block", device, "device", "date")
    return f"of {date}" if date else ""


def free_space(context: CheckContext) -> Iterator[CheckResult]:
    """Check free bytes and inodes."""
    place = _existing_path(context)
    if place is None:
        return
    stat = os.statvfs(place)
    free, total = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
    seen = f"{size(free)} of {size(total)} free"
    step = "remove what is not needed, or move the data directory to a larger medium"
    if free < FREE_BYTES_FAIL:
        yield fail("free space", seen, step)
    elif free < FREE_BYTES_WARN:
        yield warn("free space", seen, step)
    else:
        yield ok("free space", seen)
    if stat.f_files and stat.f_favail < INODES_WARN:
        yield warn("inodes", f"{stat.f_favail:,} of {stat.f_files:,} free", "remove directories with many small files")


def sync_latency(context: CheckContext) -> Iterator[CheckResult]:
    """Measure how long an acknowledgement waits for the medium, by small synced writes next to the store."""
    if context.data is None or not context.data.is_dir():
        return
    name = "sync latency"
    try:
        times = sorted(_sync_times(context.data))
    except OSError as error:
        yield fail(name, f"{context.data} cannot be written: {error.strerror}", "check mount, owner and free space")
        return
    middle, slowest = statistics.median(times), times[-1]
    yield latency_result(middle, slowest)


def latency_result(middle_s: float, slowest_s: float) -> CheckResult:
    """Return the result for these times of synced writes."""
    name = "sync latency"
    seen = f"median {middle_s * 1000:.2f} ms, slowest of {SYNCS} {slowest_s * 1000:.1f} ms"
    if middle_s < SYNC_UNTRUE_S:
        step = (
            "use another medium: this one confirms writes before they are durable, so acknowledged messages can be lost"
        )
        return warn(name, f"{seen}: too fast for a durable write", step)
    if middle_s > SYNC_FAIL_S:
        return fail(name, f"{seen}: devices will time out", "replace the card; look for errors in dmesg")
    if middle_s > SYNC_WARN_S or slowest_s > SYNC_FAIL_S:
        return warn(name, seen, "use a faster card (application class A1 or A2), or find what else writes to it")
    return ok(name, seen)


def _sync_times(data: Path) -> Iterator[float]:
    """Yield the seconds of each write. Raises OSError."""
    with tempfile.NamedTemporaryFile(prefix=".doctor-", dir=data) as file:
        block = os.urandom(SYNC_BYTES)
        for _ in range(SYNCS):
            began = time.perf_counter()
            file.write(block)
            file.flush()
            os.fdatasync(file.fileno())
            yield time.perf_counter() - began
