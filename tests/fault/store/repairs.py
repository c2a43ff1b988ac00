"""Repair of a damaged store, and what a test compares: messages before and after, and losses in the ledger."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from edge.appliance.store.recovery.repair import repair
from edge.appliance.store.recovery.report import RepairReport
from edge.appliance.store.recovery.verification import verify
from edge.broker.store.sqlite import FILE_NAME
from tests.contract.store.rig import sqlite_rig
from tests.support.stores import Made


def messages(data: Path) -> dict[tuple[str, int], bytes]:
    """Return everything that a gateway would deliver from the first kept position: (address, sequence) -> body."""
    rig = sqlite_rig(data)
    try:
        return {
            (address, sequence): body
            for log in rig.store.info().logs
            for _, address, sequence, body in rig.read_all(log.log, log.first)
        }
    finally:
        rig.store.close()


class Lost:
    """Ledger entries about damaged messages."""

    def __init__(self, data: Path) -> None:
        connection = sqlite3.connect(data / FILE_NAME)
        self.rows = connection.execute(
            "SELECT subscription, address, first, last, messages FROM ledger WHERE reason = 'damaged' ORDER BY entry"
        ).fetchall()
        connection.close()

    def __contains__(self, name: tuple[str, int]) -> bool:
        return any(address == name[0] and first <= name[1] <= last for _, address, first, last, _ in self.rows)


def leftovers(data: Path) -> set[str]:
    """Return files that belong neither to the store nor to its damaged copy."""
    own = {"store.lock", "store.opened", FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"}
    return {path.name for path in data.iterdir() if ".damaged-" not in path.name} - own


def repaired(made: Made) -> RepairReport:
    """Repair the store; check that it is valid, that the damaged copy exists, and that nothing else was added."""
    data = made.path.parent
    done = repair(data, write=True)
    assert [finding for finding in verify(made.path).findings if finding.damage] == []
    assert leftovers(data) == set()
    assert Path(done.damaged_copy).exists()
    return done
