"""Addresses of a hub's commands in a space with the device API: the same as for other commands."""

from __future__ import annotations

from bridge.command import HUB
from edge.broker.hono.addresses import HonoAddresses


class HubCommandAddresses:
    """Implements `edge.broker.router.commands.addresses.CommandAddresses`."""

    def __init__(self, tenant: str) -> None:
        self._addresses = HonoAddresses(tenant)
        self.commands = self._addresses.commands
        self.responses = self._addresses.response(HUB)

    def queue(self, device: str) -> str:
        return self._addresses.queue(device)

    def device(self, queue: str) -> str:
        return self._addresses.device(queue)

    def reply(self, device: str) -> str:
        """Return the reply address, which is the same for every device."""
        return self.responses
