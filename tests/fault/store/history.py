"""What a store owes after a fault: a pure checker over the recorded history of what was asked of it and answered.

A workload records, one JSON line each and before or after the fact as named: ``sealed`` (a group is handed to the
writer), ``ok`` or ``refused`` (its commit ended), ``acked`` (a cursor is about to move), ``opened`` (with all that was
then read), ``closed``. The checker knows no file and no SQLite, and what it is given was read through
`edge.broker.store.contract.Store`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec

Message = tuple[str, int, str]
"""(address, sequence, body shortened by `shorten`)."""
Key = tuple[str, str]


class Append(msgspec.Struct):
    log: str
    address: str
    bodies: list[str]


class Group(msgspec.Struct):
    """What one commit is to make durable."""

    logs: list[str] = []
    appends: list[Append] = []
    opened: list[tuple[str, str, int]] = []
    """Cursors: name, log, position."""
    dropped: list[Key] = []
    puts: dict[str, str] = {}
    deletes: list[str] = []


class Cursor(msgspec.Struct):
    """Done with: everything below `position`, and the positions `above`."""

    position: int
    above: set[int] = msgspec.field(default_factory=set)

    def add(self, first: int, last: int) -> None:
        self.above.update(range(max(first, self.position), last + 1))
        while self.position in self.above:
            self.above.discard(self.position)
            self.position += 1

    def within(self, other: Cursor) -> bool:
        """True when `other` has all that is done here."""
        beyond = range(other.position, self.position)
        return all(p < other.position or p in other.above for p in (*beyond, *self.above))


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


class Line(msgspec.Struct):
    """One line of the history."""

    what: str
    group: Group | None = None
    appended: list[tuple[str, int, str, int, list[str]]] = []
    cursor: tuple[str, str, int, int] | None = None
    observed: Observed | None = None


class Model:
    """What is there after some groups were committed."""

    def __init__(self) -> None:
        self.messages: dict[str, dict[int, Message]] = {}
        self.firsts: dict[str, int] = {}
        self.ends: dict[str, int] = {}
        self.sequences: dict[str, int] = {}
        self.cursors: dict[Key, int] = {}
        """Position each was opened at."""
        self.state: dict[str, str] = {}

    def after(self, group: Group) -> Model:
        """The model with `group` committed."""
        then = copy.copy(self)
        then.messages = {log: dict(messages) for log, messages in self.messages.items()}
        then.firsts, then.ends, then.sequences = dict(self.firsts), dict(self.ends), dict(self.sequences)
        then.cursors, then.state = dict(self.cursors), {**self.state, **group.puts}
        for log in group.logs:
            then.messages[log], then.firsts[log], then.ends[log] = {}, 0, 0
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


class History:
    """Follows the lines; `problems` says how what a store shows contradicts them."""

    def __init__(self) -> None:
        self.epoch: str | None = None
        self.committed = Model()
        self.uncertain: list[Group] = []
        """Groups whose commit was begun after the last one that succeeded; at most one of them may be there."""
        self.asked: dict[Key, Cursor] = {}
        """Acknowledgements asked for."""
        self.kept: dict[Key, Cursor] = {}
        """Acknowledgements that were promised to be durable."""

    def follow(self, line: Line) -> None:
        """The next line. AssertionError when the store contradicted the history while it ran."""
        if line.what == "sealed":
            assert line.group is not None
            self.uncertain.append(line.group)
            for name, log, position in line.group.opened:
                self.asked.setdefault((name, log), Cursor(position))
        elif line.what == "ok":
            self._commit(line)
        elif line.what == "acked":
            assert line.cursor is not None
            name, log, first, last = line.cursor
            self.asked[name, log].add(first, last)
        elif line.what == "opened":
            assert line.observed is not None
            problems = self.problems(line.observed)
            assert not problems, problems
            self.adopt(line.observed)
        elif line.what == "closed":
            self.kept = copy.deepcopy({key: self.asked[key] for key in self.committed.cursors})

    def _commit(self, line: Line) -> None:
        self.committed = self.committed.after(self.uncertain[-1])
        self.uncertain = []
        for gone in self.asked.keys() - self.committed.cursors.keys():
            del self.asked[gone]
            self.kept.pop(gone, None)
        for log, position, address, sequence, bodies in line.appended:
            for i, body in enumerate(bodies):
                expected = self.committed.messages[log].get(position + i)
                assert expected == (address, sequence + i, body), f"told {address} {sequence + i}, expected {expected}"

    def adopt(self, observed: Observed) -> None:
        """What a store showed when it was opened is from then on as good as promised."""
        self.epoch = observed.epoch
        model = Model()
        for log, (first, end) in observed.bounds.items():
            model.firsts[log], model.ends[log] = first, end
            model.messages[log] = {
                p: (address, sequence, body) for p, address, sequence, body in observed.messages[log]
            }
        model.sequences, model.state = dict(observed.sequences), dict(observed.state)
        self.uncertain = []
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

    def possible(self) -> Iterator[Model]:
        """Every content the store may have now."""
        yield self.committed
        for group in reversed(self.uncertain):
            yield self.committed.after(group)

    def problems(self, observed: Observed) -> list[str]:
        """Why `observed` is none of what is possible; empty when all is well."""
        if self.epoch not in {None, observed.epoch}:
            return [f"epoch {observed.epoch}, was {self.epoch}"]
        found = [list(self._differences(model, observed)) for model in self.possible()]
        return [] if any(not differences for differences in found) else found[0]

    def _differences(self, model: Model, observed: Observed) -> Iterator[str]:
        if observed.bounds.keys() != model.ends.keys():
            yield f"logs {sorted(observed.bounds)}, expected {sorted(model.ends)}"
            return
        for log in model.ends:
            yield from self._log_differences(log, model, observed)
        yield from self._cursor_differences(model, observed)
        if observed.state != model.state:
            yield f"state {_diff(observed.state, model.state)}"
        if observed.sequences != {name: n for name, n in model.sequences.items() if n}:
            yield f"sequences {_diff(observed.sequences, model.sequences)}"
        kept = sum(len(messages) for messages in observed.messages.values())
        if observed.figures != (kept, observed.true_bytes):
            yield f"counted {observed.figures}, there are {kept} of {observed.true_bytes} bytes"

    def _log_differences(self, log: str, model: Model, observed: Observed) -> Iterator[str]:
        first, end = observed.bounds[log]
        floor = min((self.asked[key].position for key in model.cursors if key[1] == log), default=model.ends[log])
        if not model.firsts[log] <= first <= max(floor, model.firsts[log]):
            yield f"{log}: kept from {first}, allowed {model.firsts[log]} to {floor}"
        if end != model.ends[log]:
            yield f"{log}: ends at {end}, expected {model.ends[log]}"
        shown = {p: (address, sequence, body) for p, address, sequence, body in observed.messages[log]}
        wanted = {p: message for p, message in model.messages[log].items() if p >= first}
        if shown != wanted:
            yield f"{log} from {first}: {_diff(shown, wanted)}"

    def _cursor_differences(self, model: Model, observed: Observed) -> Iterator[str]:
        names = {(name, log) for name, log, _, _ in observed.cursors}
        if names != set(model.cursors):
            yield f"cursors {names}, expected {set(model.cursors)}"
            return
        for name, log, position, above in observed.cursors:
            shown = Cursor(position)
            for first, last in above:
                shown.add(first, last)
            asked = copy.deepcopy(self.asked[name, log])
            asked.add(0, observed.bounds[log][0] - 1)
            if not shown.within(asked):
                yield f"cursor {name} of {log}: {shown} is ahead of {asked}"
            kept = self.kept.get((name, log))
            if kept is not None and not kept.within(shown):
                yield f"cursor {name} of {log}: {shown}, but {kept} was durable"


def shorten(body: bytes) -> str:
    """A body of the workload as text that says its number and length; any other in full."""
    number, _, rest = body.partition(b".")
    return f"{number.decode()}+{len(body)}" if number.isdigit() and not rest.strip(b".") else body.decode("latin-1")


def _diff(shown: dict[Any, Any], wanted: dict[Any, Any]) -> str:
    keys = sorted(key for key in shown.keys() | wanted.keys() if shown.get(key) != wanted.get(key))
    return "; ".join(f"{key}: {shown.get(key)}, expected {wanted.get(key)}" for key in keys[:5]) + f" ({len(keys)})"
