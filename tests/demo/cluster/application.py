"""Application at the message broker: it sends commands to the gateways' devices, and collects their outcomes."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from proton import ConnectionException, Delivery, Message, Timeout
from proton.utils import BlockingConnection, SendException

from tests.demo.cluster.messages import COMMANDS, OUTCOMES

INTERVAL_S: Final = 0.5
"""Seconds between two commands."""
TTL_S: Final = 5.0
"""Time that a command waits for its device. The devices of the demo take none, so most of them expire."""
TIMEOUT_S: Final = 30.0
RECEIVED_S: Final = 60.0
"""Longest time from the last command to its outcome."""


class CommandAccount(NamedTuple):
    """Commands that the broker took, and their outcomes."""

    sent: int
    answered: int
    """Commands with an outcome."""
    foreign: int
    """Outcomes of no command."""

    @property
    def adds_up(self) -> bool:
        """True if there are commands, each has an outcome, and each outcome a command."""
        return 0 < self.sent == self.answered and not self.foreign

    def explain(self) -> str:
        """Return the comparison as one line."""
        counts = f"{self.sent}, with an outcome {self.answered}, outcomes of no command {self.foreign}"
        return f"commands at the broker {counts}"


class CommandingApplication:
    """Sends from `start` to `compare`, in a thread."""

    def __init__(self, url: str, gateways: Sequence[str]) -> None:
        self._url = url
        self._gateways = gateways
        self._sent: list[str] = []
        self._unconfirmed: set[str] = set()
        """Commands that the broker may have taken."""
        self._outcomes: Counter[str] = Counter()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send, name="application", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def compare(self) -> CommandAccount:
        """Stop sending, and wait for the outcomes. Blocks."""
        self.stop()
        deadline = time.monotonic() + RECEIVED_S
        while self._account().answered < len(self._sent) and time.monotonic() < deadline:
            self._receive()
        return self._account()

    def stop(self) -> None:
        """Stop sending. Idempotent. Blocks."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(TIMEOUT_S)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _account(self) -> CommandAccount:
        sent, answered = set(self._sent), self._outcomes.keys()
        return CommandAccount(len(sent), len(sent & answered), len(answered - sent - self._unconfirmed))

    def _send(self) -> None:
        connection = BlockingConnection(self._url, timeout=TIMEOUT_S)
        sender = connection.create_sender(COMMANDS)
        for number, gateway in enumerate(itertools.cycle(self._gateways)):
            if self._ending.wait(INTERVAL_S):
                break
            name = f"demo-{number}"
            fields = {"id": name, "correlation_id": name, "ttl": TTL_S, "durable": True}
            where = {"gateway": gateway, "device": f"{gateway}-cpu"}
            try:
                sender.send(Message(subject="report", properties=where, body=b"", **fields))
            except (SendException, Timeout, ConnectionException):
                self._unconfirmed.add(name)
                break
            self._sent.append(name)
        connection.close()

    def _receive(self) -> None:
        """Take outcomes until none has come for a second."""
        connection = BlockingConnection(self._url, timeout=TIMEOUT_S)
        receiver = connection.create_receiver(OUTCOMES, credit=100)
        try:
            while True:
                message = receiver.receive(timeout=1.0)
                receiver.settle(Delivery.ACCEPTED)
                self._outcomes[str(message.correlation_id)] += 1
        except Timeout:
            pass
        finally:
            connection.close()
