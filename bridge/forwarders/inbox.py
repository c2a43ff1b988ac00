"""What a connector owes an incoming forwarder: everything that arrives, and nothing acknowledged before it is here.

The far side is answered with what `attached` was given, after the commit: whoever has put a message into a store may
forget it, and nobody else. The gateway's half is `edge.broker.router.inbound`.

A connection that ends in good order (a connector is removed, changed or paused, the gateway stops) leaves in this
order, so that nobody gets twice what was taken: nothing more is taken; what was taken is on disk and answered, or
`bridge.limits.LEAVE_TIMEOUT_S` is over; the answers leave, as the protocol has them; the connection ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from bridge.forwarders.outcome import ForwardOutcome
from bridge.message import Run

Settle = Callable[[Sequence[int], ForwardOutcome, str], None]
"""Answers by token: what became of the messages, and why they were not accepted."""


class Incoming(NamedTuple):
    """One message that arrived over a connector."""

    token: int | None
    """The connector's own number of it, which comes back with the answer; None: the far side has forgotten it
    already."""
    addresses: Sequence[str]
    """What it says it is for, the most telling first; the first that the forwarder has a place for counts."""
    name: bytes
    """What is the same when the far side sends it again, and of no other message; empty when it has no such thing."""
    hops: Sequence[str]
    """Gateways it has passed."""
    run: Run
    """The message, in either encoding; `address` and `device` as far as it names them itself."""
    unique: bool = False
    """No other message will ever have its name; else it is believed only after a break."""
    fault: str = ""
    """Why the connector could not read the message, which is never to be taken then; its `run` has no body."""
    code: str = "unreadable"
    """The fault as a word for the loss ledger."""
    bytes: int = 0
    """Size of a message that was read past; 0: that of `run`."""
    again: bool = False
    """The far side retains the message and sent it because of our subscription: it may have come before."""


class ForwarderInbox(Protocol):
    """One incoming forwarder, for the connector it is bound to."""

    name: str
    remote: str
    """Address or filter at the far side."""
    qos: int
    """0: the far side may forget what it has sent; 1 or more: it waits for the answers."""

    def attached(self, settle: Settle, credit_changed: Callable[[], None]) -> None:
        """A connection is there. `credit_changed` is called when `credit` was too little and may be more."""
        ...

    def leave(self, left: Callable[[], None]) -> None:
        """The connection is about to end in good order: take nothing more, `credit` is 0 until it is `detached`. `left`
        is called, once, when nothing that was taken waits for its answer: at once, or right after the last answer. What
        there is no room for is answered as released."""
        ...

    def detached(self) -> None:
        """It is over: what has no answer yet comes again over the next one. No answer of before is given any more."""
        ...

    @property
    def credit(self) -> int:
        """Messages it takes now, beyond those it has not answered yet. 0 while there is no room in the store."""
        ...

    def receive(self, messages: Sequence[Incoming]) -> None:
        """Take messages in the order they came. More than `credit` is held, in order, and not refused."""
        ...


def leave_all(inboxes: Sequence[ForwarderInbox], left: Callable[[], None]) -> None:
    """`ForwarderInbox.leave` of several; `left` is called when all of them have left."""
    staying = len(inboxes)

    def one_left() -> None:
        nonlocal staying
        staying -= 1
        if not staying:
            left()

    if not inboxes:
        left()
    for inbox in inboxes:
        inbox.leave(one_left)
