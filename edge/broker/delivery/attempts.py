"""Failed deliveries of one subscription: how often each message failed, which consumers are excluded, and delays.

A message that a consumer released has not failed (AMQP 1.0 section 3.4.4): its count of failed deliveries stays. Yet
each release makes the wait for the next delivery longer, as a failure does. A consumer that returned a message does not
get it again while another one may take it, for `limits.RETURNED_WAIT_S`.

Only messages that failed and are not settled yet are tracked, in memory. The counts are also kept in the store's small
state, soon after they change, so that a message that no consumer can take reaches its last attempt although the gateway
restarts. The rest is lost in a restart: the message is then delivered at once, and to any consumer.
"""

from __future__ import annotations

import heapq
from operator import itemgetter
from typing import Final

import msgspec

from bridge.message import Stored
from edge.broker.limits import (
    ATTEMPTS_ANNOTATION_BYTES_MAX,
    ATTEMPTS_KEPT_MAX,
    ATTEMPTS_TRACKED_MAX,
    ATTEMPTS_WRITTEN_S,
    EXCLUDED_MAX,
    RETURNED_BY_MAX,
)
from edge.broker.message.amqp_annotations import merge_into_run
from edge.broker.model.address_policy import Redelivery
from edge.broker.model.interfaces import Consumer
from edge.broker.model.ranges import Ranges
from edge.broker.store.contract import SmallState

ATTEMPTS: Final = "attempts"
"""Kind of the small state that counts failed deliveries: `attempts_key` -> `Attempts.pack`."""


def delay_s(redelivery: Redelivery, attempts: int) -> float:
    """Return the seconds to wait after the delivery number `attempts` that failed or was released (1 is the first)."""
    try:
        delay = float(redelivery.delay_s) * float(redelivery.delay_multiplier) ** (attempts - 1)
    except OverflowError:
        delay = float("inf")
    highest = redelivery.delay_max_s
    return delay if highest is None else min(delay, highest)


def attempts_key(log: int, cursor: str) -> str:
    """Return the key of a cursor, unique among all logs."""
    return f"{log} {cursor}"


def unpack(packed: bytes) -> dict[int, int]:
    """Decode the result of `Attempts.pack`. Raises msgspec.MsgspecError when it is damaged."""
    return msgspec.msgpack.decode(packed, type=dict[int, int])


class MessageReturns:
    """Consumers that returned one message, and the number of releases."""

    __slots__ = ("consumers", "releases", "until_s")

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        """Consumers that come after all others, in the order in which they returned the message."""
        self.releases = 0
        self.until_s = 0.0
        """Time until which they come last (monotonic seconds)."""


# Shared by all subscriptions without failures, which are nearly all; never changed.
_NO_EXCLUSIONS: Final[dict[int, set[Consumer]]] = {}
_NO_RETURNS: Final[dict[int, MessageReturns]] = {}
_NO_ANNOTATIONS: Final[dict[int, bytes]] = {}
_NO_DELAYS: Final[list[tuple[float, int]]] = []


