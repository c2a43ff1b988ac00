"""Configured types and policies of addresses."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressTable, AddressType
from edge.broker.model.topics import matches

PLAIN = AddressPolicy()


class ConfiguredAddresses:
    """Present rules and policies; the one object that every part of a router asks."""

    def __init__(self, table: AddressTable, policies: Mapping[str, AddressPolicy]) -> None:
        """`policies` are by pattern of the rule, those of subscriptions by ``topic::name``."""
        self.configure(table, policies)

    def configure(self, table: AddressTable, policies: Mapping[str, AddressPolicy]) -> None:
        """Use these rules and policies from now on."""
        self.table = table
        self._policies = dict(policies)
        self.expires = any(policy.ttl_max_s is not None for policy in policies.values())
        """True when some address has a time to live."""

    def type_of(self, address: str) -> AddressType:
        """Return the type of an address, or of every name that a filter covers."""
        return self.table.rule_of_filter(address).type

    def policy(self, address: str) -> AddressPolicy:
        """Return the policy of an address."""
        return self.policy_of_rule(self.table.rule(address).pattern)

    def policy_of_filter(self, pattern: str) -> AddressPolicy:
        """Return the policy of every name that a filter covers."""
        return self.policy_of_rule(self.table.rule_of_filter(pattern).pattern)

    def policy_of_rule(self, pattern: str) -> AddressPolicy:
        """Return the policy of the addresses of a rule."""
        return self._policies.get(pattern, PLAIN)

    def policy_of_subscription(self, name: str | None) -> AddressPolicy | None:
        """Return the policy configured for a durable subscription by its name, or None."""
        return self._policies.get(name) if name is not None else None

    def policies(self) -> Collection[AddressPolicy]:
        """Return all policies, of rules and of subscriptions."""
        return self._policies.values()

    def drops_into(self, address: str, queue: str) -> bool:
        """Return True if a rule or a subscription that covers an address drops its messages into this queue."""
        covering = (policy for name, policy in self._policies.items() if matches(name.partition("::")[0], address))
        return any(queue in (policy.deadletter, policy.expiry) for policy in covering)

    @property
    def rule_policies(self) -> dict[str, AddressPolicy]:
        """Policies of addresses, by pattern of the rule."""
        return {name: policy for name, policy in self._policies.items() if "::" not in name}
