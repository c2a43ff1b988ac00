"""Answers gateways that request statements about their messages.

It keeps nothing: each answer is looked up in the registry. An answer that is lost, or cannot be given now, is requested
again by its gateway.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Protocol, TypeVar

import msgspec

from bridge import plain
from bridge.downlink import GatewayLink
from bridge.forwarders.outcome import ForwardOutcome
from bridge.landing_receipt import ReceiptAnswer, ReceiptRequest
from bridge.periodic_task import end_task
from cloud.hub.enrolment.files import AuthorityFileError
from cloud.hub.enrolment.remote_authority import NotSigned
from cloud.hub.groups import Key
from cloud.hub.receipts.signer import ReceiptSigner
from cloud.hub.receipts.statements import make_statements
from cloud.hub.registry.registry import Registry
from cloud.lake.faults import CannotLand

log = logging.getLogger(__name__)

T = TypeVar("T")


class RegistryReader(Protocol):
    """Reads the registry on its thread (`cloud.hub.committer.Committer`)."""

    def read(self, query: Callable[[Registry], T]) -> Awaitable[T]:
        """Run a query. Raises `RegistryError`."""
        ...


class ReceiptService:
    """Statements for the gateways of one hub (`bridge.downlink.DownlinkSource`)."""

    def __init__(self, registry: RegistryReader, signer: ReceiptSigner, now_us: Callable[[], int]) -> None:
        """`now_us`: UTC microseconds."""
        self.figures: Counter[str] = Counter()
        """Statements since the start, by outcome, and `requests`."""
        self._registry = registry
        self._signer = signer
        self._now_us = now_us
        self._lines: dict[Key, GatewayLink] = {}
        self._tags = count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._signing = asyncio.Lock()
        """Held while statements are signed: the signer is for one thread at a time."""
        self._failing = False

    def request(self, key: Key, request: ReceiptRequest, done: Callable[[], None]) -> None:
        """Answer a request over the gateway's link; `done` is called afterwards, in any case."""
        self.figures["requests"] += 1
        task = asyncio.get_running_loop().create_task(self._respond(key, request, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Drop the requests in progress. Idempotent."""
        for task in list(self._tasks):
            await end_task(task)

    # --- DownlinkSource -----------------------------------------------------------------------------------------------

    def ready(self, line: GatewayLink) -> None:
        self._lines[line.gateway] = line

    def settled(self, line: GatewayLink, tag: int, outcome: ForwardOutcome, why: str) -> None:
        """Do nothing: a gateway requests again what it has no receipt for."""

    def ended(self, line: GatewayLink) -> None:
        if self._lines.get(line.gateway) is line:
            del self._lines[line.gateway]

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _respond(self, key: Key, request: ReceiptRequest, done: Callable[[], None]) -> None:
        try:
            answer = await self._answer(key, request)
        except (CannotLand, AuthorityFileError, NotSigned, OSError) as error:
            if not self._failing:
                log.warning("cannot state now which messages are in the lake: %s", error)
            self._failing = True
        else:
            self._failing = False
            line = self._lines.get(key)
            if answer.statements and line is not None and line.credit:
                line.send(next(self._tags), plain.data_section(msgspec.json.encode(answer)))
        finally:
            done()  # the gateway sends no other request before

    async def _answer(self, key: Key, request: ReceiptRequest) -> ReceiptAnswer:
        statements = await self._registry.read(
            partial(make_statements, key=key, spans=request.spans, now_us=self._now_us())
        )
        self.figures.update(each.outcome.value for each in statements)
        if not statements:
            return ReceiptAnswer("", [])
        async with self._signing:
            return await asyncio.to_thread(self._signer.sign, statements)
