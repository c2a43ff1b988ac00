"""Policy of an address: time to live, redelivery, quota and durability (the names are EnMasse's)."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

from bridge.resources.fields import Bytes, Count, Live, ResourcePart, Seconds, read_by

BATCH_MS_MAX: Final = 60_000
"""Longest delay of a commit in batch mode. A device waits that long for its acknowledgement."""


class WhenFull(enum.Enum):
    """Action on a message when the quota of its address is used up."""

    REJECT = "reject"
    DROP_OLDEST = "dropOldest"
    THIN = "thin"


class DurabilityMode(enum.Enum):
    """Time of an acknowledgement: after its commit, after a delayed commit, or at once.

    With MEMORY no message is on disk. Messages are in a bounded ring, which is lost with the process.
    """

    FSYNC = "fsync"
    BATCH = "batch"
    MEMORY = "memory"


class Durability(msgspec.Struct, frozen=True):
    """Durability mode. `delay_s` is the time a commit may wait for more messages; 0 unless the mode is BATCH."""

    mode: DurabilityMode = DurabilityMode.FSYNC
    delay_s: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Durability:
        """Parse ``fsync``, ``memory`` or ``batch:<milliseconds>``. Raises `ValueError` with the expected format."""
        word, _, rest = text.partition(":")
        if word in ("fsync", "memory") and text == word:
            return cls(DurabilityMode(word))
        if word == "batch" and rest.isascii() and rest.isdigit() and 0 < int(rest) <= BATCH_MS_MAX:
            return cls(DurabilityMode.BATCH, int(rest) / 1000)
        raise ValueError(f'"{text}" is not a durability: fsync, memory, or batch:<milliseconds> of 1 to {BATCH_MS_MAX}')


DurabilityWord = Annotated[Durability, read_by(Durability.parse, str, pattern=r"^(fsync|memory|batch:\d+)$")]


class Receipts(enum.Enum):
    """Receipts that a sender may request for its messages."""

    LANDED = "landed"


class Redelivery(ResourcePart, frozen=True, kw_only=True):
    """Number and timing of the retries of a failed delivery."""

    attempts_max: Live[Count | None] = msgspec.field(default=None, name="maximumDeliveryAttempts")
    """Deliveries of one message before it is dead-lettered. Unlimited without this field."""
    count_on_link_loss: Live[bool | None] = msgspec.field(default=None, name="countOnLinkLoss")
    """Count a delivery as an attempt when its consumer loses the link or connection before it answers. Without this
    field it counts if `maximumDeliveryAttempts` is set."""
    delay_s: Live[Seconds] = msgspec.field(default=0.0, name="redeliveryDelay")
    """Wait before the second delivery."""
    delay_multiplier: Live[Annotated[float, msgspec.Meta(ge=1)]] = msgspec.field(
        default=1.0, name="redeliveryDelayMultiplier"
    )
    """Factor by which the wait grows with each further delivery."""
    delay_max_s: Live[Seconds | None] = msgspec.field(default=None, name="maximumDeliveryDelay")
    """Longest wait before a delivery."""

    @property
    def counts_link_loss(self) -> bool:
        """True when a delivery counts as an attempt although its consumer disconnected before it answered."""
        return self.attempts_max is not None if self.count_on_link_loss is None else self.count_on_link_loss


class AddressPolicy(ResourcePart, frozen=True, kw_only=True):
    """Policy of a stored address, in addition to its type."""

    ttl_min_s: Live[Seconds | None] = msgspec.field(default=None, name="messageTtl.minimum")
    """Least time to live. A shorter one in a message is raised to this."""
    ttl_max_s: Live[Seconds | None] = msgspec.field(default=None, name="messageTtl.maximum")
    """Greatest time to live. A longer one in a message is lowered to this, and a message without one gets it."""
    redelivery: Live[Redelivery] = msgspec.field(default=Redelivery(), name="messageRedelivery")
    """Number and timing of the retries of a failed delivery."""
    deadletter: Live[str | None] = None
    """Address of type deadletter for messages that could not be delivered."""
    expiry: Live[str | None] = None
    """Address of type deadletter for expired messages. Without it they are dropped and entered into the loss ledger."""
    quota_bytes: Live[Bytes | None] = msgspec.field(default=None, name="quota.bytes")
    """Bytes of bodies the address may keep. Without this field only the quota of the space applies."""
    reserve_bytes: Live[Bytes] = msgspec.field(default=0, name="quota.reserve")
    """Bytes of the space's quota that are reserved for this address."""
    when_full: Live[WhenFull] = WhenFull.REJECT
    """Action on a message when the quota is used up."""
    priority: Live[Annotated[int, msgspec.Meta(ge=0, le=9)]] = 4
    """0 to 9. When the space or the card is full, addresses of lower priority free space first, among those with the
    same `whenFull`."""
    durability: Live[DurabilityWord] = Durability()
    """Time of an acknowledgement: after its commit (`fsync`), after a delayed commit (`batch:<milliseconds>`), or
    at once (`memory`: messages stay in a bounded ring, which is lost with the process)."""
    receipts: Live[Receipts | None] = None
    """`landed`: a message may request a signed receipt once a hub has it in the lake (user or application property
    ``waypost-receipt: landed``). Without this field such requests are ignored."""
    consumers_max: Live[Count | None] = msgspec.field(default=None, name="maxConsumers")
    """Most consumers at one time. The default is unlimited, and 1 for a subscription."""
