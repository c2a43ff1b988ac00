"""Messages from connectors that no address takes: in the loss ledger before their peer gets its answer.

A peer without refusals (MQTT, Kafka) gets an acknowledgement of a rejected message, or it would send it forever. So the
ledger counts them by forwarder and reason. They have no sequence of an address: each forwarder counts its own, under an
address that no message can have. A message that is received again before its acknowledgement is counted again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from edge.broker.retention.loss_reports import INBOUND_PREFIX
from edge.broker.router.router import Router
from edge.broker.store.contract import LossLedger, SmallState
from edge.broker.store.records import Loss

KIND: Final = "inbound-rejected"
"""Kind of the store's small state with the next number of each forwarder and reason (8 bytes)."""
_NUMBER_BYTES: Final = 8


class InboundLosses:
    """Rejections of all incoming forwarders; takes part in the commits (`router.CommitParticipant`)."""

    def __init__(self, state: SmallState, ledger: LossLedger, router: Router) -> None:
        self._ledger = ledger
        self._state = state
        self._router = router
        self._next = {key: int.from_bytes(value) for key, value in state.items(KIND)}
        self._open: list[Callable[[], None]] = []
        self._sealed: list[Callable[[], None]] = []

    def record(self, forwarder: str, reason: str, messages: int, size: int, recorded: Callable[[], None]) -> None:
        """Enter rejected messages of a forwarder (CONNECTOR/NAME); call `recorded` when they are on disk.

        One range for each forwarder and reason grows in the ledger, for any number of rejections.
        """
        key = f"{forwarder}/{reason}"
        first = self._next.get(key, 0)
        self._next[key] = end = first + messages
        subscription = INBOUND_PREFIX + forwarder
        loss = Loss(
            subscription, f"${subscription}", first, end - 1, messages, size, f"inbound-{reason}", self._router.now_ns()
        )
        self._state.put(KIND, key, end.to_bytes(_NUMBER_BYTES))
        self._ledger.record([loss])
        self._open.append(recorded)
        self._router.flush_soon()

    def prepare(self) -> None:
        """Note that the open group is about to be sealed."""
        self._sealed += self._open
        self._open = []

    def committed(self, *, kept: bool) -> None:
        """Answer messages that are on disk. After a failed commit the entries join the next one, and the answers wait
        for it."""
        if kept:
            sealed, self._sealed = self._sealed, []
            for recorded in sealed:
                recorded()
