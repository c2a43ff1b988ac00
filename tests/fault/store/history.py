"""Guarantees of a store after a fault: a pure checker of the recorded history of requests and answers.

A workload records JSON lines. ``sealed``: a group is about to go to the writer, and perhaps ``unsealed``: it waits for
more. ``ok`` or ``refused``: its commit ended. ``took``: messages were taken in memory, see `in_memory`. ``acked``: a
cursor is about to move. ``shown``: the content as read after an eviction. ``opened``: the same. ``forking``: a new
epoch is about to begin. ``closed``: the store was closed. The checker knows neither files nor SQLite: its input was
read through `edge.broker.store.contract.Store`.

The store decides which messages an eviction takes. Each missing message has to be acknowledged, or be in the ledger
once for each consumer group that has not acknowledged it; and the ledger has no other entries.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from tests.fault.store import in_memory
from tests.fault.store.in_memory import ADDRESSES, Tails
from tests.fault.store.ledger import Ledger, Lost, Row, difference

Message = tuple[str, int, str]
"""(address, sequence, body shortened by `shorten`)."""
Key = tuple[str, str]

FILTERED = "fast"
"""Cursor with a filter. It may stay at unwanted positions, including ones that were never written."""


class Append(msgspec.Struct):
    log: str
    address: str
    bodies: list[str]


class Given(msgspec.Struct):
    """Positions ``first..last`` that a cursor gives up.

    With `if_kept` they leave only together with the dead letter that is appended to the same group.
    """

    cursor: Key
    first: int
    last: int
    losses: list[Lost]
    if_kept: bool


class Group(msgspec.Struct):
    """Changes that one commit makes durable."""

    logs: list[tuple[str, int]] = []
    """New logs: name and start, which is the end of the former log with that number."""
    freed: list[str] = []
    """Logs without a user."""
    appends: list[Append] = []
    opened: list[tuple[str, str, int]] = []
    """New cursors: name, log, position."""
    dropped: list[Key] = []
    puts: dict[str, str] = {}
    deletes: list[str] = []
    given: list[Given] = []
    evicted: list[str] = []
    """Logs that evict their oldest messages."""
    thinned: list[str] = []
    """Logs that are summarised, and evict if that is not enough."""
    at_s: float = 0.0
    """Time at which it was sealed, by the store's clock."""

    def without_appends(self) -> Group:
        """Return the part that moves to the next group when its commit failed."""
        given = [given for given in self.given if not given.if_kept]
        return msgspec.structs.replace(self, appends=[], given=given, evicted=[], thinned=[])


class Cursor(msgspec.Struct):
    """Progress of a cursor: everything below `position`, and the positions `above`."""

    position: int
    above: set[int] = msgspec.field(default_factory=set)

    def add(self, first: int, last: int) -> None:
        self.above.update(range(max(first, self.position), last + 1))
        while self.position in self.above:
            self.above.discard(self.position)
            self.position += 1

    def __contains__(self, position: int) -> bool:
        return position < self.position or position in self.above

    def within(self, other: Cursor) -> bool:
        """Return whether `other` includes this progress."""
        beyond = range(other.position, self.position)
        return all(p in other for p in (*beyond, *self.above))


class Observed(msgspec.Struct):
    """Complete content of an opened store."""

    epoch: str
    bounds: dict[str, tuple[int, int]]
    messages: dict[str, list[tuple[int, str, int, str]]]
    """Position, address, sequence and body, by log."""
    cursors: list[tuple[str, str, int, list[tuple[int, int]]]]
    """Name, log, position, ranges above."""
    state: dict[str, str]
    sequences: dict[str, int]
    figures: tuple[int, int]
    """Messages and bytes as counted by `info`."""
    true_bytes: int
    """Bytes of the bodies that were read."""
    ledger: list[Row] = []
    running: bool = False
    """Set while the store runs: recent acknowledgements that are not on the medium are missing."""


