"""Log lines: one for each event, without message bodies, without blocking, and with a limit of their rate."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from edge.output import limits
from edge.output.logs import LogWriter, unhandled
from tests.support.processes import wait_until

MARKER = "marker-7f3a"


@contextmanager
def logging_to(
    descriptor: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[tuple[logging.Logger, LogWriter]]:
    log, writer = logging.Logger("test.peer"), LogWriter(descriptor, clock=clock)  # noqa: LOG001 - of this test alone
    log.addHandler(writer)
    try:
        yield log, writer
    finally:
        writer.close()


def written(*calls: tuple[str, tuple[object, ...]], error: BaseException | None = None) -> str:
    """Return the log after these lines."""
    reading, writing = os.pipe()
    with logging_to(writing) as (log, _):
        for text, values in calls:
            log.warning(text, *values, exc_info=error)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        return file.read().decode()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\n2026-01-01 00:00:00,000 ERROR   edge: forged", "a\\n2026-01-01"),
        ("a\r\x1b[2J\x07", "a\\r\\x1b[2J\\x07"),
        ("a\u202egpj.exe", "a\\u202egpj.exe"),
        ("a\u2028b\x85c", "a\\u2028b\\x85c"),
        ("a\udcff", "a\\udcff"),
    ],
)
def test_one_event_is_one_line(name: str, shown: str) -> None:
    text = written(("connected: %s", (name,)))
    assert shown in text
    assert text.count("\n") == 1
    assert text.isprintable() or text.rstrip("\n").isprintable()


def test_exception_shows_type_and_place_without_its_text() -> None:
    def outer() -> None:
        try:
            int(MARKER)
        except ValueError as error:
            raise KeyError(MARKER) from error

    try:
        outer()
    except KeyError as error:
        text = written(("it ends", ()), error=error)
    for part in ("ValueError", "KeyError", "in outer"):
        assert part in text
    assert MARKER not in text
    assert all(line.startswith("    ") for line in text.splitlines()[1:])


def test_error_of_the_system_is_shown() -> None:
    for error in (OSError(28, "No space left on device"), sqlite3.OperationalError("disk I/O error")):
        assert str(error) in written(("it fails", ()), error=error)


def test_line_length_is_bounded() -> None:
    text = written(("reason: %s", ("x" * 100_000,)))
    assert len(text) < limits.LINE_CHARACTERS_MAX + 100


def test_blocked_pipe_blocks_no_thread_and_drops_are_counted() -> None:
    reading, writing = os.pipe()
    with logging_to(writing) as (log, writer):
        log.setLevel(logging.DEBUG)
        began = time.monotonic()
        for number in range(20_000):
            log.debug("%d %s", number, "x" * 100)
        assert time.monotonic() - began < 10, "about 20 us each, and it never waits"
        assert writer.figures.dropped > 1_000
        wait_until(lambda: writer.figures.stuck_s > 0, timeout_s=10, what="the writer waits for the reader")
        dropped = writer.figures.dropped
        os.set_blocking(reading, False)
        text = b""

        def all_read() -> bool:
            nonlocal text
            try:
                text += os.read(reading, 1 << 20)
            except BlockingIOError:
                return writer.figures.stuck_s == 0
            return False

        wait_until(all_read, timeout_s=30, what="what was kept is written")
        log.debug("after")
        wait_until(lambda: all_read() and b"after" in text, timeout_s=10, what="the line after it")
        assert f"{dropped} log lines were dropped".encode() in text
    os.close(reading)
    os.close(writing)


def test_exit_does_not_wait_for_a_reader() -> None:
    reading, writing = os.pipe()
    with logging_to(writing) as (log, _):
        for _ in range(1_000):
            log.error("%s", "x" * 200)
            log.debug("%s", "x" * 200)
        began = time.monotonic()
    assert time.monotonic() - began < limits.FLUSH_S + 3
    os.close(reading)  # lets the thread end
    wait_until(
        lambda: not any(each.name == "log-writer" for each in threading.enumerate()), timeout_s=10, what="it goes"
    )
    os.close(writing)


def test_flood_is_limited_and_the_rest_is_counted() -> None:
    now = [0.0]
    reading, writing = os.pipe()
    log = logging.Logger("test.flood")  # noqa: LOG001 - of this test alone
    writer = LogWriter(writing, clock=lambda: now[0])
    log.addHandler(writer)
    for port in range(1_000):
        log.warning("no TLS with %s", f"10.0.0.1:{port}")
    log.warning("no TLS with %s", "10.0.0.2:1")
    log.warning("another kind: %s", "10.0.0.1:1")
    now[0] += limits.REPETITION_S
    log.warning("no TLS with %s", "10.0.0.1:1")
    writer.close()
    os.close(writing)
    with os.fdopen(reading) as file:
        lines = file.read().splitlines()
    assert sum("10.0.0.1" in line and "no TLS" in line for line in lines) == limits.REPETITION_OF_ONE_MAX + 2
    assert sum("10.0.0.2" in line for line in lines) == 1, "others are still told of"
    assert sum("another kind" in line for line in lines) == 1
    [summary] = [line for line in lines if "more in" in line]
    assert f"{1_000 - limits.REPETITION_OF_ONE_MAX} more" in summary
    assert summary.endswith("no TLS with 10.0.0.1:999")
    assert writer.figures.repeated == 1_000 - limits.REPETITION_OF_ONE_MAX


def test_many_peers_do_not_avoid_the_limit_or_cost_memory() -> None:
    reading, writing = os.pipe()
    with logging_to(writing) as (log, writer):
        for peer in range(2 * limits.REPETITION_KINDS_MAX):
            log.warning("refused: %s", f"peer {peer}")
        assert writer.figures.repeated == 2 * limits.REPETITION_KINDS_MAX - limits.REPETITION_OF_ALL_MAX
    os.close(reading)
    os.close(writing)


def test_rest_is_reported_when_logging_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.output.repetition.REPETITION_S", 0.2)
    reading, writing = os.pipe()
    now_s = 0.0
    with logging_to(writing, lambda: now_s) as (log, _):
        os.set_blocking(reading, False)
        text = ""

        def lines() -> int:
            nonlocal text
            with suppress(BlockingIOError):
                text += os.read(reading, 1 << 16).decode()
            return text.count("\n")

        for _ in range(limits.REPETITION_OF_ONE_MAX):
            log.warning("again")
        wait_until(lambda: lines() == limits.REPETITION_OF_ONE_MAX, timeout_s=10, what="lines that nothing keeps back")
        for _ in range(5):  # now that the writer has no backlog
            log.warning("again")
        now_s = 1.0
        wait_until(lambda: lines() > limits.REPETITION_OF_ONE_MAX, timeout_s=10, what="the summary")
    assert "5 more in" in text
    os.close(reading)
    os.close(writing)


def test_unretrieved_task_exception_shows_no_message() -> None:
    async def forgotten() -> None:
        raise ValueError(MARKER)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(unhandled)
        task = asyncio.create_task(forgotten())
        await asyncio.wait([task])
        del task
        gc.collect()

    reading, writing = os.pipe()
    writer = LogWriter(writing)
    logging.getLogger("waypost").addHandler(writer)
    try:
        asyncio.run(main())
    finally:
        logging.getLogger("waypost").removeHandler(writer)
        writer.close()
        os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    assert "never retrieved" in text
    assert "ValueError" in text
    assert MARKER not in text


def test_unformattable_record_is_logged_without_its_values() -> None:
    text = written(("%d", (MARKER,)))
    assert "could not be formatted" in text
    assert MARKER not in text
