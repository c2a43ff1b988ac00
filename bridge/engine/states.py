"""Delivery states and error conditions of AMQP."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Condition(NamedTuple):
    """An AMQP error (AMQP 1.0 section 2.8.14): symbolic name and description for people.

    `info`: pairs of symbols for programs. They are sent with links and connections, and read from the close of a
    connection.
    """

    name: str
    description: str = ""
    info: tuple[tuple[str, str], ...] = ()


def describe_condition(condition: Condition | None) -> str:
    """Return a condition as text. None means that the peer closed without a condition."""
    if condition is None:
        return "closed by the peer"
    return f"{condition.name}: {condition.description}" if condition.description else condition.name


class DeliveryState(enum.IntEnum):
    """Delivery states (section 3.4; part 4, section 4.5). `modified` has two more members, one for each field that
    changes its meaning."""

    NONE = 0
    """Settled without a state."""
    RECEIVED = 0x23
    ACCEPTED = 0x24
    REJECTED = 0x25
    RELEASED = 0x26
    MODIFIED = 0x27
    DECLARED = 0x33
    """Outcome of a declare. Its detail is the txn-id."""
    TRANSACTIONAL = 0x34
    """Part of a transaction. Its detail is a `TransactionalState`."""
    MODIFIED_FAILED = 0x127
    """`modified` with delivery-failed."""
    MODIFIED_UNDELIVERABLE = 0x227
    """`modified` with undeliverable-here."""

    @property
    def terminal(self) -> bool:
        return self >= DeliveryState.ACCEPTED


class TransactionalState(NamedTuple):
    """State of a delivery in a transaction: its txn-id, and the outcome that the discharge gives it."""

    transaction: bytes
    outcome: DeliveryState = DeliveryState.NONE
    """NONE: not known yet."""
    detail: Condition | bytes | None = None


Detail = Condition | bytes | TransactionalState | None
"""Detail of a state: the condition of `rejected`, the annotations of `modified` as an encoded map, the txn-id of
`declared`, or the transactional state."""
