"""Hono's addresses next to those of a configuration."""

from __future__ import annotations

from edge.broker.configuration import AddressConfiguration, BrokerConfiguration, DeviceApiConfiguration, Forwarder
from edge.broker.hono.addresses import with_addresses
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType

API = DeviceApiConfiguration(tenant="T", command_ttl_s=60)


def types(configuration: BrokerConfiguration) -> list[AddressType]:
    table = AddressTable(with_addresses(configuration).rules)
    names = ("telemetry/T", "event/T", "command/T/4711", "command_response/T/app/1")
    return [table.rule(name).type for name in names]


def test_no_addresses_are_added_without_the_device_api() -> None:
    assert with_addresses(BrokerConfiguration()) == BrokerConfiguration()


def test_default_addresses_are_added() -> None:
    configuration = with_addresses(BrokerConfiguration(device_api=API))
    assert types(configuration) == [AddressType.TOPIC, AddressType.QUEUE, AddressType.QUEUE, AddressType.ANYCAST]
    assert configuration.policies["command/T/+"].ttl_max_s == 60
    assert with_addresses(configuration) == configuration, "the second time adds nothing"


def test_forwarded_addresses_are_topics() -> None:
    out = Forwarder(name="f", filter="#", connector="hub", remote_address="#")
    configuration = BrokerConfiguration(device_api=API, forwarders=(out,))
    assert types(configuration) == [AddressType.TOPIC, AddressType.TOPIC, AddressType.QUEUE, AddressType.TOPIC]


def test_configured_addresses_take_precedence() -> None:
    described = AddressConfiguration(AddressRule("event/#", AddressType.TOPIC))
    everything = AddressConfiguration(AddressRule("#", AddressType.MULTICAST))
    configuration = BrokerConfiguration(device_api=API, addresses=(described, everything))
    assert types(configuration) == [AddressType.TOPIC, AddressType.TOPIC, AddressType.QUEUE, AddressType.ANYCAST]