class Line(msgspec.Struct):
    """Line of the history."""

    what: str
    group: Group | None = None
    appended: list[tuple[str, int, str, int, list[str]]] = []
    taken: list[tuple[str, int, str, int, list[str]]] = []
    """Messages taken in memory, at `at_s`."""
    at_s: float = 0.0
    cursor: tuple[str, str, int, int] | None = None
    observed: Observed | None = None


class Birth(NamedTuple):
    """State of a log at the creation of a cursor.

    Of the earlier messages, only those that other cursors waited for are certain. The others may have left the memory,
    and need not be delivered to the new cursor.
    """

    end: int
    """End of its log at that time."""
    there: frozenset[int]
    """Positions below the end that were there."""

    def owed(self, position: int) -> bool:
        return position >= self.end or position in self.there


class Model:
    """Content after some groups were committed."""

    def __init__(self) -> None:
        self.messages: dict[str, dict[int, Message]] = {}
        self.ends: dict[str, int] = {}
        self.sequences: dict[str, int] = {}
        self.cursors: dict[Key, int] = {}
        """Position at which each cursor was opened."""
        self.state: dict[str, str] = {}
        self.ledger = Ledger.of(())
        self.named: set[in_memory.Name] = set()
        """Names that the ledger finally reports as lost with the memory."""
        self.born: dict[Key, Birth] = {}
        self.tails = Tails()

    def after(self, sealed: Sealed) -> Model:
        """Return the model with a group committed, before its evictions and summaries."""
        group = sealed.group
        then = copy.copy(self)
        then.tails, then.born = self.tails.copy(), dict(self.born)
        then.messages = {log: dict(messages) for log, messages in self.messages.items()}
        then.ends, then.sequences = dict(self.ends), dict(self.sequences)
        then.cursors, then.state = dict(self.cursors), {**self.state, **group.puts}
        then.ledger = self.ledger.with_losses(lost for given in group.given for lost in given.losses)
        for log in group.freed:
            then._free(log)
        for log, end in group.logs:
            then.messages[log], then.ends[log] = {}, end
        for name, log, position in group.opened:
            then.cursors[name, log] = position
            others = [key for key in self.cursors if key[1] == log and key not in group.dropped]
            there = {
                p for p in then.messages[log]
                if p >= position
                and p not in then.tails.taken.get(log, ())
                and any(self.owes(key, p) and p not in sealed.asked[key] for key in others)
            }  # fmt: skip
            then.born[name, log] = Birth(then.ends[log], frozenset(there))
        for append in group.appends:
            then._append(append)
        for cursor, log in group.dropped:
            then.cursors.pop((cursor, log), None)
            then.born.pop((cursor, log), None)
        for key in group.deletes:
            then.state.pop(key, None)
        return then

    @staticmethod
    def wants(cursor: str, address: str) -> bool:
        """Return whether the cursor with this name has to get messages of the address: one has a filter."""
        return cursor != FILTERED or address[-1] not in "13"

    def owes(self, cursor: Key, position: int) -> bool:
        """Return whether the position was there for the cursor, which has to get it."""
        message = self.messages[cursor[1]].get(position)
        wanted = message is None or self.wants(cursor[0], message[0])
        return wanted and self.born[cursor].owed(position)

    def _free(self, log: str) -> None:
        del self.messages[log], self.ends[log]
        for key in [key for key in self.cursors if key[1] == log]:
            del self.cursors[key], self.born[key]

    def _append(self, append: Append) -> None:
        for body in append.bodies:
            sequence = self.sequences.get(append.address, 0)
            self.messages[append.log][self.ends[append.log]] = (append.address, sequence, body)
            self.sequences[append.address] = sequence + 1
            self.ends[append.log] += 1

    def take(self, line: Line) -> None:
        """Take messages in memory. Raise AssertionError when their numbers are not consecutive."""
        for log, position, address, sequence, bodies in line.taken:
            expected = self.ends[log], self.sequences.get(address, 0)
            assert (position, sequence) == expected, f"{log}: took {address} {sequence} at {position}, not {expected}"
            self._append(Append(log, address, bodies))
            self.tails.take(log, position, len(bodies))


