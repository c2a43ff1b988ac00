"""The log on stderr: one line an event, never a message, never a wait.

Whoever logs puts a line into a bounded queue; a thread of its own writes it. A pipe that nobody reads stops that thread
and nobody else: lines beyond the bound are dropped and counted. What peers have given is spelled out
(`edge.output.text`), so each event is one line. Of an exception its type and place are shown and not what it says,
which may quote a message; those of the system (OSError, sqlite3.Error) say themselves what is wrong and quote none.
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
from edge.output.repetition import Repetition
from edge.output.text import line

FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
QUOTES_NOTHING: Final = (OSError, sqlite3.Error)
"""Exceptions whose text is the system's own."""


class LogFormatter(logging.Formatter):
    """One event, one line; the frames of an exception follow, each behind four spaces. Who logs the frames alone, of an
    exception whose text nobody may see, gives them as ``extra={"frames": …}``."""

    def __init__(self, wording: Callable[[str], str] = str) -> None:
        """`wording`: puts the last touch to a text of ours."""
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


def said(error: BaseException) -> str:
    """An exception in a few words that quote no message."""
    return f"{type(error).__name__}: {error}" if isinstance(error, QUOTES_NOTHING) else type(error).__name__


def _chain(error: BaseException) -> Iterator[str]:
    """Frames and type of an exception and of those it came from, the first of all first."""
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in chain:
        chain.append(each)
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    for raised in reversed(chain):
        for frame in traceback.format_tb(raised.__traceback__):
            yield from frame.rstrip("\n").split("\n")
        yield said(raised)


class LogCounters(NamedTuple):
    """Since the start."""

    dropped: int
    """Lines that nobody can read any more: stderr did not take them."""
    repeated: int
    """Lines left out because there were too many of their kind; a line says how many."""
    stuck_s: float
    """How long stderr has not taken the line under way; 0: it does."""


class LogWriter(logging.Handler):
    """Formats where it is called, writes on its own thread, and waits for nobody."""

    def __init__(
        self, descriptor: int, wording: Callable[[str], str] = str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`descriptor`: where lines go; it stays the caller's. `wording`: see `LogFormatter`."""
        super().__init__()
        self.setFormatter(LogFormatter(wording))
        self._descriptor = descriptor
        self._clock = clock
        self._repetition = Repetition(clock())
        self._queued: deque[str] = deque()
        self._characters = 0
        self._dropped = 0
        self._untold = 0
        """Dropped since the last line that said so."""
        self._writing_since: float | None = None
        self._ended = False
        self._gone = False
        """Nobody has the other end any more."""
        self._work = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, or count it."""
        try:
            self._summarise()
            told = not self._repetition.waiting
            if self._repetition.admits(record):
                self._put(self.format(record) + "\n")
            elif told:
                self._await_summary()
        except Exception as error:  # a record nobody can format must not end who logged it
            self._put(f"a log line of {record.name} could not be made: {type(error).__name__}\n")

    def close(self) -> None:
        """Write what is queued, for at most `FLUSH_S`, and stop."""
        with self._work:
            self._ended = True
            self._work.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(FLUSH_S)
        super().close()

    @property
    def figures(self) -> LogCounters:
        """See the class."""
        since = self._writing_since
        return LogCounters(self._dropped, self._repetition.left_out, 0.0 if since is None else self._clock() - since)

    def _summarise(self) -> None:
        for summary in self._repetition.summaries(self._clock()):
            self._put(self.format(summary) + "\n")

    def _await_summary(self) -> None:
        """Wake the thread: it may wait for lines alone, and the next one may never come."""
        with self._work:
            self._work.notify()

    def _put(self, text: str) -> None:
        with self._work:
            if self._gone or self._characters + len(text) > QUEUE_CHARACTERS_MAX:
                self._dropped += 1
                self._untold += 1
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
            except OSError:  # closed: nobody will ever read it, nobody can be told, and its number may be another's
                self._dropped += text.count("\n")
                self._gone = True
            self._writing_since = None

    def _next(self) -> str | None:
        """All that is queued; nothing when there may be a summary to write; None: no more will come."""
        with self._work:
            if not self._queued:
                if self._ended:
                    return None
                self._work.wait(self._repetition.due_in(self._clock()))
            text = "".join(self._queued)
            self._queued.clear()
            self._characters = 0
            if self._untold:
                text = f"{self._untold} log lines were dropped: nobody read the log\n{text}"
                self._untold = 0
            return text


def write_to_stderr(level: int, wording: Callable[[str], str] = str) -> None:
    """Log to stderr from `level` on, unless logging is set up already; what ends the program is logged too."""
    root = logging.getLogger()
    if root.handlers:
        return
    writer = LogWriter(sys.stderr.fileno(), wording)
    root.addHandler(writer)
    root.setLevel(level)
    logging.getLogger("uvicorn").setLevel(max(level, logging.WARNING))  # its life is ours, and we tell it
    logging.raiseExceptions = False
    atexit.register(writer.close)
    sys.excepthook = _uncaught
    threading.excepthook = _thread_ended


def unhandled(_loop: object, context: Mapping[str, Any]) -> None:
    """For `asyncio.AbstractEventLoop.set_exception_handler`: what a callback or a forgotten task raised. The loop's own
    way shows the task, whose representation quotes what it raised."""
    words, error = context.get("message", "a callback raised"), context.get("exception")
    logging.getLogger("waypost").error("%s", words, exc_info=error if isinstance(error, BaseException) else None)


def figures() -> LogCounters:
    """Of the log this process writes; zeros where somebody else set logging up."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogWriter):
            return handler.figures
    return LogCounters(0, 0, 0.0)


def _uncaught(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    logging.getLogger("waypost").critical("the program ends", exc_info=(kind, error, frames))


def _thread_ended(arguments: threading.ExceptHookArgs) -> None:
    name = arguments.thread.name if arguments.thread is not None else "-"
    if arguments.exc_value is not None:
        logging.getLogger("waypost").critical("thread %s ends", name, exc_info=arguments.exc_value)


def _write(descriptor: int, data: bytes) -> None:
    """All of it. Raises OSError."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:  # somebody else made the descriptor non-blocking
            time.sleep(0.05)
