"""What an address promises beyond its type: time to live, redelivery, quota, durability (EnMasse's words)."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

BATCH_MS_MAX: Final = 60_000
"""How long a commit may wait for company: a device waits as long for its answer."""


class WhenFull(enum.Enum):
    """What happens to a message for an address whose quota is used up."""

    REJECT = "reject"
    DROP_OLDEST = "dropOldest"
    THIN = "thin"


class DurabilityMode(enum.Enum):
    """When an acknowledgement leaves: after its commit, after a commit that waited for company, or at once."""

    FSYNC = "fsync"
    BATCH = "batch"
    MEMORY = "memory"


class Durability(msgspec.Struct, frozen=True):
    """`delay_s` is how long a commit may wait for more messages; 0 unless the mode is BATCH."""

    mode: DurabilityMode = DurabilityMode.FSYNC
    delay_s: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Durability:
        """``fsync``, ``memory`` or ``batch:<milliseconds>``. Raises `ValueError` with what was expected."""
        word, _, rest = text.partition(":")
        if word in ("fsync", "memory") and text == word:
            return cls(DurabilityMode(word))
        if word == "batch" and rest.isascii() and rest.isdigit() and 0 < int(rest) <= BATCH_MS_MAX:
            return cls(DurabilityMode.BATCH, int(rest) / 1000)
        raise ValueError(f'"{text}" is not a durability: fsync, memory, or batch:<milliseconds> of 1 to {BATCH_MS_MAX}')


class Redelivery(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how soon an unsuccessful delivery is tried again."""

    attempts_max: int | None = None
    """Deliveries of one message before it is dead-lettered; None for without end."""
    delay_s: float = 0.0
    """Wait before the second delivery."""
    delay_multiplier: float = 1.0
    """Factor on the wait for each further delivery."""
    delay_max_s: float | None = None
    """No wait grows beyond this; None for no bound."""


class AddressPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a stored address promises beyond its type."""

    ttl_min_s: float | None = None
    """A message's own time to live is raised to this."""
    ttl_max_s: float | None = None
    """A message's own time to live is lowered to this; a message without one gets it."""
    redelivery: Redelivery = Redelivery()
    deadletter: str | None = None
    """Address of type deadletter for messages that could not be delivered."""
    expiry: str | None = None
    """Address of type deadletter for messages whose time to live has passed; None: they are dropped, and ledgered."""
    quota_bytes: int | None = None
    """Bytes of bodies the address may keep; None: as much as the space has."""
    reserve_bytes: int = 0
    """Bytes of the space's store that no other address may take from this one."""
    when_full: WhenFull = WhenFull.REJECT
    priority: int = 4
    """0 to 9: who gives way when the space or the card is full, the lower first among those alike in `when_full`."""
    durability: Durability = Durability()
    consumers_max: int | None = None
    """Consumers at one time; None for no bound. Of a subscription: 1 unless configured."""
