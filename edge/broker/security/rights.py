"""Rights as text: ``send,recv:plant/#`` allows two operations on the addresses that a topic filter matches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bridge.topic_filter import filter_fault
from edge.broker.model.authorization import AccessRule, Operation


def parse_rights(texts: Iterable[str]) -> tuple[AccessRule, ...]:
    """Parse rights. Raises ValueError with the text and its fault."""
    return tuple(_rule(text) for text in texts)


def format_rights(rules: Sequence[AccessRule]) -> list[str]:
    """Return a text for each address of each rule."""
    return [
        f"{','.join(sorted(operation.value for operation in rule.operations))}:{pattern}"
        for rule in rules
        for pattern in rule.addresses
    ]


def _rule(text: str) -> AccessRule:
    names, separator, pattern = text.partition(":")
    try:
        operations = frozenset(Operation(name.strip()) for name in names.split(","))
    except ValueError:
        known = ", ".join(operation.value for operation in Operation)
        raise ValueError(f"{text}: {names!r} is not one of {known}, joined by commas") from None
    fault = filter_fault(pattern) if separator and pattern else "no filter after the colon"
    if fault:
        raise ValueError(f"{text}: {fault}")
    return AccessRule((pattern,), operations)
