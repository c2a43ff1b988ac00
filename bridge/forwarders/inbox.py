"""Contract of an incoming forwarder: a connector gives it every message, and acknowledges none before the commit.

The callback of `attached` answers the peer, after the commit: the peer may drop a message only once it is on disk here.
`edge.broker.router.inbound` implements the gateway's side.

When a connector is removed, changed or paused, or the gateway stops, its connection closes in four steps so that no
message arrives twice. It takes nothing more. It waits until taken messages are on disk and answered, or
`bridge.limits.LEAVE_TIMEOUT_S` is over. It sends the answers. It closes the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from bridge.forwarders.outcome import ForwardOutcome
from bridge.message import Run

Settle = Callable[[Sequence[int], ForwardOutcome, str], None]
"""Callback with the tokens of messages, their outcome, and the reason when they were not accepted."""


class Incoming(NamedTuple):
    """One message that arrived over a connector."""

    token: int | None
    """The connector's number of the message, returned with the answer; None: it was sent without acknowledgement."""
    addresses: Sequence[str]
    """Addresses that it names, the most specific first; the first that the forwarder has a place for counts."""
    name: bytes
    """Identity that a repeated message shares, and no other message; empty when it has none."""
    hops: Sequence[str]
    """Gateways it has passed."""
    run: Run
    """The message, in either encoding; `address` and `device` as far as it names them itself."""
    unique: bool = False
    """True when no other message will ever have this name; otherwise a repeated name counts only after a reconnect."""
    fault: str = ""
    """Reason why the connector could not read the message, which is then never taken; its `run` has no body."""
    code: str = "unreadable"
    """Reason code of the fault for the loss ledger."""
    bytes: int = 0
    """Size of a message that was skipped; 0: that of `run`."""
    again: bool = False
    """The peer retains the message and sent it because of our subscription: it may have arrived before."""


class ForwarderInbox(Protocol):
    """One incoming forwarder, for its connector."""

    name: str
    remote: str
    """Address or filter at the peer."""
    qos: int
    """0: without acknowledgement; 1 or more: the peer waits for the answers."""

    def attached(self, settle: Settle, credit_changed: Callable[[], None]) -> None:
        """Start with a connection. `credit_changed` is called when `credit` was used up and may be more."""
        ...

    def leave(self, left: Callable[[], None]) -> None:
        """Take nothing more, because the connection is about to close; `credit` is 0 until `detached`.

        `left` is called once, when all taken messages are answered: at once, or right after the last answer. Messages
        without room are released.
        """
        ...

    def detached(self) -> None:
        """Handle the end of the connection: unanswered messages come again over the next one, and earlier ones are
        no longer answered."""
        ...

    @property
    def credit(self) -> int:
        """Messages it takes now, in addition to unanswered ones. 0 while the store is full."""
        ...

    def receive(self, messages: Sequence[Incoming]) -> None:
        """Take messages in the order received. Messages beyond `credit` are held, in order, and not refused."""
        ...


@runtime_checkable
class DescribedInbox(Protocol):
    """Inbox with properties for its link."""

    def link_properties(self) -> Mapping[str, str]:
        """Return the properties of a link that is about to be attached."""
        ...


def leave_all(inboxes: Sequence[ForwarderInbox], left: Callable[[], None]) -> None:
    """Call `ForwarderInbox.leave` of all; `left` is called when all of them have left."""
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
