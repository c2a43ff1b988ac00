"""Incoming commands of a hub: each goes to its device's queue, once, and the hub gets the answer after the commit.

An invalid command is rejected at once, and not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from bridge.command import HubCommand, queued, read
from bridge.forwarders.inbox import Incoming, Settle
from bridge.forwarders.outcome import ForwardOutcome
from bridge.hub_addresses import COMMANDS
from bridge.plain import MessageError
from edge.broker.model.addresses import AddressType
from edge.broker.router.commands.addresses import CommandAddresses, incoming_forwarder
from edge.broker.router.inbound import IncomingForwarder
from edge.broker.router.recent_names import RecentNames
from edge.broker.router.router import Router
from edge.output.text import word


class CommandInbox:
    """Commands of one connector to a hub (`bridge.forwarders.inbox.ForwarderInbox`)."""

    def __init__(
        self,
        connector: str,
        router: Router,
        addresses: CommandAddresses,
        names: RecentNames,
        gateway: str,
        knows: Callable[[str], bool],
    ) -> None:
        """`knows` returns True for a device that may get commands; `names` are those of recent commands."""
        self.name = f"commands of {connector}"
        self.remote = COMMANDS
        self.qos = 1
        self.inbound: Final = IncomingForwarder(
            router, incoming_forwarder(connector, addresses, COMMANDS), names, gateway
        )
        self._router = router
        self._addresses = addresses
        self._knows = knows
        self._settle: Settle | None = None

    def attached(self, settle: Settle, credit_changed: Callable[[], None]) -> None:
        self._settle = settle
        self.inbound.attached(settle, credit_changed)

    def leave(self, left: Callable[[], None]) -> None:
        self.inbound.leave(left)

    def detached(self) -> None:
        self._settle = None
        self.inbound.detached()

    @property
    def credit(self) -> int:
        return self.inbound.credit

    def receive(self, messages: Sequence[Incoming]) -> None:
        taken = [command for message in messages if (command := self._taken(message)) is not None]
        if taken:
            self.inbound.receive(taken)

    def release(self) -> None:
        """End, as the connector was removed; commands under way are answered before its connection ends."""
        self.inbound.end(partial(self._router.forget_origin, self.inbound))

    def _taken(self, message: Incoming) -> Incoming | None:
        """Return the command as it goes into the queue; None when it was rejected."""
        try:
            command = read(message.run.properties + message.run.bodies[0])
            why = self._fault(command)
        except MessageError as error:
            why = str(error)
        if why is not None:
            self._reject(message, why)
            return None
        queue = self._addresses.queue(command.device)
        run = queued(command, queue, self._addresses.reply(command.device))
        return Incoming(message.token, (queue,), command.id.encode(), (), run, unique=True)

    def _fault(self, command: HubCommand) -> str | None:
        queue = self._addresses.queue(command.device)
        if not self._knows(command.device):
            return f"unknown device {command.device}: on this gateway, run: waypost user add {word(command.device)}"
        if self._router.addresses.type_of(queue) is not AddressType.QUEUE:
            return (
                f"{queue} has to be a queue, but is a {self._router.addresses.type_of(queue).value} by an Address "
                "resource of this gateway"
            )
        return None

    def _reject(self, message: Incoming, why: str) -> None:
        if message.token is not None and self._settle is not None:
            self._settle((message.token,), ForwardOutcome.REJECTED, why)
