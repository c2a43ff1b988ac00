"""Reports entries of the loss ledger to a peer, before the peer can see the gaps.

One document is in flight at a time. The store remembers the last entry that the peer confirmed. So each entry is sent
once, and again after a power cut only if the confirmation may be missing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from edge.broker.store.contract import EpochLineage, LossLedger, SmallState
from edge.broker.store.errors import StoreError
from edge.broker.store.records import LedgerEntry

if TYPE_CHECKING:
    from bridge.reports import Reports  # imports the AMQP engine, which a gateway without AMQP does not load

log = logging.getLogger(__name__)

KIND: Final = "ledger"
"""Kind of small state that holds the last entry confirmed by the peer of each connector (8 bytes, big-endian)."""

INBOUND_PREFIX: Final = "inbound/"
"""Prefix of incoming forwarders in the ledger. Every peer with a ledger gets their entries."""
LEDGER_RANGES: Final = 500
"""Ranges in one ledger document, about 50 KiB of JSON."""


class LossReports:
    """Reports of the loss ledger to the peer of one connector."""

    def __init__(
        self, state: SmallState, lineage: EpochLineage, ledger: LossLedger, reports: Reports, connector: str
    ) -> None:
        self._ledger = ledger
        self._state = state
        self._lineage = lineage
        self._reports = reports
        self._connector = connector
        self._subscriptions = (f"forwarder/{connector}/", INBOUND_PREFIX)
        self._in_flight = False
        self._unread = False
        """True when reading the ledger failed."""
        self._confirmed_entry = int.from_bytes(dict(state.items(KIND)).get(connector, b""), "big")

    def feed(self) -> None:
        """Send new entries, unless a document is in flight. Its confirmation calls `feed` again."""
        while not self._in_flight and self._reports.ledger_credit > 0:
            try:
                entries = self._newest()
            except StoreError as error:
                log.warning("cannot read the loss ledger, retrying later: %s", error)
                self._unread = True
                return
            self._unread = False
            if not entries:
                return
            self._in_flight = True
            self._reports.ledger(self._document(entries), partial(self._confirm, entries[-1].entry))

    def _newest(self) -> Sequence[LedgerEntry]:
        """Return the oldest entries that the peer has not confirmed, in the order of their numbers. Raises
        StoreError."""
        found = [self._ledger.entries(self._confirmed_entry, LEDGER_RANGES, each) for each in self._subscriptions]
        return sorted(chain.from_iterable(found))[:LEDGER_RANGES]

    def retry_read(self) -> None:
        """Retry a failed read of the ledger. Called every few seconds."""
        if self._unread:
            self.feed()

    def restart(self) -> None:
        """Forget the document in flight: the link has ended."""
        self._in_flight = False

    def _confirm(self, last: int, kept: bool) -> None:
        """Continue after the peer stored the document, or rejected it for good (`Reports` logs that)."""
        self._in_flight = False
        if kept:
            log.info("connector %s: the peer has losses up to entry %d", self._connector, last)
        self._confirmed_entry = last
        self._state.put(KIND, self._connector, last.to_bytes(8, "big"))
        self.feed()

    def _document(self, entries: Sequence[LedgerEntry]) -> dict[str, Any]:
        """Return the document that `cloud.hub.documents.Ledger` reads."""
        return {
            "ranges": [
                {
                    "epoch": epoch,
                    "address": entry.address,
                    "first_sequence": first,
                    "last_sequence": last,
                    "bytes": entry.bytes * (last + 1 - first) // (entry.last + 1 - entry.first),
                    "reason": entry.reason,
                    "decided_at": entry.decided_at,
                }
                for entry in entries
                for epoch, first, last in self._lineage.epochs.parts(entry.address, entry.first, entry.last)
            ]
        }
