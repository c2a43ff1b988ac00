"""The asyncio shell around every sans-I/O connection: sockets in, sockets out, one timer.

It knows the `ConnectionMachine` contract and nothing of any protocol. One `data_received` is one `receive_data` and
one call of the owner, or as many of both as fit in `SLICE_S`: the rest is handled in later turns of the loop, and
the peer is not read until then. Whatever was produced in a turn of the loop leaves in one `write`. Deadlines are lazy:
nothing is moved for every byte, a look at the deadline finds where it is by then (`bridge.transport.deadlines`). Only
who is listened to can be silent: while we do not read a peer, its machine does not count how long it heard nothing.

What a machine or its owner raises ends that connection alone: it is logged once, the socket is dropped, and neither is
called again but to be told that the connection is over. Nobody knows what the peer has been told, so nothing more is.
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
"""Seconds in which a peer may read why its connection is closed to make room. The bytes it sent when it
connected stay in memory until then."""

LARGE_READ_BYTES = 128 * 1024
"""A read of half of the loop's buffer or more: libuv would go on with up to 31 of them, 8 MiB, before anybody else has
a turn, and answers to the smallest packets take twenty times their size until they are written. So they are written
at once, and the next read comes in the next turn."""

OTHERS_FIRST = "others have their turn"

MORE_TO_TAKE = "what it sent is taken in slices"

ANSWERS_UNREAD = "the peer does not read our answers"

UNCOUNTED_BYTES = 4 * 1024
"""Changes up to this of what a connection holds are not told to its meter: most reads end in the middle of a small
packet. 10 000 connections may hold 40 MiB that way."""


class MemoryMeter(Protocol):
    """Who counts the memory that connections hold, and says which of them there is room for."""

    def begun(self, driver: ConnectionDriver) -> None:
        """A connection is there; its peer has not said who it is."""
        ...

    def identified(self, driver: ConnectionDriver, user: str) -> bool:
        """The peer is this user (empty: nobody is asked); False when there is no room for another connection of it."""
        ...

    def held(self, driver: ConnectionDriver, held_bytes: int) -> None:
        """The connection holds so much now: not decrypted, in its machine and unsent."""
        ...

    def ended(self, driver: ConnectionDriver) -> None:
        """The connection is gone."""
        ...


class ConnectionOwner(Protocol):
    """Who a driver belongs to: a protocol session."""

    def handle(self, events: Sequence[Any]) -> None:
        """Take the events of one read. The driver flushes afterwards.

        The last events of a connection come here whatever was raised before, so that what it held is given back.
        """
        ...

    def writable(self) -> None:
        """The peer reads again after `ConnectionDriver.congested` was true."""
        ...


class Diverted(NamedTuple):
    """The protocol of a transport whose bytes go somewhere else first; see `asyncio.Protocol`."""

    data_received: Callable[[bytes], object]
    connection_lost: Callable[[Exception | None], None]
    eof_received: Callable[[], bool]
    pause_writing: Callable[[], None]
    resume_writing: Callable[[], None]


class ConnectionEnd:
    """What is known of a connection's end; most have none yet."""

    __slots__ = ("lost", "lost_from", "peer")

    def __init__(self) -> None:
        self.lost: Exception | None = None
        """Why the transport has been lost, where somebody says so."""
        self.lost_from: str | None = None
        """The peer of a connection that is gone, until its machine and its owner have been told."""
        self.peer = "-"
        """The peer of a connection that is gone."""


