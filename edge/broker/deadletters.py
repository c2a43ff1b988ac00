"""Messages given up: rejected, tried too often, undeliverable or expired. None of them disappears without a trace.

Where the address names a dead letter (or expiry) address the message goes there with the reason as annotations, and its
place in its own log is acknowledged once the copy is on disk: never before, as a failed commit gives up what it had
appended and keeps what it had acknowledged. So a power cut between the two may leave a second dead letter, and cannot
lose the first. Where there is no such address a record of kind ``lost`` says what was given up: the loss ledger.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final, Protocol

import msgspec

from bridge.amqp_values import Symbol, encode
from bridge.message import AMQP, RETAIN, Run, Stored
from edge.broker.amqp.sections import MESSAGE_ANNOTATIONS, section_at
from edge.broker.amqp.translate import without_ttl
from edge.broker.configuration import AddressPolicy
from edge.broker.contract import Refusal
from edge.broker.expiry import is_over, ttl_ns
from edge.broker.limits import LOST_RECORDS_MAX
from edge.broker.mqtt.errors import MqttError
from edge.broker.mqtt.properties import decode_run, encode_run
from edge.broker.store.contract import Store

log = logging.getLogger(__name__)

REASON_ANNOTATION: Final = "x-opt-waypost-dead-reason"
FROM_ANNOTATION: Final = "x-opt-waypost-dead-from"
SEQUENCE_ANNOTATION: Final = "x-opt-waypost-dead-sequence"

KIND: Final = "lost"
"""Kind of the store's small state the loss records are kept under."""


class Reason(Enum):
    """Why a message was given up, in the words of the annotation and of the ledger."""

    REJECTED = "rejected"
    ATTEMPTS = "delivery attempts exceeded"
    UNDELIVERABLE = "undeliverable"
    EXPIRED = "expired"


class Lost(msgspec.Struct):
    """Sequences ``first..last`` of an address that were given up for one subscription; `count` of them, which is less
    than the range holds when records had to be merged."""

    address: str
    subscription: str
    reason: str
    first: int
    last: int
    count: int
    since_ns: int
    until_ns: int


class Owner(Protocol):
    """The subscription a message is given up for."""

    name: str
    policy: AddressPolicy

    def given_up(self, first: int, last: int) -> None:
        """These positions are taken care of: acknowledge them."""
        ...

    def give_up_again(self, first: int, last: int, reason: Reason) -> None:
        """The dead letter could not be stored: try again at the next tick."""
        ...

    def tick(self, now_s: float) -> bool:
        """Do what is due; False when nothing more is to come."""
        ...


