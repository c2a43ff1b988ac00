"""Driver: the asyncio shell around a sans-I/O connection. It connects socket, machine, owner and timer.

It knows the `ConnectionMachine` contract and no protocol. One `data_received` is one `receive_data` and one call of the
owner, or as many of both as fit in `SLICE_S`: the rest is handled in later turns of the loop, and the peer is not read
until then. All output of one turn leaves in one `write`. Deadlines are lazy: received bytes do not move a timer; a
check at the old deadline finds the new one (`bridge.transport.deadlines`). While reading is paused, the machine does
not count the peer's silence.

An exception of a machine or its owner ends only that connection: it is logged once, the socket is dropped, and neither
is called again except for the end of the connection. Nothing more is sent, as the state of the protocol is unknown.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, cast

from bridge.transport.connection import ConnectionMachine
from bridge.transport.deadlines import FINE_S, NEVER, DeadlineSlot, deadlines_of
from bridge.transport.served import ServedTransport, UnreadError
from bridge.transport.slow_lane import LARGE_BYTES, SLICE_S, slow_lane_of
from bridge.transport.tcp import TcpTransport, write_all
from bridge.transport.tcp_path import TcpPath, path_of
from bridge.transport.turn import LoopTurn, turn_of

log = logging.getLogger(__name__)

SHED_S: Final = 0.2
"""Seconds for a peer to read the reason when its connection is closed to make room. The bytes it sent when it
connected stay in memory until then."""

LARGE_READ_BYTES = 128 * 1024
"""Size of a large read: its answers are written at once and the next read waits for the next turn. libuv would
continue with up to 31 such reads (8 MiB) before other connections have a turn, and answers to the smallest packets take
twenty times their size until they are written."""

OTHERS_FIRST = "other connections are served first"

READ_IN_SLICES = "received data is processed in slices"

ANSWERS_UNREAD = "the peer does not read our answers"

UNCOUNTED_BYTES = 4 * 1024
"""Changes of held memory up to this are not reported to the meter: most reads end within a small packet. 10 000
connections may hold 40 MiB that way."""


class MemoryMeter(Protocol):
    """Tracks memory per connection, and decides which connections have room."""

    def begun(self, driver: ConnectionDriver) -> None:
        """Add a connection before its peer is authenticated."""
        ...

    def identified(self, driver: ConnectionDriver, user: str) -> bool:
        """Record the user of a connection (empty: no authentication); return False when its limit is reached."""
        ...

    def held(self, driver: ConnectionDriver, held_bytes: int) -> None:
        """Record the memory of a connection: undecrypted, in its machine, and unsent."""
        ...

    def ended(self, driver: ConnectionDriver) -> None:
        """Remove a connection."""
        ...


class ConnectionOwner(Protocol):
    """Owner of a driver: a protocol session."""

    def handle(self, events: Sequence[Any]) -> None:
        """Handle the events of one read. The driver flushes afterwards.

        The last events of a connection are passed here even after an exception, so that its resources are released.
        """
        ...

    def writable(self) -> None:
        """Continue sending: the peer reads again after `ConnectionDriver.congested` was true."""
        ...


class Diverted(NamedTuple):
    """Protocol of a transport with another receiver of its bytes; see `asyncio.Protocol`."""

    data_received: Callable[[bytes], object]
    connection_lost: Callable[[Exception | None], None]
    eof_received: Callable[[], bool]
    pause_writing: Callable[[], None]
    resume_writing: Callable[[], None]


class ConnectionEnd:
    """State of an ended connection; created at its end."""

    __slots__ = ("lost", "lost_from", "peer")

    def __init__(self) -> None:
        self.lost: Exception | None = None
        """Reason of the loss, where it is known."""
        self.lost_from: str | None = None
        """Peer of an ended connection, until its machine and its owner were called."""
        self.peer = "-"
        """Peer of an ended connection."""


class DriverSettings:
    """Settings of a driver that the connections of one listener share."""

    __slots__ = ("gone", "meter", "turn", "unread_bytes_max", "write_bytes_max")

    def __init__(
        self,
        turn: LoopTurn,
        write_bytes_max: int,
        unread_bytes_max: int | None,
        meter: MemoryMeter | None,
        gone: Callable[[ConnectionDriver], None] | None,
    ) -> None:
        self.turn: Final = turn
        self.write_bytes_max: Final = write_bytes_max
        self.unread_bytes_max: Final = unread_bytes_max
        self.meter: Final = meter
        self.gone: Final = gone


class ConnectionDriver(asyncio.Protocol):
    """Drives one `ConnectionMachine` over one transport."""

    __slots__ = (
        "_ending", "_failed", "_flush_scheduled", "_in_turns", "_known", "_make_owner", "_owner", "_paused_for",
        "_put_off", "_slot", "_terms", "account", "congested", "connection", "dialed", "held_bytes", "identity",
        "trace", "transport",
    )  # fmt: skip

    def __init__(
        self,
        connection: ConnectionMachine,
        owner: Callable[[ConnectionDriver], ConnectionOwner],
        *,
        write_bytes_max: int,
        gone: Callable[[ConnectionDriver], None] | None = None,
        unread_bytes_max: int | None = None,
        dialed: bool = False,
        identity: str | None = None,
        meter: MemoryMeter | None = None,
    ) -> None:
        """`owner` creates the owner once the transport is connected; `gone` is called when it is lost. `identity`: the
        name in the peer's verified TLS certificate. `meter` None: memory is not counted. Above `write_bytes_max` of
        unread output `congested` is true, and owners deliver nothing. Above `unread_bytes_max` (None: no limit) the
        peer is not read either; a `dialed` connection ends instead, as both ends might wait for each other."""
        self.connection = connection
        self.transport: asyncio.Transport | None = None
        self.identity: Final = identity
        self.held_bytes = 0
        """Held memory as last reported to the meter."""
        self.account: Any = None
        """Any object of the meter."""
        self.trace: Any = None
        """Packet trace; None: the connection is not traced."""
        turn = turn_of(asyncio.get_running_loop())
        self._terms = terms = _terms_of(turn, write_bytes_max, unread_bytes_max, meter, gone)
        self._make_owner: Callable[[ConnectionDriver], ConnectionOwner] | None = owner
        """Dropped after its call, so that its references are not kept for the lifetime of the connection."""
        self._owner: ConnectionOwner | None = None
        self._slot: DeadlineSlot | None = None
        """Slot of the next `check_deadline`; None: the deadline has to be read again."""
        self._paused_for: tuple[str, ...] = ()
        self._put_off = b""
        """Bytes of a read that waits for its turn; dropped when the connection breaks."""
        self._ending: ConnectionEnd | None = None
        self.congested = self._flush_scheduled = False
        self.dialed: Final = dialed
        self._failed = False
        """The machine or its owner has raised: the socket is being dropped."""
        self._known = terms.meter is None
        """The peer is authenticated. Before that, its reads share the budget of large ones, even if they are small."""
        self._in_turns = False
        """The transport reads when the connection has its turn, so its bytes are handled at once."""

    # --- asyncio.Protocol -------------------------------------------------------------------------------------

    def charge(self, account: Any) -> None:
        """Charge held memory to this account; None: to none."""
        self.account = account

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if isinstance(transport, ServedTransport):
            self._in_turns = True
            if self._terms.meter is not None:
                transport.held_by(self.count)
        self.transport.set_write_buffer_limits(high=self._terms.write_bytes_max)
        if self._terms.meter is not None:
            self._terms.meter.begun(self)
        make_owner, self._make_owner = self._make_owner, None
        if make_owner is None:
            raise RuntimeError("a driver serves one transport")
        try:
            self._owner = make_owner(self)
        except Exception as error:
            self._fail(error)
        else:
            self.flush_soon()

    def data_received(self, data: bytes) -> None:
        if (self._in_turns or (self._known and len(data) <= LARGE_BYTES)) and not self._put_off:
            self._take(data)
            return
        lane = slow_lane_of(self._loop)
        if not lane.has_time or self._put_off:
            self.defer(data)
            return
        begun = self._loop.time()
        self._terms.turn.unhurried = True
        self._take(data)
        self._terms.turn.unhurried = False
        lane.spend(self._loop.time() - begun)

    def _take(self, data: bytes) -> None:
        if self._failed:
            return
        now = self._loop.time()
        try:
            self._dispatch(self.connection.receive_data(data, now))
            if self.connection.more and self._take_more(now + SLICE_S):
                self._take_turns()
        except Exception as error:
            self._fail(error)
            return
        if not -UNCOUNTED_BYTES <= self.connection.held_bytes - self.held_bytes <= UNCOUNTED_BYTES:
            self.count()
        if len(data) >= LARGE_READ_BYTES:
            self.yield_turn()

    def _take_more(self, until: float) -> bool:
        """Let the machine continue until this time; return True when it has still more."""
        connection = self.connection
        while connection.more:
            now = self._loop.time()
            if now > until:
                return True
            self._dispatch(connection.receive_data(b"", now))
        return False

    def _take_turns(self) -> None:
        """Continue in the slow lane: there is more work than one slice."""
        if READ_IN_SLICES not in self._paused_for and self.transport is not None:
            self.pause_reading(READ_IN_SLICES)
            slow_lane_of(self._loop).add(self)

    def take_slice(self) -> bool:
        """Do the work of one slice (`bridge.transport.slow_lane.Sliced`)."""
        if self._ending is not None and self._ending.lost_from is not None:
            self._conclude(self._ending.lost_from)
        if self.transport is None or self._failed:
            return False
        now = self._loop.time()
        data, self._put_off = self._put_off, b""
        try:
            if data:
                self._dispatch(self.connection.receive_data(data, now))
            more = self._take_more(now + SLICE_S)
        except Exception as error:
            self._fail(error)
            return False
        self.count()
        if not more:
            self.resume_reading(READ_IN_SLICES)
        return more

    def eof_received(self) -> bool:
        return False  # close the transport: connection_lost calls the machine

    def connection_lost(self, exc: Exception | None) -> None:
        """End machine and owner; in the slow lane when many connections end at once, as when a network fails."""
        ending = self._ends()
        ending.lost = ending.lost or exc
        self._leave_slot()
        self._put_off = b""  # the slow lane may hold this driver for long
        peer = self.peername
        self.transport = None
        lane = slow_lane_of(self._loop)
        if not lane.has_time:
            ending.lost_from = peer
            lane.add(self)
            return
        begun = self._loop.time()
        self._conclude(peer)
        lane.spend(self._loop.time() - begun)

    def _conclude(self, peer: str) -> None:
        """Call machine, owner, meter and `gone`: the connection with `peer` is over."""
        ending = self._ends()
        ending.lost_from, ending.peer = None, peer
        try:
            events = self.connection.receive_eof(self._loop.time())
            if events and self._owner is not None:
                self._owner.handle(events)
        except Exception as error:
            if not self._failed:
                _log_fault(peer, error)
        finally:
            self._owner = None  # breaks the reference cycle: both would wait for the garbage collector
            if self._terms.meter is not None:
                self._terms.meter.ended(self)
            if self._terms.gone is not None:
                self._terms.gone(self)

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False
        self.resume_reading(ANSWERS_UNREAD)
        if self._owner is not None:
            self.run(self._owner.writable)
            self.flush_soon()

    # --- for the owner ----------------------------------------------------------------------------------------

    @property
    def owner(self) -> ConnectionOwner | None:
        """Current owner; None before the transport is connected and after it is lost."""
        return self._owner

    def hand_over(self, owner: ConnectionOwner) -> None:
        """Replace the owner, unless the connection is lost."""
        if self._owner is not None:
            self._owner = owner

    @property
    def peername(self) -> str:
        """``host:port`` of the peer, or ``-`` when unknown."""
        if self.transport is None:
            return "-" if self._ending is None else self._ending.peer
        peer = self.transport.get_extra_info("peername")
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else "-"

    @property
    def cipher(self) -> tuple[str, str] | None:
        """Cipher and version of TLS; None without TLS."""
        secured = self.transport.get_extra_info("ssl_object") if self.transport is not None else None
        found = secured.cipher() if secured is not None else None
        return None if found is None else (found[0], found[1])

    @property
    def address(self) -> str:
        """Host of the peer, empty when unknown."""
        return self.peername.rpartition(":")[0]

    @property
    def path(self) -> TcpPath:
        """Bytes that have not reached the peer's kernel, and the round trip. Makes a system call."""
        return TcpPath() if self.transport is None else path_of(self.transport)

    def flush_soon(self) -> None:
        """Write what the connection has to send at the end of this turn of the loop."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._terms.turn.add(self)

    def divert(self, receive: Callable[[bytes], object], lost: Callable[[Exception | None], None]) -> None:
        """Divert the peer's bytes to `receive`, which passes those it does not handle to `data_received`. `lost` is
        called before the socket is closed, and calls `connection_lost`."""
        if self.transport is not None:
            eof, pause, resume = self.eof_received, self.pause_writing, self.resume_writing
            self.transport.set_protocol(cast(Any, Diverted(receive, lost, eof, pause, resume)))

    def follow(self, trace: Any, before: ConnectionMachine, after: ConnectionMachine) -> None:
        """Set the trace (None: none), and replace a machine, either the driver's own or the one within its frames.
        Allowed only between two reads."""
        self.trace = trace
        if self.connection is before:
            self.connection = after
        elif before is not after:
            cast(Any, self.connection).replace_inner(after)

    def take(self, events: Sequence[Any]) -> None:
        """Give the owner events of bytes that the machine got from another receiver (see `divert`)."""
        self.run(partial(self._dispatch, events))
        self.count()

    @property
    def up_to_date(self) -> bool:
        """True when no received bytes wait for their turn."""
        return not (self._put_off or self._failed)

    def defer(self, data: bytes) -> None:
        """Handle these bytes of the peer when the connection has its turn in the slow lane."""
        self._put_off += data  # usually empty before, as reading is paused
        self._take_turns()
        self.count()

    def yield_turn(self) -> None:
        """Write the answers to a large read, and read again in the next turn."""
        self.write()
        self.pause_reading(OTHERS_FIRST)
        self._loop.call_soon(self.resume_reading, OTHERS_FIRST)

    def run(self, step: Callable[[], None]) -> None:
        """Run a step of the machine or its owner; an exception ends the connection."""
        if self._failed:
            return
        try:
            step()
        except Exception as error:
            self._fail(error)

    def soon(self, callback: Callable[[], None]) -> None:
        """Call this in the next turn of the loop, to split long work."""
        self._loop.call_soon(self.run, callback)

    def wake(self) -> None:
        """Run the machine without bytes of the peer, after a change from elsewhere."""
        if self.transport is not None:
            self.run(self._receive_nothing)

    def pause_reading(self, reason: str) -> None:
        """Stop reading until `resume_reading` was called for every reason."""
        if not self._paused_for and self.transport is not None:
            self.transport.pause_reading()
        if reason not in self._paused_for:
            self._paused_for += (reason,)

    def resume_reading(self, reason: str) -> None:
        """Remove a reason to pause; idempotent."""
        if reason in self._paused_for:
            self._paused_for = tuple(other for other in self._paused_for if other != reason)
            if not self._paused_for and self.transport is not None:
                self.transport.resume_reading()

    def identified(self, user: str) -> bool:
        """Record the user of the peer; return False when its connection limit is reached."""
        self._known = True
        if isinstance(self.transport, ServedTransport):
            self.transport.identified()
        meter = self._terms.meter
        return meter is None or meter.identified(self, user)

    def count(self) -> None:
        """Report held memory to the meter."""
        meter = self._terms.meter
        if meter is None:
            return
        held = self.connection.held_bytes + len(self._put_off)
        if (transport := self.transport) is not None:
            held += transport.get_write_buffer_size()
            held += transport.held_bytes if isinstance(transport, ServedTransport) else 0
        held = 0 if held <= UNCOUNTED_BYTES else held
        if held != self.held_bytes:
            self.held_bytes = held
            meter.held(self, held)

    def shed(self, *, explain: bool = True) -> None:
        """Close the connection to free memory, in this turn. `explain`: send the peer the reason if it reads."""
        self.run(self._shed)
        self._put_off = b""
        if not explain or self.transport is None or self.transport.get_write_buffer_size() > UNCOUNTED_BYTES:
            self.abort()
        else:
            self.flush_soon()
            self._loop.call_later(SHED_S, self.abort)

    def abort(self) -> None:
        """Drop the socket at once."""
        if self.transport is not None:
            self.transport.abort()

    @property
    def lost(self) -> Exception | None:
        """Reason of the loss, where it is known: a TLS alert, or a peer that does not read."""
        return None if self._ending is None else self._ending.lost

    # --- inside -----------------------------------------------------------------------------------------------

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return self._terms.turn.loop

    def _ends(self) -> ConnectionEnd:
        if self._ending is None:
            self._ending = ConnectionEnd()
        return self._ending

    def _fail(self, error: Exception) -> None:
        """Drop the connection after an exception; `connection_lost` follows and calls the machine."""
        if not self._failed:
            _log_fault(self.peername, error)
        self._failed = True
        self._leave_slot()
        self.abort()

    def _shed(self) -> None:
        events = self.connection.shed()
        if events and self._owner is not None:
            self._owner.handle(events)

    def _receive_nothing(self) -> None:
        self._dispatch(self.connection.receive_data(b"", self._loop.time()))
        if self.connection.more:
            self._take_turns()

    def _dispatch(self, events: Sequence[Any]) -> None:
        if events and self._owner is not None:
            self._owner.handle(events)
        if self._slot is None or self.connection.has_output:
            self.flush_soon()  # without a slot the deadline has to be read again

    def write(self) -> None:
        """Write the connection's output, at the end of a turn (`bridge.transport.turn`)."""
        self._flush_scheduled = False
        if self.transport is not None and not self._failed:  # not connected yet: called again later
            try:
                self._write(self.transport)
            except Exception as error:
                self._fail(error)

    def _write(self, transport: asyncio.Transport) -> None:
        connection = self.connection
        data = connection.data_to_send()
        if data:
            transport.write(data)
            if transport.get_write_buffer_size() > UNCOUNTED_BYTES:
                self._loop.call_soon(self.count)  # by then the socket has taken what it can
            if self.congested and (unread_max := self._terms.unread_bytes_max) is not None:
                self._check_unread(transport.get_write_buffer_size(), unread_max)
        if connection.closed:
            self._leave_slot()
            transport.close()  # it lingers until the peer has read the last bytes (`bridge.transport.lingering`)
            return
        if connection.more:
            self._take_turns()  # bytes that waited for an answer, such as those after a CONNECT
        self._arm()

    def _check_unread(self, unread_bytes: int, unread_bytes_max: int) -> None:
        if unread_bytes > unread_bytes_max and self.dialed:
            self._ends().lost = UnreadError(unread_bytes)
            self.abort()
        elif unread_bytes > unread_bytes_max:
            self.pause_reading(ANSWERS_UNREAD)

    def _arm(self) -> None:
        deadline = self.connection.deadline
        if deadline is None:
            self._leave_slot()
            self._slot = NEVER
            return
        if self._slot is not None:
            if self._slot.at <= deadline + FINE_S:
                return  # the check at that time moves it to the new deadline
            self._leave_slot()
        self._slot = deadlines_of(self._loop).watch(self, deadline)

    def _leave_slot(self) -> None:
        if self._slot is not None:
            self._slot.watched.discard(self)
            self._slot = None

    def check_deadline(self) -> None:
        """Check the deadline (`bridge.transport.deadlines`)."""
        self._leave_slot()
        if self.transport is None:
            return
        now = self._loop.time()
        deadline = self.connection.deadline
        if deadline is not None and deadline <= now:
            self.run(self._time_out)
        else:
            self._arm()

    def _time_out(self) -> None:
        self._dispatch(self.connection.handle_timeout(self._loop.time(), listening=_listening(self)))


