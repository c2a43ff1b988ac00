"""`waypost store import`: publish messages of a file into a stopped gateway's store.

They are new messages: the router decides where they are stored, and they get new sequences. The commit that stores them
also records the progress in the file, by the file's SHA-256. After an interruption and a second run, each message is
stored once.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bridge.message import DURABLE, Run
from edge.appliance.store.offline import OfflineStore, offline
from edge.appliance.store.records import MessageRecord, parse
from edge.broker.configuration import BrokerConfiguration
from edge.broker.model.addresses import AddressTable
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.router.batch import Publication
from edge.broker.router.router import Router
from edge.broker.store.errors import StoreError, StoreFull
from edge.broker.store.records import Committed
from edge.broker.store.sqlite import SqliteStore
from edge.broker.store.ticket import Ticket

KIND: Final = "import"
"""Kind of small state: SHA-256 of the file -> imported lines, 8 bytes big-endian."""
RUN_MESSAGES_MAX: Final = 500
COMMIT_BYTES_MAX: Final = 4 * 1024 * 1024
COMMIT_MESSAGES_MAX: Final = 20_000
"""Messages of one commit: limits memory, and the work repeated after an interruption."""
QOS_1: Final = 1 | DURABLE
"""Flags of a line without any."""
HASH_BYTES: Final = 1024 * 1024


class Imported(msgspec.Struct):
    """Result of an import."""

    messages: int = 0
    """Messages stored by this run."""
    unwanted: int = 0
    """Messages that are not stored: their topic has no durable subscription or forwarder, or the address does not
    store."""
    skipped: int = 0
    """Lines imported by an earlier run."""


class _ImportOrigin(Origin):
    """Origin of one run. It records a refusal immediately, not after answers that wait for a commit."""

    name = "import"

    def __init__(self) -> None:
        self.refusal: Refusal | None = None

    def accepted(self, tokens: Sequence[int]) -> None:
        """Do nothing: a message without a refusal is stored by the end of its commit."""

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        if why in (Refusal.FULL, Refusal.NAMES, Refusal.STORE_FAILED):
            self.refusal = why


class _ImportProgress:
    """Progress in the file, recorded in the store.

    After a failed commit its small state joins the next one, and its messages do not. The previous progress is then
    written again, so that it joins that commit too."""

    def __init__(self, store: SqliteStore, digest: str) -> None:
        self._store = store
        self._digest = digest
        self._kept = dict(store.state.items(KIND)).get(digest)
        self._reached = b""
        self._ticket: Ticket | None = None
        store.commits.listeners.append(self._committed)

    @property
    def line(self) -> int:
        return 0 if self._kept is None else int.from_bytes(self._kept, "big")

    def record_progress(self, line: int) -> None:
        """Record that the next commit has the messages up to this line."""
        self._reached = line.to_bytes(8, "big")
        self._ticket = self._store.state.put(KIND, self._digest, self._reached)

    def _committed(self, _commit: Committed) -> None:
        ticket = self._ticket
        if ticket is None or not ticket.decided:
            return
        self._ticket = None
        if ticket.error is None:
            self._kept = self._reached
        elif self._kept is None:
            self._store.state.delete(KIND, self._digest)
        else:
            self._store.state.put(KIND, self._digest, self._kept)


class _ReceptionClock:
    """Clock for the router: the time at which a message was first received."""

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
    """Publish the lines of an NDJSON file to their addresses. `again`: also those imported before.

    The gateway must be stopped. Raises StoreError with the number of an invalid line; StoreFull with the number of the
    first line that does not fit; OSError of the file. Lines before the error are stored.
    """
    digest, size = _digest(source)
    with source.open("rb") as file:
        next(
            _groups(itertools.islice(enumerate(file, 1), 1), source), None
        )  # reject another kind of file before any change
    done = Imported()
    with offline(data) as opened:
        router, clock = _router(opened, configuration)
        progress = _ImportProgress(opened.store, digest)
        skip = 0 if again else progress.line
        with source.open("rb") as file:
            lines = iter(enumerate(file, 1))
            done.skipped = sum(1 for _ in itertools.islice(lines, skip))
            read = file.tell
            for group in _groups(lines, source):
                published = _publish(group, router, clock, opened, done)
                if published.line:
                    progress.record_progress(published.line)
                    _commit(opened, router, published.origins)
                if published.full:
                    raise StoreFull(
                        f"line {published.full} and the following do not fit into an address or the medium: raise the "
                        "quota, then run the import again"
                    )
                on_progress(read(), size)
    return done


def _router(opened: OfflineStore, configuration: BrokerConfiguration) -> tuple[Router, _ReceptionClock]:
    clock = _ReceptionClock()
    table = AddressTable(configuration.rules, configuration.default_rule)
    router = Router(
        opened.store, table, clock_ns=clock, flush_soon=lambda: None, policies=configuration.policies,
        monotonic_s=time.monotonic, limits=configuration.limits,
    )  # fmt: skip
    return router, clock


class _Published(NamedTuple):
    """Result of publishing a group, before its commit."""

    line: int
    """Last accepted line; 0: none."""
    full: int
    """First line that does not fit; 0: all fit."""
    origins: Sequence[_ImportOrigin]


def _publish(
    group: Sequence[tuple[int, MessageRecord]],
    router: Router,
    clock: _ReceptionClock,
    opened: OfflineStore,
    done: Imported,
) -> _Published:
    """Publish a group's messages, run by run, until one does not fit."""
    line, full = 0, 0
    origins: list[_ImportOrigin] = []
    for first, last, run in _runs(group):
        before = opened.store.commits.gathered
        clock.at = run.received_at
        origin = _ImportOrigin()
        router.publish(Publication(origin, run, range(len(run.bodies))))
        if origin.refusal is not None:
            full = first
            break
        line = last
        origins.append(origin)
        if opened.store.commits.gathered > before:
            done.messages += len(run.bodies)
        else:
            done.unwanted += len(run.bodies)
    clock.at = 0
    return _Published(line, full, origins)


