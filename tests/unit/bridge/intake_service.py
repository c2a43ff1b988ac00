"""Service of an intake that records its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bridge.batch import Batch
from bridge.intake import Intake, UnreadDelivery
from bridge.plain import Arrival


class RecordingService:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.tokens: list[int] = []
        self.refusing = False

    def gateway_connected(self, gateway: str, intake: Intake) -> None:
        self.calls.append(("connected", gateway))
        if self.refusing:
            intake.close("amqp:unauthorized-access", "who are you?")

    def gateway_disconnected(self, gateway: str, intake: Intake) -> None:
        self.calls.append(("disconnected", gateway))

    room = True

    def has_room(self, intake: Intake) -> bool:
        return self.room

    def unread_changed(self, intake: Intake, by: int) -> None:
        """Count nothing."""

    def batch_arrived(self, intake: Intake, token: int, batch: Batch, ends: Mapping[int, int], gateway: str) -> None:
        self.tokens.append(token)
        self.calls.append(("batch", dict(ends)))

    def messages_arrived(self, intake: Intake, messages: Sequence[tuple[int, Arrival]], gateway: str) -> None:
        self.tokens += [token for token, _ in messages]
        self.calls += [("message", arrival) for _, arrival in messages]

    def status_arrived(self, intake: Intake, document: dict[str, Any], gateway: str) -> None:
        self.calls.append(("status", gateway, document))

    def unreadable_arrived(self, intake: Intake, token: int, unread: UnreadDelivery, gateway: str) -> None:
        self.tokens.append(token)
        self.calls.append(("unread", unread))

    def ledger_arrived(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None:
        self.tokens.append(token)
        self.calls.append(("ledger", gateway, document))

    def manifests_arrived(self, intake: Intake, token: int, document: dict[str, Any], gateway: str) -> None:
        self.tokens.append(token)
        self.calls.append(("manifests", gateway, document))
