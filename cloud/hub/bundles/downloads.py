"""Downloads of bundles: files in ranges, at a limited rate, and a limited number at once."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from cloud.hub.bundles.folder import BundleFolder, OpenBundle
from cloud.hub.bundles.limits import (
    DOWNLOAD_BURST_S,
    DOWNLOAD_BYTES_A_SECOND,
    DOWNLOADS_MAX,
    DOWNLOADS_OF_GATEWAY_MAX,
    DOWNLOADS_OF_TENANT_MAX,
    READ_BYTES,
    READERS,
)
from cloud.hub.groups import Key
from edge.broker.http.caching import NEVER_CACHED

_RANGE: Final = re.compile(r"bytes=(\d{0,15})-(\d{0,15})", re.ASCII)
MEDIA_TYPE: Final = "application/octet-stream"


class RangeNotSatisfiable(Exception):
    """The requested range begins behind the end of the file."""


class DownloadsFull(Exception):
    """A limit of simultaneous downloads is reached; the message says which."""


class FileRange(NamedTuple):
    """Bytes of a file, from `begin` up to `end`."""

    begin: int
    end: int

    @classmethod
    def parse(cls, field: str | None, size: int) -> FileRange | None:
        """Parse the field `Range` of a request for a file of `size` bytes (RFC 9110 section 14.2). None: the whole file
        is meant, as with several ranges, which a server may ignore. Raises RangeNotSatisfiable."""
        found = _RANGE.fullmatch(field) if field is not None else None
        if found is None or not (found[1] or found[2]):
            return None
        if not found[1]:
            last = min(int(found[2]), size)
            if not last:
                raise RangeNotSatisfiable
            return cls(size - last, size)
        begin, end = int(found[1]), int(found[2]) + 1 if found[2] else size
        if end <= begin < size:
            return None
        if begin >= size:
            raise RangeNotSatisfiable
        return cls(begin, min(end, size))


class DownloadRate:
    """Rate of all downloads together."""

    def __init__(self, bytes_a_second: int, burst_s: float, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._bytes_a_second = bytes_a_second
        self._burst_s = burst_s
        self._clock = clock
        self._free_at = float("-inf")
        """Time from which more may be sent at this rate."""

    def reserve_s(self, count: int) -> float:
        """Reserve bytes; return the seconds to wait before they are sent."""
        now = self._clock()
        self._free_at = max(self._free_at, now - self._burst_s) + count / self._bytes_a_second
        return max(0.0, self._free_at - now)


class BundleDownloads:
    """Downloads of one hub. Construct it inside a running loop; later `close`."""

    def __init__(self, folder: BundleFolder, rate: DownloadRate | None = None) -> None:
        """`rate`: by default that of `limits`."""
        self.folder: Final = folder
        clock = asyncio.get_running_loop().time
        self._rate = rate or DownloadRate(DOWNLOAD_BYTES_A_SECOND, DOWNLOAD_BURST_S, clock)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="bundles")
        self._of_gateway: Counter[Key] = Counter()
        self._of_tenant: Counter[str] = Counter()

    @property
    def running(self) -> int:
        """Number of downloads that are in progress."""
        return self._of_gateway.total()

    async def begin(
        self, gateway: Key, name: str, sha256: str | None, asked: str | None, condition: str | None
    ) -> Response | None:
        """Return the answer to a gateway's request for a file; None: there is no such file.

        `sha256`: that of the bundle, None for any. `asked`, `condition`: fields `Range` and `If-Range`. Raises
        DownloadsFull, OSError.
        """
        self._take(gateway)
        opening = asyncio.get_running_loop().run_in_executor(self._readers, self.folder.open, name, sha256)
        try:
            opened = await asyncio.shield(opening)
        except BaseException:
            opening.add_done_callback(_close_opened)
            self._leave(gateway)
            raise
        if opened is None:
            self._leave(gateway)
            return None

        def release() -> None:
            os.close(opened.descriptor)
            self._leave(gateway)

        fields = {**NEVER_CACHED, "Accept-Ranges": "bytes", "ETag": opened.tag}
        try:
            found = FileRange.parse(asked if condition in (None, opened.tag) else None, opened.size)
        except RangeNotSatisfiable:
            release()
            return Response(status_code=416, headers={**fields, "Content-Range": f"bytes */{opened.size}"})
        status, sent = (200, FileRange(0, opened.size)) if found is None else (206, found)
        if found is not None:
            fields["Content-Range"] = f"bytes {sent.begin}-{sent.end - 1}/{opened.size}"
        fields["Content-Length"] = str(sent.end - sent.begin)
        return _DownloadResponse(self._content(opened, sent), status, fields, release)

    async def close(self) -> None:
        """End the threads. Call it after the HTTP server has stopped."""
        self._readers.shutdown(wait=False, cancel_futures=True)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _take(self, gateway: Key) -> None:
        """Count a download. Raises DownloadsFull."""
        if self._of_gateway[gateway] >= DOWNLOADS_OF_GATEWAY_MAX:
            raise DownloadsFull(f"gateway {gateway[1]} downloads {DOWNLOADS_OF_GATEWAY_MAX} files already")
        if self._of_tenant[gateway[0]] >= DOWNLOADS_OF_TENANT_MAX:
            raise DownloadsFull(f"the gateways of the tenant download {DOWNLOADS_OF_TENANT_MAX} files already")
        if self.running >= DOWNLOADS_MAX:
            raise DownloadsFull(f"gateways download {DOWNLOADS_MAX} files already")
        self._of_gateway[gateway] += 1
        self._of_tenant[gateway[0]] += 1

    def _leave(self, gateway: Key) -> None:
        self._of_gateway[gateway] -= 1
        self._of_tenant[gateway[0]] -= 1
        if not self._of_gateway[gateway]:
            del self._of_gateway[gateway]
        if not self._of_tenant[gateway[0]]:
            del self._of_tenant[gateway[0]]

    async def _content(self, opened: OpenBundle, sent: FileRange) -> AsyncIterator[bytes]:
        """Yield the bytes of a range at the rate. Raises OSError, also for a file that has become shorter."""
        loop, place = asyncio.get_running_loop(), sent.begin
        while place < sent.end:
            count = min(READ_BYTES, sent.end - place)
            await asyncio.sleep(self._rate.reserve_s(count))
            read = await loop.run_in_executor(self._readers, os.pread, opened.descriptor, count, place)
            if not read:
                raise OSError("the file of the bundle was cut off while it was sent: remove it, and add it again")
            place += len(read)
            yield read


def _close_opened(opening: asyncio.Future[OpenBundle | None]) -> None:
    """Close a file that was opened for a request that has already ended."""
    opened = None if opening.cancelled() or opening.exception() is not None else opening.result()
    if opened is not None:
        os.close(opened.descriptor)


class _DownloadResponse(StreamingResponse):
    """Answer with bytes of a file, which is released when the answer ends, however it ends."""

    def __init__(
        self, content: AsyncIterator[bytes], status: int, fields: dict[str, str], release: Callable[[], None]
    ) -> None:
        super().__init__(content, status, fields, MEDIA_TYPE)
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["method"] == "HEAD":
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": b""})
            else:
                await super().__call__(scope, receive, send)
        finally:
            self._release()
