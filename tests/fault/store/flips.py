"""Single bit errors at every position of a small store, and whether the gateway reacts correctly.

A correct gateway handles each pending message of each consumer group in one of three ways. It delivers the message
unchanged, it names it in the ledger, or it reports that it cannot read on: it refuses to start, or the log is among the
problems of the store.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bridge.message import Run
from edge.broker.store.errors import StoreError
from edge.broker.store.limits import StoreLimits
from edge.broker.store.sqlite import FILE_NAME
from edge.broker.store.sqlite_medium import SqliteMedium
from tests.contract.store.rig import Rig, flat, sqlite_rig

AT: Final = 1_790_000_000_000_000_000
PAGE_BYTES: Final = 512
"""Small page, so that a small store has trees with several levels and few empty bytes."""
LOGS: Final[dict[str, tuple[str, ...]]] = {
    "queue jobs": ("jobs",),
    "topic plant/#": ("plant/1/temp", "plant/2/temp"),
    "topic site/#": ("site/a", "site/b"),
}
GROUPS: Final = {"queue jobs": ("queue",), "topic plant/#": ("one", "two"), "topic site/#": ("forwarder/hub/site",)}

Message = tuple[int, str, int, bytes]
"""Position, address, sequence, body."""


@dataclass
class Seen:
    """Observed behaviour of a gateway with a store."""

    refused: str = ""
    delivered: dict[tuple[str, str], list[Message]] = field(default_factory=dict)
    """Messages by group and log."""
    stopped: set[str] = field(default_factory=set)
    """Logs that are reported as unreadable."""
    entries: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    """Ledger entries with reason ``damaged``: (group, address, first, last, messages)."""
    given: dict[str, int] = field(default_factory=dict)
    """First sequence of a new message, by address."""


def make(data: Path, *, crashed: bool = False) -> dict[str, set[Message]]:
    """Make a store with some hundred messages; return them by log. `crashed` keeps the files of a running gateway."""
    home = data.with_name(data.name + "-open") if crashed else data
    rig = sqlite_rig(home, StoreLimits(page_bytes=PAGE_BYTES, counted_commits_max=8))
    store = rig.store
    cursors = {
        (group, name): store.cursors.open(group, store.logs.open(name), 0) for name in LOGS for group in GROUPS[name]
    }
    sent: dict[str, set[Message]] = {name: set() for name in LOGS}
    for commit in range(12):
        for name, addresses in LOGS.items():
            address = addresses[commit % len(addresses)]
            for part in range(2 if name == "topic plant/#" else 1):
                bodies = [b"%s %d %d %d" % (address.encode(), commit, part, n) for n in range(3 + commit % 4)]
                store.logs.append(store.logs.open(name), Run(address, "device", 1, b"", bodies, AT + commit))
        for log, stored in rig.commit().appended:
            sent[list(LOGS)[log - 1]].update(flat([stored]))
        if commit == 7 and not crashed:
            rig.settle()
    store.cursors.acknowledge(cursors["queue", "queue jobs"], 0, 9)
    store.cursors.acknowledge(cursors["one", "topic plant/#"], 0, 14)
    store.cursors.acknowledge(cursors["one", "topic plant/#"], 18, 22)
    store.cursors.acknowledge(cursors["two", "topic plant/#"], 0, 30)
    store.state.put("session", "s", b"0123456789")
    store.state.put("subscription", "one", b"plant/#")
    rig.commit()
    if crashed:
        shutil.copytree(home, data)
    else:
        rig.settle()
    store.close()
    return sent


def look(data: Path) -> Seen:
    """Open the store, deliver everything pending to each group, commit, append one message to each address."""
    seen = Seen()
    try:
        rig = sqlite_rig(data)
    except StoreError as error:
        seen.refused = str(error)
        return seen
    store = rig.store
    assert isinstance(store.medium, SqliteMedium)
    try:
        names = {log.log: log.name for log in store.info().logs}
        for record in store.cursor_records():
            owed = [
                message
                for message in _read_on(rig, seen, names[record.log], record.log, record.position)
                if not any(first <= message[0] <= last for first, last in record.acknowledged)
            ]
            seen.delivered[record.name, names[record.log]] = owed
        _drain(rig)
        seen.entries = [entry[1:6] for entry in store.ledger.entries(0, 10_000) if entry.reason == "damaged"]
        for name, addresses in LOGS.items():
            log = store.logs.open(name)
            for address in addresses:
                store.logs.append(log, Run(address, "device", 1, b"", [b"new"], AT))
        commit = rig.commit()
        seen.given = {stored.run.address: stored.sequence for _, stored in commit.appended}
    except StoreError as error:
        seen.refused = str(error)
    finally:
        store.close()
    return seen


def _drain(rig: Rig) -> None:
    for _ in range(100):
        rig.now += 3600.0
        rig.store.commits.flush()
        if not rig.store.commits.committing:
            rig.now += 3600.0
            if not rig.store.commits.flush():
                return
        while rig.store.commits.committing:
            rig.turn()


def _read_on(rig: Rig, seen: Seen, name: str, log: int, position: int) -> Iterator[Message]:
    end = rig.store.logs.bounds(log)[1]
    while position < end:
        runs = rig.read(log, position)
        if not runs:
            if rig.store.logs._reads.failed:
                rig.store.logs._reads.failed.clear()
                seen.stopped.add(name)
            return
        for at, sequence, run in runs:
            for index, body in enumerate(run.bodies):
                yield at + index, run.address, sequence + index, body
            position = at + len(run.bodies)


def faults(sent: dict[str, set[Message]], sound: Seen, seen: Seen) -> list[str]:
    """Return the errors of `seen`, from a damaged copy, compared with `sound`, from the original."""
    if seen.refused:
        return []
    found = []
    for (group, log), owed in sound.delivered.items():
        got = seen.delivered.get((group, log))
        if got is None:
            if log not in seen.stopped:
                found.append(f"{group} of {log} is gone")
            continue
        wrong = set(got) - sent[log]
        if wrong:
            found.append(f"{group} of {log} is given {min(wrong)}, which nobody sent")
        missing = [message for message in owed if message not in set(got)]
        named = [message for message in missing if _named(seen, group, log, message)]
        if log not in seen.stopped and len(named) < len(missing):
            silent = [message for message in missing if message not in named]
            found.append(f"{group} of {log} silently loses {len(silent)} from {silent[0]}")
        entered = sum(messages for name, address, *_, messages in seen.entries if name == group and _of(address, log))
        if entered != len(named):
            found.append(f"the ledger says {group} of {log} lost {entered}, it lost {len(named)} ({seen.entries})")
    for address, first in seen.given.items():
        if first < sound.given[address]:
            found.append(f"{address} gives {first} again")
    return found


def _named(seen: Seen, group: str, log: str, message: Message) -> bool:
    position, address, sequence, _ = message
    return any(
        name == group
        and ((entry == address and first <= sequence <= last) or (entry == f"$log/{log}" and first <= position <= last))
        for name, entry, first, last, _ in seen.entries
    )


def _of(address: str, log: str) -> bool:
    return address == f"$log/{log}" or address in LOGS[log]


def flip(sound: Path, data: Path, name: str, bit: int, width: int = 1) -> None:
    """Copy the store and change this many bits in one of its files."""
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    for path in sound.iterdir():
        content = bytearray(path.read_bytes())
        if path.name == name:
            content[bit // 8] ^= (1 << width) - 1 << bit % 8
        (data / path.name).write_bytes(content)


def bits(sound: Path, name: str = FILE_NAME) -> int:
    return (sound / name).stat().st_size * 8
