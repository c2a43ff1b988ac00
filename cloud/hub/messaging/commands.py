"""Commands from a queue of a message broker: accepted when they are in the registry.

Until then they stay in the queue: a hub that ends or loses the connection leaves them to another one. A message that is
delivered twice is one command, because its message-id is an idempotency key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from bridge import sections as s
from bridge.amqp_values import DecodeError
from cloud.hub.commands.applications import read_command
from cloud.hub.commands.documents import InvalidCommand
from cloud.hub.commands.service import CommandsBusy, Draft
from cloud.hub.messaging.limits import RETRY_S
from cloud.hub.messaging.links import ReceivedCommand
from cloud.hub.registry.commands import CommandRecord, CommandRefusal, CommandRefused
from cloud.hub.spaces import COMMANDS
from cloud.lake.faults import RegistryError
from edge.broker.message.translation import parse_message

log = logging.getLogger(__name__)

SendCommand = Callable[[Draft], Awaitable[CommandRecord]]
_TO: Final = 2


def read_queued_command(tenant: str, message: bytes, replies: str) -> Draft:
    """Read a command. The gateway and the device are in `to` (``command/<gateway>/<device>``), or in application
    properties of these names. `replies`: begin of allowed reply addresses. Raises `InvalidCommand`."""
    try:
        found = parse_message(message)
        header = next((message[each.start : each.end] for each in s.sections(message) if each.code == s.HEADER), b"")
    except DecodeError as error:
        raise InvalidCommand(str(error)) from None
    to = found.properties[_TO] if len(found.properties) > _TO else None
    gateway, device = found.application.get("gateway"), found.application.get("device")
    if isinstance(gateway, str) and isinstance(device, str):
        address = f"{COMMANDS}/{gateway}/{device}"
    elif isinstance(to, str) and to.startswith(f"{COMMANDS}/"):
        address = to
    else:
        raise InvalidCommand("the application properties `gateway` and `device` are missing")
    draft = read_command(tenant, address, header, message, f"messaging@{tenant}", replies)
    if draft.online:
        raise InvalidCommand("an online command cannot wait in a queue: send it to the hub itself")
    if draft.key is None:
        raise InvalidCommand("the message-id is missing: without it a command that is delivered twice is sent twice")
    return draft


class QueuedCommands:
    """Takes commands from the queues of all tenants."""

    def __init__(self, send: SendCommand, tenant_of: Callable[[str], tuple[str, str]]) -> None:
        """`send` stores a command; `tenant_of` returns the tenant of a queue, and the begin of its reply addresses."""
        self.rejected = 0
        """Commands that were rejected since the start."""
        self.trouble: str | None = None
        """Why commands wait in their queue; None if they do not."""
        self._send = send
        self._tenant_of = tenant_of
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, received: ReceivedCommand) -> None:
        """Take a message of a queue."""
        task = asyncio.get_running_loop().create_task(self._take(received), name="command from a queue")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Leave unfinished commands to the broker."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, received: ReceivedCommand) -> None:
        tenant, replies = self._tenant_of(received.address)
        try:
            draft = read_queued_command(tenant, received.message, replies)
        except InvalidCommand as error:
            self._reject(received, tenant, str(error))
            return
        while not received.over:
            try:
                await self._send(draft)
            except CommandRefused as refused:
                if refused.why is not CommandRefusal.TENANT_FULL:  # which would refuse all others too
                    self._reject(received, tenant, str(refused))
                    return
                self.trouble = f"commands of tenant {tenant} wait in their queue: {refused}"
            except (CommandsBusy, RegistryError) as error:
                self.trouble = f"commands wait in their queue: {error}"
            except Exception:  # an internal error must not stop the queue
                log.exception("a command of tenant %s cannot be stored: internal error", tenant)
                self._reject(received, tenant, "internal error of the hub")
                return
            else:
                self.trouble = None
                received.settle(None)
                return
            await asyncio.sleep(RETRY_S)
        self.trouble = None  # the broker delivers it again

    def _reject(self, received: ReceivedCommand, tenant: str, why: str) -> None:
        log.warning("command of tenant %s rejected: %s", tenant, why)
        self.rejected += 1
        received.settle(why)