class Sealed(NamedTuple):
    """Group with a started commit, its cursors' progress then, and the ends of the logs."""

    group: Group
    asked: dict[Key, Cursor]
    ends: dict[str, int]


class Candidate(NamedTuple):
    """Possible content of the store, known but for the messages that an eviction took."""

    model: Model
    asked: dict[Key, Cursor]
    before: dict[Key, Cursor]
    """`asked` when the group was sealed: an eviction sees nothing later."""
    given: Sequence[Given] = ()
    evicted: Sequence[str] = ()
    thinned: Sequence[str] = ()


class History:
    """Follows the lines; `problems` returns the contradictions between them and a store's content."""

    def __init__(self) -> None:
        self.epoch: str | None = None
        self.beginning = False
        """A new epoch may have started."""
        self.committed = Model()
        self.uncertain: list[Sealed] = []
        """Groups with a commit started after the last successful one; at most one of them may be there."""
        self.unseen: Sealed | None = None
        """The last committed group, until the effect of its evictions is known."""
        self.asked: dict[Key, Cursor] = {}
        """Requested acknowledgements."""
        self.kept: dict[Key, Cursor] = {}
        """Acknowledgements that the store reported as durable."""

    def follow(self, line: Line) -> None:
        """Process the next line. Raise AssertionError when the running store contradicted the history."""
        if line.what == "sealed":
            assert line.group is not None
            for name, log, position in line.group.opened:
                self.asked.setdefault((name, log), Cursor(position))
            self.uncertain.append(Sealed(line.group, copy.deepcopy(self.asked), dict(self.committed.ends)))
        elif line.what == "unsealed":
            self.uncertain.pop()
        elif line.what == "ok":
            self._commit(line)
        elif line.what == "took":
            self.committed.take(line)
        elif line.what == "acked":
            assert line.cursor is not None
            name, log, first, last = line.cursor
            self.asked[name, log].add(first, last)
        elif line.what == "forking":
            self.beginning = True
        elif line.what in {"opened", "shown"}:
            assert line.observed is not None
            problems = self.problems(line.observed)
            assert not problems, problems
            self._see(line.observed)
            if line.what == "opened":
                self.adopt(line.observed)
        elif line.what == "closed":
            self.kept = copy.deepcopy({key: self.asked[key] for key in self.committed.cursors})
            self.committed.tails.close()

    def _commit(self, line: Line) -> None:
        sealed = self.uncertain[-1]
        group = sealed.group
        self.committed = self.committed.after(sealed)
        self.uncertain = []
        self.unseen = sealed if group.evicted or group.thinned else None
        for given in group.given:
            if given.if_kept and given.cursor in self.asked:
                self.asked[given.cursor].add(given.first, given.last)
        for given in group.given:
            if given.cursor in self.committed.cursors:
                self.kept[given.cursor] = kept = copy.deepcopy(sealed.asked[given.cursor])
                kept.add(given.first, given.last)
        for gone in self.asked.keys() - self.committed.cursors.keys():
            del self.asked[gone]
            self.kept.pop(gone, None)
        for log, position, address, sequence, bodies in line.appended:
            for i, body in enumerate(bodies):
                expected = self.committed.messages[log].get(position + i)
                assert expected == (address, sequence + i, body), f"told {address} {sequence + i}, expected {expected}"
        self.committed.take(line)

    def _see(self, observed: Observed) -> None:
        """Record the effect of the evictions: it is final from now on, including the ledger."""
        self.unseen = None
        self.committed.ledger = Ledger.of(observed.ledger)
        for log, (first, _) in observed.bounds.items():
            taken = self.committed.tails.taken.get(log, ())
            unsettled = {p: message for p, message in self.committed.messages.get(log, {}).items() if p in taken}
            self.committed.messages[log] = unsettled | _by_position(observed, log)
            for key, asked in self.asked.items():
                if key[1] == log:
                    asked.add(0, first - 1)

    def adopt(self, observed: Observed) -> None:
        """Make the content of an opened store the starting point."""
        self.epoch, self.beginning = observed.epoch, False
        model = Model()
        for log, (_, end) in observed.bounds.items():
            model.ends[log] = end
            model.messages[log] = _by_position(observed, log)
        model.sequences, model.state = dict(observed.sequences), dict(observed.state)
        model.ledger, model.named = Ledger.of(observed.ledger), set(in_memory.named(observed.ledger))
        self.uncertain, self.unseen = [], None
        for name, log, position, above in observed.cursors:
            cursor = Cursor(position)
            for first, last in above:
                cursor.add(first, last)
            model.cursors[name, log] = position
            there = frozenset(p for p in model.messages[log] if p >= position)
            model.born[name, log] = Birth(model.ends[log], there)
            self.asked[name, log] = cursor
            self.kept[name, log] = copy.deepcopy(cursor)
        self.committed = model
        for gone in self.asked.keys() - model.cursors.keys():
            del self.asked[gone]
            self.kept.pop(gone, None)

    def possible(self) -> Iterator[Candidate]:
        """Yield every possible content of the store."""
        unseen, before, _ = self.unseen or Sealed(Group(), self.asked, {})
        before = _with(before, unseen.given)
        yield Candidate(self.committed, self.asked, before, unseen.given, unseen.evicted, unseen.thinned)
        for sealed in reversed(self.uncertain):
            group, asked, _ = sealed
            done = _with(asked, group.given)
            yield Candidate(self.committed.after(sealed), done, done, group.given, group.evicted, group.thinned)

    def problems(self, observed: Observed) -> list[str]:
        """Return the contradictions between `observed` and each possible content; empty when one matches."""
        if self.epoch not in {None, observed.epoch} and not self.beginning:
            return [f"epoch {observed.epoch}, was {self.epoch}"]
        found = [list(self._differences(candidate, observed)) for candidate in self.possible()]
        return min(found, key=len)

    def _differences(self, candidate: Candidate, observed: Observed) -> Iterator[str]:
        model = candidate.model
        if observed.bounds.keys() != model.ends.keys():
            yield f"logs {sorted(observed.bounds)}, expected {sorted(model.ends)}"
            return
        lost: list[Lost] = []
        for log in model.ends:
            yield from self._log_differences(log, candidate, observed, lost)
        yield from model.ledger.with_losses(lost).differences(observed.ledger, loose=bool(candidate.thinned))
        yield from in_memory.ledger_differences(candidate, observed)
        yield from self._cursor_differences(candidate, observed)
        if observed.state != model.state:
            yield f"state {difference(observed.state, model.state)}"
        known = {name: n for name, n in model.sequences.items() if n}
        ahead = {name: n - known.get(name, 0) for name, n in observed.sequences.items()}
        if known.keys() - ahead.keys() or any(not 0 <= n <= model.tails.ahead_of(name) for name, n in ahead.items()):
            yield f"sequences {difference(observed.sequences, model.sequences)}"
        kept = sum(end - first for first, end in observed.bounds.values())
        if observed.figures != (kept, observed.true_bytes):
            yield f"counted {observed.figures}, there are {kept} of {observed.true_bytes} bytes"

    def _log_differences(self, log: str, candidate: Candidate, observed: Observed, lost: list[Lost]) -> Iterator[str]:
        """Compare a log; add to `lost` the missing messages of each cursor, which must be in the ledger."""
        model = candidate.model
        first, end = observed.bounds[log]
        if not model.ends[log] <= end <= model.ends[log] + model.tails.ahead(log):
            yield f"{log}: ends at {end}, expected {model.ends[log]}"
        shown, wanted = _by_position(observed, log), model.messages[log]
        thinned, evicted = log in candidate.thinned, log in {*candidate.evicted, *candidate.thinned}
        different = {
            p: message for p, message in shown.items()
            if wanted.get(p) != message and not (thinned and p in wanted and _sums_up(message, wanted[p]))
        }  # fmt: skip
        if different:
            yield f"{log} from {first}: {difference(different, {p: wanted.get(p) for p in different})}"
        missing = wanted.keys() - shown.keys()
        if log in ADDRESSES:
            yield from in_memory.log_differences(log, candidate, observed)
            return
        if not thinned and any(p >= first for p in missing):
            yield f"{log}: {sorted(p for p in missing if p >= first)[:5]} are missing, it is kept from {first}"
        if thinned and _weights(shown) != _weights({p: message for p, message in wanted.items() if p >= first}):
            yield f"{log}: summaries stand for other messages than those that are gone"
        cursors = [key for key in model.cursors if key[1] == log]
        for position in sorted(missing):
            address, sequence, body = wanted[position]
            asked = candidate.before if evicted else candidate.asked
            owed = [key[0] for key in cursors if position not in asked[key] and model.wants(key[0], address)]
            if owed and not evicted:
                yield f"{log}: {position} is gone, {owed} had not acknowledged it"
            reason = "thinned" if position >= first else "evicted"
            lost += (Lost(name, address, sequence, size_of(body), reason) for name in owed)

    def _cursor_differences(self, candidate: Candidate, observed: Observed) -> Iterator[str]:
        model = candidate.model
        names = {(name, log) for name, log, _, _ in observed.cursors}
        if names != set(model.cursors):
            yield f"cursors {names}, expected {set(model.cursors)}"
            return
        for name, log, position, above in observed.cursors:
            shown = Cursor(position)
            for first, last in above:
                shown.add(first, last)
            asked = copy.deepcopy(candidate.asked[name, log])
            first, end = observed.bounds[log]
            asked.add(0, first - 1)
            if log in ADDRESSES:
                there = {message[0] for message in observed.messages[log]}
                asked.above |= candidate.model.tails.taken[log] - there
                asked.add(model.ends[log], end - 1)
                behind = [p for p in range(position, end) if p not in shown and model.owes((name, log), p)]
                if not (observed.running or name == FILTERED or there.issuperset(behind)):
                    yield f"cursor {name} of {log} waits for {sorted(set(behind) - there)[:5]}, which are not there"
            if not shown.within(asked):
                yield f"cursor {name} of {log}: {shown} is ahead of {asked}"
            kept = self.kept.get((name, log))
            if kept is not None and not kept.within(shown):
                yield f"cursor {name} of {log}: {shown}, but {kept} was durable"
            for given in candidate.given:
                if given.cursor == (name, log) and not all(p in shown for p in range(given.first, given.last + 1)):
                    yield f"cursor {name} of {log}: {shown}, but the ledger has {given.first} to {given.last}"


