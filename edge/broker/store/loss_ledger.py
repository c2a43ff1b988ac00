"""Loss ledger of a store: adds losses to the open group, and reads committed entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edge.broker.store.crash_losses import CrashLosses
from edge.broker.store.gatherer import Gatherer
from edge.broker.store.ledger import OpenLedger
from edge.broker.store.medium import Medium
from edge.broker.store.records import LedgerEntry, Loss
from edge.broker.store.ticket import Ticket


class StoreLosses:
    """Implements `contract.LossLedger`."""

    def __init__(self, gatherer: Gatherer, ledger: OpenLedger, medium: Medium, crash: CrashLosses) -> None:
        self._gatherer = gatherer
        self._ledger = ledger
        self._medium = medium
        self._crash = crash

    @property
    def entered(self) -> Mapping[str, int]:
        return self._ledger.entered

    def record(self, losses: Sequence[Loss]) -> Ticket:
        group = self._gatherer.open
        group.losses += losses
        group.urgent = True
        return group.ticket

    def entries(
        self, after: int, entries_max: int, subscriptions: str = "", *, keep_growing: bool = False
    ) -> Sequence[LedgerEntry]:
        entries = self._medium.ledger(after, entries_max, subscriptions)
        if entries and not keep_growing:
            self._ledger.read_up_to(entries[-1].entry, subscriptions)
        return entries

    def lost(self, subscriptions: str) -> Mapping[str, Mapping[str, int]]:
        return self._medium.lost(subscriptions)

    def account_for_crash(self) -> None:
        self._crash.account()
