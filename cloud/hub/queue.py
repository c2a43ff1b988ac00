"""The queue of what waits for the landing: in the order it came, with what is held for a retry of its own."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge

from cloud.hub.groups import Entry, Key, Lineage, Session
from cloud.lake.limits import LANDING_BYTES_MAX, LANDING_ROWS_MAX
from cloud.lake.rows import ReceivedBatch
from cloud.lake.sequences import Stream


class EntryQueue:
    """*Fresh* entries have not been tried; *held* ones have, and wait for their time."""

    def __init__(self) -> None:
        self.fresh: list[Entry] = []
        self.held: list[Entry] = []
        self.fresh_bytes = self.fresh_rows = self.held_bytes = self.held_rows = 0
        self.held_due_s = 0.0
        """When the first of the held ones is to be tried."""
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
        return [*self.fresh[:1], *self.held[:1]]

    @property
    def urgent(self) -> bool:
        """Something fresh waits that gathers no company: what one landing left over, or no batch."""
        return self._left_over or any(not entry.rows for entry in self.fresh)

    def put(self, entry: Entry) -> None:
        """Behind everything else."""
        self.fresh.append(entry)
        self.fresh_bytes += entry.bytes
        self.fresh_rows += entry.rows

    def put_back(self, entries: Sequence[Entry]) -> None:
        """They have been tried, and have their times."""
        self._hold(list(merge(self.held, entries, key=lambda entry: entry.at_s)))

    def drop_held(self, session: Session) -> None:
        """Forget what is held of a connection, and what came over it behind that in the same streams."""
        if self.held:
            dropped = [entry for entry in self.held if entry.session is session]
            self._hold([entry for entry in self.held if entry.session is not session])
            self.drop_behind(dropped)

    def drop_behind(self, dropped: Sequence[Entry]) -> None:
        """Forget what came behind these over the same connections, in the same streams: it comes again behind them, and
        would be in the lake before them otherwise."""
        streams: dict[Session, set[Stream]] = {}
        for entry in dropped:
            if isinstance(entry.content, ReceivedBatch):
                streams.setdefault(entry.session, set()).update(entry.content.streams)
        if streams:
            self.fresh = [entry for entry in self.fresh if not _follows(entry, streams)]
            self.fresh_bytes, self.fresh_rows = _sums(self.fresh)

    def surplus(self, held_bytes_max: int) -> list[Entry]:
        """Take out the newest held entries beyond a bound, with all that is held of the same connections."""
        size, gone = self.held_bytes, set[Session]()
        for entry in reversed(self.held):
            if size <= held_bytes_max:
                break
            size -= entry.bytes
            gone.add(entry.session)
        taken = [entry for entry in self.held if entry.session in gone]
        if taken:
            self._hold([entry for entry in self.held if entry.session not in gone])
        return taken

    def take(self, now: float, *, everything: bool) -> list[Entry]:
        """Take out what is due, in order, as much as one landing takes, and at least one entry.

        Behind what stays no batch of the same stream is taken, and no lineage of the same gateway: a store is compared
        with what has landed of it, so all that was sent before must have.
        """
        taken: list[Entry] = []
        left: list[Entry] = []
        blocked: set[Stream] = set()
        behind: set[Key] = set()
        size = rows = 0
        full = False
        for entry in merge(self.held, self.fresh, key=lambda entry: entry.at_s):
            full = full or (
                bool(taken) and (size + entry.landing_bytes > LANDING_BYTES_MAX or rows + entry.rows > LANDING_ROWS_MAX)
            )
            stays = not everything and (full or entry.due_s > now or self._is_behind(entry, blocked, behind))
            if stays:
                left.append(entry)
                behind.add(entry.session.key)
                if not full and isinstance(entry.content, ReceivedBatch):
                    blocked |= entry.content.streams
            else:
                taken.append(entry)
                size += entry.landing_bytes
                rows += entry.rows
        self.fresh = [entry for entry in left if not entry.attempts]
        self.fresh_bytes, self.fresh_rows = _sums(self.fresh)
        self._left_over = full and bool(self.fresh)
        self._hold([entry for entry in left if entry.attempts])
        return taken

    @staticmethod
    def _is_behind(entry: Entry, blocked: set[Stream], behind: set[Key]) -> bool:
        if isinstance(entry.content, ReceivedBatch):
            return bool(blocked) and not blocked.isdisjoint(entry.content.streams)
        return isinstance(entry.content, Lineage) and entry.session.key in behind

    def _hold(self, entries: list[Entry]) -> None:
        self.held = entries
        self.held_bytes, self.held_rows = _sums(entries)
        self.held_due_s = min((entry.due_s for entry in entries), default=0.0)


def _follows(entry: Entry, streams: dict[Session, set[Stream]]) -> bool:
    """The entry has a stream of those by its connection; then all of its streams belong to them."""
    found = streams.get(entry.session)
    if found is None or not isinstance(entry.content, ReceivedBatch) or found.isdisjoint(entry.content.streams):
        return False
    found |= entry.content.streams
    return True


def _sums(entries: Sequence[Entry]) -> tuple[int, int]:
    return sum(entry.bytes for entry in entries), sum(entry.rows for entry in entries)
