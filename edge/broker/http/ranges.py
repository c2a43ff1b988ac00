"""Parts of files (RFC 9110 section 14): one range of bytes, and the condition If-Range."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from edge.broker.http.refusal import RequestRefused

_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
_BYTES: Final = {"Accept-Ranges": "bytes"}


class ByteRange(NamedTuple):
    """Bytes ``start`` up to, and without, ``stop``."""

    start: int
    stop: int


def requested_range(request: Request, size: int, tag: str) -> ByteRange | None:
    """Return the part of a file that a request asks for; None for all of it.

    Several ranges, and a range of another state of the file (If-Range), are answered with all of it, as a server may.
    `tag`: its entity tag. Raises `RequestRefused` (416) for a range outside the file.
    """
    given, condition = request.headers.get("range"), request.headers.get("if-range")
    if given is None or request.method != "GET" or condition not in (None, tag):
        return None
    found = _RANGE.fullmatch(given.strip())
    if found is None or found.groups() == ("", ""):
        return None
    if not found[1]:  # the last bytes
        start, stop = max(0, size - int(found[2])), size
    else:
        start, stop = int(found[1]), min(size, int(found[2]) + 1 if found[2] else size)
    if start >= stop:
        if found[1] and found[2] and int(found[1]) > int(found[2]):
            return None  # invalid, so it is ignored
        raise RequestRefused(416, f"the file has {size} bytes", {"Content-Range": f"bytes */{size}"})
    return ByteRange(start, stop)


def file_response(
    request: Request,
    size: int,
    tag: str,
    media_type: str,
    read: Callable[[ByteRange], AsyncIterator[bytes]],
    headers: Mapping[str, str],
) -> Response:
    """Return the answer to a request for a file, or for a part of it. `read` yields the bytes of a range. Raises
    `RequestRefused`."""
    fields = {**_BYTES, "ETag": tag, **headers}
    if _is_known(request, tag):
        return Response(status_code=304, headers=fields)
    part = requested_range(request, size, tag)
    wanted = part or ByteRange(0, size)
    fields["Content-Length"] = str(wanted.stop - wanted.start)
    if part is not None:
        fields["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
    status = 200 if part is None else 206
    if request.method == "HEAD":
        return Response(status_code=status, headers=fields, media_type=media_type)
    return StreamingResponse(read(wanted), status, headers=fields, media_type=media_type)


def _is_known(request: Request, tag: str) -> bool:
    """Return whether the client has this state of the file already (If-None-Match)."""
    given = request.headers.get("if-none-match")
    return given is not None and (given.strip() == "*" or tag in (each.strip() for each in given.split(",")))
