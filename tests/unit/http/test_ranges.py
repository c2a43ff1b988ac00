"""Ranges of files (RFC 9110 section 14)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from edge.broker.http.ranges import ByteRange, file_response
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute

CONTENT = b"0123456789"
TAG = '"abc"'


async def _read(wanted: ByteRange) -> AsyncIterator[bytes]:
    for at in range(wanted.start, wanted.stop):
        yield CONTENT[at : at + 1]


async def _answer(request: Request) -> Response:
    try:
        return file_response(request, len(CONTENT), TAG, "application/octet-stream", _read, {})
    except RequestRefused as refused:
        return refused.response()


class FileClient:
    """Client of an application with one file."""

    def __init__(self) -> None:
        self._app = Starlette(routes=[HttpRoute("/file", _answer, methods=PURE)])

    def ask(self, method: str = "GET", **fields: str) -> httpx.Response:
        async def asked() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(
                    method, "/file", headers={k.replace("_", "-"): v for k, v in fields.items()}
                )

        return asyncio.run(asked())


@pytest.fixture
def client() -> FileClient:
    return FileClient()


def test_whole_file(client: FileClient) -> None:
    answer = client.ask()
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert (answer.headers["etag"], answer.headers["accept-ranges"], answer.headers["content-length"]) == (
        TAG, "bytes", "10",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "content", "place"),
    [
        ("bytes=0-3", b"0123", "bytes 0-3/10"),
        ("bytes=4-", b"456789", "bytes 4-9/10"),
        ("bytes=8-99", b"89", "bytes 8-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=-99", CONTENT, "bytes 0-9/10"),
        ("bytes=9-9", b"9", "bytes 9-9/10"),
    ],
)
def test_part(client: FileClient, wanted: str, content: bytes, place: str) -> None:
    answer = client.ask(range=wanted)
    assert (answer.status_code, answer.content, answer.headers["content-range"]) == (206, content, place)


@pytest.mark.parametrize("wanted", ["bytes=", "bytes=-", "lines=0-1", "bytes=0-1,3-4", "bytes=5-2", "bytes=a-b"])
def test_range_that_is_not_understood_is_ignored(client: FileClient, wanted: str) -> None:
    answer = client.ask(range=wanted)
    assert (answer.status_code, answer.content) == (200, CONTENT)


@pytest.mark.parametrize("wanted", ["bytes=10-", "bytes=99-100", "bytes=-0"])
def test_range_outside_the_file(client: FileClient, wanted: str) -> None:
    answer = client.ask(range=wanted)
    assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */10")


def test_conditions(client: FileClient) -> None:
    assert client.ask(range="bytes=1-2", if_range=TAG).status_code == 206
    assert client.ask(range="bytes=1-2", if_range='"old"').content == CONTENT
    assert client.ask(if_none_match=f'"x", {TAG}').status_code == 304
    assert client.ask(if_none_match='"x"').status_code == 200
    head = client.ask("HEAD", range="bytes=0-1")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "10")
