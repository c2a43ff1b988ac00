"""Live figures as Server-Sent Events."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response

from edge.broker.http.access import AdmittedClient, HttpAccess
from edge.broker.http.live import EVENTS, UNSENT_BYTES_MAX, LiveFeed, merge_patch
from edge.broker.model.authorization import Ended

VALUES = st.recursive(st.integers(0, 3) | st.text("ab", max_size=2), lambda inner: st.lists(inner, max_size=2))
SNAPSHOTS = st.recursive(
    st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner | VALUES, max_size=3),
)


def apply(value: Any, patch: Any) -> Any:
    """Apply a patch as RFC 7396 section 2 says."""
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            result.pop(name, None)
        else:
            result[name] = apply(result.get(name), change)
    return result


@given(SNAPSHOTS, SNAPSHOTS)
def test_patch_makes_the_new_snapshot_of_the_old_one(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert apply(old, merge_patch(old, new)) == new
    assert not merge_patch(new, new)


class Client:
    """A browser that reads a stream."""

    def __init__(self) -> None:
        self.sent = b""
        self.status = 0
        self.done = False
        self.hold: asyncio.Event | None = None
        """While it is not set, the client's connection takes no bytes."""
        self._gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        if self.hold is not None:
            await self.hold.wait()
        self.sent += message["body"]
        self.done = not message.get("more_body", False)

    def leave(self) -> None:
        self._gone.set()

    @property
    def events(self) -> list[tuple[str, Any]]:
        found = []
        for block in self.sent.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
            if "event" in fields:
                found.append((fields["event"], json.loads(fields["data"])))
        return found


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def open_stream(
    feed: LiveFeed, client: Client, query: str = "topics=status", encoding: bytes = b"identity"
) -> asyncio.Task[None]:
    headers = [(b"accept-encoding", encoding)]
    scope = {
        "type": "http", "method": "GET", "path": EVENTS, "query_string": query.encode(), "headers": headers,
        "client": ("127.0.0.1", 1), "state": {},
    }  # fmt: skip
    response: Response = await feed.respond(Request(scope, client.receive))  # type: ignore[arg-type]
    return asyncio.create_task(response(scope, client.receive, client.send))  # type: ignore[arg-type]


class Figures:
    """Source of snapshots that counts its calls."""

    def __init__(self) -> None:
        self.value: dict[str, Any] = {"a": 1, "nested": {"b": 2, "c": 3}}
        self.taken = 0

    def __call__(self) -> dict[str, Any]:
        self.taken += 1
        return json.loads(json.dumps(self.value))  # type: ignore[no-any-return]


def feed_of(figures: Figures, access: HttpAccess | None = None, streams_max: int = 8) -> LiveFeed:
    return LiveFeed({"status": figures}, access or HttpAccess(), streams_max=streams_max, interval_s=0.01)


def test_stream_sends_a_snapshot_and_then_what_changed() -> None:
    async def run() -> None:
        figures, client = Figures(), Client()
        feed = feed_of(figures)
        stream = await open_stream(feed, client)
        await until(lambda: client.events)
        figures.value = {"a": 1, "nested": {"b": 5}}
        await until(lambda: len(client.events) > 1)
        assert client.events == [
            ("status", {"a": 1, "nested": {"b": 2, "c": 3}}),
            ("status-patch", {"nested": {"b": 5, "c": None}}),
        ]
        client.leave()
        await stream
        assert feed.streams == 0

    asyncio.run(run())


def test_compressed_stream_brings_each_event_at_once() -> None:
    async def run() -> None:
        figures, client, plain = Figures(), Client(), zlib.decompressobj(wbits=31)
        stream = await open_stream(feed_of(figures), client, encoding=b"gzip, br")
        await until(lambda: client.sent)
        first, client.sent = client.sent, b""
        assert b'data: {"a":1' in plain.decompress(first)
        figures.value = {"a": 2}
        await until(lambda: client.sent)
        assert b'"a":2' in plain.decompress(client.sent)
        client.leave()
        await stream

    asyncio.run(run())


def test_nothing_runs_without_a_stream() -> None:
    async def run() -> None:
        figures, client = Figures(), Client()
        feed = feed_of(figures)
        stream = await open_stream(feed, client)
        await until(lambda: client.events)
        client.leave()
        await stream
        taken = figures.taken
        await asyncio.sleep(0.1)
        assert figures.taken == taken

    asyncio.run(run())


def test_snapshot_is_taken_once_for_all_streams() -> None:
    async def run() -> None:
        figures = Figures()
        feed = feed_of(figures)
        clients = [Client() for _ in range(5)]
        streams = [await open_stream(feed, client) for client in clients]
        await until(lambda: all(client.events for client in clients))
        assert figures.taken <= 3, "one for the first stream, and one a tick"
        for client in clients:
            client.leave()
        await asyncio.gather(*streams)

    asyncio.run(run())


def test_client_that_does_not_read_is_closed() -> None:
    async def run() -> None:
        figures, client = Figures(), Client()
        feed = feed_of(figures)
        client.hold = asyncio.Event()
        stream = await open_stream(feed, client)
        for number in range(UNSENT_BYTES_MAX // 2_000 + 2):
            figures.value = {"text": str(number) + "x" * 3_000}
            taken = figures.taken
            await until(lambda taken=taken: figures.taken > taken)
        client.hold.set()
        await asyncio.wait_for(stream, 10)
        assert client.done
        assert len(client.sent) < 2 * UNSENT_BYTES_MAX

    asyncio.run(run())


def test_stream_ends_with_the_rights_of_its_user() -> None:
    class Revocable(HttpAccess):
        ended: asyncio.Future[Ended]

        @asynccontextmanager
        async def admitted(self, request: Request) -> AsyncIterator[AdmittedClient]:
            self.ended = asyncio.get_running_loop().create_future()
            yield AdmittedClient(None, self.ended)

    async def run() -> None:
        access, client = Revocable(), Client()
        stream = await open_stream(feed_of(Figures(), access), client)
        await until(lambda: client.events)
        access.ended.set_result(next(iter(Ended)))
        await asyncio.wait_for(stream, 10)
        assert client.done

    asyncio.run(run())


@pytest.mark.parametrize("query", ["", "topics=", "topics=status,unknown"])
def test_unknown_topic_is_refused(query: str) -> None:
    async def run() -> None:
        client = Client()
        await (await open_stream(feed_of(Figures()), client, query))
        assert client.status == 400

    asyncio.run(run())


def test_stream_beyond_the_limit_is_refused() -> None:
    async def run() -> None:
        feed = feed_of(Figures(), streams_max=1)
        first, second = Client(), Client()
        stream = await open_stream(feed, first)
        await until(lambda: first.events)
        await (await open_stream(feed, second))
        assert second.status == 503
        first.leave()
        await stream

    asyncio.run(run())
