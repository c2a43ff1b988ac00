"""Live figures for the pages of a console: ``GET /api/v1/events``, as Server-Sent Events (WHATWG HTML section 9.2).

A page asks for topics (``?topics=status,problems``). For each it gets a snapshot (event ``TOPIC``), and then once a
tick what changed, as JSON Merge Patch (RFC 7396; event ``TOPIC-patch``): a null says that a key is gone. Everything is
encoded once a tick, for all streams. Without a stream nothing runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edge.broker.http.access import AdmittedClient, HttpAccess
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.peer import peer_of, wait_closed
from edge.broker.http.refusal import RequestRefused

EVENTS: Final = "/api/v1/events"
UNSENT_BYTES_MAX: Final = 64 * 1024
"""Bytes that a stream may be behind. A page that reads more slowly is closed, and connects again."""
KEEP_ALIVE_S: Final = 15.0
"""Pause after which a comment shows proxies that the stream is alive."""
RETRY_MS: Final = 5_000
"""Pause of a browser before it connects again."""
COMPRESSION_LEVEL: Final = 5
COMPRESSION_WINDOW_BITS: Final = 13
COMPRESSION_MEMORY: Final = 5
"""A stream repeats the same names each second: it takes a third compressed, 20 us a tick, and 50 kB of memory. A
window of 8 kB covers the events before."""
HEADERS: Final = {
    "Content-Type": "text/event-stream",
    **NEVER_CACHED,
    "Vary": "Accept-Encoding",
    "X-Accel-Buffering": "no",
}

Snapshot = Mapping[str, Any]
SnapshotSource = Callable[[], Snapshot]
"""Returns a new object at each call, made of JSON types."""


def merge_patch(old: Snapshot, new: Snapshot) -> dict[str, Any]:
    """Return the patch that makes `new` of `old` (RFC 7396). Lists are replaced as a whole."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := merge_patch(before, value):
                patch[name] = inner
        elif before != value or name not in old:
            patch[name] = value
    return patch


class FeedTopic(Protocol):
    """Topic of a stream, encoded once for all streams."""

    def take(self) -> bytes:
        """Return the event with what is new since the last call; empty without news."""
        ...

    def whole(self) -> bytes:
        """Return the first event of a stream."""
        ...

    def forget(self) -> None:
        """Drop the state, as no stream has the topic."""
        ...


class LiveTopic:
    """Snapshots of one topic. `take` is called once a tick while a stream has the topic."""

    def __init__(self, name: str, source: SnapshotSource) -> None:
        self._name = name
        self._source = source
        self._last: Snapshot | None = None

    def take(self) -> bytes:
        """Take a snapshot; return the event with what changed since the last one, empty if nothing did."""
        last, self._last = self._last, self._source()
        if last is None:
            return b""
        patch = merge_patch(last, self._last)
        return event_bytes(f"{self._name}-patch", patch) if patch else b""

    def whole(self) -> bytes:
        """Return the event with the last snapshot, which the next patch continues."""
        if self._last is None:
            self._last = self._source()
        return event_bytes(self._name, self._last)

    def forget(self) -> None:
        """Drop the snapshot, as no stream has the topic."""
        self._last = None


def event_bytes(name: str, value: object) -> bytes:
    """Return an event of a stream, with its value as JSON."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"


class EventQueue:
    """Events of one stream that are not sent yet, up to `UNSENT_BYTES_MAX`."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self.ended = False
        self._unsent: deque[bytes] = deque()
        self._bytes = 0

    @property
    def has_room(self) -> bool:
        """False while half of the room is used: then optional events are better left out."""
        return self._bytes < UNSENT_BYTES_MAX // 2

    def put(self, events: bytes) -> None:
        """Add events; a stream that is too far behind ends."""
        if not events or self.ended:
            return
        self._unsent.append(events)
        self._bytes += len(events)
        if self._bytes > UNSENT_BYTES_MAX:
            self.end()
        self.arrived.set()

    def take(self) -> bytes:
        """Remove and return all events."""
        events = b"".join(self._unsent)
        self._unsent.clear()
        self._bytes = 0
        self.arrived.clear()
        self._taken.set()
        return events

    async def wait_for_room(self) -> None:
        """Wait until there is room for another event, or the stream has ended."""
        while not self.has_room and not self.ended:
            self._taken.clear()
            await self._taken.wait()

    def end(self) -> None:
        """End the stream, after the events that are in it."""
        self.ended = True
        self._taken.set()
        self.arrived.set()


class _Subscriber(EventQueue):
    """Stream of live figures."""

    def __init__(self, topics: Iterable[str]) -> None:
        super().__init__()
        self.topics = frozenset(topics)


