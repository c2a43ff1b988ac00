"""Log and journal of a node over HTTP, for its console and for commands.

========================  ======  ==================================================================================
``GET /api/v1/log``       view    `LogPage`: ``?after=&level=&q=&limit=``
``GET /api/v1/log.txt``   view    all lines in memory, as text to download
``GET /api/v1/journal``   view    `LogPage` of events: ``?after=&kind=&q=&limit=``
========================  ======  ==================================================================================

A client that follows asks again with ``after=`` and the `next` of the answer, or reads the topic ``log`` of
``/api/v1/events``. At a hub it needs the right on the whole fleet. Lines have no bodies of messages and no secrets
(`edge.output.logs`).
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from edge.broker.http.application import Requirement, needing
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.json_documents import json_answer
from edge.broker.http.limits import LIVE_LOG_CHARACTERS_MAX, LIVE_LOG_LINES_MAX, LOG_LINES, LOG_LINES_MAX
from edge.broker.http.live import event_bytes
from edge.broker.http.queries import choice_of, limit_of, number_of
from edge.broker.http.route import PURE, HttpRoute
from edge.output.log_history import LogExtract, LogHistories, LogHistory, LogLine

LEVELS: Final = ("debug", "info", "warning", "error")
"""Values of `level`: lines of this level and of more serious ones."""
EVENT_KINDS: Final = ("", "change", "configuration", "link", "problem", "sign-in", "start")
"""Values of `kind`; the first is all of them."""
_NUMBERS: Final = {name: int(logging.getLevelName(name.upper())) for name in LEVELS}


class LogLineDocument(msgspec.Struct, kw_only=True):
    """One line of the log."""

    number: int
    """Later lines have higher numbers, also after a restart."""
    at: float
    """UTC seconds since 1970."""
    level: str
    """``debug``, ``info``, ``warning`` or ``error``."""
    logger: str
    """Part of the program that wrote it."""
    text: str
    """The line, and in further lines the frames of an exception."""
    event: str
    """Kind of the event, such as ``change`` for a change that a user made; empty for a line that is no event."""


class LogPage(msgspec.Struct, kw_only=True):
    """Lines of the log, the oldest first."""

    lines: list[LogLineDocument]
    """Lines after `after`; without it the latest ones."""
    next: int
    """Value of `after` for the lines that follow."""
    missed: int
    """Lines after `after` that are no longer in memory, or were too many at once."""


class LogTopic:
    """New lines as events of a stream (`edge.broker.http.live.FeedTopic`)."""

    def __init__(self, history: LogHistory) -> None:
        self._history = history
        self._last: int | None = None

    def take(self) -> bytes:
        """Return the event with the lines since the last call; empty without lines."""
        last, self._last = self._last, self._history.newest
        if last is None or last == self._last:
            return b""
        return self._event(self._history.tail(last, LIVE_LOG_LINES_MAX, LIVE_LOG_CHARACTERS_MAX))

    def whole(self) -> bytes:
        """Return an event without lines. The earlier ones are in `LogPage`."""
        if self._last is None:
            self._last = self._history.newest
        return self._event(LogExtract((), self._last, 0))

    def forget(self) -> None:
        """Drop the position, as no stream has the topic."""
        self._last = None

    @staticmethod
    def _event(extract: LogExtract) -> bytes:
        return event_bytes("log", _page(extract))


def log_routes(histories: LogHistories, require: Requirement) -> Sequence[HttpRoute]:
    """Return the routes of a node's log, for requests that fulfil a requirement."""
    log = _Log(histories)
    view = needing(require)
    return [
        HttpRoute("/api/v1/log", view(log.lines), methods=PURE),
        HttpRoute("/api/v1/log.txt", view(log.download), methods=PURE),
        HttpRoute("/api/v1/journal", view(log.events), methods=PURE),
    ]


class _Log:
    def __init__(self, histories: LogHistories) -> None:
        self._histories = histories

    async def lines(self, request: Request) -> Response:
        query = request.query_params
        level, text = _NUMBERS[choice_of(query, "level", LEVELS)], query.get("q", "").casefold()

        def wanted(line: LogLine) -> bool:
            return line.level >= level and _has(line, text)

        limit = limit_of(query, LOG_LINES, LOG_LINES_MAX)
        return json_answer(_page(self._histories.lines.after(number_of(query, "after"), limit, wanted)))

    async def events(self, request: Request) -> Response:
        query = request.query_params
        kind, text = choice_of(query, "kind", EVENT_KINDS), query.get("q", "").casefold()

        def wanted(line: LogLine) -> bool:
            return (not kind or line.event == kind) and _has(line, text)

        limit = limit_of(query, LOG_LINES, LOG_LINES_MAX)
        return json_answer(_page(self._histories.events.after(number_of(query, "after"), limit, wanted)))

    async def download(self, request: Request) -> Response:
        history = self._histories.lines
        lines = history.after(None, LOG_LINES_MAX).lines
        text = "".join(
            f"{_iso(line.at)} {logging.getLevelName(line.level):7} {line.logger}: {line.text}\n" for line in lines
        )
        headers = {**NEVER_CACHED, "Content-Disposition": 'attachment; filename="waypost.log"'}
        return Response(text, media_type="text/plain; charset=utf-8", headers=headers)


def _has(line: LogLine, text: str) -> bool:
    return not text or text in line.text.casefold() or text in line.logger


def _page(extract: LogExtract) -> LogPage:
    return LogPage(lines=[_document(line) for line in extract.lines], next=extract.next, missed=extract.missed)


def _document(line: LogLine) -> LogLineDocument:
    level = next((name for name in reversed(LEVELS) if line.level >= _NUMBERS[name]), LEVELS[0])
    return LogLineDocument(
        number=line.number, at=round(line.at, 3), level=level, logger=line.logger, text=line.text, event=line.event
    )


def _iso(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="milliseconds")
