"""Message groups: all messages of one group go to one consumer while it is there (AMQP 1.0 section 3.2.4, `group-id`;
JMSXGroupID)."""

from __future__ import annotations

from zlib import crc32

from edge.broker.limits import GROUP_BUCKETS
from edge.broker.message.translation import group_of
from edge.broker.model.interfaces import Consumer


class MessageGroups:
    """Buckets of groups and the consumer that has each. A group is in one bucket for good, and what moves is a bucket,
    so the table is bounded whatever number of groups there is, and no group is ever with two consumers."""

    __slots__ = ("_owners",)

    def __init__(self) -> None:
        self._owners: dict[int, Consumer] = {}

    def claim(self, bucket: int, consumer: Consumer) -> bool:
        """True when the bucket is the consumer's, or is from now on."""
        return self._owners.setdefault(bucket, consumer) is consumer

    def leave(self, consumer: Consumer) -> bool:
        """The consumer is gone; True when it had groups, which are anybody's now."""
        gone = [bucket for bucket, owner in self._owners.items() if owner is consumer]
        for bucket in gone:
            del self._owners[bucket]
        return bool(gone)


def bucket_of(body: bytes) -> int | None:
    """The bucket of a message's group; None when it is in none. The same over restarts."""
    group = group_of(body)
    return None if group is None else crc32(group.encode("utf-8", "replace")) % GROUP_BUCKETS
