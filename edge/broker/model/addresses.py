"""Address types, and the rules that give each name its type.

An MQTT topic name is an AMQP address. A rule gives a type to a name or an MQTT-style pattern. Where several match, the
most specific wins: level by level, a literal before ``+`` before ``#``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from heapq import merge
from operator import itemgetter

import msgspec

from edge.broker.model.remembered_names import RememberedNames
from edge.broker.model.topics import FilterTree, covers, filter_levels, is_filter, is_wide, matches, overlaps


class AddressType(enum.Enum):
    """Type of an address (the names are EnMasse's)."""

    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    ANYCAST = "anycast"
    MULTICAST = "multicast"
    DEADLETTER = "deadletter"

    @property
    def is_queue(self) -> bool:
        """True for queue and deadletter: messages are stored, and consumers compete for them."""
        return self in (AddressType.QUEUE, AddressType.DEADLETTER)


class AddressRule(msgspec.Struct, frozen=True):
    """Rule that sets the type of every address that `pattern` matches. A name is a pattern that matches itself."""

    pattern: str
    type: AddressType


DEFAULT_RULE = AddressRule("#", AddressType.TOPIC)
"""Rule for a name that the configuration does not mention: it is a topic."""


def specificity(pattern: str) -> tuple[int, ...]:
    """Return a sort key, smaller for more specific. A literal level is 0, ``+`` 1, ``#`` 2. Longer sorts first."""
    return (*({"+": 1, "#": 2}.get(level, 0) for level in pattern.split("/")), 3)


class AddressTable:
    """Rules of a space, most specific first. Results are cached by name."""

    def __init__(self, rules: Iterable[AddressRule], default: AddressRule = DEFAULT_RULE) -> None:
        self.rules = sorted(rules, key=lambda rule: specificity(rule.pattern))
        if not any(rule.pattern == default.pattern for rule in self.rules):
            self.rules.append(default)
        self._anywhere, self._by_first_level = _by_first_level(self.rules)
        self._tree: FilterTree[AddressRule] = FilterTree()
        for rule in self.rules:
            self._tree.add(rule.pattern, rule)
        self.patterns = frozenset(rule.pattern for rule in self.rules)
        """Patterns of all rules."""
        self._found = RememberedNames[AddressRule]()

    def rule(self, address: str) -> AddressRule:
        """Return the rule of a name. Names that begin with ``$`` belong to the broker and are always topics."""
        found = self._found.get(address)
        if found is None:
            found = self._find(address)
            self._found.note(address, found)
        return found

    def _find(self, address: str) -> AddressRule:
        rules = self._by_first_level.get(address.partition("/")[0], self._anywhere)
        return next((rule for rule in rules if matches(rule.pattern, address)), DEFAULT_RULE)

    def deciding_levels(self, address: str) -> int:
        """Return the number of leading levels of a name that decide its rule (`FilterTree.deciding_levels`)."""
        return self._tree.deciding_levels(address)

    def rule_of_filter(self, pattern: str) -> AddressRule:
        """Return the most specific rule that covers the whole filter.

        ``queue/#`` under a rule for ``queue/#`` consumes from queues. ``#`` gets the default rule, so a subscriber to
        everything does not take messages out of queues.
        """
        if not is_filter(pattern):  # looked up once a subscription: not worth caching
            return self._found.get(pattern) or self._find(pattern)
        return next((rule for rule in self._reaching(pattern) if covers(rule.pattern, pattern)), DEFAULT_RULE)

    def topic_rules(self, pattern: str) -> list[AddressRule]:
        """Return every rule of type topic that could apply to some name of the filter."""
        found = []
        for rule in self._reaching(pattern):
            if rule.type is AddressType.TOPIC and overlaps(rule.pattern, pattern):
                found.append(rule)
            if covers(rule.pattern, pattern) and not pattern.startswith("$"):
                break  # the rules after it are less specific and apply to no name of the filter
        if pattern.startswith("$") and DEFAULT_RULE not in found:
            found.append(DEFAULT_RULE)  # names that begin with "$" are topics whatever the default is
        return found

    def _reaching(self, pattern: str) -> list[AddressRule]:
        """Return the rules that can apply to names of a filter. A leading wildcard does not match names with ``$``."""
        if not pattern.startswith("$") or is_wide(pattern):
            return self.rules
        return [rule for rule in self.rules if rule.pattern.startswith("$")]


def _by_first_level(rules: Sequence[AddressRule]) -> tuple[list[AddressRule], dict[str, list[AddressRule]]]:
    """Return the rules that start with a wildcard, and all candidate rules by first level, in their order.

    Without this index a new name would be matched against every rule.
    """
    anywhere: list[tuple[int, AddressRule]] = []
    literal: dict[str, list[tuple[int, AddressRule]]] = {}
    for place, rule in enumerate(rules):
        first = filter_levels(rule.pattern)[0]
        (anywhere if first in ("+", "#") else literal.setdefault(first, [])).append((place, rule))
    return [rule for _, rule in anywhere], {
        first: [rule for _, rule in merge(own, anywhere, key=itemgetter(0))] for first, own in literal.items()
    }
