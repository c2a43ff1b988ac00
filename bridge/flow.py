"""One lane of an uplink: a consumer of the router, and what it has taken that has not been sent.

Two share a link: what is appended while it is up (live), and what was there (backlog). Each keeps its order, and each
has a window of its own, so that a backlog takes nothing that the live lane needs. Sans-I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from bridge.lane import Lane
from bridge.limits import MESSAGE_OVERHEAD_BYTES
from bridge.message import Stored


class Subscription(Protocol):
    """A consumer group's place at the router, as far as an uplink needs it (`edge.broker.model.interfaces`)."""

    def settle(self, consumer: Any, first: int, last: int, outcome: Any) -> None:
        """The outcome of positions ``first <= p <= last``."""
        ...

    def pump(self) -> None:
        """There is credit: deliver what is waiting."""
        ...


class Pump(Protocol):
    """What is asked for more."""

    def pump(self) -> None:
        """There is credit: deliver what is waiting."""
        ...


class Piece(NamedTuple):
    """Messages taken together, and what they cost while they are held."""

    subscription: Subscription
    stored: Stored
    size: int


def piece_of(subscription: Subscription, stored: Stored) -> Piece:
    """The piece that these messages are."""
    return Piece(subscription, stored, stored.run.size + MESSAGE_OVERHEAD_BYTES * len(stored.run))


def split(piece: Piece, at: int) -> tuple[Piece | None, Piece]:
    """Its first `at` messages, if any, and the others."""
    subscription, (position, sequence, run), _ = piece
    if at == 0:
        return None, piece
    after = position + at if position >= 0 else position
    head = Stored(position, sequence, run.part(0, at))
    tail = Stored(after, sequence + at, run.part(at, len(run)))
    return piece_of(subscription, head), piece_of(subscription, tail)


