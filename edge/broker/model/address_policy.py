"""What an address promises beyond its type: time to live, redelivery, quota, durability (EnMasse's words)."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec

from bridge.resources.fields import Bytes, Count, Live, ResourcePart, Seconds, read_by

BATCH_MS_MAX: Final = 60_000
"""How long a commit may wait for company: a device waits as long for its answer."""


class WhenFull(enum.Enum):
    """What happens to a message for an address whose quota is used up."""

    REJECT = "reject"
    DROP_OLDEST = "dropOldest"
    THIN = "thin"


class DurabilityMode(enum.Enum):
    """Time of an acknowledgement: after its commit, after a commit that waited for company, or at once. With MEMORY no
    message is on disk. Messages are in a bounded ring, which is lost with the process."""

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


DurabilityWord = Annotated[Durability, read_by(Durability.parse, str, pattern=r"^(fsync|memory|batch:\d+)$")]


class Redelivery(ResourcePart, frozen=True, kw_only=True):
    """How often and how soon an unsuccessful delivery is tried again."""

    attempts_max: Live[Count | None] = msgspec.field(default=None, name="maximumDeliveryAttempts")
    """Deliveries of one message before it is dead-lettered; without it they never end."""
    count_on_link_loss: Live[bool | None] = msgspec.field(default=None, name="countOnLinkLoss")
    """A delivery counts as an attempt when its consumer loses link or connection before it answers. Without this field
    it does where there is a `maximumDeliveryAttempts`."""
    delay_s: Live[Seconds] = msgspec.field(default=0.0, name="redeliveryDelay")
    """Wait before the second delivery."""
    delay_multiplier: Live[Annotated[float, msgspec.Meta(ge=1)]] = msgspec.field(
        default=1.0, name="redeliveryDelayMultiplier"
    )
    """Factor on the wait for each further delivery."""
    delay_max_s: Live[Seconds | None] = msgspec.field(default=None, name="maximumDeliveryDelay")
    """No wait grows beyond this."""

    @property
    def counts_link_loss(self) -> bool:
        """A consumer that dies with a message counts as an attempt."""
        return self.attempts_max is not None if self.count_on_link_loss is None else self.count_on_link_loss


class AddressPolicy(ResourcePart, frozen=True, kw_only=True):
    """What a stored address promises beyond its type."""

    ttl_min_s: Live[Seconds | None] = msgspec.field(default=None, name="messageTtl.minimum")
    """A message's own time to live is raised to this."""
    ttl_max_s: Live[Seconds | None] = msgspec.field(default=None, name="messageTtl.maximum")
    """A message's own time to live is lowered to this; a message without one gets it."""
    redelivery: Live[Redelivery] = msgspec.field(default=Redelivery(), name="messageRedelivery")
    """How often and how soon an unsuccessful delivery is tried again."""
    deadletter: Live[str | None] = None
    """Address of type deadletter for messages that could not be delivered."""
    expiry: Live[str | None] = None
    """Address of type deadletter for messages whose time to live has passed; without it they are dropped, and
    ledgered."""
    quota_bytes: Live[Bytes | None] = msgspec.field(default=None, name="quota.bytes")
    """Bytes of bodies the address may keep; without it as much as the space has."""
    reserve_bytes: Live[Bytes] = msgspec.field(default=0, name="quota.reserve")
    """Bytes of the space's store that no other address may take from this one."""
    when_full: Live[WhenFull] = WhenFull.REJECT
    """What happens to a message when the quota is used up."""
    priority: Live[Annotated[int, msgspec.Meta(ge=0, le=9)]] = 4
    """0 to 9: who gives way when the space or the card is full, the lower first among those alike in `whenFull`."""
    durability: Live[DurabilityWord] = Durability()
    """Time of an acknowledgement: after its commit (`fsync`), after a commit that waited for company
    (`batch:<milliseconds>`), or at once (`memory`: messages stay in a bounded ring, which is lost with the process)."""
    consumers_max: Live[Count | None] = msgspec.field(default=None, name="maxConsumers")
    """Consumers at one time; without it there is no bound. Of a subscription: 1 unless configured."""
