"""Windowed sender: a consumer of the router that keeps messages until it knows their outcome.

Each lane of an uplink is a flow, and so is each outgoing forwarder to another peer. A flow sends in order and has its
own window, so that flows do not starve each other. Sans-I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from bridge.limits import MESSAGE_OVERHEAD_BYTES
from bridge.message import Stored


class SendSubscription(Protocol):
    """Part of a subscription's interface that a flow uses (`edge.broker.model.interfaces`)."""

    def settle(self, consumer: Any, first: int, last: int, outcome: Any) -> None:
        """Settle positions ``first <= p <= last`` with this outcome."""
        ...

    def pump(self) -> None:
        """Deliver waiting messages: the consumer has credit."""
        ...


class Pump(Protocol):
    """Subscription that can be asked to deliver."""

    def pump(self) -> None:
        """Deliver waiting messages: the consumer has credit."""
        ...


class Outcomes(NamedTuple):
    """The outcomes of `edge.broker.model` that senders use; the bridge imports nothing from the edge."""

    accepted: Any
    rejected: Any
    expired: Any = None
    """Outcome of a message that expired while its sender had it; None: no sender has any."""


class Piece(NamedTuple):
    """Messages that were taken together, and their size in memory."""

    subscription: SendSubscription
    stored: Stored
    size: int

    @property
    def messages(self) -> int:
        return len(self.stored.run)


def piece_of(subscription: SendSubscription, stored: Stored) -> Piece:
    """Return these messages as a piece."""
    return Piece(subscription, stored, stored.run.size + MESSAGE_OVERHEAD_BYTES * len(stored.run))


def part_of(stored: Stored, start: int, end: int) -> Stored:
    """Return some of these messages, in order."""
    position, sequence, run = stored
    return Stored(position + start if position >= 0 else position, sequence + start, run.part(start, end))


def split(piece: Piece, at: int) -> tuple[Piece, Piece]:
    """Cut a piece in two: its first `at` messages and the others; neither part is empty."""
    subscription, stored, _ = piece
    head, tail = part_of(stored, 0, at), part_of(stored, at, piece.messages)
    return piece_of(subscription, head), piece_of(subscription, tail)


