"""Gateway unrelated to an attack on its hub, and the time until its batches are acknowledged."""

from __future__ import annotations

import threading
import time
from typing import Self

from bridge.batch import encode
from bridge.engine import DeliveryState
from bridge.message import Run, Stored
from tests.support.hostile_gateway import HostileGateway
from tests.support.processes import Waypost, wait_until


class OtherGateway:
    """Gateway that repeatedly sends a small batch, and records the duration of each."""

    def __init__(self, hub: Waypost, name: str) -> None:
        self.longest_s = 0.0
        self.rounds = 0
        self.failure: Exception | None = None
        self._gateway = HostileGateway(hub.port("amqp"), name)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                begin = time.monotonic()
                stored = Stored(-1, self.rounds, Run("other", "d", 1, b"", [b"21.5"], 1))
                outcomes = self._gateway.send(encode([stored], space="default", epoch="f" * 32)).settled()
                assert outcomes[-1] is DeliveryState.ACCEPTED
                self.longest_s = max(self.longest_s, time.monotonic() - begin)
                self.rounds += 1
        except Exception as error:  # a thread ends here; the test looks at `failure`
            self.failure = error

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self.rounds > 0 or self.failure is not None, timeout_s=30, what="a first answer")
        self.longest_s = 0.0  # the first landing of a hub loads code
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self._gateway.close()
