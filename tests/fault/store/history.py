"""What a store owes after a fault: a pure checker over the recorded history of what was asked of it and answered.

A workload records, one JSON line each and before or after the fact as named: ``sealed`` (a group is handed to the
writer) and perhaps ``unsealed`` (it waits for company), ``ok`` or ``refused`` (its commit ended), ``acked`` (a cursor
is about to move), ``shown`` (all that is read after a commit that evicted) and ``opened`` (the same), ``closed``. The
checker knows no file and no SQLite, and what it is given was read through `edge.broker.store.contract.Store`.

Which messages an eviction takes is the store's affair. What is owed is that each message that is gone was acknowledged,
or stands in the ledger once for each consumer group that had not, and that the ledger says nothing else.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

Message = tuple[str, int, str]
"""(address, sequence, body shortened by `shorten`)."""
Key = tuple[str, str]
Row = tuple[int, str, str, int, int, int, int, str]
"""Of the ledger: entry, subscription, address, first, last, messages, bytes, reason."""


class Append(msgspec.Struct):
    log: str
    address: str
    bodies: list[str]


class Lost(msgspec.Struct, frozen=True):
    """One message given up for one consumer group."""

    subscription: str
    address: str
    sequence: int
    size: int
    reason: str


class Given(msgspec.Struct):
    """Positions ``first..last`` a cursor gives up; `if_kept`: only with the dead letter appended to the same group."""

    cursor: Key
    first: int
    last: int
    losses: list[Lost]
    if_kept: bool


class Group(msgspec.Struct):
    """What one commit is to make durable."""

    logs: list[str] = []
    appends: list[Append] = []
    opened: list[tuple[str, str, int]] = []
    """Cursors: name, log, position."""
    dropped: list[Key] = []
    puts: dict[str, str] = {}
    deletes: list[str] = []
    given: list[Given] = []
    evicted: list[str] = []
    """Logs the oldest of which is to go."""
    thinned: list[str] = []
    """Logs that are to be summed up, and evicted from where that is not enough."""

    def without_appends(self) -> Group:
        """What is kept of it for the next group when its commit failed."""
        given = [given for given in self.given if not given.if_kept]
        return msgspec.structs.replace(self, appends=[], given=given, evicted=[], thinned=[])


class Cursor(msgspec.Struct):
    """Done with: everything below `position`, and the positions `above`."""

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
        """True when `other` has all that is done here."""
        beyond = range(other.position, self.position)
        return all(p in other for p in (*beyond, *self.above))


class Observed(msgspec.Struct):
    """All a store shows when it is opened."""

    epoch: str
    bounds: dict[str, tuple[int, int]]
    messages: dict[str, list[tuple[int, str, int, str]]]
    """By log: position, address, sequence, body."""
    cursors: list[tuple[str, str, int, list[tuple[int, int]]]]
    """Name, log, position, ranges above."""
    state: dict[str, str]
    sequences: dict[str, int]
    figures: tuple[int, int]
    """Messages and bytes as `info` counts them."""
    true_bytes: int
    """Bytes of the bodies that were read."""
    ledger: list[Row] = []


class Line(msgspec.Struct):
    """One line of the history."""

    what: str
    group: Group | None = None
    appended: list[tuple[str, int, str, int, list[str]]] = []
    cursor: tuple[str, str, int, int] | None = None
    observed: Observed | None = None


class Ledger(NamedTuple):
    """What was given up, message by message, and how often: once is right."""

    messages: Counter[tuple[str, str, int]]
    """By subscription, address, sequence."""
    reasons: Counter[tuple[str, str]]
    """Messages by subscription and reason."""
    sizes: Counter[str]
    """Bytes by subscription."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Ledger:
        ledger = cls(Counter(), Counter(), Counter())
        for _, subscription, address, first, last, messages, size, reason in rows:
            ledger.messages.update((subscription, address, sequence) for sequence in range(first, last + 1))
            ledger.reasons[subscription, reason] += messages
            ledger.sizes[subscription] += size
        return ledger

    def with_losses(self, losses: Iterable[Lost]) -> Ledger:
        then = Ledger(self.messages.copy(), self.reasons.copy(), self.sizes.copy())
        for lost in losses:
            then.messages[lost.subscription, lost.address, lost.sequence] += 1
            then.reasons[lost.subscription, lost.reason] += 1
            then.sizes[lost.subscription] += lost.size
        return then

    def differences(self, rows: Sequence[Row], *, loose: bool) -> Iterator[str]:
        """`loose`: what was summed up first and evicted then, in one commit, counts as the one or the other."""
        shown = Ledger.of(rows)
        if shown.messages != self.messages:
            yield f"ledger {_diff(shown.messages, self.messages)}"
        if shown.messages.total() != sum(row[5] for row in rows):
            yield f"ledger: {sum(row[5] for row in rows)} messages counted in ranges of {shown.messages.total()}"
        if not loose and (shown.reasons, shown.sizes) != self[1:]:
            yield f"ledger {_diff(shown.reasons, self.reasons)}, bytes {_diff(shown.sizes, self.sizes)}"


