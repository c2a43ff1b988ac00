"""Exchange with one hub: requests for statements about messages, and the hub's answers.

One request is in flight at a time. Messages without a statement in the answer are not in the lake yet; their owner
requests them again. Nothing here has to survive a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from bridge.forwarders.inbox import Incoming, Settle
from bridge.forwarders.outcome import ForwardOutcome
from bridge.hub_addresses import RECEIPTS
from bridge.landing_receipt import LandingStatement, MessageSpan, ReceiptAnswer, ReceiptRequest
from bridge.plain import MessageError, body_of

log = logging.getLogger(__name__)

ANSWERS_CREDIT = 4
"""Answers that the hub may send: there is one for each request, and an earlier one may be late."""


class ReceiptRequestSender(Protocol):
    """Sender of documents to the hub (`bridge.reports.Reports`)."""

    def request_receipts(self, document: dict[str, Any], done: Callable[[bool], None]) -> None:
        """Send a request until the hub has answered it or rejects it."""
        ...


class ReceiptExchange:
    """Exchange of one connector; `bridge.forwarders.inbox.ForwarderInbox` for the answers."""

    def __init__(
        self,
        connector: str,
        sender: ReceiptRequestSender,
        forwards: Callable[[str], bool],
        connected: Callable[[], bool],
        gateway: str,
    ) -> None:
        """`forwards` returns True for an address with messages for this hub, `connected` while it can be reached.
        `gateway`: our name at this hub."""
        self.gateway = gateway
        self.name = f"receipts of {connector}"
        self.remote = RECEIPTS
        self.qos = 1
        self.forwards = forwards
        self._connected = connected
        self._sender = sender
        self._take: Callable[[ReceiptAnswer], None] = _ignore_answer
        self._in_flight = False
        self._asked: Sequence[MessageSpan] = ()
        """Ranges of the request in flight."""
        self._settle: Settle | None = None

    def set_taker(self, take: Callable[[ReceiptAnswer], None]) -> None:
        """Set the function that gets each answer."""
        self._take = take

    @property
    def is_ready(self) -> bool:
        """True when a request may be sent now: the hub gives receipts, and has answered the one before."""
        return self._settle is not None and not self._in_flight and self._connected()

    def request(self, spans: Sequence[MessageSpan], done: Callable[[], None]) -> None:
        """Request statements. `done` is called after the answer, or when the hub refuses. Call it while `is_ready`."""
        self._in_flight = True
        self._asked = spans
        document = msgspec.to_builtins(ReceiptRequest(list(spans)))
        self._sender.request_receipts(document, partial(self._answered, done))

    def was_asked(self, statement: LandingStatement) -> bool:
        """Return True for a statement within the request in flight. Others are late, or about what is not this hub's
        concern."""
        return any(
            (asked.epoch, asked.address) == (statement.epoch, statement.address)
            and asked.first <= statement.first
            and statement.last <= asked.last
            for asked in self._asked
        )

    def _answered(self, done: Callable[[], None], _accepted: bool) -> None:
        self._in_flight = False
        self._asked = ()
        done()

    # --- ForwarderInbox -----------------------------------------------------------------------------------------------

    def attached(self, settle: Settle, credit_changed: Callable[[], None]) -> None:
        self._settle = settle

    def leave(self, left: Callable[[], None]) -> None:
        left()

    def detached(self) -> None:
        self._settle = None

    @property
    def credit(self) -> int:
        return ANSWERS_CREDIT

    def receive(self, messages: Sequence[Incoming]) -> None:
        for message in messages:
            try:
                answer = msgspec.json.decode(body_of(message.run.bodies[0]), type=ReceiptAnswer)
            except (MessageError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
                log.error("%s: the hub sent an answer that cannot be read: %s", self.name, error)  # noqa: TRY400
            else:
                self._take(answer)
            if message.token is not None and self._settle is not None:
                self._settle((message.token,), ForwardOutcome.ACCEPTED, "")


def _ignore_answer(_answer: ReceiptAnswer) -> None:
    """Do nothing: the exchange is not in use yet."""
