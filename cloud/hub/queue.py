"""Queue of entries that wait for the landing: in order for each gateway, fair among gateways.

Every gateway has a share of the landing's time. Its use is counted in seconds: by bytes when an entry is taken, and by
the clock when its rows have been made. The gateway with the least use comes next (start-time fair queueing, Goyal et
al. 1996). A gateway that was idle starts at the current level: time is not saved up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, merge
from itertools import accumulate

from cloud.hub.groups import GatewayLineage, GatewaySession, Key, QueueEntry
from cloud.hub.limits import LANDED_BYTES_A_SECOND
from cloud.lake.limits import LANDING_BYTES_MAX, LANDING_ROWS_MAX
from cloud.lake.rows import ReceivedBatch
from cloud.lake.sequences import SequenceStream


class EntryQueue:
    """Fresh entries have not been tried. Held entries failed and wait for their retry."""

    def __init__(self) -> None:
        self.fresh: dict[Key, list[QueueEntry]] = {}
        """Fresh entries by gateway, in order of arrival; no list is empty."""
        self.held: list[QueueEntry] = []
        self.fresh_bytes = self.fresh_rows = self.held_bytes = self.held_rows = 0
        self.backlog_bytes = 0
        """Fresh bytes that gateways had stored while they could not send."""
        self.held_due_s = 0.0
        """Time of the first retry."""
        self._used_s: dict[Key, float] = {}
        """Landing time used, in seconds, of gateways with entries in the queue or used recently."""
        self._now_s = 0.0
        """Use of the gateway taken last: new gateways start with it."""
        self._left_over = False

    @property
    def bytes(self) -> int:
        return self.fresh_bytes + self.held_bytes

    @property
    def rows(self) -> int:
        return self.fresh_rows + self.held_rows

    @property
    def oldest(self) -> list[QueueEntry]:
        """Oldest fresh and oldest held entry, if any."""
        first = min((entries[0] for entries in self.fresh.values()), key=_at, default=None)
        return [*([] if first is None else [first]), *self.held[:1]]

    @property
    def urgent(self) -> bool:
        """True if a fresh entry should not wait for more: left over from a landing, or not a batch."""
        return self._left_over or any(not entry.rows for entries in self.fresh.values() for entry in entries)

    def put(self, entry: QueueEntry) -> None:
        """Append an entry to those of its gateway."""
        self.fresh.setdefault(entry.session.key, []).append(entry)
        self._count([entry])

    def put_first(self, entries: Sequence[QueueEntry]) -> None:
        """Return entries that were taken but not tried, in front of all others of their gateways."""
        for entry in reversed(entries):
            self.fresh.setdefault(entry.session.key, []).insert(0, entry)
        self._count(entries)
        self._left_over = self._left_over or bool(entries)

    def put_held(self, entries: Sequence[QueueEntry]) -> None:
        """Return entries that failed and have a retry time."""
        self._hold(list(merge(self.held, sorted(entries, key=_at), key=_at)))

    def charge(self, spent_s: Mapping[Key, float]) -> None:
        """Add landing time to the use of these gateways."""
        for key, seconds in spent_s.items():
            self._used_s[key] = self._used_s.get(key, self._now_s) + seconds

    def drop_held(self, session: GatewaySession) -> None:
        """Drop the held entries of a connection, and later entries of it in the same streams."""
        if self.held:
            dropped = [entry for entry in self.held if entry.session is session]
            self._hold([entry for entry in self.held if entry.session is not session])
            self.drop_later(dropped)

    def drop_closed(self, session: GatewaySession, bytes_max: int) -> None:
        """Drop entries of a closed connection beyond `bytes_max` of rows; the gateway sends them again."""
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

    def drop_later(self, dropped: Sequence[QueueEntry]) -> None:
        """Drop later entries of the same connections in the same streams as `dropped`.

        The gateway sends them again in order; landed now, they would be in the lake before the dropped ones.
        """
        streams: dict[GatewaySession, set[SequenceStream]] = {}
        for entry in dropped:
            if isinstance(entry.content, ReceivedBatch):
                streams.setdefault(entry.session, set()).update(entry.content.streams)
        for key in {session.key for session in streams}:
            self._keep(key, [entry for entry in self.fresh.get(key, ()) if not _follows(entry, streams)])

    def surplus(self, held_bytes_max: int) -> list[QueueEntry]:
        """Remove held entries beyond a limit and return them, from the connections with the most first."""
        size = self.held_bytes
        of: dict[GatewaySession, int] = {}
        for entry in self.held:
            of[entry.session] = of.get(entry.session, 0) + entry.bytes
        gone = set[GatewaySession]()
        for session in sorted(of, key=of.__getitem__, reverse=True):
            if size <= held_bytes_max:
                break
            size -= of[session]
            gone.add(session)
        taken = [entry for entry in self.held if entry.session in gone]
        if taken:
            self._hold([entry for entry in self.held if entry.session not in gone])
        return taken

    def take(self, now: float, *, everything: bool) -> list[QueueEntry]:
        """Remove and return the due entries for one landing, at least one: in order for each gateway, the gateway with
        the least use first. `everything`: also entries that are not due.

        No batch overtakes a remaining batch of the same stream, and no lineage overtakes anything of its gateway: a
        store is compared with what has landed of it.
        """
        held: dict[Key, list[QueueEntry]] = {}
        for entry in self.held:
            held.setdefault(entry.session.key, []).append(entry)
        heads: list[tuple[float, float, Key, QueueEntry, Iterator[QueueEntry]]] = []
        for key in {**held, **self.fresh}:
            due = _due(held.get(key, ()), self.fresh.get(key, ()), None if everything else now)
            for first in due:
                heads.append((max(self._used_s.get(key, 0.0), self._now_s), first.at_s, key, first, due))
                break
        heapify(heads)
        taken: list[QueueEntry] = []
        size = rows = 0
        while heads:
            used_s, _, key, entry, due = heads[0]
            if taken and (size + entry.landing_bytes > LANDING_BYTES_MAX or rows + entry.rows > LANDING_ROWS_MAX):
                break
            heappop(heads)
            taken.append(entry)
            size += entry.landing_bytes
            rows += entry.rows
            self._now_s = used_s
            self._used_s[key] = used_s + entry.landing_bytes / LANDED_BYTES_A_SECOND
            for following in due:
                heappush(heads, (self._used_s[key], following.at_s, key, following, due))
                break
        self._left_over = bool(heads)
        self._remove(taken)
        return taken

    def _remove(self, taken: Sequence[QueueEntry]) -> None:
        gone = set(map(id, taken))
        for key in {entry.session.key for entry in taken}:
            self._keep(key, [entry for entry in self.fresh.get(key, ()) if id(entry) not in gone])
        self._hold([entry for entry in self.held if id(entry) not in gone])
        waiting = {entry.session.key for entry in self.held} | self.fresh.keys()
        self._used_s = {key: used for key, used in self._used_s.items() if used > self._now_s or key in waiting}

    def _keep(self, key: Key, entries: list[QueueEntry]) -> None:
        """Replace the fresh entries of a gateway."""
        before = self.fresh.pop(key, [])
        if entries:
            self.fresh[key] = entries
        self._count(before, -1)
        self._count(entries)

    def _count(self, entries: Sequence[QueueEntry], sign: int = 1) -> None:
        """Add entries to the totals, or subtract them."""
        for entry in entries:
            self.fresh_bytes += sign * entry.bytes
            self.fresh_rows += sign * entry.rows
            self.backlog_bytes += sign * entry.backlog_bytes

    def _hold(self, entries: list[QueueEntry]) -> None:
        self.held = entries
        self.held_bytes, self.held_rows = sum(entry.bytes for entry in entries), sum(entry.rows for entry in entries)
        self.held_due_s = min((entry.due_s for entry in entries), default=0.0)


def _due(held: Sequence[QueueEntry], fresh: Sequence[QueueEntry], now: float | None) -> Iterator[QueueEntry]:
    """Yield the entries of one gateway that can be taken, in order of arrival; `now` None ignores retry times."""
    blocked: set[SequenceStream] = set()
    stays = False
    for entry in merge(held, fresh, key=_at):
        content = entry.content
        behind = isinstance(content, ReceivedBatch) and bool(blocked) and not blocked.isdisjoint(content.streams)
        behind = behind or (isinstance(content, GatewayLineage) and stays)
        if behind or (now is not None and entry.due_s > now):
            stays = True
            if isinstance(content, ReceivedBatch):
                blocked |= content.streams
        else:
            yield entry


def _follows(entry: QueueEntry, streams: dict[GatewaySession, set[SequenceStream]]) -> bool:
    """Return whether an entry shares a stream with dropped entries of its connection; then drop all of its streams."""
    found = streams.get(entry.session)
    if found is None or not isinstance(entry.content, ReceivedBatch) or found.isdisjoint(entry.content.streams):
        return False
    found |= entry.content.streams
    return True


def _at(entry: QueueEntry) -> float:
    return entry.at_s
