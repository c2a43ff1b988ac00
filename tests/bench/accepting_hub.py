"""A hub that accepts messages immediately and records their arrival: the crossing without landing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from bridge.batch import Batch
from bridge.engine import Engine
from bridge.intake import Intake, UnreadDelivery
from bridge.plain import Arrival
from bridge.sasl import ANONYMOUS, SaslServer
from bridge.transport.driver import ConnectionDriver
from edge.broker.listeners.tcp import TcpListener

_WRITE_BYTES_MAX = 1 << 20


class AcceptingHub:
    """Listens on a loopback port in its own thread; a context manager."""

    def __init__(self) -> None:
        self.arrived: dict[bytes, float] = {}
        """First arrival of each body, in monotonic seconds."""
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hub", daemon=True)
        self._listener = TcpListener("amqp", lambda gone, _identity: self._driver(gone))

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(self._listener.start("127.0.0.1", 0), self._loop)
        self.port = listening.result(10)[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._listener.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _driver(self, gone: Callable[[ConnectionDriver], None]) -> ConnectionDriver:
        sasl = SaslServer(lambda _mechanism, _name, _password: ANONYMOUS, anonymous=ANONYMOUS)
        engine = Engine(container_id="hub", server=True, sasl=sasl, now=self._loop.time())
        return ConnectionDriver(
            engine, lambda driver: Intake(engine, self, driver), write_bytes_max=_WRITE_BYTES_MAX, gone=gone
        )

    # --- IntakeService ------------------------------------------------------------------------------------------

    def batch_arrived(self, intake: Intake, token: int, batch: Batch, _ends: Mapping[int, int], _gateway: str) -> None:
        now = time.monotonic()
        for body in batch.bodies:
            self.arrived.setdefault(bytes(body), now)
        intake.accept((token,))

    def messages_arrived(self, intake: Intake, messages: Sequence[tuple[int, Arrival]], _gateway: str) -> None:
        intake.accept([token for token, _ in messages])

    def ledger_arrived(self, intake: Intake, token: int, _document: dict[str, Any], _gateway: str) -> None:
        intake.accept((token,))

    manifests_arrived = ledger_arrived

    def unreadable_arrived(self, intake: Intake, token: int, _unread: UnreadDelivery, _gateway: str) -> None:
        intake.accept((token,))

    def status_arrived(self, intake: Intake, document: dict[str, Any], gateway: str) -> None:
        """Ignore statuses."""

    def gateway_connected(self, gateway: str, intake: Intake) -> None:
        """Ignore connections."""

    def gateway_disconnected(self, gateway: str, intake: Intake) -> None:
        """Ignore disconnections."""

    def has_room(self, _intake: Intake) -> bool:
        return True

    def unread_changed(self, intake: Intake, by: int) -> None:
        """Ignore the count: all input is read immediately."""
