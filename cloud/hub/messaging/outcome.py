"""Outcomes of commands for a message broker: confirmed by it before the registry has them.

A gateway's news is stored, and acknowledged to it, after that. So an outcome that the broker has not confirmed comes
again; applications may get it twice, with the same message-id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from bridge import plain
from bridge import sections as s
from bridge.amqp_values import Uint
from cloud.hub.commands.applications import outcome_message
from cloud.hub.commands.limits import REPLY_TTL_S
from cloud.hub.commands.service import ApplicationsUnavailable
from cloud.hub.messaging.limits import OUTCOMES_MAX, PUBLISH_S_MAX
from cloud.hub.messaging.links import BrokerAway, BrokerRefusal
from cloud.hub.messaging.settings import BrokerSettings, address_of
from cloud.hub.registry.commands import CommandNews, CommandRecord

log = logging.getLogger(__name__)

PublishMessage = Callable[[str, bytes], asyncio.Future[None]]
"""Sends a message to an address; the future ends with the broker's confirmation."""
_HEADER: Final = plain.section(s.HEADER, [True, None, Uint(int(REPLY_TTL_S * 1_000))])


class BrokerOutcomes:
    """Publishes outcomes."""

    def __init__(self, settings: BrokerSettings, send: PublishMessage) -> None:
        self.published = 0
        """Outcomes that the broker has confirmed since the start."""
        self.refused = 0
        """Replies that the broker did not take."""
        self._settings = settings
        self._send = send
        self._waiting = 0

    async def publish(self, news: CommandNews, command: CommandRecord) -> None:
        """Publish the outcome of a command. Raises `ApplicationsUnavailable`."""
        if command.tenant not in self._settings.tenants:
            return
        if self._waiting >= OUTCOMES_MAX:
            raise ApplicationsUnavailable("too many outcomes wait for the message broker")
        self._waiting += 1
        try:
            await self._publish(news, command)
        finally:
            self._waiting -= 1

    async def _publish(self, news: CommandNews, command: CommandRecord) -> None:
        address = address_of(self._settings.outcomes, command.tenant)
        try:
            await self._confirmed(address, news, command)
        except BrokerRefusal as refusal:  # the operator has to make the address
            raise ApplicationsUnavailable(f"the message broker does not take outcomes: {refusal}") from None
        reply = command.reply_to
        if reply is None or not reply.startswith(address_of(self._settings.replies, command.tenant)):
            return
        try:
            await self._confirmed(reply, news, command)
        except BrokerRefusal as refusal:  # the application has named it, and may have deleted it
            self.refused += 1
            log.warning("outcome of command %s is not in the queue of its sender: %s", command.id, refusal)

    async def _confirmed(self, address: str, news: CommandNews, command: CommandRecord) -> None:
        try:
            async with asyncio.timeout(PUBLISH_S_MAX):
                await self._send(address, _HEADER + outcome_message(news, command, address))
        except BrokerAway as error:
            raise ApplicationsUnavailable(f"the message broker: {error}") from None
        except TimeoutError:
            raise ApplicationsUnavailable(f"the message broker has not confirmed {address} in time") from None
        self.published += 1