class Model:
    """What is there after some groups were committed."""

    def __init__(self) -> None:
        self.messages: dict[str, dict[int, Message]] = {}
        self.ends: dict[str, int] = {}
        self.sequences: dict[str, int] = {}
        self.cursors: dict[Key, int] = {}
        """Position each was opened at."""
        self.state: dict[str, str] = {}
        self.ledger = Ledger.of(())

    def after(self, group: Group) -> Model:
        """The model with `group` committed; what was evicted and thinned is still in it."""
        then = copy.copy(self)
        then.messages = {log: dict(messages) for log, messages in self.messages.items()}
        then.ends, then.sequences = dict(self.ends), dict(self.sequences)
        then.cursors, then.state = dict(self.cursors), {**self.state, **group.puts}
        then.ledger = self.ledger.with_losses(lost for given in group.given for lost in given.losses)
        for log in group.logs:
            then.messages[log], then.ends[log] = {}, 0
        for name, log, position in group.opened:
            then.cursors[name, log] = position
        for append in group.appends:
            then._append(append)
        for cursor, log in group.dropped:
            then.cursors.pop((cursor, log), None)
        for key in group.deletes:
            then.state.pop(key, None)
        return then

    def _append(self, append: Append) -> None:
        for body in append.bodies:
            sequence = self.sequences.get(append.address, 0)
            self.messages[append.log][self.ends[append.log]] = (append.address, sequence, body)
            self.sequences[append.address] = sequence + 1
            self.ends[append.log] += 1


class Sealed(NamedTuple):
    """A group whose commit was begun, and what its cursors were done with then."""

    group: Group
    asked: dict[Key, Cursor]


class Candidate(NamedTuple):
    """A content the store may have: everything but which messages an eviction took is known."""

    model: Model
    asked: dict[Key, Cursor]
    given: Sequence[Given] = ()
    evicted: Sequence[str] = ()
    thinned: Sequence[str] = ()


