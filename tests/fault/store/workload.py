"""A program that uses a store heavily and records its requests and answers: ``workload DIR HISTORY SEED COMMITS``.

It uses several logs and cursors, appends of all sizes, acknowledgements in and out of order, small state, and dropped
cursors. One log has a quota and drops its oldest messages, one summarises them, and commits of one may wait for more.
Two logs are in memory, one of them with a quota; they also take messages and acknowledgements during a commit. There
are dead letters, messages rejected without one, and purges; and the store is closed and reopened in between. The
program ends without closing, as if killed, at the latest after COMMITS.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bridge.message import Run, Stored
from edge.broker.store.errors import StoreError
from edge.broker.store.limits import PAGE_BYTES_WAITING
from edge.broker.store.progress import CursorProgress
from edge.broker.store.records import Committed, CursorRecord, Loss, Summary
from tests.fault.store import in_memory
from tests.fault.store.history import Append, Given, Group, Key, Line, Model, shorten
from tests.fault.store.ledger import Lost
from tests.fault.store.observe import KIND, account, observe, open_store, select
from tests.fault.store.schedule import Schedule

LOGS = ("queue jobs", "topic plant/#", "topic other", "queue late")
IN_MEMORY = tuple(in_memory.ADDRESSES)
DROPS_OLDEST = {"queue jobs": 70_000, "topic ring/#": 15_000}
THINS = {"topic plant/#": 60_000}
"""Bytes that each of these logs may keep."""
WAITS_S = {"queue late": 0.2}
PAGES = (PAGE_BYTES_WAITING, 4096)
"""Page sizes of the database."""
DEADLETTERS = "queue dead"
CURSORS = ("slow", "fast", "uplink")
QUEUES = ("queue job 1", "queue job 2", "queue job 3")
"""Logs that are created and removed; they have one cursor."""
QUEUE = "queue"
REFUSED = 3
"""Exit code when the store does not open."""
ADDRESSES = tuple(f"plant/{number}" for number in range(9))
NUMBERS = 100_000
"""Range of message numbers for each process; the next process has another range."""
READING_NS = 2_000_000_000
"""Interval of the workload's readings: 30 of them a minute, which thinning summarises."""


def kind(_: Run, body: bytes) -> str | None:
    """Match readings (``number.ttt``) and summaries of them (``number~count``)."""
    return "reading" if body.partition(b".")[2][:1] == b"t" or b"~" in body else None


def summarise(messages: Sequence[tuple[Run, bytes]]) -> Run:
    """Return one message with the last one's number and the count of all."""
    run, last = messages[-1]
    count = sum(int(body.partition(b"~")[2] or 1) for _, body in messages)
    number = int(last.partition(b".")[0].partition(b"~")[0])
    return Run(run.address, run.device, run.flags, run.properties, [b"%d~%d" % (number, count)], run.received_at)


