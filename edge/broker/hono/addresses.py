"""Hono's four addresses in the address model of a space, with their default configuration."""

from __future__ import annotations

from typing import Final

import msgspec

from edge.broker.configuration import AddressConfiguration, BrokerConfiguration, DeviceApiConfiguration, Direction
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressRule, AddressType
from edge.broker.model.topics import covers, overlaps

TELEMETRY: Final = "telemetry"
EVENT: Final = "event"
COMMAND: Final = "command"
RESPONSE: Final = "command_response"


class HonoAddresses:
    """The addresses of one tenant."""

    def __init__(self, tenant: str) -> None:
        self.telemetry = f"{TELEMETRY}/{tenant}"
        self.event = f"{EVENT}/{tenant}"
        self.command = f"{COMMAND}/{tenant}"
        """Address for applications; `to` of each command names its device."""
        self.commands = f"{self.command}/+"
        """Filter for the command queues of all devices."""
        self._response = f"{RESPONSE}/{tenant}/"

    def queue(self, device: str) -> str:
        """Return the command queue of a device."""
        return f"{self.command}/{device}"

    def device(self, queue: str) -> str:
        """Return the device of a command queue."""
        return queue.rpartition("/")[2]

    def response(self, reply: str) -> str:
        """Return the response address for the reply identifier of an application."""
        return self._response + reply

    def reply(self, address: str) -> str | None:
        """Return the reply identifier of a response address; None for addresses of other tenants."""
        return address.removeprefix(self._response) if address.startswith(self._response) else None


def with_addresses(configuration: BrokerConfiguration) -> BrokerConfiguration:
    """Return the configuration with default addresses for Hono, unless resources define them.

    Events are in a queue. With a forwarder for them they are in a topic instead, as each message of a queue goes to
    only one consumer.
    """
    api = configuration.device_api
    if api is None:
        return configuration
    described = [address.rule.pattern for address in configuration.addresses]
    added = [
        default
        for default in _defaults(configuration, api)
        if not any(pattern.split("/")[0] == default.rule.pattern.split("/")[0] and covers(pattern, default.rule.pattern)
                   for pattern in described)
    ]  # fmt: skip
    return msgspec.structs.replace(configuration, addresses=(*configuration.addresses, *added))


def _defaults(configuration: BrokerConfiguration, api: DeviceApiConfiguration) -> list[AddressConfiguration]:
    names = HonoAddresses(api.tenant)

    def forwarded(address: str) -> bool:
        return any(
            forwarder.direction is Direction.OUT and overlaps(forwarder.filter, address)
            for forwarder in configuration.forwarders
        )

    responses = names.response("#")
    return [
        AddressConfiguration(AddressRule(names.telemetry, AddressType.TOPIC)),
        AddressConfiguration(
            AddressRule(names.event, AddressType.TOPIC if forwarded(names.event) else AddressType.QUEUE)
        ),
        AddressConfiguration(
            AddressRule(names.commands, AddressType.QUEUE), AddressPolicy(ttl_max_s=api.command_ttl_s)
        ),
        AddressConfiguration(
            AddressRule(responses, AddressType.TOPIC if forwarded(responses) else AddressType.ANYCAST)
        ),
    ]
