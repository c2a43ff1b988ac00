"""What becomes of deliveries, and what is wrong where something is."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Condition(NamedTuple):
    """An error as it goes over the wire (AMQP 1.0 section 2.8.14): symbolic name and words for a person.

    `info`: pairs of symbols for programs. They are sent with links and connections, and not looked at when received.
    """

    name: str
    description: str = ""
    info: tuple[tuple[str, str], ...] = ()


def words(condition: Condition | None) -> str:
    """A condition for people; None: the peer gave none."""
    if condition is None:
        return "closed by the peer"
    return f"{condition.name}: {condition.description}" if condition.description else condition.name


Detail = Condition | bytes | None
"""What comes with a state: the condition of `rejected`, or the annotations of `modified` as an encoded map."""


class DeliveryState(enum.IntEnum):
    """Delivery states (section 3.4); the two fields of `modified` that matter are told apart as states of their own."""

    NONE = 0
    """Settled without a state."""
    RECEIVED = 0x23
    ACCEPTED = 0x24
    REJECTED = 0x25
    RELEASED = 0x26
    MODIFIED = 0x27
    MODIFIED_FAILED = 0x127
    """`modified` with delivery-failed."""
    MODIFIED_UNDELIVERABLE = 0x227
    """`modified` with undeliverable-here."""

    @property
    def terminal(self) -> bool:
        return self >= DeliveryState.ACCEPTED
