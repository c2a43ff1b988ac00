"""Durable subscriptions without a client: their declarations and cursors are rows of the store.

Memory has only what matching needs, in a table of an in-memory SQLite database that is filled at each start: a row for
each *place*, which is the cursor of a subscription in one log. A row takes some 100 bytes; the objects of a
subscription with a client take 3 KiB.

A place is *level* while its subscription wants nothing at or above its cursor, which then passes all new messages. It
is *behind* from the first message it wants. That message and all later ones are read from the store when a client
attaches again. So a publish only notes once which places fall behind, and when a message in them may expire.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from bridge.message import Run, Stored
from edge.broker.delivery.durable import Declaration
from edge.broker.delivery.expiry import SWEEP_AGAIN_NS
from edge.broker.delivery.feeds import LogFeeds
from edge.broker.limits import (
    ABSENT_DECLARATIONS_MAX,
    ADDRESS_REMEMBERED_CHARACTERS_MAX,
    ADDRESSES_MATCHED_MAX,
    CURSORS_MOVED_MAX,
    SUBSCRIPTIONS_OPENED_MAX,
    SUBSCRIPTIONS_PASSED_S,
)
from edge.broker.message.time_to_live import ttl_ns
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.topics import EVERY_NAME, is_filter, matches
from edge.broker.router.filter_table import FilterTable
from edge.broker.store.contract import Cursors

CHECK: Final = 1
"""Time of expiry (UTC nanoseconds) of a place that was not checked yet: now."""
_NS_PER_S: Final = 1_000_000_000
_ALL_QOS: Final = 1
_NOT_FROM: Final = 2
"""No Local: messages of one client are not for it; its declaration names the client."""
_NAMED: Final = 4
"""Its name may be configured, with its own policy."""

_TABLES: Final = """
CREATE TABLE place (
    pattern TEXT NOT NULL, cursor INTEGER NOT NULL, log INTEGER NOT NULL, options INTEGER NOT NULL,
    behind INTEGER NOT NULL, due_s INTEGER, PRIMARY KEY (pattern, cursor)
) WITHOUT ROWID;
CREATE INDEX level ON place (log, cursor) WHERE NOT behind;
CREATE INDEX due ON place (due_s) WHERE due_s IS NOT NULL;
CREATE TABLE unused (name TEXT PRIMARY KEY, left_at INTEGER, look_at INTEGER) WITHOUT ROWID;
CREATE INDEX look ON unused (look_at) WHERE look_at IS NOT NULL;
"""
"""``due_s``: when something in a place may expire (seconds UTC, rounded up). ``unused``: subscriptions that end when
no client uses them, in seconds of `running_time`."""


class AbsentCursor(NamedTuple):
    """The cursor of a subscription in one log."""

    log: int
    cursor: int
    behind: bool
    due_ns: int | None
    """Time when a message in it may expire (UTC nanoseconds); None: never, as far as is known."""


class UnusedSince(NamedTuple):
    """Time since which no client holds a subscription, and time of the next check (seconds of `running_time`)."""

    at: int | None = None
    """None: it does not matter."""
    look_at: int | None = None
    """None: never."""


class _Matched(NamedTuple):
    """A row of table ``place`` with a filter that matches."""

    pattern: str
    cursor: int
    log: int
    options: int
    behind: int
    due_s: int | None


class AbsentSubscriptions:
    """Table of the durable subscriptions without a client."""

    def __init__(
        self,
        cursors: Cursors,
        feeds: LogFeeds,
        declaration: Callable[[str], Declaration],
        policy: Callable[[str, int], AddressPolicy],
        expiring: Callable[[], bool],
    ) -> None:
        """`declaration` reads one by name. `policy` returns the policy of a subscription's name in a log. `expiring`
        returns True when some address has a time to live."""
        self._cursors = cursors
        self._feeds = feeds
        self._declaration = declaration
        self._policy = policy
        self._expiring = expiring
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        self._database.executescript(_TABLES)
        self._execute = self._database.cursor().execute
        self._filters = FilterTable(self._execute, "place")
        self._followers: dict[int, AbsentFollower] = {}
        self._declarations: dict[int, Declaration] = {}
        """Cache by cursor."""
        self._round: list[tuple[int, int]] = []
        """Rest of this round: logs, and the positions to which their level cursors move."""
        self._round_after = 0
        """Cursor that moved last, in the first of these logs."""
        self._round_at_s = 0.0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def is_scheduled(self, name: str) -> bool:
        """Return True when a subscription is to be checked some time."""
        row = self._execute("SELECT look_at FROM unused WHERE name = ?", (name,)).fetchone()
        return row is not None and row[0] is not None

    def names_to_check(self, running_s: int) -> list[str]:
        """Return names of subscriptions that are due for a check, some of them; the caller opens them."""
        due = self._execute("SELECT name FROM unused WHERE look_at <= ? LIMIT ?", (running_s, SUBSCRIPTIONS_OPENED_MAX))
        return [name for (name,) in due]

    def left_at(self, name: str) -> int | None:
        """Return the time since which no client holds a subscription; None where it does not matter."""
        row = self._execute("SELECT left_at FROM unused WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def is_behind(self, pattern: str, cursor: int) -> bool:
        """Return True when a place is behind. Raises KeyError for an unknown place."""
        row = self._execute("SELECT behind FROM place WHERE pattern = ? AND cursor = ?", (pattern, cursor)).fetchone()
        if row is None:
            raise KeyError(cursor)
        return bool(row[0])

    def backlogs(self) -> Iterator[tuple[str, str, int]]:
        """Yield name, filter and unsettled messages of each place that has some. The others are not read."""
        for pattern, cursor in self._execute("SELECT pattern, cursor FROM place WHERE behind").fetchall():
            try:
                yield self._cursors.name(cursor), pattern, self._cursors.backlog(cursor)
            except KeyError:  # it has ended in the meantime
                continue

    def lowest_qos(self, address: str) -> int | None:
        """Return the lowest quality of service that is wanted of an address, or None."""
        found = self._match(address)
        if not found:
            return None
        return 0 if any(row.options & _ALL_QOS for row in found) else 1

    def deciding_levels(self, address: str) -> int:
        """See `FilterTree.deciding_levels`."""
        return self._filters.deciding_levels(address)

    # --- entries ---------------------------------------------------------------------------------------------

    def put(self, declaration: Declaration, places: Sequence[AbsentCursor], left: UnusedSince) -> None:
        """Enter a subscription that its last client has left."""
        options = (
            (_ALL_QOS if declaration.all_qos else 0)
            | (_NOT_FROM if declaration.not_from is not None else 0)
            | (_NAMED if "::" in declaration.name else 0)
        )
        for log, cursor, behind, due_ns in places:
            row = (declaration.pattern, cursor, log, options, behind, None if due_ns is None else _seconds(due_ns))
            self._execute("INSERT INTO place VALUES (?, ?, ?, ?, ?, ?)", row)
            follower = self._followers.get(log)
            if follower is None:
                follower = self._followers[log] = AbsentFollower(self, log)
                self._feeds.attach(follower)
            follower.count += 1
            follower.level += not behind
            follower.changed(declaration.pattern)
        if left != UnusedSince():
            self._execute("INSERT INTO unused VALUES (?, ?, ?)", (declaration.name, *left))
        self._count += 1

    def take(self, declaration: Declaration, cursors: Iterable[int]) -> None:
        """Remove a subscription with these cursors."""
        pattern = declaration.pattern
        for cursor in cursors:
            gone = "DELETE FROM place WHERE pattern = ? AND cursor = ? RETURNING log, behind"
            for log, behind in self._execute(gone, (pattern, cursor)).fetchall():
                follower = self._followers[log]
                follower.count -= 1
                follower.level -= not behind
                follower.changed(pattern)
                if not follower.count:
                    del self._followers[log]
                    self._feeds.detach(follower)
            self._declarations.pop(cursor, None)
        self._execute("DELETE FROM unused WHERE name = ?", (declaration.name,))
        self._count -= 1

    # --- messages ---------------------------------------------------------------------------------------------

    @property
    def all_may_expire(self) -> bool:
        """True when messages without their own time to live may expire too."""
        return self._expiring()

    def may_expire(self, run: Run) -> bool:
        """Return True when a run may have a time to live."""
        return bool(run.properties) or self._expiring()

    def _match(self, address: str) -> list[_Matched]:
        return list(map(_Matched._make, self._filters.match(address)))

    def level(self, address: str, log: int) -> list[_Matched]:
        """Return the places that fall behind with the first message they want of an address."""
        return [row for row in self._match(address) if row.log == log and not row.behind]

    def fall_behind(self, place: _Matched, run: Run) -> bool:
        """Note that a level place has a message it wants. Return False when it does not want this one."""
        if not self._accepts(place, run):
            return False
        self._mark_behind(place)
        return True

    def _mark_behind(self, place: _Matched) -> None:
        """Mark a level place as behind, unless it was marked or removed since it was found."""
        text = "UPDATE place SET behind = 1 WHERE pattern = ? AND cursor = ? AND NOT behind"
        self._followers[place.log].level -= self._execute(text, place[:2]).rowcount

    def _accepts(self, place: _Matched, run: Run) -> bool:
        """Return True when the subscription delivers this run; the caller checks the address."""
        if place.options & _NOT_FROM:
            return self._declaration_of(place.cursor).accepts(run)
        return bool(place.options & _ALL_QOS) or run.qos > 0

    def _declaration_of(self, cursor: int) -> Declaration:
        found = self._declarations.get(cursor)
        if found is None:
            if len(self._declarations) >= ABSENT_DECLARATIONS_MAX:
                self._declarations.clear()
            found = self._declarations[cursor] = self._declaration(self._cursors.name(cursor))
        return found

    def note_expiry(self, log: int, run: Run) -> None:
        """Note the expiry of a run that stays in the store for the places that want it."""
        for place in self._match(run.address):
            if place.log != log or not self._accepts(place, run):
                continue
            if not place.behind:
                self._mark_behind(place)
            named = place.options & _NAMED
            ttl = ttl_ns(run, self._policy(self._cursors.name(place.cursor) if named else "", log))
            if ttl is not None:
                due_s = _seconds(run.received_at + min(ttl, SWEEP_AGAIN_NS))
                if place.due_s is None or due_s < place.due_s:
                    self._execute("UPDATE place SET due_s = ? WHERE pattern = ? AND cursor = ?", (due_s, *place[:2]))

    def mark_all_behind(self, log: int) -> None:
        """Mark all places in a log as behind, because its new messages are unknown."""
        self._execute("UPDATE place SET behind = 1, due_s = ? WHERE log = ?", (_seconds(CHECK), log))
        follower = self._followers.get(log)
        if follower is not None:
            follower.level = 0

    # --- time -------------------------------------------------------------------------------------------------

    def recheck_expiry(self) -> None:
        """Have all places that are behind checked, as messages may have another time to live now."""
        self._execute("UPDATE place SET due_s = ? WHERE behind", (_seconds(CHECK),))

    def tick(self, now_s: float, now_ns: int) -> list[str]:
        """Let level cursors pass new messages, some at each tick (`limits.TICK_S`).

        Return names of subscriptions in which messages may have expired; the caller opens them.
        """
        self._pass_level(now_s)
        # later times were noted before the clock was set back
        bounds = (now_ns // _NS_PER_S, -(-(now_ns + 2 * SWEEP_AGAIN_NS) // _NS_PER_S))
        text = "SELECT cursor FROM place WHERE due_s <= ? OR due_s >= ? LIMIT ?"
        due = self._execute(text, (*bounds, SUBSCRIPTIONS_OPENED_MAX)).fetchall()
        return list(dict.fromkeys(self._cursors.name(cursor) for (cursor,) in due))

    def _pass_level(self, now_s: float) -> None:
        left = CURSORS_MOVED_MAX
        if not self._round and now_s >= self._round_at_s:
            self._begin_round(now_s)
        text = "SELECT cursor FROM place WHERE log = ? AND NOT behind AND cursor > ? ORDER BY cursor LIMIT ?"
        while left and self._round:
            log, passed = self._round[0]
            cursors = [cursor for (cursor,) in self._execute(text, (log, self._round_after, left))]
            self._cursors.pass_all(log, cursors, passed)
            if len(cursors) < left:
                del self._round[0]
                self._round_after = 0
            else:
                self._round_after = cursors[-1]
            left -= len(cursors)

    def _begin_round(self, now_s: float) -> None:
        self._round_at_s = now_s + SUBSCRIPTIONS_PASSED_S
        self._round_after = 0
        self._round = [(log, each.take_passed()) for log, each in self._followers.items() if each.passed is not None]


def _seconds(due_ns: int) -> int:
    """Return seconds, rounded up; 1 for a time that is long past."""
    return max(1, -(-due_ns // _NS_PER_S))


class AbsentFollower:
    """All absent subscriptions of one log as a single follower of its feed, with a filter for every name."""

    pattern = EVERY_NAME["#"]
    name = "subscriptions that no client holds"
    accepts: Callable[[Run], bool] | None = None

    def __init__(self, subscriptions: AbsentSubscriptions, log: int) -> None:
        self.log = log
        self.count = 0
        """Number of places in this log."""
        self.level = 0
        """Number of places that are not behind."""
        self.passed: int | None = None
        """Position to which level cursors may move; None: they stay."""
        self._subscriptions = subscriptions
        self._level: dict[str, list[_Matched]] = {}
        """Results of `AbsentSubscriptions.level`, by address."""

    def changed(self, pattern: str) -> None:
        """Forget results for addresses that match a filter that was added or removed."""
        if not is_filter(pattern):
            self._level.pop(pattern, None)
            return
        for address in [address for address in self._level if matches(pattern, address)]:
            del self._level[address]

    def take_passed(self) -> int:
        """Return `passed` and clear it. Raises LookupError when it is None."""
        passed, self.passed = self.passed, None
        if passed is None:
            raise LookupError(self.log)
        return passed

    @property
    def sleeps(self) -> bool:
        """See `edge.broker.delivery.feeds.Follower`, also for the other methods."""
        return not (self.level or self._subscriptions.all_may_expire)

    def arrived(self, stored: Stored) -> None:
        run, subscriptions = stored.run, self._subscriptions
        if subscriptions.may_expire(run):
            subscriptions.note_expiry(self.log, run)
            self._level.pop(run.address, None)
            return
        level = self._level.get(run.address)
        if level is None:
            level = subscriptions.level(run.address, self.log)
        if level:
            level = [place for place in level if not subscriptions.fall_behind(place, run)]
        if len(run.address) <= ADDRESS_REMEMBERED_CHARACTERS_MAX:
            if len(self._level) >= ADDRESSES_MATCHED_MAX:
                self._level.clear()
            self._level[run.address] = level

    def fall_behind(self) -> None:
        self._level.clear()
        self._subscriptions.mark_all_behind(self.log)

    def pump(self) -> None:
        """Do nothing, without a client to deliver to."""

    def advance_to(self, watermark: int) -> None:
        self.passed = watermark

    def restart(self) -> None:
        self.fall_behind()