class History:
    """Follows the lines; `problems` says how what a store shows contradicts them."""

    def __init__(self) -> None:
        self.epoch: str | None = None
        self.committed = Model()
        self.uncertain: list[Sealed] = []
        """Groups whose commit was begun after the last one that succeeded; at most one of them may be there."""
        self.unseen: Group | None = None
        """The group committed last, while it is not known what went by its evictions."""
        self.asked: dict[Key, Cursor] = {}
        """Acknowledgements asked for."""
        self.kept: dict[Key, Cursor] = {}
        """Acknowledgements that were promised to be durable."""

    def follow(self, line: Line) -> None:
        """The next line. AssertionError when the store contradicted the history while it ran."""
        if line.what == "sealed":
            assert line.group is not None
            for name, log, position in line.group.opened:
                self.asked.setdefault((name, log), Cursor(position))
            self.uncertain.append(Sealed(line.group, copy.deepcopy(self.asked)))
        elif line.what == "unsealed":
            self.uncertain.pop()
        elif line.what == "ok":
            self._commit(line)
        elif line.what == "acked":
            assert line.cursor is not None
            name, log, first, last = line.cursor
            self.asked[name, log].add(first, last)
        elif line.what in {"opened", "shown"}:
            assert line.observed is not None
            problems = self.problems(line.observed)
            assert not problems, problems
            self._see(line.observed)
            if line.what == "opened":
                self.adopt(line.observed)
        elif line.what == "closed":
            self.kept = copy.deepcopy({key: self.asked[key] for key in self.committed.cursors})

    def _commit(self, line: Line) -> None:
        group, _ = self.uncertain[-1]
        self.committed = self.committed.after(group)
        self.uncertain = []
        self.unseen = group if group.evicted or group.thinned else None
        for given in group.given:
            if given.if_kept and given.cursor in self.asked:
                self.asked[given.cursor].add(given.first, given.last)
        for given in group.given:
            if given.cursor in self.committed.cursors:
                self.kept[given.cursor] = copy.deepcopy(self.asked[given.cursor])
        for gone in self.asked.keys() - self.committed.cursors.keys():
            del self.asked[gone]
            self.kept.pop(gone, None)
        for log, position, address, sequence, bodies in line.appended:
            for i, body in enumerate(bodies):
                expected = self.committed.messages[log].get(position + i)
                assert expected == (address, sequence + i, body), f"told {address} {sequence + i}, expected {expected}"

    def _see(self, observed: Observed) -> None:
        """What went by evictions is known now: it is as good as promised that it stays so, ledger and all."""
        self.unseen = None
        self.committed.ledger = Ledger.of(observed.ledger)
        for log, (first, _) in observed.bounds.items():
            self.committed.messages[log] = _by_position(observed, log)
            for key, asked in self.asked.items():
                if key[1] == log:
                    asked.add(0, first - 1)

    def adopt(self, observed: Observed) -> None:
        """What a store showed when it was opened is from then on as good as promised."""
        self.epoch = observed.epoch
        model = Model()
        for log, (_, end) in observed.bounds.items():
            model.ends[log] = end
            model.messages[log] = _by_position(observed, log)
        model.sequences, model.state = dict(observed.sequences), dict(observed.state)
        model.ledger = Ledger.of(observed.ledger)
        self.uncertain, self.unseen = [], None
        for name, log, position, above in observed.cursors:
            cursor = Cursor(position)
            for first, last in above:
                cursor.add(first, last)
            model.cursors[name, log] = position
            self.asked[name, log] = cursor
            self.kept[name, log] = copy.deepcopy(cursor)
        self.committed = model
        for gone in self.asked.keys() - model.cursors.keys():
            del self.asked[gone]
            self.kept.pop(gone, None)

    def possible(self) -> Iterator[Candidate]:
        """Every content the store may have now."""
        unseen = self.unseen or Group()
        yield Candidate(self.committed, self.asked, unseen.given, unseen.evicted, unseen.thinned)
        for group, asked in reversed(self.uncertain):
            done = copy.deepcopy(asked)
            for given in group.given:
                if given.cursor in done:
                    done[given.cursor].add(given.first, given.last)
            yield Candidate(self.committed.after(group), done, group.given, group.evicted, group.thinned)

    def problems(self, observed: Observed) -> list[str]:
        """Why `observed` is none of what is possible; empty when all is well."""
        if self.epoch not in {None, observed.epoch}:
            return [f"epoch {observed.epoch}, was {self.epoch}"]
        found = [list(self._differences(candidate, observed)) for candidate in self.possible()]
        return [] if any(not differences for differences in found) else found[0]

    def _differences(self, candidate: Candidate, observed: Observed) -> Iterator[str]:
        model = candidate.model
        if observed.bounds.keys() != model.ends.keys():
            yield f"logs {sorted(observed.bounds)}, expected {sorted(model.ends)}"
            return
        lost: list[Lost] = []
        for log in model.ends:
            yield from self._log_differences(log, candidate, observed, lost)
        yield from model.ledger.with_losses(lost).differences(observed.ledger, loose=bool(candidate.thinned))
        yield from self._cursor_differences(candidate, observed)
        if observed.state != model.state:
            yield f"state {_diff(observed.state, model.state)}"
        if observed.sequences != {name: n for name, n in model.sequences.items() if n}:
            yield f"sequences {_diff(observed.sequences, model.sequences)}"
        kept = sum(end - first for first, end in observed.bounds.values())
        if observed.figures != (kept, observed.true_bytes):
            yield f"counted {observed.figures}, there are {kept} of {observed.true_bytes} bytes"

    def _log_differences(self, log: str, candidate: Candidate, observed: Observed, lost: list[Lost]) -> Iterator[str]:
        """Also finds what is missing and some cursor is owed: it is to be in the ledger, if it may be `lost` at all."""
        model = candidate.model
        first, end = observed.bounds[log]
        if end != model.ends[log]:
            yield f"{log}: ends at {end}, expected {model.ends[log]}"
        shown, wanted = _by_position(observed, log), model.messages[log]
        thinned, evicted = log in candidate.thinned, log in {*candidate.evicted, *candidate.thinned}
        different = {
            p: message for p, message in shown.items()
            if wanted.get(p) != message and not (thinned and p in wanted and _sums_up(message, wanted[p]))
        }  # fmt: skip
        if different:
            yield f"{log} from {first}: {_diff(different, {p: wanted.get(p) for p in different})}"
        missing = wanted.keys() - shown.keys()
        if not thinned and any(p >= first for p in missing):
            yield f"{log}: {sorted(p for p in missing if p >= first)[:5]} are missing, it is kept from {first}"
        if thinned and _weights(shown) != _weights({p: message for p, message in wanted.items() if p >= first}):
            yield f"{log}: summaries stand for other messages than those that are gone"
        cursors = [(key[0], candidate.asked[key]) for key in model.cursors if key[1] == log]
        for position in sorted(missing):
            address, sequence, body = wanted[position]
            owed = [name for name, asked in cursors if position not in asked]
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
            asked.add(0, observed.bounds[log][0] - 1)
            if not shown.within(asked):
                yield f"cursor {name} of {log}: {shown} is ahead of {asked}"
            kept = self.kept.get((name, log))
            if kept is not None and not kept.within(shown):
                yield f"cursor {name} of {log}: {shown}, but {kept} was durable"
            for given in candidate.given:
                if given.cursor == (name, log) and not all(p in shown for p in range(given.first, given.last + 1)):
                    yield f"cursor {name} of {log}: {shown}, but the ledger has {given.first} to {given.last}"


