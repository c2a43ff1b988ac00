"""Live copies for a message broker: messages of a tenant's gateways as they arrive, like those of a hub's own spaces.

They are at most once and best effort: copies beyond `COPIES_WAITING_BYTES_MAX`, and those that the broker does not
confirm, are dropped and counted. The lake has every message once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from bridge.batch import Batch
from bridge.command import RECEIPTS, RESPONSES
from bridge.lane import BatchLane
from bridge.plain import Hop, messages
from cloud.hub.messaging.limits import COPIES_UNCONFIRMED_MAX, COPIES_WAITING_BYTES_MAX, COPY_OVERHEAD_BYTES
from cloud.hub.messaging.outcome import PublishMessage
from cloud.hub.messaging.settings import BrokerSettings, address_of

_OF_COMMANDS: Final = (RECEIPTS, RESPONSES)
"""First levels of addresses with news of commands, which applications get as outcomes."""


class BrokerCopies:
    """Publishes copies. On the loop's thread."""

    def __init__(self, settings: BrokerSettings, send: PublishMessage, connected: Callable[[], bool]) -> None:
        self.made = 0
        """Copies that the broker has confirmed."""
        self.missed = 0
        """Copies that were dropped."""
        self._settings = settings
        self._send = send
        self._connected = connected
        self._bytes = 0
        self._unconfirmed = 0

    def take(self, tenant: str, gateway: str, batch: Batch) -> None:
        """Send copies of a batch that a gateway of this tenant sent. Duplicates are not removed from it."""
        template = self._settings.copies
        if template is None or tenant not in self._settings.tenants or batch.lane is not BatchLane.LIVE:
            return
        address, hop = address_of(template, tenant), Hop(gateway, batch.epoch)
        for stored in batch.stored():
            run = stored.run
            if run.address.partition("/")[0] in _OF_COMMANDS:
                continue
            size = run.size + len(run) * COPY_OVERHEAD_BYTES
            full = self._bytes + size > COPIES_WAITING_BYTES_MAX or self._unconfirmed >= COPIES_UNCONFIRMED_MAX
            if full or not self._connected():
                self.missed += len(run)
                continue
            for message in messages(hop, stored.sequence, run):
                self._bytes += len(message) + COPY_OVERHEAD_BYTES
                self._unconfirmed += 1
                self._send(address, message).add_done_callback(partial(self._confirmed, len(message)))

    def _confirmed(self, size: int, future: asyncio.Future[None]) -> None:
        self._bytes -= size + COPY_OVERHEAD_BYTES
        self._unconfirmed -= 1
        if future.cancelled() or future.exception() is not None:
            self.missed += 1
        else:
            self.made += 1