def split_in_half(pieces: list[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Return the first and the second half of the pieces; a single piece, of several messages, is split in two."""
    if len(pieces) == 1:
        head, tail = split(pieces[0], pieces[0].messages // 2)
        return [head], [tail]
    middle = len(pieces) // 2
    return pieces[:middle], pieces[middle:]


def _ignore(_: str = "") -> None:
    """Do nothing without a connection."""


class SendPath:
    """Access to the current connection of a connector, for its flows. It outlives connections."""

    def __init__(self) -> None:
        self.up = False
        """True while messages may be sent."""
        self.wake: Callable[[], None] = _ignore
        """Call it when there is something to send."""
        self.disconnect: Callable[[str], None] = _ignore
        """Call it with a reason to end the connection; the dialer then reconnects."""

    def set_wake(self, wake: Callable[[], None]) -> None:
        """Set the connection that is being established; `wake` requests a flush of it."""
        self.wake = wake

    def opened(self, disconnect: Callable[[str], None]) -> None:
        """Record that the connection accepts messages. The caller pumps the flows."""
        self.up, self.disconnect = True, disconnect

    def closed(self) -> None:
        """Record that the connection is over."""
        self.up, self.wake, self.disconnect = False, _ignore, _ignore


Choose = Callable[[SendSubscription, Stored], Iterable[Stored]]
"""Yields the messages to send, in order. It settles and counts the others itself."""


class SendFlow:
    """Windowed sender (see the module's docstring); implements `edge.broker.model.interfaces.Consumer`.

    Without a connection `credit` is 0, so messages wait in the store and not in memory.
    """

    user: str = ""
    """No user: forwarders belong to the configuration."""
    selection: Any = None
    """No selector: `choose` skips messages that are not sent."""
    overlaps: bool = False

    def __init__(self, name: str, path: SendPath, *, window_bytes: Callable[[], int], choose: Choose) -> None:
        """`window_bytes`: limit of bytes taken and not settled, exceeded by at most the router's last delivery."""
        self.name = name
        self.pending_bytes = 0
        """Bytes taken and not sent."""
        self.held_bytes = 0
        """Bytes of the window in use."""
        self._path = path
        self._window_bytes = window_bytes
        self._choose = choose
        self._pending: deque[Piece] = deque()
        self._subscriptions: dict[int, Pump] = {}
        self._mean_bytes = 4096.0  # per message; large ones count at once, small ones over about 32 runs

    # --- towards the router -----------------------------------------------------------------------------------

    @property
    def credit(self) -> int:
        """Number of messages that fit into the rest of the window, by the recent mean size."""
        free = self._window_bytes() - self.held_bytes
        if free <= 0 or not self._path.up:
            return 0
        return max(1, int(free / self._mean_bytes))

    def credit_without(self, _others: Collection[object]) -> int:
        """Return the credit: no other consumer comes before a forwarder."""
        return self.credit

    def deliver(self, subscription: SendSubscription, batch: Collection[Stored]) -> None:
        """Take runs; their chosen messages are settled when the peer has them."""
        for stored in batch:
            for chosen in self._choose(subscription, stored):
                piece = piece_of(subscription, chosen)
                self._pending.append(piece)
                self.pending_bytes += piece.size
                self.held_bytes += piece.size
                mean = piece.size / len(chosen.run)
                self._mean_bytes = max(mean, self._mean_bytes + (mean - self._mean_bytes) / 32)
        if self._pending:
            self._subscriptions.setdefault(id(subscription), subscription)
            self._path.wake()

    def exhausted(self) -> None:
        """Do nothing: a forwarder does not wait for the end of the stored messages."""

    def stolen(self) -> bool:
        """Return False: another consumer cannot take over a forwarder's subscription."""
        return False

    def abort(self) -> None:
        """Reconnect: a call from the router raised an exception."""
        self._path.disconnect("internal error")

    def add(self, subscription: Pump) -> None:
        """Add a subscription; it is pumped when there is credit."""
        self._subscriptions[id(subscription)] = subscription
        if self.credit:
            subscription.pump()

    def remove(self, subscription: Pump) -> None:
        """Remove a subscription: nothing more of it is sent or settled."""
        if self._subscriptions.pop(id(subscription), None) is None:
            return
        kept = [piece for piece in self._pending if piece.subscription is not subscription]
        self._pending = deque(kept)
        before, self.pending_bytes = self.pending_bytes, sum(piece.size for piece in kept)
        self.held_bytes -= before - self.pending_bytes

    # --- towards the link -------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """True when there is something to send."""
        return bool(self._pending)

    def pump(self) -> None:
        """Pump every subscription, each time another one first, so that a busy one does not starve the others."""
        for key, subscription in list(self._subscriptions.items()):
            if not self.credit:
                return
            if key in self._subscriptions:
                self._subscriptions[key] = self._subscriptions.pop(key)
                subscription.pump()

    def take(self, messages_max: int, bytes_max: int) -> Piece | None:
        """Take the next messages: at least one, and more within these bounds. None: nothing waits."""
        if not self._pending:
            return None
        piece = self._take_first()
        fitting = min(messages_max, max(1, bytes_max * piece.messages // piece.size))
        if fitting < piece.messages:
            piece, rest = split(piece, fitting)
            self._put_first(rest)
        return piece

    def gather(self, room: int, epoch_of: Callable[[Piece], str] | None = None) -> list[Piece]:
        """Take the messages of one batch: at least one, otherwise at most `room` bytes, and all of one epoch.

        `epoch_of` None: all messages are of the same epoch.
        """
        pieces: list[Piece] = []
        while self._pending:
            first = self._pending[0]
            if pieces and epoch_of is not None and epoch_of(first) != epoch_of(pieces[0]):
                break
            if first.size <= room:
                pieces.append(self._take_first())
                room -= first.size
                continue
            if not pieces or room * first.messages >= first.size:
                part = self.take(first.messages, room)
                pieces += [part] if part is not None else []
            break
        return pieces

    def take_back(self, pieces: Sequence[Piece]) -> None:
        """Return unsettled pieces to the front of the queue, except those of removed subscriptions."""
        for piece in reversed(pieces):
            if id(piece.subscription) in self._subscriptions:
                self._put_first(piece)
            else:
                self.held_bytes -= piece.size

    def finish(self, pieces: Iterable[Piece], outcome: Any) -> None:
        """Settle with the router: contiguous positions in one call."""
        pieces = list(pieces)
        self.held_bytes -= sum(piece.size for piece in pieces)
        current: SendSubscription | None = None
        first = following = 0
        for subscription, (position, _, run), _ in pieces:
            if position < 0 or id(subscription) not in self._subscriptions:
                continue
            if subscription is not current or position != following:
                if current is not None:
                    current.settle(self, first, following - 1, outcome)
                current, first = subscription, position
            following = position + len(run)
        if current is not None:
            current.settle(self, first, following - 1, outcome)

    # --- inside -----------------------------------------------------------------------------------------------

    def _take_first(self) -> Piece:
        piece = self._pending.popleft()
        self.pending_bytes -= piece.size
        return piece

    def _put_first(self, piece: Piece) -> None:
        self._pending.appendleft(piece)
        self.pending_bytes += piece.size