class Attempts:
    """Failed and released messages of one subscription. `counts` may be read directly: position -> failed
    deliveries."""

    __slots__ = (
        "_annotations", "_annotations_bytes", "_due", "_excluded", "_exclusions", "_returns", "changed", "counts",
        "parked",
    )  # fmt: skip

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.changed = False
        """True when `counts` differs from the last packed state."""
        self.parked = Ranges()
        """Messages that no present consumer may get; they wait for another one."""
        self._excluded = _NO_EXCLUSIONS
        """Consumers that must not get a message again, by position, oldest entry first."""
        self._exclusions = 0
        """Number of these pairs."""
        self._returns = _NO_RETURNS
        self._due = _NO_DELAYS
        self._annotations = _NO_ANNOTATIONS
        self._annotations_bytes = 0

    def failed(self, position: int) -> int:
        """Count a failed delivery; return the number of failures. Beyond the limit the oldest count is forgotten."""
        count = self._track(position) + 1
        self.counts[position] = count
        self.changed = True
        return count

    def _track(self, position: int) -> int:
        """Return the number of failures, 0 for a new message. A tracked message is delivered alone."""
        count = self.counts.setdefault(position, 0)
        if len(self.counts) > ATTEMPTS_TRACKED_MAX:
            oldest = next(iter(self.counts))
            self.forget(oldest, oldest)
        return count

    def forget(self, first: int, last: int) -> None:
        """Forget settled messages."""
        if last - first > len(self.counts):
            gone = [position for position in self.counts if first <= position <= last]
        else:
            gone = [position for position in range(first, last + 1) if position in self.counts]
        for position in gone:
            if self.counts.pop(position):
                self.changed = True
            self._exclusions -= len(self._excluded.pop(position, ()))
            if self._returns:
                self._returns.pop(position, None)
            self._annotations_bytes -= len(self._annotations.pop(position, b""))

    def pack(self) -> bytes | None:
        """Return the counts to store, the highest if there are too many; None: nothing to store."""
        self.changed = False
        failed = [(position, count) for position, count in self.counts.items() if count > 0]
        if len(failed) > ATTEMPTS_KEPT_MAX:
            failed = heapq.nlargest(ATTEMPTS_KEPT_MAX, failed, key=itemgetter(1))
        return msgspec.msgpack.encode(dict(failed)) if failed else None

    def annotate(self, position: int, annotations: bytes) -> None:
        """Deliver the message with these annotations from now on, which replace earlier ones, if there is room for
        them."""
        others = self._annotations_bytes - len(self._annotations.get(position, b""))
        if others + len(annotations) <= ATTEMPTS_ANNOTATION_BYTES_MAX:
            if self._annotations is _NO_ANNOTATIONS:
                self._annotations = {}
            self._annotations[position] = annotations
            self._annotations_bytes = others + len(annotations)
            self._track(position)

    def annotated(self, stored: Stored) -> Stored:
        """Return one message with its annotations."""
        annotations = self._annotations.get(stored.position)
        return stored if annotations is None else stored._replace(run=merge_into_run(stored.run, annotations))

    def exclude(self, position: int, consumer: Consumer) -> None:
        """Never deliver the message to this consumer again (AMQP 1.0 section 3.4.5, undeliverable-here; or it is too
        large for it)."""
        self._track(position)
        if self._excluded is _NO_EXCLUSIONS:
            self._excluded = {}
        consumers = self._excluded.setdefault(position, set())
        if consumer not in consumers:
            consumers.add(consumer)
            self._exclusions += 1
        while self._exclusions > EXCLUDED_MAX:
            self._exclusions -= len(self._excluded.pop(next(iter(self._excluded))))

    def released(self, position: int) -> int:
        """Count a release; return the deliveries of the message that failed or were released."""
        count = self._track(position)
        returns = self._returns_of(position)
        returns.releases += 1
        return count + returns.releases

    def tries(self, position: int) -> int:
        """Return the deliveries of a message that failed or were released."""
        returns = self._returns.get(position)
        return self.counts.get(position, 0) + (returns.releases if returns is not None else 0)

    def pass_over(self, position: int, consumer: Consumer, until_s: float) -> None:
        """Prefer other consumers to this one for the message, until then."""
        self._track(position)
        returns = self._returns_of(position)
        returns.until_s = until_s
        if consumer not in returns.consumers:
            returns.consumers.append(consumer)
            del returns.consumers[:-RETURNED_BY_MAX]

    def allow_again(self, position: int) -> bool:
        """Let each consumer that returned the message get it again. Return False when nothing changes."""
        returns = self._returns.get(position)
        if returns is None or not returns.consumers:
            return False
        returns.consumers.clear()
        return True

    def allow_due(self, now_s: float) -> list[int]:
        """Let consumers get messages again that they returned long enough ago; return those messages."""
        due = [position for position, each in self._returns.items() if each.consumers and each.until_s <= now_s]
        for position in due:
            self._returns[position].consumers.clear()
        return due

    @property
    def passes_over(self) -> bool:
        """True while some messages go to other consumers first."""
        return any(each.consumers for each in self._returns.values())

    def _returns_of(self, position: int) -> MessageReturns:
        if self._returns is _NO_RETURNS:
            self._returns = {}
        return self._returns.setdefault(position, MessageReturns())

    def is_excluded(self, position: int, consumer: Consumer) -> bool:
        """Return True when the message must not go to this consumer again."""
        excluded = self._excluded.get(position)
        return excluded is not None and consumer in excluded

    def is_passed_over(self, position: int, consumer: Consumer) -> bool:
        """Return True when the message goes to another consumer before this one."""
        returns = self._returns.get(position)
        return returns is not None and consumer in returns.consumers

    def excluded_consumers(self, position: int) -> set[Consumer] | None:
        """Return the consumers that do not get the message now."""
        excluded, returns = self._excluded.get(position), self._returns.get(position)
        if returns is None or not returns.consumers:
            return excluded
        return {*returns.consumers, *(excluded or ())}

    def left(self, consumer: Consumer) -> None:
        """Forget a consumer that has left."""
        for position, consumers in list(self._excluded.items()):
            if consumer in consumers:
                consumers.discard(consumer)
                self._exclusions -= 1
            if not consumers:
                del self._excluded[position]
        for returns in self._returns.values():
            if consumer in returns.consumers:
                returns.consumers.remove(consumer)

    def delay(self, position: int, due_s: float) -> None:
        if self._due is _NO_DELAYS:
            self._due = []
        heapq.heappush(self._due, (due_s, position))

    def forget_waiting(self) -> None:
        """Forget delayed and parked messages: reading the log again finds them."""
        self.parked = Ranges()
        self._due = _NO_DELAYS

    @property
    def is_idle(self) -> bool:
        """True when no message is tracked, and the store is up to date."""
        return not (self.counts or self.changed or self.parked or self._due)

    @property
    def delayed(self) -> int:
        """Number of delayed messages."""
        return len(self._due)

    def due(self, now_s: float) -> list[int]:
        """Return the positions with a delay that has passed."""
        found = []
        while self._due and self._due[0][0] <= now_s:
            found.append(heapq.heappop(self._due)[1])
        return found


