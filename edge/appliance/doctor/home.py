"""Checks of a data directory: owner and mode, secrets, configuration, and store."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from edge.appliance.doctor.check import CheckContext, CheckResult, fail, note, ok, warn
from edge.appliance.store.figures import figures_of
from edge.appliance.store.recovery.verification import Depth, VerificationReport, verify
from edge.appliance.store.room import StoreBounds, StoreRoom
from edge.appliance.store.shared import store_path
from edge.appliance.tenant_spaces import FOLDER as SPACES
from edge.appliance.wear import Outlook, advice, lasting_line, written_line
from edge.broker.store.errors import StoreError
from edge.broker.store.sqlite import FILE_NAME, kept_copies
from edge.configuration.repository import FOLDER
from edge.output.amounts import counted, number, size, span, verb
from edge.output.text import word

WALK_BYTES_MAX: Final = 256_000_000
"""Largest store of which the tree of pages is verified: about ten seconds on a card. `store verify` has no limit."""
FULL_FAIL_H: Final = 2.0
FULL_WARN_H: Final = 48.0
"""Hours until the store is full that give a warning: a weekend."""
WEAR_WARN_DAYS: Final = 90.0
"""Days left of the card that give a warning: time to arrange a site visit."""
SECRET_FILES: Final = (
    "credentials.db*", f"{FILE_NAME}*", f"{FOLDER}/*", f"{SPACES}/*/credentials.db*", f"{SPACES}/*/{FILE_NAME}*"
)  # fmt: skip
"""Files with passwords and messages, including the copies that `store repair` and `store migrate` keep."""


def directory(context: CheckContext) -> Iterator[CheckResult]:
    """Check that the directory exists, and belongs to the gateway's user alone."""
    name, data = "data directory", context.data
    if data is None:
        return
    try:
        found = data.stat()
    except FileNotFoundError:
        yield warn(name, f"{data} not found", "`waypost run` creates it; check that --data is the same there")
        return
    except OSError as error:
        yield fail(name, f"{data}: {error.strerror}", "run the doctor as the gateway's user")
        return
    if not stat.S_ISDIR(found.st_mode):
        yield fail(name, f"{data} is not a directory", "give --data the directory `waypost run` was given")
        return
    if not os.access(data, os.W_OK | os.X_OK) or (context.uid and found.st_uid != context.uid):
        owner = f"owned by user {found.st_uid}, this is user {context.uid}"
        yield fail(
            name, f"{data}: {owner}, mode {_mode(found)}", f"chown -R {context.uid} {word(data)}, or run as its owner"
        )
    elif found.st_mode & 0o077:
        yield warn(name, f"{data}: mode {_mode(found)}: other users may read it", f"chmod 700 {word(data)}")
    else:
        yield ok(name, f"{data}, mode {_mode(found)}")


def secrets(context: CheckContext) -> Iterator[CheckResult]:
    """Check that passwords, keys and messages are readable by the gateway's user alone."""
    checked = 0
    for path in _secret_files(context):
        try:
            found = path.stat()
        except OSError:
            continue  # the check of certificates reports missing files
        checked += 1
        if found.st_mode & 0o077:
            yield fail("secrets", f"{path}: mode {_mode(found)}: others may read it", f"chmod 600 {word(path)}")
        elif context.uid and found.st_uid != context.uid:
            yield fail("secrets", f"{path}: owned by user {found.st_uid}", f"chown {context.uid} {word(path)}")
    if checked:
        yield ok("secrets", f"{counted(checked, 'file')} checked")


def _secret_files(context: CheckContext) -> Iterator[Path]:
    if context.data is not None:
        for pattern in SECRET_FILES:
            yield from sorted(path for path in context.data.glob(pattern) if path.is_file())
    tls = context.configuration.tls
    if tls is not None:
        yield Path(tls.key)
    yield from (
        Path(c.tls.key) for c in context.configuration.connectors if c.tls is not None and c.tls.key is not None
    )


def _mode(found: os.stat_result) -> str:
    return f"{stat.S_IMODE(found.st_mode):04o}"


def configuration(context: CheckContext) -> Iterator[CheckResult]:
    """Check that the configuration is valid, and that this version acts on all of it."""
    name = "configuration"
    if context.data is None or not context.data.is_dir():
        return
    for error in context.errors:
        yield fail(
            name, error, f"correct the resource and apply it again: waypost apply --data {word(context.data)} -f FILE"
        )
    for notice in context.notices:
        yield warn(name, notice, "change the resource, or accept this")
    for notice in context.exposure:
        yield warn("exposure", notice, "none if the network is trusted; otherwise change listeners of the Gateway")
    if context.errors:
        return
    listening = [listener.name for listener in context.configuration.listeners]
    if not context.resources:
        step = f"waypost apply --data {word(context.data)} -f FILE; give --config FILE here if `waypost run` has it"
        yield warn(name, "nothing is applied", step)
    elif not listening:
        yield warn(name, "no listener: devices cannot connect", "give the Gateway resource a listener")
    else:
        forwarders, connectors = len(context.configuration.forwarders), len(context.configuration.connectors)
        seen = f"{counted(len(context.resources), 'resource')}, {', '.join(listening)}"
        yield ok(name, f"{seen}, {connectors} connectors, {forwarders} forwarders")


