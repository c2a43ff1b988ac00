"""A change with an idempotency key brings back the session of its browser, as other requests do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx

from cloud.hub.idempotent_http import KEY, IdempotentRequests
from tests.unit.http.test_kept_sessions import PAGE, Node, SilentArchive, World


class _Keys:
    """Keys of requests in a registry: no request was sent before."""

    async def read(self, work: Callable[[Any], object]) -> object:
        return work(SimpleNamespace(request_keys=self))

    def begin(self, *_: object) -> None:
        return None

    def finish(self, *_: object) -> None:
        return None


def test_session_of_another_hub_counts(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        SilentArchive(world)
        async with Node(world) as first, Node(world) as second:
            await first.sign_in()
            app = IdempotentRequests(second.app, cast(Any, _Keys()), second.access, lambda: 0)
            transport = httpx.ASGITransport(app=app, client=("10.0.0.7", 4711))
            async with httpx.AsyncClient(transport=transport, base_url="http://gw:8080", cookies=world.jar) as browser:
                answer = await browser.post("/api/v1/change", headers={**PAGE, KEY: "one"})
            assert answer.status_code == 200, answer.text

    asyncio.run(test(World(tmp_path)))