class StoredAttempts:
    """Counts of one subscription in the store."""

    __slots__ = ("_attempts", "_cursor", "_due_s", "_is_kept", "_log", "_state")

    def __init__(self, state: SmallState, log: int, cursor: str, attempts: Attempts) -> None:
        """`cursor` is the name of the subscription's cursor in that log."""
        self._state = state
        self._log, self._cursor = log, cursor
        self._attempts = attempts
        self._is_kept = False
        self._due_s = 0.0  # when they may be written again

    def load(self, packed: bytes) -> dict[int, int]:
        """Return the counts that a former process stored. Raises msgspec.MsgspecError when they are damaged."""
        self._is_kept = True
        return unpack(packed)

    def write(self, now_s: float, *, decide: bool) -> None:
        """Store the counts, if they decide about anything, at most once in `limits.ATTEMPTS_WRITTEN_S`."""
        if not self._attempts.changed or now_s < self._due_s:
            return
        self._due_s = now_s + ATTEMPTS_WRITTEN_S
        packed = self._attempts.pack()
        if packed is not None and decide:
            self._state.put(ATTEMPTS, attempts_key(self._log, self._cursor), packed)
            self._is_kept = True
        else:
            self.drop()

    def drop(self) -> None:
        """Delete the stored counts."""
        if self._is_kept:
            self._state.delete(ATTEMPTS, attempts_key(self._log, self._cursor))
            self._is_kept = False
