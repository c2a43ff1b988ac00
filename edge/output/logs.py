"""Log on stderr: one line an event, without message contents, and without blocking the caller.

Log records go into a bounded queue, which a separate thread writes. A pipe that is not read blocks only that thread:
further lines are dropped and counted. Control characters in texts of peers are escaped (`edge.output.text`), so each
event is one line. An exception is shown by type and traceback, not by its text, which may quote a message. Errors of
the system (OSError, sqlite3.Error) quote none, and are shown with their text.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sqlite3
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple

from edge.output.limits import FLUSH_S, LINE_CHARACTERS_MAX, QUEUE_CHARACTERS_MAX
from edge.output.log_history import LogHistories
from edge.output.repetition import Repetition
from edge.output.text import line

FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
UNLIMITED: Final = {"unlimited": True}
"""``extra`` of a line that is always written, however many there are of its kind."""
SYSTEM_ERRORS: Final = (OSError, sqlite3.Error)
"""Exceptions with a text of the system."""


class LogFormatter(logging.Formatter):
    """Format an event as one line; the frames of an exception follow, indented by four spaces. The frames of an
    exception that is not logged itself can be given as ``extra={"frames": …}``."""

    def __init__(self, wording: Callable[[str], str] = str) -> None:
        """`wording`: function that is applied to each text."""
        super().__init__(FORMAT)
        self._wording = wording

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        frames = record.__dict__.get("frames")
        return f"{text}\n{self.formatStack(str(frames).rstrip())}" if frames else text

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = line(self._wording(record.message))[:LINE_CHARACTERS_MAX]
        return super().formatMessage(record)

    def formatException(  # noqa: N802 - logging's name
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        return "" if ei[1] is None else "\n".join(f"    {line(shown)}" for shown in _chain(ei[1]))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging's name
        return "\n".join(f"    {line(shown)}" for shown in stack_info.split("\n"))


def describe_error(error: BaseException) -> str:
    """Return a short description of an exception that quotes no message."""
    return f"{type(error).__name__}: {error}" if isinstance(error, SYSTEM_ERRORS) else type(error).__name__


def _chain(error: BaseException) -> Iterator[str]:
    """Yield the frames and types of an exception and its causes, the original cause first."""
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in chain:
        chain.append(each)
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    for raised in reversed(chain):
        for frame in traceback.format_tb(raised.__traceback__):
            yield from frame.rstrip("\n").split("\n")
        yield describe_error(raised)


class LogCounters(NamedTuple):
    """Counters of the log since the start."""

    dropped: int
    """Lines dropped because stderr was not read."""
    repeated: int
    """Lines omitted because there were too many of their kind."""
    stuck_s: float
    """Seconds for which the current write to stderr has blocked; 0: it does not."""


class LogWriter(logging.Handler):
    """Handler that formats in the calling thread, writes on its own thread, and never blocks the caller."""

    def __init__(
        self, descriptor: int, wording: Callable[[str], str] = str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`descriptor`: file descriptor of the output, which the caller owns. `wording`: see `LogFormatter`."""
        super().__init__()
        self.setFormatter(LogFormatter(wording))
        self.histories: Final = LogHistories.empty()
        """Latest lines, which are kept even if the output is not read."""
        self._descriptor = descriptor
        self._clock = clock
        self._repetition = Repetition(clock())
        self._queued: deque[str] = deque()
        self._characters = 0
        self._dropped = 0
        self._unreported = 0
        """Lines dropped since the last line that reported it."""
        self._writing_since: float | None = None
        self._ended = False
        self._gone = False
        """True when the reader has closed the output."""
        self._work = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, or count it as dropped."""
        try:
            self._summarise()
            first = not self._repetition.waiting
            if record.__dict__.get("unlimited") or self._repetition.admits(record):
                self._write(record)
            elif first:
                self._await_summary()
        except Exception as error:  # a record that cannot be formatted must not raise in the caller
            self._put(f"a log line of {record.name} could not be formatted: {type(error).__name__}\n")

    def close(self) -> None:
        """Write the queued lines, for at most `FLUSH_S`, and stop."""
        with self._work:
            self._ended = True
            self._work.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(FLUSH_S)
        super().close()

    @property
    def figures(self) -> LogCounters:
        """Counters since the start."""
        since = self._writing_since
        return LogCounters(self._dropped, self._repetition.left_out, 0.0 if since is None else self._clock() - since)

    def _summarise(self) -> None:
        for summary in self._repetition.summaries(self._clock()):
            self._write(summary)

    def _write(self, record: logging.LogRecord) -> None:
        shown = self.format(record)
        self._put(shown + "\n")
        _, newline, frames = shown.partition("\n")
        self.histories.add(record, record.message + newline + frames)

    def _await_summary(self) -> None:
        """Wake the thread so that it waits for the time of the next summary, not only for lines."""
        with self._work:
            self._work.notify()

    def _put(self, text: str) -> None:
        with self._work:
            if self._gone or self._characters + len(text) > QUEUE_CHARACTERS_MAX:
                self._dropped += 1
                self._unreported += 1
                return
            self._queued.append(text)
            self._characters += len(text)
            if self._thread is None and not self._ended:
                self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
                self._thread.start()
            self._work.notify()

    def _run(self) -> None:
        while not self._gone and (text := self._next()) is not None:
            if not text:
                with self.lock or contextlib.nullcontext():
                    self._summarise()
                continue
            self._writing_since = self._clock()
            try:
                _write(self._descriptor, text.encode("utf-8", "backslashreplace"))
            except OSError:  # closed: stop, as the number may be reused for another file
                self._dropped += text.count("\n")
                self._gone = True
            self._writing_since = None

    def _next(self) -> str | None:
        """Return all queued lines; an empty text when a summary may be due; None at the end."""
        with self._work:
            if not self._queued:
                if self._ended:
                    return None
                self._work.wait(self._repetition.due_in(self._clock()))
            text = "".join(self._queued)
            self._queued.clear()
            self._characters = 0
            if self._unreported:
                text = f"{self._unreported} log lines were dropped: the log was not read\n{text}"
                self._unreported = 0
            return text


def write_to_stderr(level: int, wording: Callable[[str], str] = str) -> None:
    """Log to stderr from `level` on, unless logging is set up already. Uncaught exceptions are logged too."""
    root = logging.getLogger()
    if root.handlers:
        return
    writer = LogWriter(sys.stderr.fileno(), wording)
    root.addHandler(writer)
    root.setLevel(level)
    logging.getLogger("uvicorn").setLevel(max(level, logging.WARNING))  # the gateway logs its start and stop itself
    logging.raiseExceptions = False
    atexit.register(writer.close)
    sys.excepthook = _uncaught
    threading.excepthook = _thread_ended


def unhandled(_loop: object, context: Mapping[str, Any]) -> None:
    """Log an exception of a callback or a forgotten task; for `asyncio.AbstractEventLoop.set_exception_handler`.

    The loop's default handler shows the task, which quotes the text of the exception.
    """
    words, error = context.get("message", "a callback raised"), context.get("exception")
    logging.getLogger("waypost").error("%s", words, exc_info=error if isinstance(error, BaseException) else None)


def figures() -> LogCounters:
    """Return the counters of this process's log; zeros when logging was set up in another way."""
    writer = _writer()
    return LogCounters(0, 0, 0.0) if writer is None else writer.figures


def histories() -> LogHistories:
    """Return the latest lines of this process's log; none when logging was set up in another way."""
    writer = _writer()
    return LogHistories.empty() if writer is None else writer.histories


def _writer() -> LogWriter | None:
    return next((each for each in logging.getLogger().handlers if isinstance(each, LogWriter)), None)


def _uncaught(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    logging.getLogger("waypost").critical("the program ends", exc_info=(kind, error, frames))


def _thread_ended(arguments: threading.ExceptHookArgs) -> None:
    name = arguments.thread.name if arguments.thread is not None else "-"
    if arguments.exc_value is not None:
        logging.getLogger("waypost").critical("thread %s ends", name, exc_info=arguments.exc_value)


def _write(descriptor: int, data: bytes) -> None:
    """Write all data. Raises OSError."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:  # another process made the descriptor non-blocking
            time.sleep(0.05)
