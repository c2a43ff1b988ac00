"""Addresses of landing receipts, and their default policy."""

from __future__ import annotations

from typing import Final

import msgspec

from bridge.landing_receipt import RECEIPT_LEVEL
from edge.broker.configuration import AddressConfiguration, BrokerConfiguration, ConnectorType
from edge.broker.limits import LANDING_RECEIPT_TTL_S, LANDING_RECEIPTS_BYTES
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressRule, AddressType
from edge.broker.model.topics import covers

PATTERN: Final = f"{RECEIPT_LEVEL}/#"


def wants_receipts(configuration: BrokerConfiguration) -> bool:
    """Return True when senders may request receipts, and there is a hub that gives them."""
    to_hub = any(connector.type is ConnectorType.WAYPOST for connector in configuration.connectors)
    return to_hub and any(address.policy.receipts is not None for address in configuration.addresses)


def with_receipts(configuration: BrokerConfiguration) -> BrokerConfiguration:
    """Return the configuration with queues for receipts, if some may come and no resource describes them."""
    described = [address.rule.pattern for address in configuration.addresses]
    own = any(pattern.split("/")[0] == RECEIPT_LEVEL and covers(pattern, PATTERN) for pattern in described)
    if own or not wants_receipts(configuration):
        return configuration
    policy = AddressPolicy(ttl_max_s=LANDING_RECEIPT_TTL_S, quota_bytes=LANDING_RECEIPTS_BYTES)
    added = AddressConfiguration(AddressRule(PATTERN, AddressType.QUEUE), policy)
    return msgspec.structs.replace(configuration, addresses=(*configuration.addresses, added))
