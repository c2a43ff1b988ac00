"""Message groups: all messages of one group go to one consumer while it is there (AMQP 1.0 section 3.2.4, `group-id`;
JMSXGroupID)."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from edge.broker.limits import GROUP_BUCKETS
from edge.broker.message.translation import group_of
from edge.broker.model.interfaces import Consumer


class MessageGroups:
    """Buckets of groups and the consumer that has each. A group is in one bucket for good, and what moves is a bucket,
    so the table is bounded whatever number of groups there is, and no group is ever with two consumers. A new bucket
    goes to the consumer with the fewest."""

    __slots__ = ("_counts", "_owners")

    def __init__(self) -> None:
        self._owners: dict[int, Consumer] = {}
        self._counts: dict[Consumer, int] = {}
        """Buckets that each consumer has."""

    def owner(self, bucket: int) -> Consumer | None:
        """Return the consumer that has a bucket; None while none has it."""
        return self._owners.get(bucket)

    def assign(self, bucket: int, candidates: Sequence[Consumer]) -> Consumer:
        """Give a bucket that no consumer has to one of these, and return it: the first of those with the fewest."""
        counts = self._counts
        owner = min(candidates, key=lambda candidate: counts.get(candidate, 0))
        counts[owner] = counts.get(owner, 0) + 1
        self._owners[bucket] = owner
        return owner

    def leave(self, consumer: Consumer) -> bool:
        """The consumer is gone; True when it had groups, which are anybody's now."""
        if self._counts.pop(consumer, 0) == 0:
            return False
        self._owners = {bucket: owner for bucket, owner in self._owners.items() if owner is not consumer}
        return True


def bucket_of(body: bytes) -> int | None:
    """The bucket of a message's group; None when it is in none. The same over restarts."""
    group = group_of(body)
    return None if group is None else crc32(group.encode("utf-8", "replace")) % GROUP_BUCKETS
