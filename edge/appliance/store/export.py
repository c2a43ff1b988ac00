"""`waypost store export`: write selected messages to a file, streaming; the gateway may run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from edge.appliance.store.formats import WRITERS
from edge.appliance.store.records import Recorder
from edge.appliance.store.recovery.inspection import Inspection
from edge.appliance.store.selection import SkippedSegments, StoreSelection, select
from edge.broker.store.errors import StoreError


class Exported(NamedTuple):
    """Result of an export. `damaged_messages` could not be read and are not in the file."""

    messages: int
    bytes: int
    damaged_segments: int
    damaged_messages: int


def export(
    store: Path, selection: StoreSelection, form: str, target: Path | None, on_progress: Callable[[int], None]
) -> Exported:
    """Write the selected messages to `target` (None: stdout). The file appears when it is complete.

    `on_progress` is called with the bytes of bodies written. Raises StoreError, or OSError of the target.
    """
    skipped, messages, size = SkippedSegments(), 0, 0
    with Inspection.open(store) as inspection, _path_in_errors(target), _open_target(target) as out:
        epoch = inspection.meta("epoch")
        if epoch is None:
            raise StoreError("the store has no epoch, so its messages cannot be named: run `waypost store repair`")
        writer = WRITERS[form](out, Recorder(inspection.epochs(epoch)))
        for log, stored in select(inspection, selection, skipped):
            writer.write(log.name, stored)
            messages += len(stored.run.bodies)
            size += sum(map(len, stored.run.bodies))
            on_progress(size)
        writer.finish()
    return Exported(messages, size, skipped.segments, skipped.messages)


@contextlib.contextmanager
def _path_in_errors(path: Path | None) -> Iterator[None]:
    """Add the path to errors of writing."""
    try:
        yield
    except OSError as error:
        if path is not None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def _open_target(path: Path | None) -> Iterator[IO[bytes]]:
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.exists() and not path.is_file():  # write to a device or a pipe directly
        with path.open("wb") as out:
            yield out
        return
    part = path.with_name(path.name + ".part")
    descriptor = os.open(
        part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )  # messages are private
    try:
        with os.fdopen(descriptor, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