class LiveFeed:
    """All streams of one console."""

    def __init__(
        self,
        sources: Mapping[str, SnapshotSource],
        access: HttpAccess,
        *,
        streams_max: int,
        interval_s: float = 1.0,
        more: Mapping[str, FeedTopic] | None = None,
    ) -> None:
        """`sources` by topic. The caller checks rights; `access` ends streams of clients that lose theirs. `more`:
        topics that are no snapshots.

        `interval_s`: time between two ticks.
        """
        self._topics: dict[str, FeedTopic] = {name: LiveTopic(name, source) for name, source in sources.items()}
        self._topics.update(more or {})
        self._access = access
        self._streams_max = streams_max
        self._interval_s = interval_s
        self._subscribers: set[_Subscriber] = set()
        self._ticking: asyncio.Task[None] | None = None

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._subscribers)

    async def respond(self, request: Request) -> Response:
        """Answer with a stream; 400 for an unknown topic, 503 when there are too many streams."""
        wanted = [name for name in request.query_params.get("topics", "").split(",") if name]
        unknown = [name for name in wanted if name not in self._topics]
        if unknown or not wanted:
            return RequestRefused(400, f"topics must be some of {', '.join(self._topics)}").response()
        if len(self._subscribers) >= self._streams_max:
            return RequestRefused(503, f"{self._streams_max} pages are open: this one asks less often").response()
        subscriber = _Subscriber(wanted)
        return EventStream(request, subscriber, self._following(request, subscriber))

    @contextlib.asynccontextmanager
    async def _following(self, request: Request, subscriber: _Subscriber) -> AsyncIterator[AdmittedClient]:
        async with self._access.admitted(request) as client:
            self._subscribe(subscriber)
            try:
                yield client
            finally:
                self._unsubscribe(subscriber)

    def _subscribe(self, subscriber: _Subscriber) -> None:
        """Add a stream, which gets a snapshot of each topic at once."""
        self._subscribers.add(subscriber)
        subscriber.put(b"retry: %d\n\n" % RETRY_MS)
        for name in sorted(subscriber.topics):
            subscriber.put(self._topics[name].whole())
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._tick(), name="console: live figures")

    def _unsubscribe(self, subscriber: _Subscriber) -> None:
        """Remove a stream. After the last one nothing runs."""
        self._subscribers.discard(subscriber)
        used = frozenset[str]().union(*(each.topics for each in self._subscribers))
        for name, topic in self._topics.items():
            if name not in used:
                topic.forget()
        if not self._subscribers and self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            used = frozenset[str]().union(*(each.topics for each in self._subscribers))
            events = {name: self._topics[name].take() for name in sorted(used)}
            for each in self._subscribers:
                each.put(b"".join(events[name] for name in sorted(each.topics)))


class EventStream(Response):
    """The answer of one stream. It ends with the client's connection, its rights, or its queue."""

    def __init__(
        self, request: Request, events: EventQueue, following: contextlib.AbstractAsyncContextManager[AdmittedClient]
    ) -> None:
        """`following` admits the client, and has events put into the queue until it is left; raises RequestRefused."""
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._request = request
        self._events = events
        self._following = following

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        events = self._events
        async with contextlib.AsyncExitStack() as stack:
            try:
                client = await stack.enter_async_context(self._following)
            except RequestRefused as refused:
                await refused.response()(scope, receive, send)
                return
            client.ended.add_done_callback(lambda _: events.end())
            gone = asyncio.ensure_future(wait_closed(receive))
            gone.add_done_callback(lambda _: events.end())
            stack.callback(gone.cancel)
            encode = self._encoder()
            with peer_of(self._request).parking():
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                while not events.ended:
                    body = encode(events.take() or b":\n\n")
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(KEEP_ALIVE_S):
                            await events.arrived.wait()
                await send({"type": "http.response.body", "body": encode(events.take()), "more_body": False})

    def _encoder(self) -> Callable[[bytes], bytes]:
        """Return a function that encodes a part of the stream: compressed for clients that accept it."""
        if "gzip" not in self._request.headers.get("accept-encoding", ""):
            return lambda events: events
        self.headers["content-encoding"] = "gzip"
        gzip_bits = 16 + COMPRESSION_WINDOW_BITS
        compressor = zlib.compressobj(COMPRESSION_LEVEL, wbits=gzip_bits, memLevel=COMPRESSION_MEMORY)

        def encode(events: bytes) -> bytes:
            return compressor.compress(events) + compressor.flush(zlib.Z_SYNC_FLUSH)

        return encode
