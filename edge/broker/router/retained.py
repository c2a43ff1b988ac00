"""Retained messages: the last one of each address, for those who subscribe later (MQTT 5 section 3.3.1.3)."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from bridge.message import AMQP, RETAIN, Run
from edge.broker.limits import RETAINED_JUDGED_AGAIN_S, RETAINED_PURGED_MAX, RETAINED_STALE_MAX
from edge.broker.message.translation import is_empty
from edge.broker.model.topics import filter_levels, is_wide
from edge.broker.retention.names import NameKind, NameQuotas
from edge.broker.store.contract import SmallState
from edge.broker.store.ticket import Ticket

KIND = "retained"
"""Kind of the store's small state they are kept under, by address."""


_NS_IN_S: Final = 1_000_000_000


class _Level:
    """One level of the topic names that have a retained message."""

    __slots__ = ("levels", "run", "user")

    def __init__(self) -> None:
        self.run: Run | None = None
        self.user = ""
        """Who made the message."""
        self.levels: dict[str, _Level] | None = None
        """None instead of an empty one: most levels are leaves, and an empty dict costs 64 bytes."""


class Kept(Run, gc=False):
    """A retained message as it is kept on disk, with the user who made it."""

    user: str = ""


class RetainedMessages:
    """Held in memory and kept in the store; what `put` changes is on disk with the open group."""

    def __init__(
        self, store: SmallState, names: NameQuotas, ttl_ns: Callable[[Run], int | None] = lambda _run: None
    ) -> None:
        """`ttl_ns`: nanoseconds for which a run is worth delivering, None for ever."""
        self.expired = 0
        """Messages taken away because their time to live had passed."""
        self._ttl_ns = ttl_ns
        self._due: list[tuple[int, str]] = []
        """Heap of (when to look whether it has expired, address); what was replaced meanwhile is found out then."""
        self._store = store
        self._names = names
        self._root = _Level()
        self._count = 0
        for address, value in store.items(KIND):
            run = msgspec.msgpack.decode(value, type=Kept)
            self._set(address, _plain(run), run.user)
            self._remember_expiry(run)

    def __len__(self) -> int:
        return self._count

    def admits(self, run: Run, user: str) -> bool:
        """True when `user` may make the run's last message the one of its address."""
        body = run.bodies[-1]
        if _clears(run, body):
            return True
        level = self._level(run.address)
        own = level.run if level is not None and level.user == user else None
        replaced = None if own is None else _size(own)
        return self._names.has_room(NameKind.RETAINED, user, _size_of(run.address, body), replaced=replaced)

    def put(self, run: Run, user: str) -> Ticket | None:
        """Replace the message of the run's address by its last one; an empty body clears it. `admits` comes before.

        Returns the ticket of the commit it waits for; None when nothing changes.
        """
        address, body = run.address, run.bodies[-1]
        if _clears(run, body):
            return self.discard(address)
        kept = Kept(address, run.device, run.flags | RETAIN, run.properties, [body], run.received_at, user)
        self._set(address, _plain(kept), user)
        self._remember_expiry(kept)
        return self._store.put(KIND, address, msgspec.msgpack.encode(kept))

    def purge(self, now_ns: int, is_over: Callable[[Run, int], bool]) -> None:
        """Take away messages that have expired, from the store too: so many a call, those due first.

        `is_over` says whether a time to live (nanoseconds) has passed for a run; `now_ns` is UTC.
        """
        due = self._due
        if len(due) > 2 * self._count + RETAINED_STALE_MAX:
            due = self._due = self._current()
        for _ in range(RETAINED_PURGED_MAX):
            if not due or due[0][0] > now_ns:
                return
            _, address = heapq.heappop(due)
            run = self._find(address)
            ttl = self._ttl_ns(run) if run is not None else None
            if run is None or ttl is None or run.received_at + ttl > now_ns:
                continue  # gone, or replaced: that one has an entry of its own
            if is_over(run, ttl):
                self.discard(address)
                self.expired += 1
            else:
                heapq.heappush(due, (now_ns + RETAINED_JUDGED_AGAIN_S * _NS_IN_S, address))

    def _remember_expiry(self, run: Run) -> None:
        ttl = self._ttl_ns(run)
        if ttl is not None:
            heapq.heappush(self._due, (run.received_at + ttl, run.address))

    def _current(self) -> list[tuple[int, str]]:
        """The heap without what was replaced."""
        found: list[Run] = []
        _all(self._root, found, top=False)
        due = [(run.received_at + ttl, run.address) for run in found if (ttl := self._ttl_ns(run)) is not None]
        heapq.heapify(due)
        return due

    def matching(self, pattern: str) -> list[Run]:
        """Those of every address the filter matches."""
        return [run for run in self.walk(pattern) if run is not None]

    def walk(self, pattern: str) -> Iterator[Run | None]:
        """What `matching` returns, one topic name a step, and None for a name looked at in vain: for who has other
        work in between. What changes meanwhile may be met or not."""
        names, wide = filter_levels(pattern), is_wide(pattern)
        stack = [(iter((self._root,)), 0)]
        while stack:
            levels, i = stack[-1]
            level = next(levels, None)
            if level is None:
                stack.pop()
                continue
            rest = i < len(names) and names[i] == "#"
            yield level.run if rest or i == len(names) else None
            if i == len(names) or level.levels is None:
                continue
            below = level.levels
            if rest or names[i] == "+":
                every = wide or level is not self._root
                found = [each for name, each in below.items() if every or not name.startswith("$")]
                stack.append((iter(found), i if rest else i + 1))  # [MQTT-4.7.2-1]
            elif names[i] in below:
                stack.append((iter((below[names[i]],)), i + 1))

    def discard(self, address: str) -> Ticket | None:
        """Forget the message of an address; None when there is none."""
        path = [self._root]
        names = address.split("/")
        for name in names:
            level = path[-1].levels.get(name) if path[-1].levels is not None else None
            if level is None:
                return None
            path.append(level)
        if path[-1].run is None:
            return None
        self._names.gone(NameKind.RETAINED, path[-1].user, _size(path[-1].run))
        path[-1].run = None
        self._count -= 1
        for i in range(len(names), 0, -1):  # take away what is empty now
            above = path[i - 1].levels
            if path[i].run is not None or path[i].levels or above is None:
                break
            del above[names[i - 1]]
        return self._store.delete(KIND, address)

    def _set(self, address: str, run: Run, user: str) -> None:
        level = self._root
        for name in address.split("/"):
            if level.levels is None:
                level.levels = {}
            below = level.levels.get(name)
            if below is None:
                below = level.levels[sys.intern(name)] = _Level()
            level = below
        if level.run is None:
            self._count += 1
        else:
            self._names.gone(NameKind.RETAINED, level.user, _size(level.run))
        level.run, level.user = run, sys.intern(user)
        self._names.made(NameKind.RETAINED, user, _size(run))

    def _find(self, address: str) -> Run | None:
        level = self._level(address)
        return level.run if level is not None else None

    def _level(self, address: str) -> _Level | None:
        level = self._root
        for name in address.split("/"):
            below = level.levels.get(name) if level.levels is not None else None
            if below is None:
                return None
            level = below
        return level


def _clears(run: Run, body: bytes) -> bool:
    """It takes the message of its address away."""
    return not body or bool(run.flags & AMQP and is_empty(body))


def _plain(kept: Kept) -> Run:
    return Run(kept.address, kept.device, kept.flags, kept.properties, kept.bodies, kept.received_at)


def _size(run: Run) -> int:
    return _size_of(run.address, run.bodies[-1])


def _size_of(address: str, body: bytes) -> int:
    """What a message counts by (`NameQuotas`): one whose address and body are small is one name."""
    return len(address) + len(body)


def _all(level: _Level, found: list[Run], *, top: bool) -> None:
    """Everything at a level and below, names that begin with ``$`` left out at the `top`."""
    stack = [level]
    while stack:
        each = stack.pop()
        if each.run is not None:
            found.append(each.run)
        if each.levels is not None:
            stack.extend(
                below for name, below in each.levels.items() if not (top and each is level and name.startswith("$"))
            )
