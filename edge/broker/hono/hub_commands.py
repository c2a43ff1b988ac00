"""Where a hub's commands are in a space with the device API: devices hear them as any other, and respond as ever."""

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
        """The same for every device."""
        return self.responses