class LossLedger:
    """What was given up, in records of the store; ranges that follow each other are one record."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0
        self._records: dict[str, Lost] = {}
        self._latest: dict[tuple[str, str, str], str] = {}
        for key, value in store.items(KIND):
            record = msgspec.msgpack.decode(value, type=Lost)
            self._records[key] = record
            self._latest[(record.subscription, record.address, record.reason)] = key
            self._next = max(self._next, int(key) + 1)

    def __iter__(self) -> Iterator[Lost]:
        return iter(self._records.values())

    def note(self, subscription: str, stored: Stored, reason: Reason, now_ns: int) -> bool:
        """Join the open group with a record; True when it is the first of its kind."""
        run, first = stored.run, stored.sequence
        last = first + len(run.bodies) - 1
        kind = (subscription, run.address, reason.value)
        key = self._latest.get(kind)
        record = self._records.get(key) if key is not None else None
        new = record is None
        full = len(self._records) >= LOST_RECORDS_MAX
        if key is not None and record is not None and (record.last + 1 == first or full):
            record.first, record.last = min(record.first, first), max(record.last, last)
            record.count += len(run.bodies)
            record.until_ns = now_ns
        else:
            key, self._next = f"{self._next:012}", self._next + 1
            record = Lost(run.address, subscription, reason.value, first, last, len(run.bodies), now_ns, now_ns)
            self._records[key] = record
            self._latest[kind] = key
        self._store.put(KIND, key, msgspec.msgpack.encode(record))
        return new


class DeadLetters:
    """Gives messages up for every subscription of a router. It is the origin of the dead letters it publishes."""

    name = "deadletters"

    def __init__(
        self,
        store: Store,
        publish: Callable[[DeadLetters, Run, Sequence[int]], None],
        clock_ns: Callable[[], int],
        clock_good: Callable[[], bool],
        monotonic_s: Callable[[], float] | None = None,
    ) -> None:
        """`publish` is the router's; `monotonic_s` times redeliveries, and must not jump as `clock_ns` (UTC) may."""
        self.now_s = monotonic_s or (lambda: clock_ns() / 1e9)
        self.ledger = LossLedger(store)
        self._publish = publish
        self._clock_ns = clock_ns
        self._clock_good = clock_good
        self._token = 0
        self._under_way: dict[int, tuple[Owner, int, Reason]] = {}
        self._due: dict[Owner, None] = {}

    # --- from subscriptions -----------------------------------------------------------------------------------

    def expired(self, run: Run, ttl: int) -> bool:
        """True when its `ttl` (nanoseconds) has passed."""
        return is_over(run, ttl, self._clock_ns(), clock_good=self._clock_good())

    def worthless(self, run: Run, policy: AddressPolicy) -> bool:
        """True when a message that is stored nowhere has waited too long."""
        ttl = ttl_ns(run, policy)
        return ttl is not None and self.expired(run, ttl)

    def wake_later(self, owner: Owner) -> None:
        """Call `owner.tick` at every tick until it has nothing more to do."""
        self._due[owner] = None

    def give_up(self, owner: Owner, stored: Stored, reason: Reason) -> None:
        """Take care of the messages of a stored run; `owner.given_up` follows, at once or with a commit."""
        policy, run = owner.policy, stored.run
        address = policy.expiry if reason is Reason.EXPIRED else policy.deadletter
        if address is None or address == run.address:
            if self.ledger.note(owner.name, stored, reason, self._clock_ns()):
                log.warning("%s: messages of %s are given up: %s", owner.name, run.address, reason.value)
            owner.given_up(stored.position, stored.position + len(run.bodies) - 1)
            return
        position = stored.position
        for dead in dead_runs(stored, address, reason):
            tokens = range(self._token, self._token + len(dead.bodies))
            self._token += len(dead.bodies)
            for token in tokens:
                self._under_way[token] = (owner, position, reason)
                position += 1
            self._publish(self, dead, tokens)

    def tick(self) -> None:
        """Every `limits.TICK_S`: redeliver what is due, try again what could not be stored."""
        if not self._due:
            return
        now_s = self.now_s()
        for owner in list(self._due):
            if not owner.tick(now_s):
                self._due.pop(owner, None)

    # --- origin -----------------------------------------------------------------------------------------------

    def accepted(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            owner, position, _ = self._under_way.pop(token)
            owner.given_up(position, position)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        for token in tokens:
            owner, position, reason = self._under_way.pop(token)
            owner.give_up_again(position, position, reason)
            self._due[owner] = None


def dead_runs(stored: Stored, address: str, reason: Reason) -> list[Run]:
    """The messages of a stored run as they go to `address`: with the reason, and with no time to live any more.

    AMQP messages carry it as message annotations, MQTT messages as user properties of the same names.
    """
    run = stored.run
    flags = (run.flags & ~RETAIN) | 1
    if run.flags & AMQP:
        bodies = [
            with_annotations(body, _marks(run.address, reason, stored.sequence + i))
            for i, body in enumerate(run.bodies)
        ]
        return [Run(address, run.device, flags, without_ttl(run.properties), bodies)]
    try:
        properties = msgspec.structs.replace(decode_run(run.properties), message_expiry_interval_s=None)
    except MqttError:  # they were checked when they came in
        properties = decode_run(b"")
    runs = []
    for i, body in enumerate(run.bodies):
        marks = tuple(
            (str(name), str(value)) for name, value in _marks(run.address, reason, stored.sequence + i).items()
        )
        marked = msgspec.structs.replace(properties, user_property=properties.user_property + marks)
        runs.append(Run(address, run.device, flags, encode_run(marked), [body]))
    return runs


def with_annotations(body: bytes, annotations: dict[str, str | int]) -> bytes:
    """An AMQP message without its header, with message annotations added; those it has stay as they are encoded.

    Raises `bridge.amqp_values.DecodeError` when it is no message.
    """
    pairs, count, rest = b"".join(encode(Symbol(k)) + encode(v) for k, v in annotations.items()), len(annotations), body
    section = section_at(body, 0)
    if section.code == MESSAGE_ANNOTATIONS:
        rest = body[section.end :]
        wide = body[section.value] == 0xD1
        start = section.value + (9 if wide else 3)
        size = body[section.value + 5 : start] if wide else body[section.value + 2 : start]
        pairs = body[start : section.end] + pairs
        count += int.from_bytes(size, "big") // 2
    header = b"\x00\x53\x72\xd1" + (len(pairs) + 4).to_bytes(4, "big") + (2 * count).to_bytes(4, "big")
    return header + pairs + rest


def _marks(address: str, reason: Reason, sequence: int) -> dict[str, str | int]:
    return {REASON_ANNOTATION: reason.value, FROM_ANNOTATION: address, SEQUENCE_ANNOTATION: sequence}