class Workload:
    def __init__(self, directory: Path, history: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.history = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.number = seed % 1_000_000 * NUMBERS
        self.group = Group()
        self.sealed = Group()
        """The group on its way to the medium."""
        self.refused = False
        self.unseen = False
        """The last commit evicted messages: the result has to be recorded."""
        self.leaving: dict[Key, list[tuple[int, int]]] = {}
        """Positions that each cursor gives up in the open group."""
        self.rig = open_store(directory, page_bytes=self.dice.choice(PAGES), summary=Summary(kind, summarise))
        self.opened()

    def tell(self, line: Line) -> None:
        os.write(self.history, msgspec.json.encode(line) + b"\n")

    def opened(self) -> None:
        store = self.rig.store
        self.names = {log.log: log.name for log in store.info().logs}
        if self.dice.random() < 0.1:  # before any commit, which could wait for one that waits for its turn
            self.tell(Line("forking"))
            store.lineage.begin_epoch()
        configured_first = self.dice.random() < 0.3
        if configured_first:
            self.configure()
        if not account(self.rig):
            raise StoreError("what was in memory only cannot be accounted for")
        if not configured_first:
            self.configure()
        store.commits.listeners.append(self.committed)
        for number, name in self.names.items():
            store.logs.delay(number, WAITS_S.get(name, 0.0))
        self.tell(Line("opened", observed=observe(self.rig)))

    def configure(self) -> None:
        """Choose for each log in memory whether it is kept there; most are.

        Messages that wait for numbers are refused then.
        """
        for number, name in self.names.items():
            if name in IN_MEMORY:
                self.rig.store.logs.keep_in_memory(number, keep=self.dice.random() < 0.9)

    def committed(self, commit: Committed) -> None:
        self.refused = commit.error is not None
        self.leaving.clear()
        sealed, self.sealed = self.sealed, Group()
        if self.refused:
            self.tell(Line("refused"))
            kept = sealed.without_appends()
            self.group = msgspec.structs.replace(
                kept, appends=self.group.appends, evicted=self.group.evicted, logs=kept.logs + self.group.logs
            )
            return
        self.unseen = bool(sealed.evicted or sealed.thinned)
        told = [self.told(log, stored) for log, stored in commit.appended]
        count = len(sealed.appends)
        self.tell(Line("ok", appended=told[:count], taken=told[count:], at_s=self.rig.now))

    def told(self, log: int, stored: Stored) -> tuple[str, int, str, int, list[str]]:
        bodies = list(map(shorten, stored.run.bodies))
        return self.names[log], stored.position, stored.run.address, stored.sequence, bodies

    def run(self, commits: int) -> None:
        for _ in range(commits):
            for _ in range(self.dice.randrange(1, 11)):
                self.step()
            self.commit()
            if self.dice.random() < 0.02:
                self.reopen()

    def step(self) -> None:
        acts = (
            (self.append, 10), (self.acknowledge, 5), (self.put, 2), (self.delete, 1), (self.cursor, 1),
            (self.drop, 0.15), (self.reject, 1), (self.bury, 1), (self.purge, 0.1),
            (self.take, 7), (self.keep_up, 4), (self.configure, 0.1), (self.queue, 1), (self.free, 0.5),
        )  # fmt: skip
        self.dice.choices([act for act, _ in acts], [weight for _, weight in acts])[0]()

    def log(self, name: str | None = None) -> int:
        name = name or self.dice.choice(LOGS + IN_MEMORY)
        new = name not in self.names.values()
        number = self.rig.store.logs.open(name)
        if new:
            self.group.logs.append((name, self.rig.store.logs.bounds(number)[1]))
        self.names[number] = name
        self.rig.store.logs.delay(number, WAITS_S.get(name, 0.0))
        if new and name in IN_MEMORY:
            self.rig.store.logs.keep_in_memory(number, keep=True)
        return number

    def append(self) -> None:
        self.append_to(self.log(self.dice.choice(LOGS)), self.dice.choice(ADDRESSES))

    def take(self) -> None:
        """Append to a log in memory; most messages find reserved numbers and are taken at once."""
        name = self.dice.choice(IN_MEMORY)
        self.append_to(self.log(name), self.dice.choice(in_memory.ADDRESSES[name]))

    def append_to(self, log: int, address: str) -> None:
        filler = self.dice.choice((b".", b"t"))
        bodies = []
        for _ in range(self.dice.randrange(1, 6)):
            self.number += 1
            size = self.dice.choice((0, 20, 100, 100, 400, 3_000, 9_000) if filler == b"." else (20, 100, 100, 400))
            bodies.append(b"%d." % self.number + filler * size)
        self.make_room(log, sum(map(len, bodies)))
        stored = self.rig.store.logs.append(log, Run(address, "device", 1, b"", bodies, self.received_at()))
        if isinstance(stored, Stored):
            self.tell(Line("took", taken=[self.told(log, stored)], at_s=self.rig.now))
        elif not self.rig.store.logs.in_memory(log):  # else a commit reports it once there are numbers for it
            self.group.appends.append(Append(self.names[log], address, list(map(shorten, bodies))))

    def received_at(self) -> int:
        return self.number % NUMBERS * READING_NS

    def make_room(self, log: int, size: int) -> None:
        store, name = self.rig.store, self.names[log]
        quota = DROPS_OLDEST.get(name) or THINS.get(name)
        missing = 0 if quota is None else store.retention.log_bytes(log) + size - quota
        at_most = self.dice.choice((None, missing + 500))  # to the message, as for others: segments are split
        if missing > 0 and name in THINS:
            store.retention.thin(log, missing, at_most)
            self.group.thinned.append(name)
        elif missing > 0:
            store.retention.evict(log, missing, at_most)
            self.group.evicted.append(name)

    def cursor(self) -> None:
        log, name = self.log(), self.dice.choice(CURSORS)
        if (name, self.names[log]) in self.group.dropped:
            return
        before = {(cursor.name, cursor.log) for cursor in self.rig.store.info().cursors}
        number = self.rig.store.cursors.open(name, log, self.dice.choice((0, self.rig.store.logs.bounds(log)[1])))
        if (name, log) not in before:
            self.made(number)

    def made(self, cursor: int) -> None:
        name, log, position = self.rig.store.cursors.record(cursor)[1:4]
        self.group.opened.append((name, self.names[log], position))
        select(self.rig, cursor, name)

    def queue(self) -> None:
        """Append messages to a log of its own, which is created if needed, preferably from a free one."""
        name = self.dice.choice(QUEUES)
        if name in {*self.group.freed, *self.sealed.freed}:
            return
        new = name not in self.names.values()
        log = self.log(name)
        if new:
            self.made(self.rig.store.cursors.open(QUEUE, log, 0))
        self.append_to(log, self.dice.choice(ADDRESSES))

    def free(self) -> None:
        """Free a log that has no user and no pending messages."""
        logs = [log for log, name in self.names.items() if name in QUEUES and self.committed_cursor(QUEUE, name)]
        if not logs:
            return
        log = self.dice.choice(logs)
        for record in list(self.rig.store.info().cursors):
            if record.log == log:
                self.done_with(self.rig.store.cursors.record(record.cursor), 0, self.rig.store.logs.bounds(log)[1] - 1)
        if self.rig.store.logs.free(log):
            self.group.freed.append(self.names.pop(log))

    def committed_cursor(self, name: str, log: str) -> bool:
        return not any((name, log) == opened[:2] for opened in (*self.group.opened, *self.sealed.opened))

    def any_cursor(self) -> CursorRecord | None:
        """Return a cursor that is committed."""
        known = [c for c in self.rig.store.info().cursors if self.committed_cursor(c.name, self.names[c.log])]
        return self.rig.store.cursors.record(self.dice.choice(known).cursor) if known else None

    def acknowledge(self) -> None:
        cursor = self.any_cursor()
        if cursor is None:
            return
        end = self.rig.store.logs.bounds(cursor.log)[1]
        first = cursor.position + self.dice.choice((0, 0, 0, 3))
        self.done_with(cursor, first, min(first + self.dice.choice((0, 4, 30, 200)), end - 1))

    def keep_up(self) -> None:
        """Acknowledge new messages of a log in memory for its connected consumers."""
        name = self.dice.choice(IN_MEMORY)
        for record in list(self.rig.store.info().cursors):
            if self.names[record.log] == name and self.committed_cursor(record.name, name) and self.dice.random() < 0.8:
                self.done_with(
                    self.rig.store.cursors.record(record.cursor), 0, self.rig.store.logs.bounds(record.log)[1] - 1
                )

    def done_with(self, cursor: CursorRecord, first: int, last: int) -> None:
        key = (cursor.name, self.names[cursor.log])
        if any(first <= high and low <= last for low, high in self.leaving.get(key, ())):
            return
        if last >= first:
            self.tell(Line("acked", cursor=(*key, first, last)))
            self.rig.store.cursors.acknowledge(cursor.cursor, first, last)

    def reject(self) -> None:
        """Reject some messages of a consumer without an address for dead letters."""
        cursor = self.any_cursor()
        if cursor is not None:
            self.discard(cursor, cursor.position + self.dice.randrange(4), self.dice.randrange(1, 5), "rejected")

    def bury(self) -> None:
        """Reject messages with such an address: the same commit replaces each by a dead letter."""
        cursor = self.any_cursor()
        if cursor is None or self.names[cursor.log] == DEADLETTERS:
            return
        first, count = cursor.position + self.dice.randrange(4), self.dice.randrange(1, 5)
        bodies = self.discard(cursor, first, count, "rejected", if_kept=True)
        if bodies:
            log = self.log(DEADLETTERS)
            self.rig.store.logs.append(log, Run("dead", "device", 1, b"", bodies, self.received_at()))
            self.group.appends.append(Append(DEADLETTERS, "dead", list(map(shorten, bodies))))

    def purge(self) -> None:
        """Purge one log for all its cursors."""
        if not self.names:
            return
        log = self.dice.choice([*self.names])
        for record in list(self.rig.store.info().cursors):
            if record.log == log and self.committed_cursor(record.name, self.names[log]):
                self.discard(self.rig.store.cursors.record(record.cursor), 0, 1 << 30, "purged")

    def discard(
        self, cursor: CursorRecord, first: int, count: int, reason: str, *, if_kept: bool = False
    ) -> list[bytes]:
        """Give up these positions; return the bodies of those that are there and not acknowledged."""
        key = (cursor.name, self.names[cursor.log])
        progress = CursorProgress(cursor.position)
        for low, high in (*cursor.acknowledged, *self.leaving.get(key, ())):
            progress.add(low, high)
        there = [
            message for message in self.rig.read_all(cursor.log, max(first, cursor.position))
            if message[0] < first + count
            and not progress.within(message[0], message[0])
            and Model.wants(cursor.name, message[1])
        ]  # fmt: skip
        for position, address, sequence, body in there:
            loss = Loss(cursor.name, address, sequence, sequence, 1, len(body), reason, 1)
            self.rig.store.cursors.discard(cursor.cursor, position, position, [loss], if_kept=if_kept)
            lost = [Lost(cursor.name, address, sequence, len(body), reason)]
            self.group.given.append(Given(key, position, position, lost, if_kept))
            if if_kept:
                self.leaving.setdefault(key, []).append((position, position))
            else:
                self.tell(Line("acked", cursor=(*key, position, position)))
        return [body for *_, body in there]

    def drop(self) -> None:
        cursor = self.any_cursor()
        key = None if cursor is None else (cursor.name, self.names[cursor.log])
        if cursor is not None and key is not None:
            self.group.dropped.append(key)
            self.rig.store.cursors.drop(cursor.cursor)

    def put(self) -> None:
        key, value = f"client {self.dice.randrange(12)}", "v" * self.dice.choice((1, 50, 5_000))
        value += str(self.number)
        self.rig.store.state.put(KIND, key, value.encode())
        self.group.puts[key] = value
        if key in self.group.deletes:
            self.group.deletes.remove(key)

    def delete(self) -> None:
        key = f"client {self.dice.randrange(12)}"
        self.rig.store.state.delete(KIND, key)
        self.group.puts.pop(key, None)
        if key not in self.group.deletes:
            self.group.deletes.append(key)

    def commit(self) -> None:
        self.rig.now += self.dice.choice((0.001, 0.05, 2.0))
        self.seal()
        if not self.rig.store.commits.flush():
            # The group has only acknowledgements and messages that may wait: they move to the next group.
            self.tell(Line("unsealed"))
            self.sealed, self.group = Group(), self.sealed
            return
        if {*IN_MEMORY} <= {*self.names.values()}:  # a log created now would be shown before its commit
            for _ in range(self.dice.randrange(4)):
                self.dice.choice((self.take, self.keep_up))()
        while self.rig.store.commits.committing:
            self.rig.turn()
        if self.unseen:
            self.unseen = False
            self.tell(Line("shown", observed=msgspec.structs.replace(observe(self.rig), running=True)))

    def seal(self) -> None:
        self.sealed, self.group = self.group, Group()
        self.sealed.at_s = self.rig.now
        self.tell(Line("sealed", group=self.sealed))

    def reopen(self) -> None:
        self.seal()
        self.rig.store.close()
        if not self.refused:
            self.tell(Line("closed"))
        self.rig.store = self.rig._open()
        self.group, self.sealed, self.unseen = Group(), Group(), False
        self.opened()


def main() -> None:
    directory, history, seed, commits = sys.argv[1:]
    try:
        with Schedule(int(seed)).on():
            Workload(Path(directory), Path(history), int(seed)).run(int(commits))
    except StoreError as error:  # the medium failed when the store was opened: no client learns of it
        print(error, file=sys.stderr)
        os._exit(REFUSED)
    os._exit(0)


if __name__ == "__main__":
    main()
