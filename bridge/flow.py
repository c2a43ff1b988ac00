"""A windowed sender: a consumer of the router, with what it took and has no outcome for.

Each lane of an uplink is one, and so is each outgoing forwarder to another peer. A flow keeps its order, and has a
window of its own, so that no flow takes what another one needs. Sans-I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from bridge.limits import MESSAGE_OVERHEAD_BYTES
from bridge.message import Stored


class SendSubscription(Protocol):
    """A consumer group's place at the router, as far as a flow needs it (`edge.broker.model.interfaces`)."""

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


class Outcomes(NamedTuple):
    """The two members of `edge.broker`'s `Outcome` that senders use; the bridge imports nothing of the edge."""

    accepted: Any
    rejected: Any


class Piece(NamedTuple):
    """Messages taken together, and what they cost while they are held."""

    subscription: SendSubscription
    stored: Stored
    size: int

    @property
    def messages(self) -> int:
        return len(self.stored.run)


def piece_of(subscription: SendSubscription, stored: Stored) -> Piece:
    """Return the piece that these messages are."""
    return Piece(subscription, stored, stored.run.size + MESSAGE_OVERHEAD_BYTES * len(stored.run))


def part_of(stored: Stored, start: int, end: int) -> Stored:
    """Return some of these messages, in order."""
    position, sequence, run = stored
    return Stored(position + start if position >= 0 else position, sequence + start, run.part(start, end))


def split(piece: Piece, at: int) -> tuple[Piece, Piece]:
    """Return its first messages and the others; both have some."""
    subscription, stored, _ = piece
    head, tail = part_of(stored, 0, at), part_of(stored, at, piece.messages)
    return piece_of(subscription, head), piece_of(subscription, tail)


def halves(pieces: list[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Return the first half of them and the second; a single piece, of several messages, is cut in two."""
    if len(pieces) == 1:
        head, tail = split(pieces[0], pieces[0].messages // 2)
        return [head], [tail]
    middle = len(pieces) // 2
    return pieces[:middle], pieces[middle:]


def _ignore(_: str = "") -> None:
    """There is no connection to be woken or cut."""


class SendPath:
    """The connection that the flows of one connector send over, while there is one. It outlives connections."""

    def __init__(self) -> None:
        self.up = False
        """Messages may leave."""
        self.wake: Callable[[], None] = _ignore
        """To be called when there is something to send."""
        self.cut: Callable[[str], None] = _ignore
        """To be called with a reason when the connection has to end; another one is then made."""

    def woken_by(self, wake: Callable[[], None]) -> None:
        """A connection is being made; `wake` requests a flush of it."""
        self.wake = wake

    def opened(self, cut: Callable[[str], None]) -> None:
        """The connection takes messages. The caller pumps the flows."""
        self.up, self.cut = True, cut

    def closed(self) -> None:
        """The connection is over."""
        self.up, self.wake, self.cut = False, _ignore, _ignore


Choose = Callable[[SendSubscription, Stored], Iterable[Stored]]
"""Yields those of the messages that are to be sent, in order; who leaves messages out settles and counts them."""


class SendFlow:
    """See the module's docstring. A consumer as `edge.broker.model.interfaces.Consumer` says.

    While there is no connection `credit` is 0: the store holds what waits, not this machine's memory.
    """

    user: str = ""
    """Nobody: what it holds is the configuration's."""
    selection: Any = None
    """Of a queue too it takes everything, and leaves out what is not chosen."""
    overlaps: bool = False

    def __init__(self, name: str, path: SendPath, *, window_bytes: Callable[[], int], choose: Choose) -> None:
        """`window_bytes`: taken and not settled, exceeded by at most the router's last delivery."""
        self.name = name
        self.pending_bytes = 0
        """Bytes of what was taken and not sent."""
        self.held_bytes = 0
        """Bytes of the window in use."""
        self._path = path
        self._window_bytes = window_bytes
        self._choose = choose
        self._pending: deque[Piece] = deque()
        self._subscriptions: dict[int, Pump] = {}
        self._mean_bytes = 4096.0  # of a message; large ones count at once, small ones over some 32 runs

    # --- towards the router -----------------------------------------------------------------------------------

    @property
    def credit(self) -> int:
        """Messages it takes now, from the bytes left in the window and the mean size of late."""
        free = self._window_bytes() - self.held_bytes
        if free <= 0 or not self._path.up:
            return 0
        return max(1, int(free / self._mean_bytes))

    def deliver(self, subscription: SendSubscription, batch: Collection[Stored]) -> None:
        """Take runs; what is chosen of each is settled when the far side has it."""
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
        """Nobody waits for the end of what is stored."""

    def stolen(self) -> bool:
        """A forwarder's subscription stays its own."""
        return False

    def abort(self) -> None:
        """A call of the router raised: begin anew with another connection."""
        self._path.cut("internal error")

    def add(self, subscription: Pump) -> None:
        """A subscription begins: it is pumped when there is credit."""
        self._subscriptions[id(subscription)] = subscription
        if self.credit:
            subscription.pump()

    def remove(self, subscription: Pump) -> None:
        """A subscription ends: nothing more of it is sent or settled."""
        if self._subscriptions.pop(id(subscription), None) is None:
            return
        kept = [piece for piece in self._pending if piece.subscription is not subscription]
        self._pending = deque(kept)
        before, self.pending_bytes = self.pending_bytes, sum(piece.size for piece in kept)
        self.held_bytes -= before - self.pending_bytes

    # --- towards the link -------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """There is something to send."""
        return bool(self._pending)

    def pump(self) -> None:
        """Pump every subscription, each time another one first: none is starved by one with more to say."""
        for key, subscription in list(self._subscriptions.items()):
            if not self.credit:
                return
            if key in self._subscriptions:
                self._subscriptions[key] = self._subscriptions.pop(key)
                subscription.pump()

    def take(self, messages_max: int, bytes_max: int) -> Piece | None:
        """Take what is next: one message, or more within these bounds. None: nothing waits."""
        if not self._pending:
            return None
        piece = self._take_first()
        fitting = min(messages_max, max(1, bytes_max * piece.messages // piece.size))
        if fitting < piece.messages:
            piece, rest = split(piece, fitting)
            self._put_first(rest)
        return piece

    def gather(self, room: int, epoch_of: Callable[[Piece], str] | None = None) -> list[Piece]:
        """Take what leaves together: at least one message, at most `room` bytes when there are more, and of one epoch.

        `epoch_of` None: all are of one.
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
        """These were sent and not settled: they go before what waits, unless nobody wants them any more."""
        for piece in reversed(pieces):
            if id(piece.subscription) in self._subscriptions:
                self._put_first(piece)
            else:
                self.held_bytes -= piece.size

    def finish(self, pieces: Iterable[Piece], outcome: Any) -> None:
        """Settle with the router, contiguous positions in one call."""
        pieces = list(pieces)
        self.held_bytes -= sum(piece.size for piece in pieces)
        whose: SendSubscription | None = None
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

    # --- inside -----------------------------------------------------------------------------------------------

    def _take_first(self) -> Piece:
        piece = self._pending.popleft()
        self.pending_bytes -= piece.size
        return piece

    def _put_first(self, piece: Piece) -> None:
        self._pending.appendleft(piece)
        self.pending_bytes += piece.size
