"""Log and journal over HTTP."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest

from edge.broker.http.access import HttpAccess
from edge.broker.http.application import application
from edge.broker.http.log_api import LogTopic, log_routes
from edge.output.log_history import LogHistories, event


def filled() -> LogHistories:
    histories = LogHistories.empty()
    for level, text, extra in (
        (logging.INFO, "pump7 connected", {}),
        (logging.WARNING, "user 'pump8': wrong password", {}),
        (logging.INFO, "audit: user=anna", event("change")),
        (logging.INFO, "connected to hub", event("link")),
    ):
        made = logging.LogRecord("edge.test", level, "", 0, text, (), None)
        made.__dict__.update(extra)
        histories.add(made, text)
    return histories


def get(histories: LogHistories, path: str) -> httpx.Response:
    access = HttpAccess()

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(
            app=application(log_routes(histories, access.require_view), access), client=("127.0.0.1", 1)
        )
        async with httpx.AsyncClient(transport=transport, base_url="http://gw:8080") as client:
            return await client.get(path)

    return asyncio.run(ask())


def texts(answer: httpx.Response) -> list[str]:
    return [line["text"] for line in answer.json()["lines"]]


@pytest.mark.parametrize(
    ("query", "count"),
    [("", 4), ("?level=", 4), ("?level=warning", 1), ("?q=PUMP", 2), ("?limit=1", 1), ("?level=error&q=pump", 0)],
)
def test_log_is_filtered(query: str, count: int) -> None:
    assert len(texts(get(filled(), f"/api/v1/log{query}"))) == count


def test_log_continues_after_an_answer() -> None:
    histories = filled()
    first = get(histories, "/api/v1/log?limit=4").json()
    following = get(histories, f"/api/v1/log?after={first['next']}").json()
    assert (following["lines"], following["next"], following["missed"]) == ([], first["next"], 0)


@pytest.mark.parametrize(
    ("query", "found"),
    [("", ["audit: user=anna", "connected to hub"]), ("?kind=link", ["connected to hub"]), ("?q=anna&kind=link", [])],
)
def test_journal_has_events_only(query: str, found: list[str]) -> None:
    assert texts(get(filled(), f"/api/v1/journal{query}")) == found


@pytest.mark.parametrize("path", ["log?level=loud", "log?after=x", "log?limit=0", "log?limit=2001", "journal?kind=odd"])
def test_wrong_parameters_are_refused(path: str) -> None:
    answer = get(filled(), f"/api/v1/{path}")
    assert answer.status_code == 400
    assert "error" in answer.json()


def test_download_is_text() -> None:
    answer = get(filled(), "/api/v1/log.txt")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.text.count("\n") == 4
    assert "WARNING edge.test: user 'pump8': wrong password" in answer.text


def test_stream_gets_new_lines_only() -> None:
    histories = filled()
    topic = LogTopic(histories.lines)
    assert event_of(topic.whole())["lines"] == []
    assert topic.take() == b""
    histories.add(logging.LogRecord("edge.test", logging.INFO, "", 0, "new", (), None), "new")
    assert [line["text"] for line in event_of(topic.take())["lines"]] == ["new"]
    assert topic.take() == b""


def event_of(encoded: bytes) -> Any:
    name, data = encoded.decode().strip().split("\n")
    assert name == "event: log"
    return httpx.Response(200, content=data.removeprefix("data: ")).json()
