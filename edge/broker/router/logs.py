"""Subscriptions to logs of the store, opened at their stored cursors."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec

from edge.broker.delivery import LogSubscription
from edge.broker.delivery.attempts import ATTEMPTS, attempts_key
from edge.broker.delivery.dead_letters import DeadLetters
from edge.broker.delivery.feeds import LogFeeds
from edge.broker.delivery.queue import queue_subscription
from edge.broker.model.addresses import DEFAULT_RULE, AddressRule, AddressTable
from edge.broker.store.contract import Store
from edge.broker.store.limits import QUEUE_CURSOR
from edge.broker.store.records import CursorRecord

logger = logging.getLogger(__name__)

QUEUE_LOG = "queue "
"""Prefix of the name of a queue's log; its address follows."""


class Logs:
    """Logs by purpose, and the subscriptions that read them."""

    def __init__(self, store: Store, deadletters: DeadLetters, feeds: LogFeeds) -> None:
        self._store = store
        self._deadletters = deadletters
        self._feeds = feeds
        self._rules: dict[int, str] = {}
        self._attempts = dict(store.state.items(ATTEMPTS))
        """Failed deliveries before the start, of cursors that are not open yet."""

    def of_topics(self, rule: AddressRule) -> int:
        """Return the log of all topics of a rule, made if it is new."""
        log = self._store.logs.open(f"topic {rule.pattern}")
        self._rules[log] = rule.pattern
        return log

    def patterns(self, table: AddressTable) -> Iterator[tuple[int, str]]:
        """Yield the logs with messages, with the rule in `table` of their addresses, if there is one."""
        for log, name in self._store.retention.holding():
            kind, _, address = name.partition(" ")
            if kind == "queue":
                rule = table.rule_of_filter(address)
                if rule.type.is_queue:
                    yield log, rule.pattern
            elif address in table.patterns or address == DEFAULT_RULE.pattern:
                yield log, address

    def rule_of(self, log: int) -> str | None:
        """Return the pattern of the rule of a topic log; None when it was not used since the start."""
        return self._rules.get(log)

    def of_queue(self, address: str) -> int:
        """Return the log of a queue, made with its cursor if it is new."""
        log = self._store.logs.open(f"{QUEUE_LOG}{address}")
        self._store.cursors.make_idle(self._store.cursors.open(QUEUE_CURSOR, log, 0))
        return log

    def find_queue(self, address: str) -> int | None:
        """Return the log of a queue, or None."""
        return self._store.logs.find(f"{QUEUE_LOG}{address}")

    def queue_of(self, log: int) -> str | None:
        """Return the address of the queue of a log; None if it is not a queue's."""
        name = self._store.logs.name(log)
        return name[len(QUEUE_LOG) :] if name.startswith(QUEUE_LOG) else None

    def make_idle(self, queue: LogSubscription) -> None:
        """Keep the cursor of a closed queue only as its row."""
        self._store.cursors.make_idle(queue.cursor)

    def backlog(self, address: str) -> int:
        """Return the number of unacknowledged messages of a queue."""
        log = self._store.logs.open(f"{QUEUE_LOG}{address}")
        return self._store.cursors.backlog(self._store.cursors.open(QUEUE_CURSOR, log, 0))

    def first_waiting(self, address: str) -> int:
        """Return the first position of a queue that is not acknowledged."""
        log = self._store.logs.open(f"{QUEUE_LOG}{address}")
        return self._store.cursors.record(self._store.cursors.open(QUEUE_CURSOR, log, 0)).position

    def forget_queue(self, address: str) -> bool:
        """Free the log of a queue. Return False when it has messages, stored or under way, or a reader."""
        log = self._store.logs.open(f"{QUEUE_LOG}{address}")
        return not self._feeds.serves(log) and self._store.logs.free(log)

    def is_only_follower(self, queue: LogSubscription) -> bool:
        """Return True when its log has no other reader: it is not browsed."""
        return self._feeds.is_only_follower(queue)

    def open_queue(self, address: str) -> LogSubscription:
        """Open the queue of an address, made if it is new."""
        log = self._store.logs.open(f"{QUEUE_LOG}{address}")
        record = self._store.cursors.record(self._store.cursors.open(QUEUE_CURSOR, log, 0))
        queue = queue_subscription(self._store, record, address, deadletters=self._deadletters, feeds=self._feeds)
        self._load_attempts(queue)
        return queue

    def open_part(self, pattern: str, name: str, log: int) -> LogSubscription:
        """Open the part of a durable subscription in a topic log; a new one begins at the end of the log."""
        record = self._store.cursors.record(self._store.cursors.open(name, log, self._store.logs.bounds(log)[1]))
        return self._part(record, pattern)

    def reopen_part(self, pattern: str, cursor: int) -> LogSubscription:
        """Open a closed part at its stored cursor."""
        return self._part(self._store.cursors.record(cursor), pattern)

    def forget_part(self, name: str, log: int, cursor: int) -> None:
        """Delete the cursor of a closed part."""
        key = attempts_key(log, name)
        if self._attempts.pop(key, None) is not None:
            self._store.state.delete(ATTEMPTS, key)
        self._store.cursors.drop(cursor)

    def _part(self, record: CursorRecord, pattern: str) -> LogSubscription:
        part = LogSubscription(self._store, record, pattern, deadletters=self._deadletters, feeds=self._feeds)
        self._store.cursors.set_filter(part.cursor, part.may_want)
        self._load_attempts(part)
        return part

    def _load_attempts(self, subscription: LogSubscription) -> None:
        packed = self._attempts.pop(attempts_key(subscription.log, subscription.name), None)
        if packed is not None:
            try:
                subscription.load_attempts(packed)
            except msgspec.MsgspecError as error:
                logger.warning("%s: cannot read the stored counts of failed deliveries: %s", subscription.name, error)
