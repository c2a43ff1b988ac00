"""Dropped messages: rejected, tried too often, undeliverable or expired. Each leaves a record.

If the address names a dead letter (or expiry) address, the message goes there with the reason as annotations. The copy,
the acknowledgement of its position in its own log and the entry in the loss ledger are one commit: a power cut leaves
all of it or nothing, and a failed commit undoes all three.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

import msgspec

from bridge.amqp_values import DecodeError, Symbol, decode, encode
from bridge.command import PROCESS, process_of
from bridge.hidden import hides
from bridge.message import AMQP, CLOCK_GOOD, RETAIN, Run, Stored
from bridge.sections import MESSAGE_ANNOTATIONS, section_at, skip
from edge.broker.delivery.consumer_group import part_of
from edge.broker.message.amqp_annotations import merge_annotations, pairs, remove_annotations
from edge.broker.message.amqp_expiry import without_expiry
from edge.broker.message.mqtt_errors import MqttError
from edge.broker.message.mqtt_properties import decode_run, encode_run
from edge.broker.message.time_to_live import ttl_ns
from edge.broker.message.translation import DEAD_PREFIX, without_ttl
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.clock import MessageClock
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.store.contract import Cursors, StoreCommits
from edge.broker.store.records import Loss

log = logging.getLogger(__name__)

REASON_ANNOTATION: Final = DEAD_PREFIX + "reason"
FROM_ANNOTATION: Final = DEAD_PREFIX + "from"
SEQUENCE_ANNOTATION: Final = DEAD_PREFIX + "sequence"

DEAD_LETTERED: Final = "dead-lettered: "
"""Prefix of the reason in the ledger when the message is at a dead letter address."""

_MARK_NAMES: Final = (REASON_ANNOTATION, FROM_ANNOTATION, SEQUENCE_ANNOTATION)

MARK_CHARACTERS_MAX: Final = 100
"""Characters of a reason: the texts of `LossReason` have up to 30, but any client may send to a dead letter address."""

LOGGED_KINDS_MAX: Final = 1_000
"""Kinds of loss that are logged; each message is in the ledger anyway."""


class LossReason(Enum):
    """Reason why a message was dropped, in the words of the annotation and of the ledger."""

    REJECTED = "rejected"
    ATTEMPTS = "delivery attempts exceeded"
    UNDELIVERABLE = "undeliverable"
    EXPIRED = "expired"
    UNUSED = "subscription unused"
    """No client has held the subscription for too long."""


class DeadLetterOwner(Protocol):
    """Subscription that drops a message."""

    name: str
    cursor: int
    policy: AddressPolicy

    def given_up(self, first: int, last: int) -> None:
        """Acknowledge these positions: the messages are recorded."""
        ...

    def retry_discard(self, first: int, last: int, reason: LossReason) -> None:
        """Try again at the next tick: the dead letter could not be stored."""
        ...


class TimedSubscription(Protocol):
    """Subscription with work that depends on time."""

    def tick(self, now_s: float) -> bool:
        """Do what is due. Return False when nothing more is to be done."""
        ...

    def handle_error(self, error: Exception) -> None:
        """Handle an exception of `tick`."""
        ...


@hides("stored")
class _UnderWay(NamedTuple):
    """Message on its way to a dead letter address."""

    owner: DeadLetterOwner
    position: int
    reason: LossReason
    stored: Stored | None
    """Messages that it was sent with, for the entry in the ledger when it has arrived; None: the entry is in the same
    commit."""


class DeadLetters(Origin):
    """Drops messages for all subscriptions of a router. It is the origin of the dead letters that it publishes."""

    name = "deadletters"

    def __init__(
        self,
        cursors: Cursors,
        commits: StoreCommits,
        publish: Callable[[DeadLetters, Run, Sequence[int]], None],
        clock: MessageClock,
        monotonic_s: Callable[[], float],
    ) -> None:
        """`publish` is the router's; `monotonic_s` times redeliveries, and must not jump as `clock` (UTC) may."""
        self.now_s = monotonic_s
        self._cursors = cursors
        self._commits = commits
        self._logged: set[tuple[str, str, LossReason]] = set()
        self._publish = publish
        self._clock = clock
        self._clock_ns = clock.clock_ns
        self._token = 0
        self._under_way: dict[int, _UnderWay] = {}
        self._due: dict[TimedSubscription, None] = {}
        self.listeners: list[Callable[[Run, LossReason], None]] = []
        """Called with every run that is dropped; more than once if its dead letter had to be sent again."""

    # --- from subscriptions -----------------------------------------------------------------------------------

    def expired(self, run: Run, ttl: int) -> bool:
        """Return True when its `ttl` (nanoseconds) has certainly passed. An online command, which is alone in its run,
        expires in doubt too: it must never be late."""
        self._clock.read()
        found = self._clock.is_expired(run, ttl)
        return found is True or ends_in_doubt(run, found)

    def has_outlived_ttl(self, run: Run, policy: AddressPolicy) -> bool:
        """Return True when a message that is not stored has outlived its time to live."""
        ttl = ttl_ns(run, policy)
        return ttl is not None and self.expired(run, ttl)

    def left_ns(self, run: Run, policy: AddressPolicy) -> int | None:
        """Return the nanoseconds until a run that a consumer has expires; 0 or less: it has expired. None: it has no
        time to live, or its age is unknown, as the clock was set."""
        ttl = ttl_ns(run, policy)
        if ttl is None:
            return None
        if self.expired(run, ttl):
            return min(0, run.received_at + ttl - self._clock.now_ns)
        known = self._clock.is_expired(run, ttl) is not None
        return run.received_at + ttl - self._clock.now_ns if known else None

    def wake_later(self, timed: TimedSubscription) -> None:
        """Call `timed.tick` at every tick until it has nothing more to do."""
        self._due[timed] = None

    def discard(self, owner: DeadLetterOwner, stored: Stored, reason: LossReason) -> None:
        """Drop the messages of a stored run; `owner.given_up` is called, at once or with a commit."""
        self.report(owner, stored.run, reason)
        address = _address(owner, stored.run, reason)
        if address is not None:
            self._send(owner, stored, reason, address)
            return
        last = stored.position + len(stored.run.bodies) - 1
        self._cursors.discard(owner.cursor, stored.position, last, [self._loss(owner, stored, reason.value)])
        owner.given_up(stored.position, last)

    def letters(self, owner: DeadLetterOwner, stored: Stored, reason: LossReason) -> tuple[list[Run], Loss]:
        """Return the dead letters of messages that a caller drops in a commit of its own (none without an address), and
        their entry in the ledger. It calls `report` after that commit."""
        address = _address(owner, stored.run, reason)
        if address is None:
            return [], self._loss(owner, stored, reason.value)
        return dead_letter_runs(stored, address, reason), self._loss(owner, stored, DEAD_LETTERED + reason.value)

    def report(self, owner: DeadLetterOwner, run: Run, reason: LossReason) -> None:
        """Notify the listeners of a run that is dropped, and log it if it gets no dead letter."""
        for listener in self.listeners:
            listener(run, reason)
        if _address(owner, run, reason) is None:
            self._log(owner, run, reason)

    def _send(self, owner: DeadLetterOwner, stored: Stored, reason: LossReason, address: str) -> None:
        done = 0
        for dead in dead_letter_runs(stored, address, reason):
            count = len(dead.bodies)
            part = part_of(stored, done, done + count)
            tokens = range(self._token, self._token + count)
            self._token += count
            for index, token in enumerate(tokens):
                self._under_way[token] = _UnderWay(owner, part.position + index, reason, part)
            gathered = self._commits.gathered
            self._publish(self, dead, tokens)
            if self._commits.gathered > gathered:  # it is in the open group: one commit for both
                for token in tokens:
                    self._under_way[token] = self._under_way[token]._replace(stored=None)
                loss = self._loss(owner, part, DEAD_LETTERED + reason.value)
                self._cursors.discard(owner.cursor, part.position, part.position + count - 1, [loss], if_kept=True)
            done += count

    def _loss(self, owner: DeadLetterOwner, stored: Stored, reason: str) -> Loss:
        run, first = stored.run, stored.sequence
        count = len(run.bodies)
        size = sum(map(len, run.bodies))
        return Loss(owner.name, run.address, first, first + count - 1, count, size, reason, self._clock_ns())

    def _log(self, owner: DeadLetterOwner, run: Run, reason: LossReason) -> None:
        """Log one line for each kind of loss, not for each message."""
        kind = (owner.name, run.address, reason)
        if kind not in self._logged and len(self._logged) < LOGGED_KINDS_MAX:
            self._logged.add(kind)
            log.warning("%s: dropped messages of %s: %s", owner.name, run.address, reason.value)

    def tick(self) -> None:
        """Redeliver what is due, and retry dead letters that could not be stored. Called every `limits.TICK_S`."""
        if not self._due:
            return
        now_s = self.now_s()
        for timed in list(self._due):
            try:
                waits = timed.tick(now_s)
            except Exception as error:
                timed.handle_error(error)
                continue
            if not waits:
                self._due.pop(timed, None)

    # --- origin -----------------------------------------------------------------------------------------------

    def accepted(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            owner, position, reason, stored = self._under_way.pop(token)
            if stored is not None:  # delivered without being stored: each message has its own answer
                at = position - stored.position
                loss = self._loss(owner, part_of(stored, at, at + 1), DEAD_LETTERED + reason.value)
                self._cursors.discard(owner.cursor, position, position, [loss])
            owner.given_up(position, position)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        for token in tokens:
            owner, position, reason, _ = self._under_way.pop(token)
            owner.retry_discard(position, position, reason)


def _address(owner: DeadLetterOwner, run: Run, reason: LossReason) -> str | None:
    """Return the address for the dead letter of a run; None if it only gets an entry in the ledger."""
    address = owner.policy.expiry if reason is LossReason.EXPIRED else owner.policy.deadletter
    return None if address == run.address else address


def ends_in_doubt(run: Run, expired: bool | None) -> bool:
    """Return whether a run is an online command that may be older than its clock shows; it is alone in its run.
    `expired`: what the clock says of it, None if it cannot decide."""
    if not run.flags & AMQP or len(run.bodies) != 1:
        return False
    process = process_of(run.bodies[0])
    return process is not None and (expired is None or (process != PROCESS and not run.flags & CLOCK_GOOD))


def dead_letter_runs(stored: Stored, address: str, reason: LossReason) -> list[Run]:
    """Return the messages of a stored run as sent to `address`: with the reason, and without a time to live.

    AMQP messages carry the reason as message annotations, MQTT messages as user properties of the same names.
    """
    run = stored.run
    flags = (run.flags & ~RETAIN) | 1
    if run.flags & AMQP:
        bodies = [
            with_annotations(without_expiry(body), _marks(run.address, reason, stored.sequence + i))
            for i, body in enumerate(run.bodies)
        ]
        return [Run(address, run.device, flags, without_ttl(run.properties), bodies)]
    try:
        properties = msgspec.structs.replace(decode_run(run.properties), message_expiry_interval_s=None)
    except MqttError:  # properties were checked on arrival
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
    """Return an AMQP message without its header and with message annotations added; existing ones stay as they are
    encoded.

    Raises `bridge.amqp_values.DecodeError` when it is not a message.
    """
    return merge_annotations(body, encode({Symbol(name): value for name, value in annotations.items()}))


class DeadLetterMarks(NamedTuple):
    """Marks of a dead letter. A message that was sent to the dead letter address itself has empty ones."""

    reason: str = ""
    """Text of a `LossReason`."""
    origin: str = ""
    """Address where the message was dropped."""
    sequence: int = -1
    """Number of the message there."""


def dead_letter_marks(run: Run, body: bytes) -> DeadLetterMarks:
    """Return the marks of one message of a run."""
    found: dict[object, object]
    try:
        found = _amqp_marks(body) if run.flags & AMQP else dict(decode_run(run.properties).user_property)
    except (DecodeError, MqttError):
        return DeadLetterMarks()
    reason, origin, sequence = (found.get(name) for name in _MARK_NAMES)
    number = str(sequence)
    return DeadLetterMarks(
        str(reason or "")[:MARK_CHARACTERS_MAX],
        str(origin or ""),
        int(number) if number.isascii() and number.isdigit() and len(number) < 20 else -1,
    )


def without_marks(run: Run, body: bytes, address: str) -> Run:
    """Return one message of a run as sent to `address`, without the marks of a dead letter."""
    properties = run.properties
    if run.flags & AMQP:
        body = remove_annotations(body, frozenset(_MARK_NAMES))
    else:
        decoded = decode_run(properties)
        kept = tuple(pair for pair in decoded.user_property if pair[0] not in _MARK_NAMES)
        if len(kept) < len(decoded.user_property):
            properties = encode_run(msgspec.structs.replace(decoded, user_property=kept))
    return Run(address, run.device, run.flags & ~CLOCK_GOOD, properties, [body])


def _amqp_marks(body: bytes) -> dict[object, object]:
    section = section_at(body, 0)
    if section.code != MESSAGE_ANNOTATIONS:
        return {}
    return {str(key): decode(pair, skip(pair, 0))[0] for key, pair in pairs(body, section.value)}


def _marks(address: str, reason: LossReason, sequence: int) -> dict[str, str | int]:
    return {REASON_ANNOTATION: reason.value, FROM_ANNOTATION: address, SEQUENCE_ANNOTATION: sequence}
