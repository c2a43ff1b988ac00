"""Checks of the machine: clock, entropy, memory, temperature and power, open files, versions."""

from __future__ import annotations

import datetime
import platform
import resource
import sqlite3
import ssl
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from bridge.version import VERSION
from edge.appliance.clock import EARLIEST
from edge.appliance.doctor.check import CheckContext, CheckResult, fail, ok, warn
from edge.output.amounts import size

ENTROPY_BITS_MIN: Final = 128
"""Entropy for a key of 128 bits; kernels since 5.18 always report 256."""
MEMORY_WARN: Final = 96 * 1024 * 1024
MEMORY_FAIL: Final = 32 * 1024 * 1024
HEAT_WARN_C: Final = 75.0
HEAT_FAIL_C: Final = 85.0
"""Limit of the Raspberry Pi, which is throttled from 80 degrees on."""
CLOCKS_APART_S: Final = 2.0
FILES_BESIDE_CONNECTIONS: Final = 100
"""Open files of store, logs, listeners, uplinks and console."""
LIBRARIES: Final = ("python-qpid-proton", "uvloop", "msgspec", "zstandard", "starlette", "uvicorn", "cryptography")

_POWER: Final = {0: "under-voltage", 1: "frequency capped", 2: "throttled", 3: "soft temperature limit"}
"""Bits of the firmware's `get_throttled`; the same 16 bits higher for "has happened since the start"."""


def clock(context: CheckContext) -> Iterator[CheckResult]:
    """Check that the clock is plausible and synchronized, and the clock chip."""
    now = context.now()
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC).isoformat(timespec="seconds")
    ntp = "run a time service (systemd-timesyncd or chrony) that reaches its server; check: timedatectl timesync-status"
    if now < EARLIEST:
        yield fail("clock", f"{moment} is before this program was built", ntp)
    elif not context.synchronized():
        yield warn("clock", f"{moment}, not synchronized: messages are stamped with an unknown clock quality", ntp)
    else:
        yield ok("clock", f"{moment}, synchronized")
    rtc = context.text("sys", "class", "rtc", "rtc0", "since_epoch")
    if rtc is None:
        yield ok("clock chip", "none: after a power cut the time is wrong until it is synchronized")
    elif not rtc.isdigit() or abs(int(rtc) - now) > CLOCKS_APART_S + 1:
        yield warn("clock chip", f"differs from the clock (it shows {rtc} s since 1970)", "run: hwclock --systohc")
    else:
        yield ok("clock chip", "present, and agrees with the clock")


def entropy(context: CheckContext) -> Iterator[CheckResult]:
    """Check the entropy for making keys."""
    text = context.text("proc", "sys", "kernel", "random", "entropy_avail")
    if text is None or not text.isdigit():
        return
    if int(text) < ENTROPY_BITS_MIN:
        step = "wait, or install rng-tools-debian to use the chip's generator, before keys are made"
        yield warn("entropy", f"{text} bits", step)
    else:
        yield ok("entropy", f"{text} bits")


def memory(context: CheckContext) -> Iterator[CheckResult]:
    """Check free memory, and swap that wears out the card."""
    figures: dict[str, int] = {}
    for line in (context.text("proc", "meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            figures[name] = int(words[0]) * 1024
    available, total = figures.get("MemAvailable"), figures.get("MemTotal")
    if available is not None and total is not None:
        seen = f"{size(available)} of {size(total)} available"
        step = "stop what is not needed; lower limits in the Gateway resource"
        if available < MEMORY_FAIL:
            yield fail("memory", seen, step)
        elif available < MEMORY_WARN:
            yield warn("memory", seen, step)
        else:
            yield ok("memory", seen)
    devices = [line.split()[0] for line in (context.text("proc", "swaps") or "").splitlines()[1:] if line.split()]
    cards = [device for device in devices if "zram" not in device]
    if any("mmcblk" in device for device in cards) or (cards and _data_on_card(context)):
        step = "swapoff and use compressed memory instead (zram): swapping wears the card out"
        yield warn("swap", ", ".join(cards), step)
    elif devices:
        yield ok("swap", ", ".join(devices))
    else:
        yield ok("swap", "none")


def _data_on_card(context: CheckContext) -> bool:
    return "mmcblk" in (context.text("proc", "mounts") or "")


def heat(context: CheckContext) -> Iterator[CheckResult]:
    """Check the temperature, and power and throttling as the firmware reports them."""
    zones = []
    for path in sorted(context.root.glob("sys/class/thermal/thermal_zone*/temp")):
        text = context.text(*path.relative_to(context.root).parts)
        if text is not None and text.lstrip("-").isdigit():
            zones.append(int(text) / 1000)
    if zones:
        hottest = max(zones)
        step = "cool it: a heat sink or a fan"
        seen = f"{hottest:.0f} °C"
        if hottest >= HEAT_FAIL_C:
            yield fail("temperature", seen, step)
        elif hottest >= HEAT_WARN_C:
            yield warn("temperature", seen, step)
        else:
            yield ok("temperature", seen)
    text = context.text("sys", "devices", "platform", "soc", "soc:firmware", "get_throttled")
    if text is None:
        return
    bits = int(text, 16)
    now = [what for bit, what in _POWER.items() if bits >> bit & 1]
    before = [what for bit, what in _POWER.items() if bits >> (bit + 16) & 1 and what not in now]
    step = "use a supply and a cable made for this board (5.1 V, 3 A), and cool it"
    if "under-voltage" in now:
        yield fail("power", f"now: {', '.join(now)}", step)
    elif now or before:
        yield warn("power", f"now: {', '.join(now) or 'good'}; since the start: {', '.join(before) or 'good'}", step)
    else:
        yield ok("power", "never throttled since the start")


def open_files(context: CheckContext) -> Iterator[CheckResult]:
    """Check that the limit of open files allows all connections."""
    wanted = context.configuration.limits.connections_max + FILES_BESIDE_CONNECTIONS
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        step = f"raise it (LimitNOFILE={wanted} in the unit, or ulimit -n), or lower limits.connectionsMax"
        yield warn("open files", f"{hard:,} allowed, {wanted:,} needed for all connections", step)
    else:
        yield ok("open files", f"{hard:,} allowed, {wanted:,} needed" if hard >= 0 else "any number allowed")


def versions(_: CheckContext) -> Iterator[CheckResult]:
    """Report the versions of program, libraries and system."""
    parts = [
        f"waypost {VERSION}",
        f"Python {platform.python_version()}",
        f"SQLite {sqlite3.sqlite_version}",
        ssl.OPENSSL_VERSION.split(" (")[0],
    ]
    missing = []
    for library in LIBRARIES:
        try:
            parts.append(f"{library.removeprefix('python-')} {version(library)}")
        except PackageNotFoundError:
            missing.append(library)
    seen = ", ".join([*parts, f"{platform.machine()} {platform.system()} {platform.release()}"])
    if missing:
        yield warn("versions", f"{seen}; not installed: {', '.join(missing)}", "pip install 'waypost[edge]'")
    else:
        yield ok("versions", seen)
