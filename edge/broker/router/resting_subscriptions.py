"""Durable subscriptions nobody holds, as columns of numbers and a name: some 135 bytes each with their cursors and
without the name, where one that is an object takes 3 KiB.

A row is the place of a subscription in one log. A place is *level* while nothing its subscription wants lies at or
above its cursor, which then passes what comes to the log, and *behind* from the first message it wants: that, and all
after it, is read from the store by who comes to hold the subscription. So all that is to be done for a message is to
note once who falls behind, and when something of it may expire.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from bridge.message import Run, Stored
from edge.broker.delivery.durable import Declaration
from edge.broker.delivery.expiry import SWEEP_AGAIN_NS
from edge.broker.delivery.feeds import LogFeeds
from edge.broker.limits import (
    ADDRESS_REMEMBERED_CHARACTERS_MAX,
    ADDRESSES_MATCHED_MAX,
    CURSORS_MOVED_MAX,
    SUBSCRIPTIONS_OPENED_MAX,
    SUBSCRIPTIONS_PASSED_S,
)
from edge.broker.message.time_to_live import ttl_ns
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.lowest_numbers import LowestNumbers
from edge.broker.model.narrow_numbers import NarrowNumbers
from edge.broker.model.numbered_names import NumberedNames
from edge.broker.model.repeated_values import RepeatedValues
from edge.broker.model.sorted_filters import SortedFilters
from edge.broker.model.topics import EVERY_NAME, is_filter, matches
from edge.broker.store.contract import MessageLog

_ALL_QOS: Final = 1
_BEHIND: Final = 2
_LEFT_KEPT: Final = 4
"""Since when nobody holds it is on disk."""
_NOT_COUNTED: Final = -1
_NO_LOOK: Final = 0x7FFF_FFFF
"""Seconds of 68 years of running: nobody has to look at it before."""
_NEVER: Final = 0
LOOK: Final = 1
"""When something in a place expires that nobody has looked at: now."""
_NS_PER_S: Final = 1_000_000_000
_ROWS_MIN: Final = 1024
"""With more rows than this, of which three quarters are free, the table is made anew."""


class Place(NamedTuple):
    """Where a subscription stands in one log."""

    log: int
    cursor: int
    behind: bool
    due_ns: int | None
    """When something in it may expire (UTC nanoseconds); None: never, as far as is known."""


class Left(NamedTuple):
    """Since when nobody holds a subscription, and when to look at it (seconds of `running_time`)."""

    at: int | None = None
    """None: that does not count."""
    look_at: int | None = None
    """None: never."""


class _Rest(NamedTuple):
    """What of a declaration is not in the columns."""

    pattern: str
    not_from: str | None
    selector: str | None
    timeout_s: int = 0


class Taken(NamedTuple):
    """What there was of a subscription."""

    declaration: Declaration
    places: list[Place]
    left_at: int | None


class RestingSubscriptions:
    """By name."""

    def __init__(
        self,
        store: MessageLog,
        feeds: LogFeeds,
        policy: Callable[[str, int], AddressPolicy],
        expiring: Callable[[], bool],
    ) -> None:
        """`policy` of a subscription's name in a log; `expiring`: some address says how long messages live."""
        self._store = store
        self._feeds = feeds
        self._policy = policy
        self._expiring = expiring
        self._followers: dict[int, RestingFollower] = {}
        self._round: Iterator[int] = iter(())
        self._passed: dict[int, int] = {}
        """What the cursors in a log pass in this round, by log."""
        self._round_at_s = 0.0
        self._begin()

    def _begin(self) -> None:
        self._names = NumberedNames()
        """Of the first row of each."""
        self._firsts: dict[int, int] = {}
        """The first row of those that are not; nearly all have one."""
        self._others: dict[int, list[int]] = {}
        """The other rows of those that are the first of several."""
        self._cursors = NarrowNumbers()
        """0: the row is free."""
        self._logs = array("i", [0])
        self._dues = NarrowNumbers()
        """When something in it may expire: whole seconds UTC, rounded up."""
        self._flags = array("B", [0])
        self._left = array("i", [_NOT_COUNTED])
        """Since when nobody holds it, in the first row of each."""
        self._looks = LowestNumbers[int]("i")
        """When to look at it, in the first row of each."""
        self._looks.append(_NO_LOOK)
        self._pattern_at = array("H", [0])
        """Where in its name a filter begins; it goes to the end of it, but where `_rests` has it."""
        self._users = RepeatedValues("")
        self._rests: list[bytes | None] = [None]
        for column in (self._cursors, self._dues, self._users):
            column.extend(1)
        self._free = array("i")
        self._filters = SortedFilters(self._pattern)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._names.number(name) is not None

    def __iter__(self) -> Iterator[str]:
        """One after the other, as there may be very many. What comes or goes meanwhile may be among them or not; all
        that stay are, as a table that is made anew leaves this one as it was."""
        firsts, names = self._firsts, self._names
        return (names[row] for row, cursor in enumerate(self._cursors) if cursor and row not in firsts)

    def declaration(self, name: str) -> Declaration:
        """Raises KeyError."""
        return self._declaration(self._first(name))

    def places(self, name: str) -> list[Place]:
        """Raises KeyError."""
        return [self._place(row) for row in self._rows(self._first(name))]

    def is_looked_at(self, name: str) -> bool:
        """Somebody is to look at it at some time. Raises KeyError."""
        return self._looks[self._first(name)] != _NO_LOOK

    def to_look_at(self, running_s: int) -> list[str]:
        """Those whose time has come, some of them, for the caller to open."""
        return [self._names[row] for row in islice(self._looks.up_to(running_s), SUBSCRIPTIONS_OPENED_MAX)]

    def wants_of(self, name: str) -> Callable[[Run], bool] | None:
        """What one is owed of the logs it has a place in; None when there is none."""
        row = self._names.number(name)
        return None if row is None else self._declaration(row).owes

    def lowest_qos(self, address: str) -> int | None:
        """From which quality of service on somebody wants what is published to an address; None: nobody does."""
        rows = self._filters.match(address)
        if not rows:
            return None
        return 0 if any(self._flags[row] & _ALL_QOS for row in rows) else 1

    def deciding_levels(self, address: str) -> int:
        """How many first levels of an address decide whose filters match (`FilterTree.deciding_levels`)."""
        return self._filters.deciding_levels(address)

    # --- put and taken ----------------------------------------------------------------------------------------

    def put(self, declaration: Declaration, places: Sequence[Place], left: Left) -> None:
        """It is held by nobody."""
        for row in self._enter(declaration, places, left):
            self._filters.add(row)

    def put_all(self, subscriptions: Iterable[tuple[Declaration, Sequence[Place], Left]]) -> None:
        """As `put` of each; the filters are sorted once."""
        self._filters.add_all(row for each in subscriptions for row in self._enter(*each))

    def _enter(self, declaration: Declaration, places: Sequence[Place], left: Left) -> list[int]:
        """Its rows."""
        rows = [self._new_row() for _ in places]
        first, *others = rows
        self._names.add(first, declaration.name)
        self._left[first] = _NOT_COUNTED if left.at is None else left.at
        self._looks[first] = _NO_LOOK if left.look_at is None else min(left.look_at, _NO_LOOK)
        if others:
            self._others[first] = others
            self._firsts.update(dict.fromkeys(others, first))
        for row, place in zip(rows, places, strict=True):
            self._fill(row, declaration, place)
            follower = self._followers.get(place.log)
            if follower is None:
                follower = self._followers[place.log] = RestingFollower(self, place.log)
                self._feeds.attach(follower)
            follower.count += 1
            follower.level += not place.behind
            follower.changed(declaration.pattern)
        self._count += 1
        return rows

    def take(self, name: str) -> Taken:
        """It is not here any more. Raises KeyError when it was not."""
        first = self._first(name)
        declaration, rows, left = self._declaration(first), self._rows(first), self._left_of(first)
        places = [self._place(row) for row in rows]
        for row, place in zip(rows, places, strict=True):
            self._filters.remove(row)
            follower = self._followers[place.log]
            follower.count -= 1
            follower.level -= not place.behind
            follower.changed(declaration.pattern)
            if not follower.count:
                del self._followers[place.log]
                self._feeds.detach(follower)
        for row in rows:
            self._cursors[row], self._rests[row], self._users[row] = 0, None, ""
            self._firsts.pop(row, None)
            self._free.append(row)
        self._others.pop(first, None)
        self._names.remove(first)
        self._left[first], self._looks[first] = _NOT_COUNTED, _NO_LOOK
        self._count -= 1
        if len(self._cursors) > _ROWS_MIN and 4 * self._count < len(self._cursors):
            self._make_anew()
        return Taken(declaration, places, left.at)

    def _make_anew(self) -> None:
        """In as much memory as is needed now."""
        left = [(self.declaration(name), self.places(name), self._left_of(self._first(name))) for name in self]
        for follower in self._followers.values():
            self._feeds.detach(follower)
        self._followers.clear()
        self._round = iter(())
        self._begin()
        self.put_all(left)

    def _new_row(self) -> int:
        if self._free:
            return self._free.pop()
        for column in (self._cursors, self._dues, self._users):
            column.extend(1)
        for numbers in (self._logs, self._flags, self._pattern_at):
            numbers.append(0)
        self._left.append(_NOT_COUNTED)
        self._looks.append(_NO_LOOK)
        self._rests.append(None)
        return len(self._cursors) - 1

    def _fill(self, row: int, declaration: Declaration, place: Place) -> None:
        name, pattern = declaration.name, declaration.pattern
        self._cursors[row], self._logs[row] = place.cursor, place.log
        self._dues[row] = _NEVER if place.due_ns is None else _seconds(place.due_ns)
        self._flags[row] = (
            (_ALL_QOS if declaration.all_qos else 0)
            | (_BEHIND if place.behind else 0)
            | (_LEFT_KEPT if declaration.left_at is not None else 0)
        )
        self._users[row] = declaration.user
        usual = name.endswith(pattern) and len(name) - len(pattern) <= 0xFFFF
        rest = _Rest(pattern, declaration.not_from, declaration.selector, declaration.timeout_s)
        if usual and rest == _Rest(pattern, None, None):
            self._pattern_at[row] = len(name) - len(pattern)
        else:
            self._rests[row] = msgspec.msgpack.encode(rest)

    # --- rows -------------------------------------------------------------------------------------------------

    def _first(self, name: str) -> int:
        row = self._names.number(name)
        if row is None:
            raise KeyError(name)
        return row

    def _rows(self, first: int) -> list[int]:
        return [first, *self._others.get(first, ())]

    def _name(self, row: int) -> str:
        return self._names[self._firsts.get(row, row)]

    def _rest(self, row: int) -> _Rest:
        packed = self._rests[row]
        if packed is None:
            return _Rest(self._name(row)[self._pattern_at[row] :], None, None)
        return msgspec.msgpack.decode(packed, type=_Rest)

    def _pattern(self, row: int) -> str:
        if self._rests[row] is None:
            return self._name(row)[self._pattern_at[row] :]
        return self._rest(row).pattern

    def _declaration(self, row: int) -> Declaration:
        rest, all_qos = self._rest(row), bool(self._flags[row] & _ALL_QOS)
        left_at = self._left_of(self._firsts.get(row, row)).at if self._flags[row] & _LEFT_KEPT else None
        return Declaration(
            name=self._name(row),
            pattern=rest.pattern,
            all_qos=all_qos,
            not_from=rest.not_from,
            selector=rest.selector,
            user=self._users[row],
            timeout_s=rest.timeout_s,
            left_at=left_at,
        )

    def _left_of(self, first: int) -> Left:
        at, look_at = self._left[first], self._looks[first]
        return Left(None if at == _NOT_COUNTED else at, None if look_at == _NO_LOOK else look_at)

    def _place(self, row: int) -> Place:
        due_s, behind = self._dues[row], bool(self._flags[row] & _BEHIND)
        return Place(self._logs[row], self._cursors[row], behind, None if due_s == _NEVER else due_s * _NS_PER_S)

    # --- messages ---------------------------------------------------------------------------------------------

    @property
    def all_may_expire(self) -> bool:
        """Also what does not say so itself."""
        return self._expiring()

    def may_expire(self, run: Run) -> bool:
        """It may have a time to live."""
        return bool(run.properties) or self._expiring()

    def level(self, address: str, log: int) -> list[int]:
        """Rows that fall behind with the first message they want of an address."""
        return [row for row in self._filters.match(address) if self._logs[row] == log and not self._is_behind(row)]

    def _is_behind(self, row: int) -> bool:
        return bool(self._flags[row] & _BEHIND)

    def fall_behind(self, row: int, run: Run) -> bool:
        """The first message it wants has come, or one before; False when it does not want this one either."""
        if not self._accepts(row, run):
            return False
        self._leave_behind(row)
        return True

    def _leave_behind(self, row: int) -> None:
        if not self._is_behind(row):
            self._flags[row] |= _BEHIND
            self._followers[self._logs[row]].level -= 1

    def _accepts(self, row: int, run: Run) -> bool:
        """It delivers this run, whose address matches."""
        if self._rests[row] is not None:
            return self._declaration(row).accepts(run)
        return bool(self._flags[row] & _ALL_QOS) or run.qos > 0

    def leave(self, log: int, run: Run) -> None:
        """A run that may expire was left to those who want it."""
        for row in self._filters.match(run.address):
            if self._logs[row] != log or not self.fall_behind(row, run):
                continue
            ttl = ttl_ns(run, self._policy(self._name(row), log))
            if ttl is not None:
                due_s, before = _seconds(run.received_at + min(ttl, SWEEP_AGAIN_NS)), self._dues[row]
                self._dues[row] = due_s if before == _NEVER else min(before, due_s)

    def leave_all(self, log: int) -> None:
        """Nobody knows what came to a log: all read it."""
        for row, its in enumerate(self._logs):
            if its == log and self._cursors[row]:
                self._leave_behind(row)
                self._dues[row] = _seconds(LOOK)

    # --- time -------------------------------------------------------------------------------------------------

    def look_anew(self) -> None:
        """What lives for how long is another matter now: each that is behind is to be looked at."""
        for row in range(1, len(self._cursors)):
            if self._cursors[row] and self._is_behind(row):
                self._dues[row] = _seconds(LOOK)

    def tick(self, now_s: float, now_ns: int) -> list[str]:
        """Every `limits.TICK_S`: let cursors that are level pass what has come, some each time. Returns the names of
        those in which something may have expired, for the caller to open."""
        due: list[str] = []
        for _ in range(CURSORS_MOVED_MAX):
            row = next(self._round, None)
            if row is None:
                if not self._begin_round(now_s):
                    break
                continue
            if row >= len(self._cursors) or not self._cursors[row]:
                continue
            due_ns = self._dues[row] * _NS_PER_S
            if due_ns and not now_ns < due_ns < now_ns + 2 * SWEEP_AGAIN_NS:
                due.append(self._name(row))  # what is further off was noted before the clock was set back
                if len(due) >= SUBSCRIPTIONS_OPENED_MAX:
                    break
            passed = self._passed.get(self._logs[row])
            if passed is not None and not self._is_behind(row):
                self._store.acknowledge(self._cursors[row], 0, passed - 1)
        return list(dict.fromkeys(due))

    def _begin_round(self, now_s: float) -> bool:
        if not self._count or now_s < self._round_at_s:
            return False
        self._round_at_s = now_s + SUBSCRIPTIONS_PASSED_S
        self._passed = {log: each.take_passed() for log, each in self._followers.items() if each.passed is not None}
        if not (self._passed or any(self._dues)):
            return False
        self._round = iter(range(1, len(self._cursors)))
        return True