def _with(asked: dict[Key, Cursor], given: Iterable[Given]) -> dict[Key, Cursor]:
    """Return the progress of cursors, including the positions that they give up."""
    done = copy.deepcopy(asked)
    for part in given:
        if part.cursor in done:
            done[part.cursor].add(part.first, part.last)
    return done


def shorten(body: bytes) -> str:
    """Return the body of a workload as text with its number and length, or any other body in full."""
    number, _, rest = body.partition(b".")
    return f"{number.decode()}+{len(body)}" if number.isdigit() and not rest.strip(b".t") else body.decode("latin-1")


def size_of(body: str) -> int:
    """Return the original length of the result of `shorten`."""
    number, plus, length = body.partition("+")
    return int(length) if plus and number.isdigit() else len(body)


def _stands_for(body: str) -> tuple[str, int]:
    """Return (number, count of messages): a summary is ``number~count``, with the number of the last one."""
    number, _, count = body.partition("~")
    return (number, int(count)) if count.isdigit() else (body.partition("+")[0], 1)


def _sums_up(shown: Message, wanted: Message) -> bool:
    """Return whether `shown` may be a summary that replaces `wanted`, its last message."""
    (number, count), (before, less) = _stands_for(shown[2]), _stands_for(wanted[2])
    return shown[:2] == wanted[:2] and number == before and count > less


def _weights(messages: dict[int, Message]) -> Counter[str]:
    """Return the number of messages that those of each address represent."""
    weights: Counter[str] = Counter()
    for address, _, body in messages.values():
        weights[address] += _stands_for(body)[1]
    return weights


def _by_position(observed: Observed, log: str) -> dict[int, Message]:
    return {p: (address, sequence, body) for p, address, sequence, body in observed.messages[log]}
