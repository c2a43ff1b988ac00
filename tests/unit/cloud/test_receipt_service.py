"""Requests for statements at a hub: each one ends, so that the gateway can send the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from bridge.landing_receipt import MessageSpan, ReceiptRequest
from cloud.hub.receipts.service import ReceiptService
from cloud.lake.faults import RegistryError


class FailingRegistry:
    """Registry that fails each read."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def read(self, query: Callable[[Any], Any]) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [RegistryError("away"), RuntimeError("a defect")])
def test_request_ends_after_any_error(error: Exception) -> None:
    async def request() -> None:
        service = ReceiptService(FailingRegistry(error), cast("Any", None), lambda: 0)
        ended = asyncio.Event()
        service.request(("default", "gw1"), ReceiptRequest([MessageSpan("e", "a", 0, 0)]), ended.set)
        await asyncio.wait_for(ended.wait(), 5)

    asyncio.run(request())