class DriverSettings:
    """What a driver is made with, and what the connections of one listener have in common."""

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
        """`owner` is called once the transport is there; `gone` once it has been lost. `identity`: the name in the
        peer's verified TLS certificate. `meter` None: what is held is not counted. Above `write_bytes_max` of output
        that the peer does not read, `congested` is true and owners deliver nothing. Above `unread_bytes_max` (None: no
        bound) the peer is not read either; a connection that we have `dialed` ends, as both ends might wait."""
        self.connection = connection
        self.transport: asyncio.Transport | None = None
        self.identity: Final = identity
        self.held_bytes = 0
        """What the meter knows of."""
        self.account: Any = None
        """Whatever the meter wants to find again."""
        self.trace: Any = None
        """Packet trace, which reports what happens to messages; None: the connection is not traced."""
        turn = turn_of(asyncio.get_running_loop())
        self._terms = terms = _terms_of(turn, write_bytes_max, unread_bytes_max, meter, gone)
        self._make_owner: Callable[[ConnectionDriver], ConnectionOwner] | None = owner
        """Dropped when it was called: what it holds on to is not kept for the life of a connection."""
        self._owner: ConnectionOwner | None = None
        self._slot: DeadlineSlot | None = None
        """When `look` comes; None where the deadline is to be asked for."""
        self._paused_for: tuple[str, ...] = ()
        self._put_off = b""
        """A read that waits for its turn; it goes with a connection that breaks."""
        self._ending: ConnectionEnd | None = None
        self.congested = self._flush_scheduled = False
        self.dialed: Final = dialed
        self._failed = False
        """The machine or its owner has raised: the socket is being dropped."""
        self._known = terms.meter is None
        """The peer has said who it is. Until then what it sends has its turn with large reads, however small it is."""
        self._in_turns = False
        """The transport reads when the connection has its turn: what it gives is taken at once."""

    # --- asyncio.Protocol -------------------------------------------------------------------------------------

    def charge(self, account: Any) -> None:
        """Charge what it holds to this account; None: to none."""
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
            self.put_off(data)
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
            self.let_others()

    def _take_more(self, until: float) -> bool:
        """Go on with what the machine has; True when there is more then."""
        connection = self.connection
        while connection.more:
            now = self._loop.time()
            if now > until:
                return True
            self._dispatch(connection.receive_data(b"", now))
        return False

    def _take_turns(self) -> None:
        """There is more than a slice: it is taken in turns with others."""
        if MORE_TO_TAKE not in self._paused_for and self.transport is not None:
            self.pause_reading(MORE_TO_TAKE)
            slow_lane_of(self._loop).add(self)

    def take_slice(self) -> bool:
        """`bridge.transport.slow_lane.Sliced`."""
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
            self.resume_reading(MORE_TO_TAKE)
        return more

    def eof_received(self) -> bool:
        return False  # close the transport: connection_lost tells the machine

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell machine and owner, or have it done in turns where many go at the same time, as with their network."""
        ending = self._ends()
        ending.lost = ending.lost or exc
        self._leave_slot()
        self._put_off = b""  # the slow lane may know of us for long
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
        """The connection with `peer` is over, and everybody is told."""
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
            self._owner = None  # it holds us too: without this both would wait for the garbage collector
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
        """Who decides what the connection does; None before the transport is there and once it is lost."""
        return self._owner

    def hand_over(self, owner: ConnectionOwner) -> None:
        """What happens from now on is told this owner. Not while the connection is lost."""
        if self._owner is not None:
            self._owner = owner

    @property
    def peername(self) -> str:
        """``host:port`` of the peer, or ``-`` where it is not known."""
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
        """Host of the peer, empty where it is not known."""
        return self.peername.rpartition(":")[0]

    @property
    def path(self) -> TcpPath:
        """What has not arrived at the peer's kernel, and what is known of the way there; asks the kernel."""
        return TcpPath() if self.transport is None else path_of(self.transport)

    def flush_soon(self) -> None:
        """Write what the connection has to send at the end of this turn of the loop."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._terms.turn.add(self)

    def divert(self, receive: Callable[[bytes], object], lost: Callable[[Exception | None], None]) -> None:
        """What the peer sends goes to `receive` from now on, which gives what it does not take to `data_received`.
        `lost` is told before the socket is closed, and tells `connection_lost`."""
        if self.transport is not None:
            eof, pause, resume = self.eof_received, self.pause_writing, self.resume_writing
            self.transport.set_protocol(cast(Any, Diverted(receive, lost, eof, pause, resume)))

    def follow(self, trace: Any, before: ConnectionMachine, after: ConnectionMachine) -> None:
        """Report to this trace from now on (None: to none), and put a machine in place of another, which the driver has
        or the frames around it. Between two reads only."""
        self.trace = trace
        if self.connection is before:
            self.connection = after
        elif before is not after:
            cast(Any, self.connection).replace_inner(after)

    def take(self, events: Sequence[Any]) -> None:
        """Give the owner events of bytes that the machine got from elsewhere (see `divert`)."""
        self.run(partial(self._dispatch, events))
        self.count()

    @property
    def up_to_date(self) -> bool:
        """Nothing of what came waits for its turn."""
        return not (self._put_off or self._failed)

    def put_off(self, data: bytes) -> None:
        """Take these bytes of the peer when the connection has its turn."""
        self._put_off += data  # as a rule there was nothing: reading pauses
        self._take_turns()
        self.count()

    def let_others(self) -> None:
        """A long read has been taken: its answers leave, and the next read comes in the next turn."""
        self.write()
        self.pause_reading(OTHERS_FIRST)
        self._loop.call_soon(self.resume_reading, OTHERS_FIRST)

    def run(self, step: Callable[[], None]) -> None:
        """Call a step of the machine or its owner that no read caused. An exception of it ends the connection."""
        if self._failed:
            return
        try:
            step()
        except Exception as error:
            self._fail(error)

    def soon(self, callback: Callable[[], None]) -> None:
        """Call this in the next turn of the loop: work too long for one is done in parts."""
        self._loop.call_soon(self.run, callback)

    def wake(self) -> None:
        """Give the connection a turn without bytes of the peer: what it waited for has come from elsewhere."""
        if self.transport is not None:
            self.run(self._receive_nothing)

    def pause_reading(self, reason: str) -> None:
        """Stop reading until every reason given has been taken back (a pause carries its reason)."""
        if not self._paused_for and self.transport is not None:
            self.transport.pause_reading()
        if reason not in self._paused_for:
            self._paused_for += (reason,)

    def resume_reading(self, reason: str) -> None:
        """Take a reason back; idempotent."""
        if reason in self._paused_for:
            self._paused_for = tuple(other for other in self._paused_for if other != reason)
            if not self._paused_for and self.transport is not None:
                self.transport.resume_reading()

    def identified(self, user: str) -> bool:
        """The peer has said who it is; False when there is no room for another connection of this user."""
        self._known = True
        if isinstance(self.transport, ServedTransport):
            self.transport.identified()
        meter = self._terms.meter
        return meter is None or meter.identified(self, user)

    def count(self) -> None:
        """Tell the meter what the connection holds now."""
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

    def shed(self, *, told: bool = True) -> None:
        """Close the connection for want of memory, and release what it holds in this turn. `told`: give the peer the
        reason if it reads."""
        self.run(self._shed)
        self._put_off = b""
        if not told or self.transport is None or self.transport.get_write_buffer_size() > UNCOUNTED_BYTES:
            self.abort()
        else:
            self.flush_soon()
            self._loop.call_later(SHED_S, self.abort)

    def abort(self) -> None:
        """Drop the socket without ceremony."""
        if self.transport is not None:
            self.transport.abort()

    @property
    def lost(self) -> Exception | None:
        """Why the transport has been lost, where somebody says so: a TLS alert, or that the peer does not read."""
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
        """The connection cannot go on: `connection_lost` follows, and tells the machine."""
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
            self.flush_soon()  # without a slot the deadline is to be watched again

    def write(self) -> None:
        """The end of a turn has come (`bridge.transport.turn`): write what the connection has to send."""
        self._flush_scheduled = False
        if self.transport is not None and not self._failed:  # else it is gone, or not there yet: then this comes again
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
                self._loop.call_soon(self.count)  # what the socket takes has left by then
            if self.congested and (unread_max := self._terms.unread_bytes_max) is not None:
                self._look_at_unread(transport.get_write_buffer_size(), unread_max)
        if connection.closed:
            self._leave_slot()
            transport.close()  # it lingers until the peer has read what was written last (`bridge.transport.lingering`)
            return
        if connection.more:
            self._take_turns()  # of what waited for somebody's answer, as bytes behind a CONNECT do
        self._arm()

    def _look_at_unread(self, unread_bytes: int, unread_bytes_max: int) -> None:
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
                return  # it is looked at then, and may be put off
            self._leave_slot()
        self._slot = deadlines_of(self._loop).watch(self, deadline)

    def _leave_slot(self) -> None:
        if self._slot is not None:
            self._slot.watched.discard(self)
            self._slot = None

    def look(self) -> None:
        """A deadline may have come (`bridge.transport.deadlines`)."""
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
    """What the peer has sent was read: where nothing was, it has sent nothing. Not while we hold it back, and not while
    something lies in its socket: the loop was busy, or the process stood still, and timers come first.

    That it does not read our answers is its own doing. Who hangs up while it is held back is not waited for. Who
    vanishes meanwhile answers neither our heartbeats nor the kernel's (`bridge.transport.listening`), which ends the
    connection: that is to hang up, too.
    """
    served = driver.transport if isinstance(driver.transport, ServedTransport) else None
    paused_for = driver._paused_for
    if any(reason != ANSWERS_UNREAD for reason in paused_for):
        return served is not None and served.hung_up
    return bool(paused_for) or served is None or not served.unread


_latest_terms: list[DriverSettings] = []
"""Those of the counted connection that came last, if there was one: most come in rows of one listener."""


def _terms_of(
    turn: LoopTurn,
    write_bytes_max: int,
    unread_bytes_max: int | None,
    meter: MemoryMeter | None,
    gone: Callable[[ConnectionDriver], None] | None,
) -> DriverSettings:
    """One object for connections that say the same one after the other: there may be 10 000 that are idle."""
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
    """Type and place alone: what an exception says may quote a message."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("the connection with %s ends: it raised %s", peer, type(error).__name__, extra={"frames": frames})


def answer_all(answers: Sequence[tuple[ConnectionDriver, list[bytes], bytes]]) -> None:
    """Write answers to many connections now: (driver, what its connection is about to write, answer). An answer follows
    what waits to be written before it."""
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
