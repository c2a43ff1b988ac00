"""Guarantees of a gateway across any number of kills: a pure checker of the records of producers and consumers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

GRACE_S = 0.5
"""Time before a kill after which an acknowledgement of a consumer is durable.

Acknowledgements are lazy: the gateway writes them within 50 ms of their arrival, plus a commit on a busy machine.
"""
GRACE_RESTARTS = 2
"""Alternative grace in numbers of restarts, for a busy machine that rarely schedules the gateway."""


class Kill(NamedTuple):
    """Times at which the gateway was killed and served again, monotonic seconds."""

    at: float
    over: float

    @property
    def grace_s(self) -> float:
        """Return the time before the kill within which it may have lost an acknowledgement."""
        return max(GRACE_S, GRACE_RESTARTS * (self.over - self.at))


@dataclass
class Produced:
    """Messages that a producer sent: bodies ``name:0``, ``name:1`` and so on, each once."""

    name: str
    acked: Sequence[bytes]
    sent: int


@dataclass
class Consumed:
    """Messages that a consumer received, in order, with the times of its acknowledgements (monotonic seconds)."""

    name: str
    exactly_once: bool = False
    got: list[tuple[float, bytes]] = field(default_factory=list)
    acked: dict[bytes, float] = field(default_factory=dict)
    """First acknowledgement of each body."""
    came_on: dict[bytes, float] = field(default_factory=dict)
    """Start of the connection that first delivered each body, where it is known."""


class Given(NamedTuple):
    """Content of a closed store for an address."""

    messages: int
    """Count of all messages ever stored."""
    ledger: Sequence[tuple[int, int, int, str]]
    """First, last, messages, reason."""


class Death(NamedTuple):
    """Time of a kill (monotonic seconds), and the next sequence on the medium of an address in memory."""

    at: float
    next: int


class Lives(NamedTuple):
    """Input for the sequences of one producer's messages.

    The producer sends each message once, and sequences follow the order of arrival. In each life of the gateway the
    first message gets the next sequence of the medium.
    """

    connections: Sequence[tuple[float, int]]
    """Start of each connection, and the number of messages sent before it."""
    deaths: Sequence[Death]
    ledger: Sequence[tuple[int, int, str]]
    """First, last, reason, for one subscription."""

    def sequences(self, acked: Sequence[int]) -> dict[int, int]:
        """Return sequences by message number, for acked messages and all earlier ones of the same life.

        Raise AssertionError when two messages may share a sequence, or when the sequences are ambiguous.
        """
        found: dict[int, int] = {}
        lives: set[int] = set()
        firsts = [first for _, first in self.connections]
        for (at, first), following in zip(self.connections, [*firsts[1:], None], strict=True):
            mine = [number for number in acked if first <= number and (following is None or number < following)]
            if not mine:
                continue
            life = sum(death.at < at for death in self.deaths)
            assert life not in lives, f"connected twice in life {life}"
            lives.add(life)
            start = self.deaths[life - 1].next if life else 0
            found.update((number, start + number - first) for number in range(first, max(mine) + 1))
            end = start + max(mine) - first
            assert life == len(self.deaths) or end < self.deaths[life].next, f"{end} may be given twice"
        return found


@dataclass
class Verdict:
    """Result of a check; `problems` is empty when every guarantee was kept."""

    acked: int = 0
    got: int = 0
    again: int = 0
    """Messages that a consumer received twice: all were in its un-acked window, otherwise `problems` reports them."""
    unanswered: int = 0
    """Messages that were kept although the kill lost their acknowledgement."""
    named: int = 0
    """Messages that were acked, lost in a kill, and named in the ledger."""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.acked} acked, {self.got} deliveries, {self.again} given again unacknowledged, "
            f"{self.unanswered} kept though not acked, {self.named} lost and in the ledger; "
            f"{len(self.problems)} contradictions"
        )


def judge(producers: Sequence[Produced], consumers: Sequence[Consumed], kills: Sequence[Kill]) -> Verdict:
    """Check that every consumer has all messages of every producer."""
    verdict = Verdict(acked=sum(len(producer.acked) for producer in producers))
    for consumer in consumers:
        verdict.got += len(consumer.got)
        _no_loss(producers, consumer, verdict)
        verdict.problems += _unexplained_repeats(consumer, kills, verdict)
        verdict.problems += _disorder(consumer)
    return verdict


def judge_ring(producers: Sequence[Produced], left: Consumed, given: Given) -> Verdict:
    """Check a ring: `left` took the newest messages in the end, and the ledger has all others."""
    kept = [body for _, body in left.got]
    verdict = Verdict(acked=sum(len(producer.acked) for producer in producers), got=len(kept))
    sent = {b"%s:%d" % (producer.name.encode(), n) for producer in producers for n in range(producer.sent)}
    verdict.unanswered = given.messages - verdict.acked
    if not verdict.acked <= given.messages <= len(sent):
        verdict.problems.append(f"{given.messages} messages stored, {verdict.acked} acked, {len(sent)} sent")
    if not sent.issuperset(kept) or len(set(kept)) != len(kept):
        verdict.problems.append("nobody sent what is left, or it is there twice")
    evicted = [sequence for first, last, _, _ in given.ledger for sequence in range(first, last + 1)]
    if sorted(evicted) != list(range(given.messages - len(kept))):
        verdict.problems.append(f"{len(kept)} left of {given.messages}, the ledger says {given.ledger[:5]}")
    if {reason for *_, reason in given.ledger} - {"evicted"} or sum(n for *_, n, _ in given.ledger) != len(evicted):
        verdict.problems.append(f"the ledger says {given.ledger[:5]}")
    for producer in producers:
        mine = [n for name, _, n in (body.partition(b":") for body in kept) if name == producer.name.encode()]
        newest = [body for body in producer.acked if mine and int(body.partition(b":")[2]) >= int(mine[0])]
        if set(newest) - set(kept):
            verdict.problems.append(
                f"acked and gone, though older ones are there: {sorted(set(newest) - set(kept))[:3]}"
            )
    verdict.problems += _disorder(left)
    return verdict


def judge_memory(producer: Produced, consumer: Consumed, lives: Lives, kills: Sequence[Kill]) -> Verdict:
    """Check that each acked message reached the consumer, or is in the ledger with reason ``memory``."""
    verdict = Verdict(acked=len(producer.acked), got=len(consumer.got))
    sent = {b"%s:%d" % (producer.name.encode(), number) for number in range(producer.sent)}
    there = {body for _, body in consumer.got}
    if there - sent:
        verdict.problems.append(f"{consumer.name}: nobody sent {sorted(there - sent)[:3]}")
    numbers = [int(body.partition(b":")[2]) for body in producer.acked]
    named = {n for first, last, _ in lives.ledger for n in range(first, last + 1)}
    if {reason for *_, reason in lives.ledger} - {"memory"}:
        verdict.problems.append(f"{consumer.name}: the ledger says {lives.ledger[:5]}")
    try:
        sequences = lives.sequences(numbers)
    except AssertionError as error:
        verdict.problems.append(str(error))
        return verdict
    missing = [n for n in numbers if b"%s:%d" % (producer.name.encode(), n) not in there]
    verdict.named = len(missing)
    silent = [(n, sequences[n]) for n in missing if sequences[n] not in named]
    if silent:
        verdict.problems.append(f"{consumer.name}: acked and gone, not in the ledger: {silent[:3]} (message, sequence)")
    verdict.problems += _unexplained_repeats(consumer, kills, verdict)
    verdict.problems += _disorder(consumer)
    return verdict


def judge_dead(
    worker: Consumed, undertaker: Consumed, rejected: Callable[[bytes], bool], given: Given, kills: Sequence[Kill]
) -> Verdict:
    """Check that each message that `worker` rejected became one dead letter for `undertaker`, and is in the ledger."""
    wanted = dict.fromkeys(body for _, body in worker.got if rejected(body))
    dead = {body for _, body in undertaker.got}
    verdict = Verdict(acked=len(wanted), got=len(undertaker.got))
    if dead != wanted.keys():
        verdict.problems.append(f"rejected and not dead {sorted(wanted.keys() - dead)[:3]}, "
                                f"dead and not rejected {sorted(dead - wanted.keys())[:3]}")  # fmt: skip
    if given.messages != len(dead):
        verdict.problems.append(f"{given.messages} dead letters were stored of {len(dead)} messages")
    counted = sum(messages for *_, messages, reason in given.ledger if reason == "dead-lettered: rejected")
    if counted != len(dead) or len({reason for *_, reason in given.ledger}) != 1:
        verdict.problems.append(f"{len(dead)} dead letters, the ledger says {given.ledger[:5]}")
    verdict.problems += _unexplained_repeats(undertaker, kills, verdict)
    return verdict


def _no_loss(producers: Sequence[Produced], consumer: Consumed, verdict: Verdict) -> None:
    there = {body for _, body in consumer.got}
    known: set[bytes] = set()
    for producer in producers:
        missing = [body for body in producer.acked if body not in there]
        if missing:
            verdict.problems.append(f"{consumer.name}: {len(missing)} acked of {producer.name} missing: {missing[:3]}")
        sent = {b"%s:%d" % (producer.name.encode(), number) for number in range(producer.sent)}
        verdict.unanswered += len((there & sent) - set(producer.acked))
        known |= sent
    if there - known:
        verdict.problems.append(f"{consumer.name}: nobody sent {sorted(there - known)[:3]}")


def _unexplained_repeats(consumer: Consumed, kills: Sequence[Kill], verdict: Verdict) -> Iterator[str]:
    first: dict[bytes, float] = {}
    for at, body in consumer.got:
        if body not in first:
            first[body] = at
            continue
        verdict.again += 1
        acked = consumer.acked.get(body, float("inf"))
        # A kill came between the first delivery and now, and lost the acknowledgement or met none. The first delivery
        # may be after the kill: data of the gateway was still in flight, and the consumer reads it when a busy machine
        # schedules it. So the connection of the delivery counts.
        began = consumer.came_on.get(body, first[body])
        explained = any(kill.at <= at and began < kill.over and acked > kill.at - kill.grace_s for kill in kills)
        if consumer.exactly_once or not explained:
            lags = [f"{kill.at - acked:.3f} s" for kill in kills if kill.at <= at and began < kill.over]
            yield f"{consumer.name}: {body!r} given again, acked {' and '.join(lags) or 'never'} before a kill"


def _disorder(consumer: Consumed) -> Iterator[str]:
    """Check that each producer's messages first arrive in its order."""
    last: dict[bytes, int] = {}
    seen: set[bytes] = set()
    for _, body in consumer.got:
        if body not in seen:
            seen.add(body)
            name, _, number = body.partition(b":")
            if int(number) < last.get(name, -1):
                yield f"{consumer.name}: {body!r} after {last[name]}"
            last[name] = int(number)
