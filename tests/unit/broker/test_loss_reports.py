"""Reports of the loss ledger to a hub."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bridge.reports import Reports
from edge.broker.retention.loss_reports import LossReports
from edge.broker.store.errors import StoreError
from edge.broker.store.records import LedgerEntry, Loss
from tests.contract.store.rig import memory_rig, run_of


def test_unreadable_entry_is_reported_without_another_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, reports = memory_rig(), Reports()
    store, losses = rig.store, LossReports(rig.store.state, rig.store.lineage, rig.store.ledger, reports, "hub")
    log, name = store.logs.open("a"), "forwarder/hub/all"
    cursor = store.cursors.open(name, log, 0)
    store.logs.append(log, run_of(b"x", address="a"))
    rig.commit()
    store.cursors.discard(cursor, 0, 0, [Loss(name, "a", 0, 0, 1, 1, "expired", 0)])
    rig.commit()
    credit = reports.ledger_credit
    with monkeypatch.context() as broken:

        def fails(_after: int, _entries_max: int, _subscriptions: str) -> Sequence[LedgerEntry]:
            raise StoreError("the medium does not answer")

        broken.setattr(store.ledger, "entries", fails)
        losses.feed()
        losses.retry_read()
    assert reports.ledger_credit == credit
    losses.retry_read()
    losses.retry_read()
    assert reports.ledger_credit == credit - 1
