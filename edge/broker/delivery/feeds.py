"""Delivery follows the log: the feed of a log hands on what was committed to the subscriptions of that log.

A feed has a *watermark* (Kafka's word): what is below it was handed to every subscription that wants it, or the
subscription knows that it has to read it. A run that begins at the watermark is handed on as it is. One that begins
beyond it shows that something was missed: the watermark goes to the end of the log, and the subscriptions read what is
missing from the store. So a missed wake delays messages and loses none, and the cursor of a subscription passes without
looking only what is below the watermark.

Which address type or rule a message came by does not matter here: the log it was stored in and the filters of the
subscriptions in that log decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from bridge.message import Run, Stored
from edge.broker.limits import (
    ADDRESS_REMEMBERED_CHARACTERS_MAX,
    ADDRESSES_MATCHED_MAX,
    CURSORS_MOVED_MAX,
    FEEDS_LOOKED_AT_MAX,
    SLEEPERS_MAX,
)
from edge.broker.model.isolation import report
from edge.broker.model.topics import FilterTree
from edge.broker.store.contract import MessageLogs
from edge.broker.store.loops import pass_over


class Follower(Protocol):
    """A subscription of a log, as the feed of the log uses it."""

    log: int
    pattern: str
    """Filter of the addresses it wants."""
    name: str
    accepts: Callable[[Run], bool] | None
    """What it wants of those, the rest being nothing to it; None: everything."""

    @property
    def sleeps(self) -> bool:
        """A run without properties that arrives now is left in the store, and changes nothing else; `pump` follows."""
        ...

    def arrived(self, stored: Stored) -> None:
        """A run it wants was committed; `pump` follows."""
        ...

    def fall_behind(self) -> None:
        """Something was committed that was not handed on to it: it is in the store; `pump` follows."""
        ...

    def pump(self) -> None:
        """Deliver what is waiting."""
        ...

    def pass_to(self, watermark: int) -> None:
        """Nothing below the watermark that was not handed on to it concerns it."""
        ...

    def begin_anew(self) -> None:
        """A call of it raised: what it has in memory may be wrong, what the store has is right."""
        ...


class Feed:
    """The subscriptions of one log."""

    __slots__ = ("_by_address", "_tree", "followers", "log", "watermark")

    def __init__(self, log: int, watermark: int) -> None:
        self.log = log
        self.watermark = watermark
        """The next position to be handed on."""
        self.followers: dict[Follower, None] = {}
        self._tree: FilterTree[Follower] = FilterTree()
        self._by_address: dict[str, Sequence[Follower]] = {}

    def add(self, follower: Follower) -> None:
        self.followers[follower] = None
        self._tree.add(follower.pattern, follower)
        self._by_address.clear()

    def remove(self, follower: Follower) -> None:
        self.followers.pop(follower, None)
        self._tree.remove(follower.pattern, follower)
        self._by_address.clear()

    @property
    def sleeps(self) -> bool:
        """Nobody has to be told of runs without properties; where there are many, that is not looked for."""
        return len(self.followers) <= SLEEPERS_MAX and all(follower.sleeps for follower in self.followers)

    def matching(self, address: str) -> Sequence[Follower]:
        """Those whose filter matches the address."""
        found = self._by_address.get(address)
        if found is None:
            found = tuple(self._tree.match(address))
            if len(address) <= ADDRESS_REMEMBERED_CHARACTERS_MAX:
                if len(self._by_address) >= ADDRESSES_MATCHED_MAX:
                    self._by_address.clear()
                self._by_address[address] = found
        return found


class LogFeeds:
    """The feeds of all logs that have subscriptions."""

    def __init__(self, logs: MessageLogs) -> None:
        self._logs = logs
        self._unattended: Callable[[int, Stored], bool] = lambda _log, _stored: True
        self.taken: list[tuple[int, Stored]] = []
        """(log, run) taken in memory, and not handed on yet."""
        self._feeds: dict[int, Feed] = {}
        self._moved: dict[Feed, None] = {}
        """Feeds whose watermark has moved, so that the cursors of their subscriptions may follow."""
        self._passing: Iterator[tuple[Feed, Follower]] = iter(())
        self._looking: Iterator[Feed] = iter(())
        self._raised: dict[Follower, None] = {}
        """Subscriptions that begin anew at the next tick."""
        self.restarts = 0
        """How often a subscription had to begin anew."""
        self._reported: dict[Follower, set[type[Exception]]] = {}
        """What the log has a line of already."""

    def call_when_unattended(self, call: Callable[[int, Stored], bool]) -> None:
        """Have `call` hear of a log without a subscription here, and of a run committed to it. It returns True where it
        need not hear of runs behind it with the same address and properties."""
        self._unattended = call

    def attach(self, follower: Follower) -> None:
        """Hand what comes to its log from now on to this subscription as well."""
        feed = self._feeds.get(follower.log)
        if feed is None:
            feed = self._feeds[follower.log] = Feed(follower.log, self._logs.bounds(follower.log)[1])
        feed.add(follower)

    def detach(self, follower: Follower) -> None:
        """Hand it nothing more. Idempotent."""
        self._raised.pop(follower, None)
        self._reported.pop(follower, None)
        feed = self._feeds.get(follower.log)
        if feed is not None:
            feed.remove(follower)
            if not feed.followers:
                del self._feeds[follower.log]
                self._moved.pop(feed, None)

    def serves(self, log: int) -> bool:
        """Somebody follows the log."""
        return log in self._feeds

    def is_alone(self, follower: Follower) -> bool:
        """Nobody else follows its log."""
        feed = self._feeds.get(follower.log)
        return feed is not None and len(feed.followers) == 1

    def took(self, log: int, stored: Stored) -> None:
        """A run was taken in memory: it is handed on before what is committed after it."""
        self.taken.append((log, stored))

    def committed(self, appended: Iterable[tuple[int, Stored]]) -> None:
        """Hand on what was taken in memory, which came first, and what was committed: (log, run), ascending in each
        log."""
        touched: dict[Follower, None] = {}
        taken, self.taken = self.taken, []
        runs, at, awake = [*taken, *appended], 0, set[int]()
        while at < len(runs):
            log, stored = runs[at]
            feed = self._feeds.get(log)
            if feed is None:
                at = self._leave(runs, at)
                continue
            if log not in awake:
                if not self._raised and feed.sleeps:
                    passed, feed.watermark = pass_over(runs, at, log, feed.watermark)
                    if passed > at:
                        at = passed
                        self._moved[feed] = None
                        touched.update(feed.followers)
                        continue
                else:
                    awake.add(log)
            self._hand_on(feed, stored, touched)
            at += 1
        self._pump(touched)

    def _leave(self, runs: Sequence[tuple[int, Stored]], at: int) -> int:
        """Nobody follows the log of this run, as far as is known. Returns where the runs begin that are to be looked at
        next."""
        log, stored = runs[at]
        known = self._unattended(log, stored)
        feed = self._feeds.get(log)
        if feed is not None:  # a subscription was opened for it: what follows is handed on
            feed.watermark = stored.position + len(stored.run.bodies)
            known = False
        at, first = at + 1, stored.run
        address, flags, properties = first.address, first.flags, first.properties
        while known and at < len(runs) and runs[at][0] == log:
            run = runs[at][1].run
            if run.properties != properties or run.flags != flags or run.address != address:
                break
            at += 1
        return at

    def _hand_on(self, feed: Feed, stored: Stored, touched: dict[Follower, None]) -> None:
        run, end = stored.run, stored.position + len(stored.run.bodies)
        if stored.position != feed.watermark:
            if end > feed.watermark:
                self._catch_up(feed, touched)
            return
        feed.watermark = end
        self._moved[feed] = None
        for follower in feed.matching(run.address):
            if self._raised and follower in self._raised:
                continue  # it reads this when it begins anew
            try:
                if follower.accepts is None or follower.accepts(run):
                    follower.arrived(stored)
                    touched[follower] = None
            except Exception as error:
                self.raised(follower, error)

    def raised(self, follower: Follower, error: Exception) -> None:
        """A call of a subscription raised: it begins anew from what the store has at the next tick, and again at each
        one after it until it succeeds; the others go on."""
        self._raised[follower] = None
        self.restarts += 1
        kinds = self._reported.setdefault(follower, set())
        if type(error) not in kinds:
            kinds.add(type(error))
            report(f"subscription {follower.name!r} to {follower.pattern!r}", "it reads the store anew", error)

    def tick(self) -> None:
        """Every `limits.TICK_S`."""
        if self.taken:
            self.committed(())
        self._begin_anew()
        self._look_for_missed()
        self._move_cursors()

    # --- inside -----------------------------------------------------------------------------------------------

    def _pump(self, touched: Iterable[Follower]) -> None:
        for follower in touched:
            try:
                follower.pump()
            except Exception as error:
                self.raised(follower, error)

    def _catch_up(self, feed: Feed, touched: dict[Follower, None]) -> None:
        """Something below the end of the log was not handed on: its subscriptions read it."""
        feed.watermark = self._logs.bounds(feed.log)[1]
        self._moved[feed] = None
        for follower in [each for each in feed.followers if each not in self._raised]:
            try:
                follower.fall_behind()
                touched[follower] = None
            except Exception as error:
                self.raised(follower, error)

    def _begin_anew(self) -> None:
        for follower in list(self._raised):
            try:
                follower.begin_anew()
                follower.pump()
            except Exception as error:  # the others have their turn all the same
                self.raised(follower, error)
            else:
                self._raised.pop(follower, None)

    def _look_for_missed(self) -> None:
        """Find logs that are longer than their feeds know, some in each tick."""
        touched: dict[Follower, None] = {}
        began = False
        for _ in range(FEEDS_LOOKED_AT_MAX):
            feed = next(self._looking, None)
            if feed is None:
                if began or not self._feeds:
                    break
                self._looking, began = iter(list(self._feeds.values())), True
            elif feed.followers and feed.watermark < self._logs.bounds(feed.log)[1]:
                self._catch_up(feed, touched)
        self._pump(touched)

    def _move_cursors(self) -> None:
        """Let cursors pass what did not concern their subscriptions, some in each tick."""
        for _ in range(CURSORS_MOVED_MAX):
            feed, follower = next(self._passing, (None, None))
            if feed is None or follower is None:
                if not self._moved:
                    return
                feed = next(iter(self._moved))
                del self._moved[feed]
                self._passing = iter([(feed, follower) for follower in feed.followers])
            elif follower in feed.followers and follower not in self._raised:
                try:
                    follower.pass_to(feed.watermark)
                except Exception as error:
                    self.raised(follower, error)
