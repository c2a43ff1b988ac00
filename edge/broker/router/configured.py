"""What the configuration says of addresses at the moment: their types, and what is promised of them beyond."""

from __future__ import annotations

from collections.abc import Mapping

from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressTable, AddressType

PLAIN = AddressPolicy()


class ConfiguredAddresses:
    """Rules and policies; the one object every part of a router asks."""

    def __init__(self, table: AddressTable, policies: Mapping[str, AddressPolicy]) -> None:
        """`policies` are by pattern of the rule, those of subscriptions by ``topic::name``."""
        self.configure(table, policies)

    def configure(self, table: AddressTable, policies: Mapping[str, AddressPolicy]) -> None:
        """These count from now on."""
        self.table = table
        self._policies = dict(policies)
        self.expires = any(policy.ttl_max_s is not None for policy in policies.values())
        """Some address gives messages a time to live of its own accord."""

    def type_of(self, address: str) -> AddressType:
        """The type of an address, or of every name a filter covers."""
        return self.table.rule_of_filter(address).type

    def policy(self, address: str) -> AddressPolicy:
        """What is promised of an address."""
        return self.policy_of_rule(self.table.rule(address).pattern)

    def policy_of_filter(self, pattern: str) -> AddressPolicy:
        """What is promised of every name a filter covers."""
        return self.policy_of_rule(self.table.rule_of_filter(pattern).pattern)

    def policy_of_rule(self, pattern: str) -> AddressPolicy:
        """What is promised of the addresses of a rule."""
        return self._policies.get(pattern, PLAIN)

    def policy_of_subscription(self, name: str | None) -> AddressPolicy | None:
        """What is promised of a durable subscription, where that is configured by its own name."""
        return self._policies.get(name) if name is not None else None

    @property
    def rule_policies(self) -> dict[str, AddressPolicy]:
        """Policies of addresses, by pattern of the rule."""
        return {name: policy for name, policy in self._policies.items() if "::" not in name}
