"""`waypost store import`: messages back into a stopped gateway's store.

They are new messages and take the way of any other: the router decides what keeps them, and they get new sequences. How
far a file has come is written by the commit that stores its messages, under the file's SHA-256: interrupted and run
again, each message is there once.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bridge.message import DURABLE, Run
from edge.appliance.store.offline import Offline, offline
from edge.appliance.store.records import Record, parse
from edge.broker.configuration import BrokerConfiguration
from edge.broker.model.addresses import AddressTable
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.router.router import Router
from edge.broker.store.errors import StoreError, StoreFull

KIND: Final = "import"
"""Of the small state: SHA-256 of the file -> lines done, 8 bytes big-endian."""
RUN_MESSAGES_MAX: Final = 500
COMMIT_BYTES_MAX: Final = 4 * 1024 * 1024
COMMIT_MESSAGES_MAX: Final = 20_000
"""What one commit takes in: bounds memory and what is done again after an interruption."""
QOS_1: Final = 1 | DURABLE
"""Flags of a line that says none."""
HASH_BYTES: Final = 1024 * 1024


class Imported(msgspec.Struct):
    """What came of it."""

    messages: int = 0
    """Stored by this run."""
    unwanted: int = 0
    """For topics without a durable subscription or forwarder, or for addresses that do not store: nobody keeps them."""
    skipped: int = 0
    """Lines an earlier run has done."""


class _Origin(Origin):
    """Where the router believes the messages come from."""

    name = "import"

    def __init__(self) -> None:
        self.answered = 0
        self.refusal: Refusal | None = None

    def accepted(self, tokens: Sequence[int]) -> None:
        self.answered += len(tokens)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self.answered += len(tokens)
        if why in (Refusal.FULL, Refusal.NAMES, Refusal.STORE_FAILED):
            self.refusal = why


class _Clock:
    """Says of each message when it was received at first."""

    def __init__(self) -> None:
        self.at = 0

    def __call__(self) -> int:
        return self.at or time.time_ns()


def import_messages(
    data: Path,
    source: Path,
    configuration: BrokerConfiguration,
    on_progress: Callable[[int, int], None],
    *,
    again: bool = False,
) -> Imported:
    """Publish the lines of an NDJSON file to their addresses. `again`: whatever was imported of it before.

    The gateway must be stopped. Raises StoreError naming the line that is none (what came before it is stored),
    StoreFull when a quota or the medium is full, or OSError of the file.
    """
    digest, size = _digest(source)
    with source.open("rb") as file:
        next(_groups(itertools.islice(enumerate(file, 1), 1), source), None)  # another kind of file changes nothing
    done = Imported()
    with offline(data) as opened:
        router, clock = _router(opened, configuration)
        origin = _Origin()
        known = {key: int.from_bytes(value, "big") for key, value in opened.store.items(KIND)}
        skip = 0 if again else known.get(digest, 0)
        with source.open("rb") as file:
            lines = iter(enumerate(file, 1))
            done.skipped = sum(1 for _ in itertools.islice(lines, skip))
            read = file.tell
            for group in _groups(lines, source):
                number = _publish(group, router, clock, origin, opened, done)
                opened.store.put(KIND, digest, number.to_bytes(8, "big"))
                _commit(opened, router, origin)
                on_progress(read(), size)
    return done


def _router(opened: Offline, configuration: BrokerConfiguration) -> tuple[Router, _Clock]:
    clock = _Clock()
    table = AddressTable(configuration.rules, configuration.default_rule)
    router = Router(
        opened.store, table, clock_ns=clock, flush_soon=lambda: None, policies=configuration.policies,
        monotonic_s=time.monotonic, limits=configuration.limits,
    )  # fmt: skip
    return router, clock


def _publish(
    group: Sequence[tuple[int, Record]], router: Router, clock: _Clock, origin: _Origin, opened: Offline, done: Imported
) -> int:
    """Give the router a group's messages, run by run; returns the number of its last line."""
    for run in _runs(group):
        before = opened.store.gathered
        clock.at = run.received_at
        router.publish(origin, run, range(len(run.bodies)))
        if opened.store.gathered > before:
            done.messages += len(run.bodies)
        else:
            done.unwanted += len(run.bodies)
    clock.at = 0
    return group[-1][0]


def _commit(opened: Offline, router: Router, origin: _Origin) -> None:
    """All of the group on disk, with the line it ends at. Raises StoreError."""
    if origin.refusal is not None:
        raise StoreFull("an address or the medium has no room for more: raise its quota, then run the import again")
    opened.settle_urgent(router.flush)
    if origin.refusal is not None:
        raise StoreError("the store could not write: nothing of the last lines is kept; run the import again")


def _groups(lines: Iterator[tuple[int, bytes]], source: Path) -> Iterator[list[tuple[int, Record]]]:
    """Records with their line numbers, as many as a commit takes."""
    group: list[tuple[int, Record]] = []
    size = 0
    for number, line in lines:
        if not line.strip():
            continue
        try:
            record = parse(line, number)
        except StoreError as why:
            if group:
                yield group
            raise StoreError(f"{source}: {why}; lines are those of `waypost store export`") from None
        group.append((number, record))
        size += len(line)
        if size >= COMMIT_BYTES_MAX or len(group) >= COMMIT_MESSAGES_MAX:
            yield group
            group, size = [], 0
    if group:
        yield group


def _runs(group: Sequence[tuple[int, Record]]) -> Iterator[Run]:
    run: Run | None = None
    for _, record in group:
        flags = QOS_1 if record.flags is None else record.flags
        properties = record.raw_properties
        alike = (record.address, record.device, flags, properties, record.received_ns)
        if run is not None and len(run.bodies) < RUN_MESSAGES_MAX and alike == (
            run.address, run.device, run.flags, run.properties, run.received_at
        ):  # fmt: skip
            run.bodies.append(record.body)
            continue
        if run is not None:
            yield run
        run = Run(record.address, record.device, flags, properties, [record.body], record.received_ns)
    if run is not None:
        yield run


def _digest(source: Path) -> tuple[str, int]:
    """(SHA-256, bytes) of a file."""
    digest = hashlib.sha256()
    size = 0
    with source.open("rb") as file:
        while part := file.read(HASH_BYTES):
            digest.update(part)
            size += len(part)
    return digest.hexdigest(), size
