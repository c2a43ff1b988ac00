"""Incoming forwarders against a peer that disconnects and repeats, a failing or full store, and changed configurations.

The peer keeps a queue and forgets a message when it receives `accepted`. Over a new connection it repeats unanswered
messages. In any order of events, everything that the peer forgot is committed to the store, once, and each sender's
messages are there in its order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.forwarders.inbox import Incoming
from bridge.forwarders.outcome import ForwardOutcome
from bridge.limits import INBOX_WINDOW
from bridge.message import Run
from edge.broker.configuration import Direction, Forwarder
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.router.batch import Publication
from edge.broker.router.inbound import IncomingForwarder
from edge.broker.router.recent_names import RecentNames

FORWARDER = Forwarder(name="f", filter="here", connector="c", remote_address="there", direction=Direction.IN)


class Disk:
    """Durable content: messages, and the names written with them."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.slots: dict[int, bytes] = {}


class Router:
    """The router and the store behind it: an open group, and a group that is being committed."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.names = RecentNames(disk.slots.values())
        self.full = False
        self._open: list[tuple[Origin, list[bytes], Sequence[int]]] = []
        self._sealed: list[tuple[Origin, list[bytes], Sequence[int]]] = []
        self._slots: dict[int, bytes] = {}
        self._sealed_slots: dict[int, bytes] = {}

    def publish(self, batch: Publication) -> None:
        origin, run, tokens = batch
        if self.full and len(run) > 1:
            origin.refused(tokens, Refusal.FULL)  # room for one more message
        elif self.full:
            self._refuse(origin, tokens)
        else:
            self._open.append((origin, list(run.bodies), tokens))

    def _refuse(self, origin: Origin, tokens: Sequence[int]) -> None:
        origin.refused(tokens, Refusal.FULL)

    @property
    def credit(self) -> Router:
        return self

    def of(self, origin: Origin, address: str) -> int:
        """Return credit; see `edge.broker.router.sender_credit.SenderCredit`."""
        return 0 if self.full else 1_000

    def seal(self) -> None:
        if not self._sealed and not self._sealed_slots:
            self._slots.update(self.names.changed())
            self._sealed, self._open = self._open, []
            self._sealed_slots, self._slots = self._slots, {}

    def commit(self, *, good: bool) -> None:
        group, slots = self._sealed, self._sealed_slots
        self._sealed, self._sealed_slots = [], {}
        if good:
            self.disk.slots.update(slots)
            for _, bodies, _ in group:
                self.disk.bodies += bodies
        else:
            self._slots = {**slots, **self._slots}  # small state joins the next group
        for origin, _, tokens in group:
            if good:
                origin.accepted(tokens)
            else:
                origin.refused(tokens, Refusal.STORE_FAILED)


class Crossing:
    """Any order of: sent, arrived, sealed, committed or not, broken, killed, full, reconfigured."""

    def __init__(self, unique: bool) -> None:
        self.unique = unique
        self.disk = Disk()
        self.queue: deque[int] = deque()
        """Messages that the peer has not forgotten."""
        self.sent = 0
        self.forgotten: set[int] = set()
        self.under_way: list[int] = []
        self.tokens: dict[int, int] = {}
        self.generation = 0
        self.connected = self.leaving = False
        self.do: dict[str, Callable[..., None]] = {
            "arrive": self.arrive,
            "commit": self.commit,
            "room": self.room,
            "tick": self.tick,
            "seal": self.seal,
            "breaks": self.breaks,
            "leaves": self.leaves,
            "reconfigured": self.reconfigured,
            "killed": self.killed,
        }
        self._start()

    def _start(self) -> None:
        self.router = Router(self.disk)
        self.inbound = IncomingForwarder(self.router, FORWARDER, self.router.names, "gw1")  # type: ignore[arg-type]

    def _lost(self) -> None:
        self.connected = self.leaving = False
        self.generation += 1
        self.under_way, self.tokens = [], {}

    def send(self, count: int) -> None:
        self.queue.extend(range(self.sent, self.sent + count))
        self.sent += count

    def connect(self) -> None:
        if self.connected:
            return
        self.connected = True
        generation = self.generation

        def settle(tokens: Sequence[int], outcome: ForwardOutcome, _why: str) -> None:
            assert outcome is ForwardOutcome.ACCEPTED or (outcome is ForwardOutcome.RELEASED and self.leaving)
            if generation != self.generation:
                return
            for token in tokens:
                number = self.tokens.pop(token)
                if outcome is ForwardOutcome.RELEASED:
                    continue
                assert b"%d" % number in self.disk.bodies, "answered before it was on disk"
                self.queue.remove(number)
                self.forgotten.add(number)
                self.under_way.remove(number)

        self.inbound.attached(settle, lambda: None)

    def arrive(self, count: int = 3) -> None:
        self.connect()
        if not self.queue:
            self.send(count)
        fresh = [number for number in self.queue if number not in self.under_way]
        messages = []
        for number in fresh[: min(count, self.inbound.credit)]:
            token = number + 1_000_000 * self.generation
            self.tokens[token] = number
            self.under_way.append(number)
            run = Run("", "dev", 1, b"", [b"%d" % number])
            messages.append(Incoming(token, (), b"id %d" % number, (), run, self.unique))
        if messages:
            self.inbound.receive(messages)

    def breaks(self) -> None:
        if self.connected:
            self._lost()
            self.inbound.detached()

    def leaves(self) -> None:
        """Close the connection in good order."""

        def left() -> None:
            assert not self.tokens, "left before all that was taken is answered"
            self.breaks()

        if self.connected and not self.leaving:
            self.leaving = True
            self.inbound.leave(left)

    def seal(self) -> None:
        self.router.seal()

    def commit(self, good: bool, sealed: bool) -> None:
        """Commit the sealed group. With `sealed`, seal newer messages after it, as the router does."""
        self.router.seal()
        self.router.commit(good=good)
        if sealed:
            self.router.seal()

    def killed(self) -> None:
        self._lost()
        self._start()

    def reconfigured(self) -> None:
        """Replace the forwarder by another one of the same name, while publications of the first are in flight."""
        if self.connected:
            self._lost()
            self.inbound.detached()
        self.inbound = IncomingForwarder(self.router, FORWARDER, self.router.names, "gw1")  # type: ignore[arg-type]

    def room(self, full: bool) -> None:
        self.router.full = full

    def tick(self) -> None:
        self.inbound.try_again()

    def check(self) -> None:
        """Check that no message is lost or duplicated."""
        kept = self.disk.bodies
        assert len(set(kept)) == len(kept), "kept twice"
        assert {b"%d" % number for number in self.forgotten} <= set(kept), "forgotten there, and not here"

    def come_to_rest(self) -> None:
        self.router.full = False
        for _ in range(200):
            self.connect()
            self.tick()
            self.arrive(7)
            self.seal()
            self.commit(good=True, sealed=False)
            if not self.queue:
                break
        assert not self.queue, "it all comes in the end"
        assert self.disk.bodies == [b"%d" % number for number in range(self.sent)], "in order, each once"


STEPS = st.one_of(
    st.tuples(st.just("arrive"), st.integers(1, 7)),
    st.tuples(st.just("commit"), st.booleans(), st.booleans()),
    st.tuples(st.just("room"), st.booleans()),
    st.tuples(st.sampled_from(("arrive", "tick", "seal", "breaks", "leaves", "reconfigured", "killed"))),
)


@settings(max_examples=80, deadline=None)
@given(unique=st.booleans(), steps=st.lists(STEPS, min_size=15, max_size=40))
def test_every_order_of_events_keeps_the_promise(unique: bool, steps: list[tuple[Any, ...]]) -> None:
    crossing = Crossing(unique)
    for name, *arguments in steps:
        crossing.do[name](*arguments)
        crossing.check()
    crossing.come_to_rest()


def test_unreadable_messages_are_rejected_and_counted() -> None:
    answers: list[tuple[Sequence[int], ForwardOutcome, str]] = []
    router: Any = None
    inbound = IncomingForwarder(router, FORWARDER, RecentNames([]), "gateway")
    inbound.attached(lambda *answer: answers.append(answer), lambda: None)
    inbound.receive([Incoming(7, ("there",), b"", (), Run("there", "", 0, b"", []), fault="there: 17 MB")])
    assert answers == [((7,), ForwardOutcome.REJECTED, "there: 17 MB")]
    assert (inbound.figures.received, inbound.figures.rejected, inbound.credit) == (1, 1, INBOX_WINDOW)


def test_released_messages_wait_for_their_time() -> None:
    """A message that consumers released is published again only on the next tick, so that it does not loop."""

    class Anycast:
        published = asked = 0

        def publish(self, batch: Publication) -> None:
            self.published += 1
            batch.origin.refused(batch.tokens, Refusal.RELEASED)

        @property
        def credit(self) -> Anycast:
            return self

        def of(self, _origin: Origin, _address: str) -> int:
            self.asked += 1
            return 0

    router: Any = Anycast()
    inbound = IncomingForwarder(router, FORWARDER, RecentNames([]), "gateway")
    inbound.attached(lambda _tokens, _outcome, _why: None, lambda: None)
    inbound.receive([Incoming(1, ("there",), b"", (), Run("", "", 1, b"", [b"m"]))])
    assert (router.published, router.asked) == (1, 0)
    inbound.try_again()
    assert (router.published, router.asked) == (2, 0)
