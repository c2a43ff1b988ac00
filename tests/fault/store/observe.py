"""Open a store and read its whole content, through its contract alone."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edge.broker.store.records import Summary
from tests.contract.store.rig import Rig, run_of, sqlite_rig
from tests.fault.store.history import Model, Observed, shorten
from tests.fault.store.limits import LIMITS

KIND = "session"
ATTEMPTS = 40
"""Attempts for a commit, on a medium that may fail for a while."""


def open_store(directory: Path, *, page_bytes: int = LIMITS.page_bytes, summary: Summary | None = None) -> Rig:
    """Open the store. `page_bytes` applies to a new store."""
    return sqlite_rig(directory, msgspec.structs.replace(LIMITS, page_bytes=page_bytes), summary)


def account(rig: Rig) -> bool:
    """Account for messages in memory that a crash took; return False when the medium refuses."""
    for cursor in rig.store.cursor_records():
        select(rig, cursor.cursor, cursor.name)
    rig.store.ledger.account_for_crash()
    for _ in range(ATTEMPTS):
        rig.now += 2.0
        if not rig.store.commits.flush():
            return True
        while rig.store.commits.committing:
            rig.turn()
        if rig.commits[-1].error is None:
            return True
    return False


def select(rig: Rig, cursor: int, name: str) -> None:
    """Select the messages that a cursor has to get."""
    rig.store.cursors.set_filter(cursor, lambda run: Model.wants(name, run.address))


def observe(rig: Rig) -> Observed:
    """Read the whole content. `rig` has nothing uncommitted."""
    store = rig.store
    info = store.info()
    names = {log.log: log.name for log in info.logs}
    messages = {log.name: rig.read_all(log.log) for log in info.logs}
    return Observed(
        epoch=store.lineage.epoch,
        bounds={log.name: (log.first, log.next) for log in info.logs},
        messages={
            log: [(position, address, sequence, shorten(body)) for position, address, sequence, body in all_of_it]
            for log, all_of_it in messages.items()
        },
        cursors=[(c.name, names[c.log], c.position, list(c.acknowledged)) for c in store.cursor_records()],
        state={key: value.decode() for key, value in store.state.items(KIND)},
        sequences={name: number for name, number in store.lineage.sequences() if number},
        figures=(info.messages, info.bytes),
        true_bytes=sum(len(body) for all_of_it in messages.values() for *_, body in all_of_it),
        # Not `losses`, which assumes that the entries are passed on from here: they may still grow.
        ledger=[entry[:8] for entry in store.medium.ledger(0, 1 << 30, "")],
    )


def use(rig: Rig, observed: Observed) -> None:
    """Use the store: each address gets the next sequence, and appended messages can be read."""
    store = rig.store
    log = store.logs.open("probe")
    store.cursors.open("probe", log, 0)
    for address in (*observed.sequences, "new"):
        store.logs.append(log, run_of(b"probe", address=address))
    told = rig.commit()
    assert told.error is None, told.error
    given = {stored.run.address: stored.sequence for _, stored in told.appended}
    assert given == {**observed.sequences, "new": observed.sequences.get("new", 0)}, "a name was given twice"
    assert len(rig.read_all(log)) == len(given)
