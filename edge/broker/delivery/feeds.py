"""Delivery follows the log: the feed of a log gives committed messages to the subscriptions of that log.

A feed has a *watermark* (Kafka's word). Every message below it was given to each subscription that wants it, or the
subscription knows that it has to read it. A run that begins at the watermark is given to the subscriptions directly. A
run that begins beyond it shows that something was missed: the watermark moves to the end of the log, and the
subscriptions read the missing messages from the store. So a missed wake-up delays messages and loses none. The cursor
of a subscription skips messages, unread, only below the watermark.

The address type or rule of a message does not matter here: its log and the filters of the subscriptions decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from bridge.message import Run, Stored
from edge.broker.limits import (
    ADDRESS_REMEMBERED_CHARACTERS_MAX,
    ADDRESSES_MATCHED_MAX,
    CURSORS_MOVED_MAX,
    FEEDS_CHECKED_MAX,
    SLEEPERS_MAX,
)
from edge.broker.model.isolation import report
from edge.broker.model.topics import FilterTree
from edge.broker.store.contract import MessageLogs
from edge.broker.store.loops import pass_over


class Follower(Protocol):
    """Subscription of a log, as the feed of the log uses it."""

    log: int
    pattern: str
    """Filter of its addresses."""
    name: str
    accepts: Callable[[Run], bool] | None
    """Condition on matching runs; None: all are wanted."""

    @property
    def sleeps(self) -> bool:
        """True when a new run without properties only stays in the store; `pump` follows."""
        ...

    def arrived(self, stored: Stored) -> None:
        """Take a committed run that it wants; `pump` follows."""
        ...

    def fall_behind(self) -> None:
        """Note that the store has messages that it was not given; `pump` follows."""
        ...

    def pump(self) -> None:
        """Deliver waiting messages."""
        ...

    def advance_to(self, watermark: int) -> None:
        """Skip messages below the watermark that it was not given: it does not want them."""
        ...

    def restart(self) -> None:
        """Read from the store again after an exception: its state in memory may be wrong."""
        ...


class Feed:
    """The subscriptions of one log."""

    __slots__ = ("_by_address", "_tree", "followers", "log", "watermark")

    def __init__(self, log: int, watermark: int) -> None:
        self.log = log
        self.watermark = watermark
        """Next position to be given to subscriptions."""
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
        """True when no subscription needs to see runs without properties; not checked where there are many."""
        return len(self.followers) <= SLEEPERS_MAX and all(follower.sleeps for follower in self.followers)

    def matching(self, address: str) -> Sequence[Follower]:
        """Return the subscriptions with filters that match the address."""
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
        """(log, run) of logs in memory that were not given to subscriptions yet."""
        self._feeds: dict[int, Feed] = {}
        self._moved: dict[Feed, None] = {}
        """Feeds with a moved watermark: the cursors of their subscriptions may follow."""
        self._passing: Iterator[tuple[Feed, Follower]] = iter(())
        self._looking: Iterator[Feed] = iter(())
        self._raised: dict[Follower, None] = {}
        """Subscriptions that restart at the next tick."""
        self.restarts = 0
        """Number of restarts of subscriptions."""
        self._reported: dict[Follower, set[type[Exception]]] = {}
        """Exceptions that are in the program's log already."""

    def call_for_unfollowed(self, call: Callable[[int, Stored], bool]) -> None:
        """Call this function with a log without subscription, and with a run committed to it. It returns True if it
        need not see the following runs with the same address and properties."""
        self._unattended = call

    def attach(self, follower: Follower) -> None:
        """Give new messages of its log to this subscription as well."""
        feed = self._feeds.get(follower.log)
        if feed is None:
            feed = self._feeds[follower.log] = Feed(follower.log, self._logs.bounds(follower.log)[1])
        feed.add(follower)

    def detach(self, follower: Follower) -> None:
        """Give it nothing more. Idempotent."""
        self._raised.pop(follower, None)
        self._reported.pop(follower, None)
        feed = self._feeds.get(follower.log)
        if feed is not None:
            feed.remove(follower)
            if not feed.followers:
                del self._feeds[follower.log]
                self._moved.pop(feed, None)

    def serves(self, log: int) -> bool:
        """Return True when the log has a subscription."""
        return log in self._feeds

    def is_only_follower(self, follower: Follower) -> bool:
        """Return True when its log has no other subscription."""
        feed = self._feeds.get(follower.log)
        return feed is not None and len(feed.followers) == 1

    def add_unlogged(self, log: int, stored: Stored) -> None:
        """Add a run of a log in memory; subscriptions get it before later commits."""
        self.taken.append((log, stored))

    def committed(self, appended: Iterable[tuple[int, Stored]]) -> None:
        """Give runs to their subscriptions: first those of logs in memory, then the committed ones, (log, run),
        ascending in each log."""
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
        """Pass over runs of a log without subscription. Return the index of the next run to look at."""
        log, stored = runs[at]
        known = self._unattended(log, stored)
        feed = self._feeds.get(log)
        if feed is not None:  # a subscription was opened for it: it gets the following runs
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
                continue  # it reads this run when it restarts
            try:
                if follower.accepts is None or follower.accepts(run):
                    follower.arrived(stored)
                    touched[follower] = None
            except Exception as error:
                self.handle_error(follower, error)

    def handle_error(self, follower: Follower, error: Exception) -> None:
        """Have a subscription that raised restart from the store at the next tick, and again at each later one until it
        succeeds. The others continue."""
        self._raised[follower] = None
        self.restarts += 1
        kinds = self._reported.setdefault(follower, set())
        if type(error) not in kinds:
            kinds.add(type(error))
            report(f"subscription {follower.name!r} to {follower.pattern!r}", "reading the store again", error)

    def tick(self) -> None:
        """Restart subscriptions, find missed messages and move cursors. Called every `limits.TICK_S`."""
        if self.taken:
            self.committed(())
        self._restart_failed()
        self._find_missed()
        self._move_cursors()

    # --- inside -----------------------------------------------------------------------------------------------

    def _pump(self, touched: Iterable[Follower]) -> None:
        for follower in touched:
            try:
                follower.pump()
            except Exception as error:
                self.handle_error(follower, error)

    def _catch_up(self, feed: Feed, touched: dict[Follower, None]) -> None:
        """Have the subscriptions of a feed read messages that they were not given."""
        feed.watermark = self._logs.bounds(feed.log)[1]
        self._moved[feed] = None
        for follower in [each for each in feed.followers if each not in self._raised]:
            try:
                follower.fall_behind()
                touched[follower] = None
            except Exception as error:
                self.handle_error(follower, error)

    def _restart_failed(self) -> None:
        for follower in list(self._raised):
            try:
                follower.restart()
                follower.pump()
            except Exception as error:  # continue with the others
                self.handle_error(follower, error)
            else:
                self._raised.pop(follower, None)

    def _find_missed(self) -> None:
        """Find logs that are longer than their feeds know, some in each tick."""
        touched: dict[Follower, None] = {}
        began = False
        for _ in range(FEEDS_CHECKED_MAX):
            feed = next(self._looking, None)
            if feed is None:
                if began or not self._feeds:
                    break
                self._looking, began = iter(list(self._feeds.values())), True
            elif feed.followers and feed.watermark < self._logs.bounds(feed.log)[1]:
                self._catch_up(feed, touched)
        self._pump(touched)

    def _move_cursors(self) -> None:
        """Let cursors pass messages that their subscriptions do not want, some in each tick."""
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
                    follower.advance_to(feed.watermark)
                except Exception as error:
                    self.handle_error(follower, error)
