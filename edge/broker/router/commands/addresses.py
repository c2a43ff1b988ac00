"""The addresses of commands at a gateway, and what is promised of them unless configured otherwise.

A device hears commands at ``command/<device>`` and responds to ``command-response/<device>``; where the space has
Hono's device API its addresses are used, so that devices made for Hono hear a hub's commands as any other.
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
"""Deliveries of one command that its device gives back or loses, before it counts as rejected."""


class CommandAddresses(Protocol):
    """Where the commands of a space's devices are."""

    commands: str
    """Filter of every device's queue."""
    responses: str
    """Filter of where they respond to a hub."""

    def queue(self, device: str) -> str:
        """The queue of a device."""
        ...

    def device(self, queue: str) -> str:
        """The device a queue is of."""
        ...

    def reply(self, device: str) -> str:
        """Where a device sends its responses to a hub."""
        ...


class PlainAddresses:
    """Of a space without a device API."""

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
    """The configuration with the addresses of commands that no resource describes, where there is a hub."""
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
    if addresses is PLAIN:  # else the device API has described them
        policy = AddressPolicy(redelivery=Redelivery(attempts_max=ATTEMPTS_MAX))
        yield AddressConfiguration(AddressRule(f"{COMMANDS}/#", AddressType.QUEUE), policy)


def command_forwarders(connector: str, addresses: CommandAddresses) -> list[Forwarder]:
    """What carries receipts and responses to a hub."""
    carried = {"command receipts": f"{RECEIPTS}/#", "command responses": addresses.responses}
    return [
        Forwarder(name=name, filter=pattern, connector=connector, remote_address=pattern)
        for name, pattern in carried.items()
    ]


def incoming_forwarder(connector: str, addresses: CommandAddresses, remote: str) -> Forwarder:
    """What brings commands in. `remote`: where a hub has them."""
    return Forwarder(
        name="commands",
        direction=Direction.IN,
        filter=addresses.commands,
        connector=connector,
        remote_address=remote,
    )
