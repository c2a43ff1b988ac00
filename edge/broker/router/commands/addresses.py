"""Addresses of commands at a gateway, and their default policies.

A device receives commands at ``command/<device>`` and responds to ``command-response/<device>``. A space with Hono's
device API uses the addresses of that API, so that Hono devices get a hub's commands like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import msgspec

from bridge.command import RECEIPTS, RESPONSES
from edge.broker.configuration import AddressConfiguration, BrokerConfiguration, ConnectorType, Direction, Forwarder
from edge.broker.model.address_policy import AddressPolicy, Redelivery
from edge.broker.model.addresses import AddressRule, AddressType
from edge.broker.model.topics import covers

COMMANDS = "command"
"""First level of the queues of devices."""
ATTEMPTS_MAX = 10
"""Deliveries of one command that its device returns or loses before it counts as rejected."""


class CommandAddresses(Protocol):
    """Addresses of commands for the devices of a space."""

    commands: str
    """Filter of the queues of all devices."""
    responses: str
    """Filter of the addresses for responses to a hub."""

    def queue(self, device: str) -> str:
        """Return the queue of a device."""
        ...

    def device(self, queue: str) -> str:
        """Return the device of a queue."""
        ...

    def reply(self, device: str) -> str:
        """Return the address for responses of a device to a hub."""
        ...


class PlainAddresses:
    """Addresses of a space without a device API."""

    commands = f"{COMMANDS}/+"
    responses = f"{RESPONSES}/#"

    def queue(self, device: str) -> str:
        return f"{COMMANDS}/{device}"

    def device(self, queue: str) -> str:
        return queue.partition("/")[2]

    def reply(self, device: str) -> str:
        return f"{RESPONSES}/{device}"


PLAIN: Final = PlainAddresses()


def with_commands(configuration: BrokerConfiguration, addresses: CommandAddresses) -> BrokerConfiguration:
    """Return the configuration with default addresses of commands, if there is a hub and no resource describes them."""
    if not any(connector.type is ConnectorType.WAYPOST for connector in configuration.connectors):
        return configuration
    described = [address.rule.pattern for address in configuration.addresses]
    added = [
        default
        for default in _defaults(addresses)
        if not any(
            pattern.split("/")[0] == default.rule.pattern.split("/")[0] and covers(pattern, default.rule.pattern)
            for pattern in described
        )
    ]
    return msgspec.structs.replace(configuration, addresses=(*configuration.addresses, *added))


def _defaults(addresses: CommandAddresses) -> Iterator[AddressConfiguration]:
    yield AddressConfiguration(AddressRule(f"{RECEIPTS}/#", AddressType.TOPIC))
    yield AddressConfiguration(AddressRule(addresses.responses, AddressType.TOPIC))
    if addresses is PLAIN:  # otherwise the device API configures them
        policy = AddressPolicy(redelivery=Redelivery(attempts_max=ATTEMPTS_MAX))
        yield AddressConfiguration(AddressRule(f"{COMMANDS}/#", AddressType.QUEUE), policy)


def command_forwarders(connector: str, addresses: CommandAddresses) -> list[Forwarder]:
    """Return the forwarders of receipts and responses to a hub."""
    carried = {"command receipts": f"{RECEIPTS}/#", "command responses": addresses.responses}
    return [
        Forwarder(name=name, filter=pattern, connector=connector, remote_address=pattern)
        for name, pattern in carried.items()
    ]


def incoming_forwarder(connector: str, addresses: CommandAddresses, remote: str) -> Forwarder:
    """Return the forwarder of commands from `remote`, their address at a hub."""
    return Forwarder(
        name="commands",
        direction=Direction.IN,
        filter=addresses.commands,
        connector=connector,
        remote_address=remote,
    )