def _seconds(due_ns: int) -> int:
    """Rounded up, and 1 for whatever is long past; who looks at it comes in `SUBSCRIPTIONS_PASSED_S` at the latest."""
    return max(1, -(-due_ns // _NS_PER_S))


class RestingFollower:
    """All that rests in one log, as its feed has it: one follower of everything."""

    pattern = EVERY_NAME["#"]
    name = "subscriptions nobody holds"
    accepts: Callable[[Run], bool] | None = None

    def __init__(self, subscriptions: RestingSubscriptions, log: int) -> None:
        self.log = log
        self.count = 0
        """Rows of this log."""
        self.level = 0
        """How many of them are not behind."""
        self.passed: int | None = None
        """Where cursors that are level may go; None: where they are."""
        self._subscriptions = subscriptions
        self._level: dict[str, list[int]] = {}
        """By address, as `RestingSubscriptions.level`."""

    def changed(self, pattern: str) -> None:
        """A filter came, or went."""
        if not is_filter(pattern):
            self._level.pop(pattern, None)
            return
        for address in [address for address in self._level if matches(pattern, address)]:
            del self._level[address]

    def take_passed(self) -> int:
        """`passed`, to be done now. Raises LookupError when it is None."""
        passed, self.passed = self.passed, None
        if passed is None:
            raise LookupError(self.log)
        return passed

    @property
    def sleeps(self) -> bool:
        """See `edge.broker.delivery.feeds.Follower`; so for the others."""
        return not (self.level or self._subscriptions.all_may_expire)

    def arrived(self, stored: Stored) -> None:
        run, subscriptions = stored.run, self._subscriptions
        if subscriptions.may_expire(run):
            subscriptions.leave(self.log, run)
            self._level.pop(run.address, None)
            return
        level = self._level.get(run.address)
        if level is None:
            level = subscriptions.level(run.address, self.log)
        if level:
            level = [row for row in level if not subscriptions.fall_behind(row, run)]
        if len(run.address) <= ADDRESS_REMEMBERED_CHARACTERS_MAX:
            if len(self._level) >= ADDRESSES_MATCHED_MAX:
                self._level.clear()
            self._level[run.address] = level

    def fall_behind(self) -> None:
        self._level.clear()
        self._subscriptions.leave_all(self.log)

    def pump(self) -> None:
        """Nobody is there to deliver to."""

    def pass_to(self, watermark: int) -> None:
        self.passed = watermark

    def begin_anew(self) -> None:
        self.fall_behind()
