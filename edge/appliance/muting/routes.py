"""Mutes of problems over HTTP.

============================  ======  ==============================================================================
``GET /api/v1/mutes``         view    mutes in effect, `ProblemMutesDocument`
``POST /api/v1/mutes``        manage  mute problems, `NewProblemMute`; replaces the mute of the same problem
``DELETE /api/v1/mutes``      manage  end a mute: ``?name=&what=``
============================  ======  ==============================================================================
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from edge.appliance.muting.documents import NewProblemMute, ProblemMuteDocument, ProblemMutesDocument
from edge.appliance.muting.limits import MUTE_BODY_BYTES_MAX
from edge.appliance.muting.mutes import MutesFull, ProblemMuteRecord, ProblemMutes
from edge.broker.http.access import HttpAccess
from edge.broker.http.application import needing
from edge.broker.http.json_documents import json_answer, read_document
from edge.broker.http.refusal import RequestRefused
from edge.broker.http.route import PURE, HttpRoute
from edge.output.system_errors import write_advice

MUTES: Final = "/api/v1/mutes"


def mute_routes(mutes: ProblemMutes, access: HttpAccess, utc_s: Callable[[], float] = time.time) -> list[HttpRoute]:
    """Return the routes of this module. `utc_s` returns UTC seconds."""
    api = _MutesApi(mutes, access, utc_s)
    view, manage = needing(access.require_view), needing(access.require_manage)
    return [
        HttpRoute(MUTES, view(api.list_all), methods=PURE),
        HttpRoute(MUTES, manage(api.add), methods=("POST",)),
        HttpRoute(MUTES, manage(api.remove), methods=("DELETE",)),
    ]


class _MutesApi:
    def __init__(self, mutes: ProblemMutes, access: HttpAccess, utc_s: Callable[[], float]) -> None:
        self._mutes = mutes
        self._access = access
        self._utc_s = utc_s

    async def list_all(self, request: Request) -> Response:
        return json_answer(ProblemMutesDocument(mutes=[ProblemMuteDocument.of(each) for each in self._mutes.all()]))

    async def add(self, request: Request) -> Response:
        wanted = await read_document(request, NewProblemMute, MUTE_BODY_BYTES_MAX, "the mute")
        now_s = self._utc_s()
        record = ProblemMuteRecord(
            name=wanted.name,
            what=wanted.what,
            severity=wanted.severity,
            until_s=now_s + wanted.seconds,
            reason=wanted.reason,
            by=await self._user(request),
            made_at_s=now_s,
        )
        try:
            await asyncio.to_thread(self._mutes.add, record)
        except MutesFull as error:
            raise RequestRefused(409, str(error)) from None
        except OSError as error:
            raise _not_written(error) from None
        return json_answer(ProblemMuteDocument.of(record), 201)

    async def remove(self, request: Request) -> Response:
        name, what = request.query_params.get("name", ""), request.query_params.get("what", "")
        by = await self._user(request)
        try:
            found = await asyncio.to_thread(self._mutes.remove, name, what, by)
        except OSError as error:
            raise _not_written(error) from None
        if not found:
            raise RequestRefused(404, f"the problem {name[:100]} is not muted")
        return await self.list_all(request)

    async def _user(self, request: Request) -> str:
        async with self._access.admitted(request) as client:
            return client.user


def _not_written(error: OSError) -> RequestRefused:
    return RequestRefused(503, f"cannot write {error.filename}: {error.strerror}; {write_advice(error)}")
