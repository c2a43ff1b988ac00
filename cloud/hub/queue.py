"""The queue of what waits for the landing: in the order it came for each gateway, and in a fair one over gateways.

Every gateway has a share of the landing's time. What it has had is added up in seconds, by bytes when something of it
is taken and by the clock when its rows have been made, and the one that has had least comes next (start-time fair
queueing, Goyal et al. 1996). Who had nothing to land for a while begins where the others are: time is not saved up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, merge
from itertools import accumulate

from cloud.hub.groups import Entry, Key, Lineage, Session
from cloud.hub.limits import LANDED_BYTES_A_SECOND
from cloud.lake.limits import LANDING_BYTES_MAX, LANDING_ROWS_MAX
from cloud.lake.rows import ReceivedBatch
from cloud.lake.sequences import Stream


class EntryQueue:
    """*Fresh* entries have not been tried; *held* ones have, and wait for their time."""

    def __init__(self) -> None:
        self.fresh: dict[Key, list[Entry]] = {}
        """By gateway, in the order they came; no list is empty."""
        self.held: list[Entry] = []
        self.fresh_bytes = self.fresh_rows = self.held_bytes = self.held_rows = 0
        self.backlog_bytes = 0
        """Of what is fresh: what gateways had kept while they could not send."""
        self.held_due_s = 0.0
        """When the first of the held ones is to be tried."""
        self._had_s: dict[Key, float] = {}
        """Of the landing's time, of the gateways that have something here or had of late."""
        self._now_s = 0.0
        """What the one had that was taken last: nobody begins with less."""
        self._left_over = False

    @property
    def bytes(self) -> int:
        return self.fresh_bytes + self.held_bytes

    @property
    def rows(self) -> int:
        return self.fresh_rows + self.held_rows

    @property
    def oldest(self) -> list[Entry]:
        """The oldest fresh and the oldest held entry, as far as there are any."""
        first = min((entries[0] for entries in self.fresh.values()), key=_at, default=None)
        return [*([] if first is None else [first]), *self.held[:1]]

    @property
    def urgent(self) -> bool:
        """Something fresh waits that gathers no company: what one landing left over, or no batch."""
        return self._left_over or any(not entry.rows for entries in self.fresh.values() for entry in entries)

    def put(self, entry: Entry) -> None:
        """Behind everything else of its gateway."""
        self.fresh.setdefault(entry.session.key, []).append(entry)
        self._count([entry])

    def put_first(self, entries: Sequence[Entry]) -> None:
        """They were taken, and there was no time for them: before everything else of their gateways."""
        for entry in reversed(entries):
            self.fresh.setdefault(entry.session.key, []).insert(0, entry)
        self._count(entries)
        self._left_over = self._left_over or bool(entries)

    def put_back(self, entries: Sequence[Entry]) -> None:
        """They have been tried, and have their times."""
        self._hold(list(merge(self.held, sorted(entries, key=_at), key=_at)))

    def charge(self, spent_s: Mapping[Key, float]) -> None:
        """So much of the landing's time these gateways have had."""
        for key, seconds in spent_s.items():
            self._had_s[key] = self._had_s.get(key, self._now_s) + seconds

    def drop_held(self, session: Session) -> None:
        """Forget what is held of a connection, and what came over it behind that in the same streams."""
        if self.held:
            dropped = [entry for entry in self.held if entry.session is session]
            self._hold([entry for entry in self.held if entry.session is not session])
            self.drop_behind(dropped)

    def drop_gone(self, session: Session, bytes_max: int) -> None:
        """A connection is gone: what it has sent lands up to so many bytes of rows; the rest is forgotten, it comes
        again."""
        entries = self.fresh.get(session.key, ())
        sizes = accumulate(
            max(entry.bytes, entry.landing_bytes) if entry.session is session else 0 for entry in entries
        )
        kept = [
            entry
            for entry, size in zip(entries, sizes, strict=True)
            if entry.session is not session or size <= bytes_max
        ]
        if len(kept) < len(entries):
            self._keep(session.key, kept)

    def drop_behind(self, dropped: Sequence[Entry]) -> None:
        """Forget what came behind these over the same connections, in the same streams: it comes again behind them, and
        would be in the lake before them otherwise."""
        streams: dict[Session, set[Stream]] = {}
        for entry in dropped:
            if isinstance(entry.content, ReceivedBatch):
                streams.setdefault(entry.session, set()).update(entry.content.streams)
        for key in {session.key for session in streams}:
            self._keep(key, [entry for entry in self.fresh.get(key, ()) if not _follows(entry, streams)])

    def surplus(self, held_bytes_max: int) -> list[Entry]:
        """Take out what is held beyond a bound: of the connections of which most is."""
        size = self.held_bytes
        of: dict[Session, int] = {}
        for entry in self.held:
            of[entry.session] = of.get(entry.session, 0) + entry.bytes
        gone = set[Session]()
        for session in sorted(of, key=of.__getitem__, reverse=True):
            if size <= held_bytes_max:
                break
            size -= of[session]
            gone.add(session)
        taken = [entry for entry in self.held if entry.session in gone]
        if taken:
            self._hold([entry for entry in self.held if entry.session not in gone])
        return taken

    def take(self, now: float, *, everything: bool) -> list[Entry]:
        """Take out what is due, as much as one landing takes, and at least one entry: of each gateway in order, of the
        gateway first that has had least. `everything`: also what is not due.

        Behind what stays no batch of the same stream is taken, and no lineage of the same gateway: a store is compared
        with what has landed of it, so all that was sent before must have.
        """
        held: dict[Key, list[Entry]] = {}
        for entry in self.held:
            held.setdefault(entry.session.key, []).append(entry)
        heads: list[tuple[float, float, Key, Entry, Iterator[Entry]]] = []
        for key in {**held, **self.fresh}:
            due = _due(held.get(key, ()), self.fresh.get(key, ()), None if everything else now)
            for first in due:
                heads.append((max(self._had_s.get(key, 0.0), self._now_s), first.at_s, key, first, due))
                break
        heapify(heads)
        taken: list[Entry] = []
        size = rows = 0
        while heads:
            had_s, _, key, entry, due = heads[0]
            if taken and (size + entry.landing_bytes > LANDING_BYTES_MAX or rows + entry.rows > LANDING_ROWS_MAX):
                break
            heappop(heads)
            taken.append(entry)
            size += entry.landing_bytes
            rows += entry.rows
            self._now_s = had_s
            self._had_s[key] = had_s + entry.landing_bytes / LANDED_BYTES_A_SECOND
            for following in due:
                heappush(heads, (self._had_s[key], following.at_s, key, following, due))
                break
        self._left_over = bool(heads)
        self._remove(taken)
        return taken

    def _remove(self, taken: Sequence[Entry]) -> None:
        gone = set(map(id, taken))
        for key in {entry.session.key for entry in taken}:
            self._keep(key, [entry for entry in self.fresh.get(key, ()) if id(entry) not in gone])
        self._hold([entry for entry in self.held if id(entry) not in gone])
        waiting = {entry.session.key for entry in self.held} | self.fresh.keys()
        self._had_s = {key: had for key, had in self._had_s.items() if had > self._now_s or key in waiting}

    def _keep(self, key: Key, entries: list[Entry]) -> None:
        """These are left of what is fresh of a gateway."""
        before = self.fresh.pop(key, [])
        if entries:
            self.fresh[key] = entries
        self._count(before, -1)
        self._count(entries)

    def _count(self, entries: Sequence[Entry], sign: int = 1) -> None:
        """These are fresh now, or are not any more."""
        for entry in entries:
            self.fresh_bytes += sign * entry.bytes
            self.fresh_rows += sign * entry.rows
            self.backlog_bytes += sign * entry.backlog_bytes

    def _hold(self, entries: list[Entry]) -> None:
        self.held = entries
        self.held_bytes, self.held_rows = sum(entry.bytes for entry in entries), sum(entry.rows for entry in entries)
        self.held_due_s = min((entry.due_s for entry in entries), default=0.0)


def _due(held: Sequence[Entry], fresh: Sequence[Entry], now: float | None) -> Iterator[Entry]:
    """Of one gateway, what can be taken, in the order it came; `now` None: whatever the time is."""
    blocked: set[Stream] = set()
    stays = False
    for entry in merge(held, fresh, key=_at):
        content = entry.content
        behind = isinstance(content, ReceivedBatch) and bool(blocked) and not blocked.isdisjoint(content.streams)
        behind = behind or (isinstance(content, Lineage) and stays)
        if behind or (now is not None and entry.due_s > now):
            stays = True
            if isinstance(content, ReceivedBatch):
                blocked |= content.streams
        else:
            yield entry


def _follows(entry: Entry, streams: dict[Session, set[Stream]]) -> bool:
    """The entry has a stream of those by its connection; then all of its streams belong to them."""
    found = streams.get(entry.session)
    if found is None or not isinstance(entry.content, ReceivedBatch) or found.isdisjoint(entry.content.streams):
        return False
    found |= entry.content.streams
    return True


def _at(entry: Entry) -> float:
    return entry.at_s