def _copies(data: Path) -> Iterator[CheckResult]:
    """Note copies of the store that use space until they are removed."""
    if copies := kept_copies(data):
        names = ", ".join(path.name for path in copies)
        what = f"kept by `store repair` or `store migrate`, {size(sum(copies.values()))}: {names}"
        yield note("store copies", what, "remove those you no longer need; the gateway does not use them")


def store(context: CheckContext) -> Iterator[CheckResult]:
    """Check the store for damage, backlog, free space, wear and losses."""
    if context.data is None or not store_path(context.data).is_file():
        return
    path = store_path(context.data)
    walked = path.stat().st_size <= WALK_BYTES_MAX
    try:
        report = verify(path, Depth.QUICK if walked else Depth.TOUCH)
        yield from _verified(report, walked=walked)
        settings, root = context.configuration, context.root
        figures = figures_of(
            path,
            running=context.running,
            now=context.now(),
            endurance_bytes=settings.endurance_bytes,
            root=root,
            bounds=StoreBounds.of(settings),
        )
    except StoreError as error:
        yield fail("store", str(error), f"waypost store verify --data {word(context.data)}")
        return
    yield from _copies(context.data)
    waiting = sum(cursor.backlog_messages for cursor in figures.cursors)
    consumers = counted(len(figures.cursors), "consumer")
    stored = f"{counted(waiting, 'message')} {verb(waiting, 'waits', 'wait')}"
    backlog = f"{stored} for {consumers}, {size(figures.bytes)} kept"
    full, lasting = figures.room.hours_to_full, figures.room.hours_of_autonomy
    seen = backlog if lasting is None else f"{backlog}; full in {span(lasting * 3600)} without an uplink"
    step = (
        f"see which consumers do not take their backlog (waypost store info --data {word(context.data)}), or free space"
    )
    if full is not None and full < FULL_FAIL_H:
        yield fail("backlog", f"{seen}; full in {span(full * 3600)}", step)
    elif full is not None and full < FULL_WARN_H:
        yield warn("backlog", f"{seen}; full in {span(full * 3600)}", step)
    else:
        yield ok("backlog", seen)
    # A running gateway with a console reports it itself, see `health`.
    if not (context.running and context.configuration.endpoint("http") is not None):
        yield from _room(figures.room)
    if figures.wear is not None:
        yield _worn(figures.wear)
    lost = sum(entry.messages for entry in figures.ledger)
    if lost:
        reasons = ", ".join(f"{number(entry.messages)} {entry.reason}" for entry in figures.ledger)
        yield warn(
            "losses",
            f"the ledger has {counted(lost, 'message')}: {reasons}",
            "sqlite3 store.sqlite 'SELECT * FROM losses'",
        )


def _room(room: StoreRoom) -> Iterator[CheckResult]:
    """Check whether messages are refused or dropped for lack of space."""
    name, step = "room", "see which consumers do not take their backlog (waypost store info); "
    if not room.usable_bytes:
        seen = "none for messages: free space is at its minimum (limits.freeFloorBytes), or the space is at its quota"
        yield fail(name, f"{seen}; more are refused, or old ones dropped", step + "free space on the card")
    if room.used_up:
        seen = f"{', '.join(room.used_up)}: the quota is used up, more messages are refused"
        yield warn(name, seen, step + "or raise spec.quota.bytes")


def _worn(wear: Outlook) -> CheckResult:
    """Return the wear of the card."""
    name, seen = "card wear", f"{written_line(wear)}; {lasting_line(wear)}"
    if wear.used is not None and wear.used >= 1:
        return fail(name, seen, "replace the card; copy the data directory while the gateway is stopped")
    if wear.days_left is not None and wear.days_left < WEAR_WARN_DAYS:
        return warn(name, seen, "have a new card ready; `durability: batch:100` writes far less than fsync")
    spare = advice(wear)
    return ok(name, seen) if spare is None else warn(name, seen, spare)


def _verified(report: VerificationReport, *, walked: bool) -> Iterator[CheckResult]:
    for finding in report.findings:
        if finding.damage:
            step = "stop the gateway; `waypost store repair` then shows what it would do"
            yield fail("store", f"{finding.where}: {finding.what}", step)
    if not report.damaged:
        scope = "" if walked else "; too large for a full check here: use waypost store verify"
        looked_at = f"{counted(report.logs, 'log')}, {counted(report.cursors, 'cursor')}"
        yield ok("store", f"no damage found in {looked_at}{scope}")
