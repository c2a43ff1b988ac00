"""Incoming commands of a hub: each goes to its device's queue, once, and the hub gets the answer after the commit.

An invalid command is rejected at once, and not stored. A repeated one is accepted again, whether or not its device is
still known: so a refused command was never here. An online command is for a device that takes it now (`online`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from bridge.command import ONLINE_COMMANDS, UNKNOWN_DEVICE, HubCommand, queued, read
from bridge.forwarders.inbox import Incoming, Settle
from bridge.forwarders.outcome import ForwardOutcome
from bridge.hub_addresses import COMMANDS
from bridge.plain import MessageError
from edge.broker.model.addresses import AddressType
from edge.broker.router.commands.addresses import CommandAddresses, incoming_forwarder
from edge.broker.router.inbound import IncomingForwarder
from edge.broker.router.recent_names import RecentNames, digest
from edge.broker.router.router import Router
from edge.output.text import word

if TYPE_CHECKING:
    from edge.broker.router.commands.online import OnlineCommands


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
        online_names: RecentNames | None = None,
    ) -> None:
        """`knows` returns True for a device that may get commands; `names` are those of recent commands, `online_names`
        those of recent online ones, also of rejected ones."""
        self.name = f"commands of {connector}"
        self.remote = COMMANDS
        self.qos = 1
        self.inbound: Final = IncomingForwarder(
            router, incoming_forwarder(connector, addresses, COMMANDS), names, gateway
        )
        self._router = router
        self._addresses = addresses
        self._names = names
        self._knows = knows
        self._settle: Settle | None = None
        self._online_names = online_names or RecentNames()
        self._online: OnlineCommands | None = None
        """Online commands; None before the first one."""

    def link_properties(self) -> dict[str, str]:
        """See `bridge.forwarders.inbox.DescribedInbox`."""
        return {ONLINE_COMMANDS: "1"}

    def attached(self, settle: Settle, credit_changed: Callable[[], None]) -> None:
        self._settle = settle
        if self._online is not None:
            self._online.attached(settle)
        self.inbound.attached(settle, credit_changed)

    def leave(self, left: Callable[[], None]) -> None:
        online = self._online
        self.inbound.leave(left if online is None else partial(online.leave, left))

    def detached(self) -> None:
        self._settle = None
        if self._online is not None:
            self._online.detached()
        self.inbound.detached()

    @property
    def credit(self) -> int:
        return self.inbound.credit

    @property
    def is_empty(self) -> bool:
        """True if no command that has come is on its way to its queue."""
        return self.inbound.is_empty and (self._online is None or self._online.is_empty)

    def receive(self, messages: Sequence[Incoming]) -> None:
        taken = [command for message in messages if (command := self._taken(message)) is not None]
        if taken:
            self.inbound.receive(taken)

    def release(self) -> None:
        """End, as the connector was removed; commands under way are answered before its connection ends."""
        self.inbound.end(self._forget_origins)

    def _forget_origins(self) -> None:
        for origin in (self.inbound, self._online):
            if origin is not None:
                self._router.forget_origin(origin)

    def _taken(self, message: Incoming) -> Incoming | None:
        """Return the command as it goes into the queue; None when it was rejected, or is an online one."""
        try:
            command = read(message.run.properties + message.run.bodies[0])
            why = self._fault(command)
        except MessageError as error:
            why = str(error)
        if why is not None:
            self._answer(message, ForwardOutcome.REJECTED, why)
            return None
        name = digest(command.id.encode())
        if self._online_names.is_duplicate(name, unique=True):  # a hub of an older version sends it again
            self._answer(message, ForwardOutcome.ACCEPTED, "")
            return None
        queue, reply_to = self._addresses.queue(command.device), self._addresses.reply(command.device)
        if command.online_until_ms is not None:
            self._online_names.add([name])
            self._online_names.confirm([name])
            self._online_commands().take(message.token, command, queue, reply_to, room=self.inbound.credit > 0)
            return None
        run = queued(command, queue, reply_to)
        return Incoming(message.token, (queue,), command.id.encode(), (), run, unique=True)

    def _online_commands(self) -> OnlineCommands:
        if self._online is None:
            from edge.broker.router.commands.online import OnlineCommands  # noqa: PLC0415 - most gateways get none

            self._online = OnlineCommands(self.inbound.name, self._router)
            if self._settle is not None:
                self._online.attached(self._settle)
        return self._online

    def _fault(self, command: HubCommand) -> str | None:
        queue, name = self._addresses.queue(command.device), digest(command.id.encode())
        was_here = any(names.is_duplicate(name, unique=True) for names in (self._names, self._online_names))
        if not self._knows(command.device) and not was_here:
            return f"{UNKNOWN_DEVICE}{command.device}; on this gateway, run: waypost user add {word(command.device)}"
        if self._router.addresses.type_of(queue) is not AddressType.QUEUE:
            return (
                f"{queue} has to be a queue, but is a {self._router.addresses.type_of(queue).value} by an Address "
                "resource of this gateway"
            )
        return None

    def _answer(self, message: Incoming, outcome: ForwardOutcome, why: str) -> None:
        if message.token is not None and self._settle is not None:
            self._settle((message.token,), outcome, why)