def _listening(driver: ConnectionDriver) -> bool:
    """Return True when all bytes of the peer were read, so that its silence counts. It is False while reading is
    paused, and while bytes wait in the socket: the loop was busy or the process stopped, and timers run first.

    A pause because the peer does not read our answers does not count: that is the peer's doing. A peer that has hung up
    while paused is not waited for. A peer that vanished answers neither our heartbeats nor the kernel's
    (`bridge.transport.listening`), which then ends the connection like a hang-up.
    """
    served = driver.transport if isinstance(driver.transport, ServedTransport) else None
    paused_for = driver._paused_for
    if any(reason != ANSWERS_UNREAD for reason in paused_for):
        return served is not None and served.hung_up
    return bool(paused_for) or served is None or not served.unread


_latest_terms: list[DriverSettings] = []
"""Settings of the latest counted connection, if any: consecutive connections are mostly of one listener."""


def _terms_of(
    turn: LoopTurn,
    write_bytes_max: int,
    unread_bytes_max: int | None,
    meter: MemoryMeter | None,
    gone: Callable[[ConnectionDriver], None] | None,
) -> DriverSettings:
    """Return the settings, as the same object for consecutive connections with equal ones: 10 000 may be idle."""
    if meter is None:
        return DriverSettings(turn, write_bytes_max, unread_bytes_max, meter, gone)
    for latest in _latest_terms:
        same_bounds = (latest.write_bytes_max, latest.unread_bytes_max) == (write_bytes_max, unread_bytes_max)
        if same_bounds and latest.turn is turn and latest.meter is meter and latest.gone is gone:
            return latest
    made = DriverSettings(turn, write_bytes_max, unread_bytes_max, meter, gone)
    _latest_terms[:] = [made]
    return made


def _log_fault(peer: str, error: Exception) -> None:
    """Log type and frames only: the text of an exception may quote a message."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("the connection with %s ends: it raised %s", peer, type(error).__name__, extra={"frames": frames})


def answer_all(answers: Sequence[tuple[ConnectionDriver, list[bytes], bytes]]) -> None:
    """Write answers to many connections now: (driver, pending output of its connection, answer). An answer is written
    after the pending output."""
    transports: list[TcpTransport] = []
    data: list[bytes] = []
    for driver, waiting, answer in answers:
        transport = driver.transport
        if waiting or transport is None or driver._flush_scheduled:
            waiting.append(answer)
            driver.flush_soon()
        elif isinstance(transport, TcpTransport) and transport.takes_more:
            transports.append(transport)
            data.append(answer)
        else:
            transport.write(answer)
    write_all(transports, data)
