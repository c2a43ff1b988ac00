"""Inbox for documents of the hub, as configurations: each is answered after the decision about it is on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bridge import plain
from bridge.forwarders.inbox import Incoming, Settle
from bridge.forwarders.outcome import ForwardOutcome
from bridge.plain import MessageError

Answer = Callable[[ForwardOutcome, str], None]
"""Callback with the outcome of a document and its reason."""
Take = Callable[[bytes, Answer], None]
"""Handles the body of a document, and answers it."""


class DocumentInbox:
    """Inbox of one connector to a hub (`bridge.forwarders.inbox.ForwarderInbox`)."""

    def __init__(
        self, name: str, remote: str, take: Take, properties: Callable[[], Mapping[str, str]] = lambda: {}
    ) -> None:
        """`remote` is an address of `bridge.hub_addresses`; `properties` returns those of each link."""
        self.name = name
        self.remote = remote
        self.qos = 1
        self.link_properties = properties
        self._take = take
        self._settle: Settle | None = None
        self._credit_changed: Callable[[], None] | None = None
        self._open = 0
        """Unanswered documents."""

    def attached(self, settle: Settle, credit_changed: Callable[[], None]) -> None:
        self._settle, self._credit_changed, self._open = settle, credit_changed, 0

    def leave(self, left: Callable[[], None]) -> None:
        """Leave at once: the decision about a document may end this connection and wait for its end."""
        left()

    def detached(self) -> None:
        self._settle = self._credit_changed = None

    @property
    def credit(self) -> int:
        """One document at a time: each may be half a megabyte, and they are decided one after the other."""
        return 0 if self._open else 1

    def receive(self, messages: Sequence[Incoming]) -> None:
        for message in messages:
            self._open += 1
            answer = partial(self._answer, self._settle, message.token)
            try:
                body = plain.body_of(message.run.bodies[0])
            except MessageError as error:
                answer(ForwardOutcome.REJECTED, str(error))
            else:
                self._take(body, answer)

    def _answer(self, settle: Settle | None, token: int | None, outcome: ForwardOutcome, why: str) -> None:
        if settle is None or settle is not self._settle:
            return  # of an earlier connection: the document comes again
        self._open -= 1
        if token is not None:
            settle((token,), outcome, why)
        if self._credit_changed is not None:
            self._credit_changed()
