"""A program that works a store hard and writes down what it asked and was told: ``workload DIR HISTORY SEED COMMITS``.

Several logs and cursors, appends of all sizes, acknowledgements in and out of order, small state, dropped cursors,
closing and opening in between. It ends by ending (without closing), as if killed, at the latest after COMMITS.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import msgspec

from bridge.message import Run
from edge.broker.store.contract import Committed, CursorRecord, StoreError
from tests.fault.store.history import Append, Group, Line, shorten
from tests.fault.store.observe import KIND, observe, open_store

LOGS = ("queue jobs", "topic plant/#", "topic other")
CURSORS = ("slow", "fast", "uplink")
REFUSED = 3
"""Exit code: the store would not open."""
ADDRESSES = tuple(f"plant/{number}" for number in range(9))


class Workload:
    def __init__(self, directory: Path, history: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.history = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.number = seed % 1_000_000 * 100_000
        self.group = Group()
        self.refused = False
        self.rig = open_store(directory)
        self.opened()

    def tell(self, line: Line) -> None:
        os.write(self.history, msgspec.json.encode(line) + b"\n")

    def opened(self) -> None:
        self.rig.store.on_commit = self.committed
        self.names = {log.log: log.name for log in self.rig.store.info().logs}
        self.tell(Line("opened", observed=observe(self.rig)))

    def committed(self, commit: Committed) -> None:
        self.refused = commit.error is not None
        if self.refused:
            # What was appended is given up; all else joins the next group.
            self.tell(Line("refused"))
            self.group.appends = []
            return
        self.group = Group()
        told = [
            (
                self.names[log],
                stored.position,
                stored.run.address,
                stored.sequence,
                list(map(shorten, stored.run.bodies)),
            )
            for log, stored in commit.appended
        ]
        self.tell(Line("ok", appended=told))

    def run(self, commits: int) -> None:
        for _ in range(commits):
            for _ in range(self.dice.randrange(1, 8)):
                self.step()
            self.commit()
            if self.dice.random() < 0.02:
                self.reopen()

    def step(self) -> None:
        act = self.dice.choices(
            (self.append, self.acknowledge, self.put, self.delete, self.cursor, self.drop), (10, 5, 2, 1, 1, 0.15)
        )[0]
        act()

    def log(self) -> int:
        name = self.dice.choice(LOGS)
        if name not in self.names.values():
            self.group.logs.append(name)
        number = self.rig.store.log(name)
        self.names[number] = name
        return number

    def append(self) -> None:
        log, address = self.log(), self.dice.choice(ADDRESSES)
        bodies = []
        for _ in range(self.dice.randrange(1, 6)):
            self.number += 1
            size = self.dice.choice((0, 20, 100, 100, 400, 3_000, 9_000))
            bodies.append(b"%d." % self.number + b"." * size)
        self.rig.store.append(log, Run(address, "device", 1, b"", bodies, 1))
        self.group.appends.append(Append(self.names[log], address, list(map(shorten, bodies))))

    def cursor(self) -> None:
        log, name = self.log(), self.dice.choice(CURSORS)
        if (name, self.names[log]) in self.group.dropped:
            return
        before = {(cursor.name, cursor.log) for cursor in self.rig.store.info().cursors}
        number = self.rig.store.open_cursor(name, log, self.dice.choice((0, self.rig.store.bounds(log)[1])))
        if (name, log) not in before:
            position = self.rig.store.cursor(number).position
            self.group.opened.append((name, self.names[log], position))

    def any_cursor(self) -> CursorRecord | None:
        """One that is committed."""
        new = {(name, log) for name, log, _ in self.group.opened}
        known = [c for c in self.rig.store.info().cursors if (c.name, self.names[c.log]) not in new]
        return self.rig.store.cursor(self.dice.choice(known).cursor) if known else None

    def acknowledge(self) -> None:
        cursor = self.any_cursor()
        if cursor is None:
            return
        end = self.rig.store.bounds(cursor.log)[1]
        first = cursor.position + self.dice.choice((0, 0, 0, 3))
        last = min(first + self.dice.choice((0, 4, 30, 200)), end - 1)
        if last >= first:
            self.tell(Line("acked", cursor=(cursor.name, self.names[cursor.log], first, last)))
            self.rig.store.acknowledge(cursor.cursor, first, last)

    def drop(self) -> None:
        cursor = self.any_cursor()
        key = None if cursor is None else (cursor.name, self.names[cursor.log])
        if cursor is not None and key is not None:
            self.group.dropped.append(key)
            self.rig.store.drop_cursor(cursor.cursor)

    def put(self) -> None:
        key, value = f"client {self.dice.randrange(12)}", "v" * self.dice.choice((1, 50, 5_000))
        value += str(self.number)
        self.rig.store.put(KIND, key, value.encode())
        self.group.puts[key] = value
        if key in self.group.deletes:
            self.group.deletes.remove(key)

    def delete(self) -> None:
        key = f"client {self.dice.randrange(12)}"
        self.rig.store.delete(KIND, key)
        self.group.puts.pop(key, None)
        if key not in self.group.deletes:
            self.group.deletes.append(key)

    def commit(self) -> None:
        self.rig.now += self.dice.choice((0.001, 0.05, 2.0))
        self.tell(Line("sealed", group=self.group))
        if not self.rig.store.flush():
            return  # nothing but acknowledgements that may wait: the next group has them
        while self.rig.store.committing:
            self.rig.turn()

    def reopen(self) -> None:
        self.tell(Line("sealed", group=self.group))
        self.rig.store.close()
        if not self.refused:
            self.tell(Line("closed"))
        self.rig.store = self.rig._open()
        self.group = Group()
        self.opened()


def main() -> None:
    directory, history, seed, commits = sys.argv[1:]
    try:
        Workload(Path(directory), Path(history), int(seed)).run(int(commits))
    except StoreError as error:  # the medium failed when the store was opened: nothing is told to anybody
        print(error, file=sys.stderr)
        os._exit(REFUSED)
    os._exit(0)


if __name__ == "__main__":
    main()