def _commit(opened: OfflineStore, router: Router, origins: Sequence[_ImportOrigin]) -> None:
    """Commit a group with its last line. Raises StoreError."""
    opened.settle_urgent(router.flush)
    if any(origin.refusal is not None for origin in origins):
        raise StoreError("the store could not write: the last lines are not stored; run the import again")


def _groups(lines: Iterator[tuple[int, bytes]], source: Path) -> Iterator[list[tuple[int, MessageRecord]]]:
    """Yield records with their line numbers, in groups for one commit."""
    group: list[tuple[int, MessageRecord]] = []
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


def _runs(group: Sequence[tuple[int, MessageRecord]]) -> Iterator[tuple[int, int, Run]]:
    """Yield (first line, last line, run of messages with equal properties)."""
    run: Run | None = None
    first = last = 0
    for number, record in group:
        flags = QOS_1 if record.flags is None else record.flags
        properties = record.raw_properties
        alike = (record.address, record.publisher, flags, properties, record.received_ns)
        if run is not None and len(run.bodies) < RUN_MESSAGES_MAX and alike == (
            run.address, run.device, run.flags, run.properties, run.received_at
        ):  # fmt: skip
            run.bodies.append(record.body)
            last = number
            continue
        if run is not None:
            yield first, last, run
        run = Run(record.address, record.publisher, flags, properties, [record.body], record.received_ns)
        first = last = number
    if run is not None:
        yield first, last, run


def _digest(source: Path) -> tuple[str, int]:
    """Return (SHA-256, bytes) of a file."""
    digest = hashlib.sha256()
    size = 0
    with source.open("rb") as file:
        while part := file.read(HASH_BYTES):
            digest.update(part)
            size += len(part)
    return digest.hexdigest(), size
