"""Keeps the board up to date: polls the gateways, follows the journals, counts the lake's rows."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import time
from collections.abc import Mapping
from typing import Any

from tests.demo.board import Board, GatewayBoard
from tests.demo.lake import Lake, Landed

INTERVAL_S = 0.5
ASK_TIMEOUT_S = 1.0


def ask_status(port: int) -> Mapping[str, Any] | None:
    """Return `GET /api/v1/status` of a gateway on the loopback; None when it does not answer. Blocks."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ASK_TIMEOUT_S)
    try:
        connection.request("GET", "/api/v1/status")
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            return None
        status = json.loads(answer.read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    else:
        return status if isinstance(status, dict) else None
    finally:
        connection.close()


class Watcher:
    """Looks twice a second, in its own task."""

    def __init__(self, board: Board, lake: Lake, ports: Mapping[str, int]) -> None:
        """`ports`: the HTTP port of each gateway by name."""
        self._board = board
        self._lake = lake
        self._ports = ports
        self._counted: tuple[float, int] | None = None

    async def __aenter__(self) -> Watcher:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_S)

    async def look(self) -> None:
        """Look once at everything."""
        asking = asyncio.gather(*(self._look_at(gateway) for gateway in self._board.gateways.values()))
        landed = await asyncio.to_thread(self._lake.landed)
        await asking
        self._count(landed, time.monotonic())
        for device in self._board.devices:
            device.follow(time.monotonic())
        self._board.looks += 1

    async def _look_at(self, gateway: GatewayBoard) -> None:
        status = await asyncio.to_thread(ask_status, self._ports[gateway.name])
        if status is None:
            gateway.lost()
        else:
            gateway.take(status, time.monotonic())

    def _count(self, landed: Landed, at: float) -> None:
        counted, self._counted = self._counted, (at, landed.rows)
        if counted is not None and at > counted[0]:
            self._board.landed_rates.append((landed.rows - counted[1]) / (at - counted[0]))
        self._board.landed = landed