def halves(pieces: list[Piece]) -> tuple[list[Piece], list[Piece]]:
    """The first half of them and the second, a single piece cut in two."""
    if len(pieces) == 1:
        head, tail = split(pieces[0], len(pieces[0].stored.run) // 2)
        return [head] if head is not None else [], [tail]
    middle = len(pieces) // 2
    return pieces[:middle], pieces[middle:]


def _ignore(_: str = "") -> None:
    """There is no connection to be woken or cut."""


class Flow:
    """See the module's docstring. A consumer as `edge.broker.model.interfaces.Consumer` says.

    While there is no link `credit` is 0: the store holds what waits, not this machine's memory.
    """

    user: str = ""
    """Nobody: what it holds is the configuration's."""
    selection: Any = None
    """It takes everything."""
    overlaps: bool = False

    def __init__(self, name: str, lane: Lane, window_bytes: int) -> None:
        """`window_bytes`: taken and not settled, exceeded by at most the router's last delivery."""
        self.name = name
        self.lane: Final = lane
        self.up = False
        """There is a link to send over."""
        self.wake: Callable[[], None] = _ignore
        """Called when there is something to send."""
        self.cut: Callable[[str], None] = _ignore
        """Called with a reason when the connection has to end."""
        self.pending: deque[Piece] = deque()
        """To be changed here only."""
        self.pending_bytes = 0
        self.held_bytes = 0
        """Bytes of the window in use."""
        self.unnamed = 0
        """Messages without a sequence, which no batch can carry: settled already, so at most once, and not sent."""
        self._window_bytes = window_bytes
        self._subscriptions: dict[int, Pump] = {}
        self._mean_bytes = 4096.0  # of a message; large ones count at once, small ones over some 32 runs

    # --- towards the router -----------------------------------------------------------------------------------

    @property
    def credit(self) -> int:
        """Messages it takes now, from the bytes left in the window and the mean size of late."""
        free = self._window_bytes - self.held_bytes
        if not self.up or free <= 0:
            return 0
        return max(1, int(free / self._mean_bytes))

    def deliver(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        """Take runs; each is settled when the far side has it."""
        for stored in batch:
            self._take(subscription, stored)

    def _take(self, subscription: Subscription, stored: Stored) -> None:
        if stored.sequence < 0:
            self.unnamed += len(stored.run)
            return
        piece = piece_of(subscription, stored)
        self._subscriptions.setdefault(id(subscription), subscription)
        self.pending.append(piece)
        self.pending_bytes += piece.size
        self.held_bytes += piece.size
        mean = piece.size / len(stored.run)
        self._mean_bytes = max(mean, self._mean_bytes + (mean - self._mean_bytes) / 32)
        self.wake()

    def exhausted(self) -> None:
        """Nobody waits for the end of what is stored."""

    def stolen(self) -> bool:
        """A forwarder's subscription stays its own."""
        return False

    def abort(self) -> None:
        """A call of the router raised: begin anew with another connection."""
        self.cut("internal error")

    def add(self, subscription: Pump) -> None:
        """A forwarder begins: from now on it is told when there is credit."""
        self._subscriptions[id(subscription)] = subscription
        if self.credit:
            subscription.pump()

    def remove(self, subscription: Pump) -> None:
        """A forwarder ends: nothing more of it is sent or settled."""
        if self._subscriptions.pop(id(subscription), None) is None:
            return
        kept = [piece for piece in self.pending if piece.subscription is not subscription]
        self.pending = deque(kept)
        before, self.pending_bytes = self.pending_bytes, sum(piece.size for piece in kept)
        self.held_bytes -= before - self.pending_bytes

    # --- towards the link -------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Ask every subscription, each time another one first: none is starved by one with more to say."""
        subscriptions = list(self._subscriptions.items())
        for key, subscription in subscriptions:
            if not self.credit:
                return
            if key in self._subscriptions:
                self._subscriptions[key] = self._subscriptions.pop(key)
                subscription.pump()

    def gather(self, room: int, epoch_of: Callable[[Piece], str] | None = None) -> list[Piece]:
        """Take what leaves together: at least one message, at most `room` bytes when there are more, and of one epoch.

        `epoch_of` None: all are of one.
        """
        pieces: list[Piece] = []
        while self.pending:
            if epoch_of is not None and pieces and epoch_of(self.pending[0]) != epoch_of(pieces[0]):
                break
            piece = self.take()
            if piece.size > room:
                messages = len(piece.stored.run)
                fitting = max(room * messages // piece.size, 0 if pieces else 1)
                if fitting < messages:
                    head, tail = split(piece, fitting)
                    self.put_first(tail)
                    if head is not None:
                        pieces.append(head)
                    break
            pieces.append(piece)
            room -= piece.size
        return pieces

    def take(self) -> Piece:
        """Take the first piece."""
        piece = self.pending.popleft()
        self.pending_bytes -= piece.size
        return piece

    def put_first(self, piece: Piece) -> None:
        """This is the first again."""
        self.pending.appendleft(piece)
        self.pending_bytes += piece.size

    def take_back(self, pieces: Sequence[Piece]) -> None:
        """These were sent and not settled: they go before what waits, unless nobody wants them any more."""
        for piece in reversed(pieces):
            if id(piece.subscription) in self._subscriptions:
                self.put_first(piece)
            else:
                self.held_bytes -= piece.size

    def finish(self, pieces: Iterable[Piece], outcome: Any) -> None:
        """Settle with the router, contiguous positions in one call."""
        pieces = list(pieces)
        self.held_bytes -= sum(piece.size for piece in pieces)
        whose: Subscription | None = None
        first = following = 0
        for subscription, (position, _, run), _ in pieces:
            if position < 0 or id(subscription) not in self._subscriptions:
                continue
            if subscription is not whose or position != following:
                if whose is not None:
                    whose.settle(self, first, following - 1, outcome)
                whose, first = subscription, position
            following = position + len(run)
        if whose is not None:
            whose.settle(self, first, following - 1, outcome)
