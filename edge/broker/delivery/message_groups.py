"""Message groups: all messages of a group go to one consumer while it stays (AMQP 1.0 section 3.2.4, `group-id`;
JMSXGroupID)."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from edge.broker.limits import GROUP_BUCKETS
from edge.broker.message.translation import group_of
from edge.broker.model.interfaces import Consumer


class MessageGroups:
    """Owners of the buckets of message groups.

    A group is always in the same bucket, and consumers own buckets. So the table is bounded for any number of groups,
    and no group is ever with two consumers. A new bucket goes to the consumer with the fewest.
    """

    __slots__ = ("_counts", "_owners")

    def __init__(self) -> None:
        self._owners: dict[int, Consumer] = {}
        self._counts: dict[Consumer, int] = {}
        """Number of buckets of each consumer."""

    def owner(self, bucket: int) -> Consumer | None:
        """Return the consumer that owns a bucket, or None."""
        return self._owners.get(bucket)

    def assign(self, bucket: int, candidates: Sequence[Consumer]) -> Consumer:
        """Give a free bucket to the first of these consumers with the fewest buckets, and return it."""
        counts = self._counts
        owner = min(candidates, key=lambda candidate: counts.get(candidate, 0))
        counts[owner] = counts.get(owner, 0) + 1
        self._owners[bucket] = owner
        return owner

    def leave(self, consumer: Consumer) -> bool:
        """Free the buckets of a consumer that has left. Return True when it had any."""
        if self._counts.pop(consumer, 0) == 0:
            return False
        self._owners = {bucket: owner for bucket, owner in self._owners.items() if owner is not consumer}
        return True


def bucket_of(body: bytes) -> int | None:
    """Return the bucket of a message's group; None for a message without a group. It is the same after restarts."""
    group = group_of(body)
    return None if group is None else crc32(group.encode("utf-8", "replace")) % GROUP_BUCKETS