def shorten(body: bytes) -> str:
    """A body of the workload as text that says its number and length; any other in full."""
    number, _, rest = body.partition(b".")
    return f"{number.decode()}+{len(body)}" if number.isdigit() and not rest.strip(b".t") else body.decode("latin-1")


def size_of(body: str) -> int:
    """Length of what `shorten` shortened."""
    number, plus, length = body.partition("+")
    return int(length) if plus and number.isdigit() else len(body)


def _stands_for(body: str) -> tuple[str, int]:
    """(number, how many messages): a summary is ``number~count``, of the last one's number."""
    number, _, count = body.partition("~")
    return (number, int(count)) if count.isdigit() else (body.partition("+")[0], 1)


def _sums_up(shown: Message, wanted: Message) -> bool:
    """`shown` may be a summary in the place of `wanted`, the last of those it stands for."""
    (number, count), (before, less) = _stands_for(shown[2]), _stands_for(wanted[2])
    return shown[:2] == wanted[:2] and number == before and count > less


def _weights(messages: dict[int, Message]) -> Counter[str]:
    """How many messages those of each address stand for."""
    weights: Counter[str] = Counter()
    for address, _, body in messages.values():
        weights[address] += _stands_for(body)[1]
    return weights


def _by_position(observed: Observed, log: str) -> dict[int, Message]:
    return {p: (address, sequence, body) for p, address, sequence, body in observed.messages[log]}


def _diff(shown: dict[Any, Any], wanted: dict[Any, Any]) -> str:
    keys = sorted(key for key in shown.keys() | wanted.keys() if shown.get(key) != wanted.get(key))
    return "; ".join(f"{key}: {shown.get(key)}, expected {wanted.get(key)}" for key in keys[:5]) + f" ({len(keys)})"
