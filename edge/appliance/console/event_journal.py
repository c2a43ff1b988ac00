"""Events of a gateway over restarts: two small files in the data directory, to which new events are appended.

Problems, changes, sign-ins and the link to the hub are what a person looks for after a restart. The files are written
without a sync, at most every `WRITE_S`: the log of the system has every line, and a power cut may cost the journal its
last minutes. Some 20 events a day cost the card 80 kB a day, as it writes whole pages of 4 KiB. The bounds below allow
2.4 MB a day.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from edge.output.log_history import LogHistory, LogLine

log = logging.getLogger(__name__)

FILE: Final = "console-events"
"""File that grows, one event a line as a JSON array."""
OLD_FILE: Final = f"{FILE}.old"
"""File before it."""
FILE_BYTES_MAX: Final = 128 * 1024
"""Size at which a file becomes the old one: 256 KiB in all, some 1 500 events, weeks of a gateway."""
WRITE_S: Final = 300.0
"""Shortest time between two writes: 288 a day."""
WRITE_BYTES_MAX: Final = 4 * 1024
"""Bytes of one write; the oldest events of a flood, such as guessed passwords, and longer ones are only in the log."""
LOOK_S: Final = 5.0
"""Seconds between two looks for new events."""
MODE: Final = 0o600


class EventJournal:
    """Keeps the events of `history` in files. Call `load` first, then run `run`."""

    def __init__(self, history: LogHistory, folder: Path) -> None:
        """`folder`: data directory."""
        self._history = history
        self._file = folder / FILE
        self._old = folder / OLD_FILE
        self._written = 0
        """Number of the last event that was written, or left out."""
        self._failed = False

    def load(self) -> None:
        """Put the events of earlier processes before those of this one. Lines that cannot be read are left out."""
        found = [line for path in (self._old, self._file) for line in _read(path)]
        self._history.restore(found)
        self._written = max((line.number for line in found), default=0)

    async def run(self) -> None:
        """Write new events until cancelled, and the last ones then."""
        written_at = float("-inf")
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                if time.monotonic() - written_at >= WRITE_S and self._history.newest > self._written:
                    written_at = time.monotonic()
                    await asyncio.to_thread(self._try_to_write)
        finally:
            self._try_to_write()

    def _try_to_write(self) -> None:
        try:
            self.write()
        except Exception:  # a journal that fails must not end with the task: later events still have to be kept
            log.exception("cannot save the events")

    def write(self) -> None:
        """Append the events that are new; a failure is logged once."""
        extract = self._history.after(self._written, self._history.lines_max)
        self._written = extract.next
        data, left = b"", WRITE_BYTES_MAX
        for line in reversed(extract.lines):
            try:
                encoded = msgspec.json.encode(line) + b"\n"
            except UnicodeEncodeError:  # half a character, from the bytes of a device
                continue
            if len(encoded) <= left:
                left -= len(encoded)
                data = encoded + data
        if not data:
            return
        try:
            self._append(data)
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.warning("cannot save the events: %s: %s", error.filename or self._file, error.strerror)
            self._failed = True

    def _append(self, data: bytes) -> None:
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_APPEND, MODE)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data  # a power cut has cut the last line
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
        if size + len(data) >= FILE_BYTES_MAX:
            self._file.replace(self._old)


def _read(path: Path) -> Iterator[LogLine]:
    """Yield the events of a file, up to the size that it may have."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + WRITE_BYTES_MAX + 1)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("the events of earlier runs are missing: %s: %s", path, error.strerror)
        return
    decoder = msgspec.json.Decoder(LogLine)
    for text in data.splitlines():
        try:
            yield decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
