"""TCP connection as an `asyncio.Transport`.

Its socket is served with others (`bridge.transport.ready`): it is read at most once in a turn, and written at once when
there is output. Only bytes that the socket does not take are kept, and sent when it does.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

from bridge.native import functions as native
from bridge.transport.borrowed import socket_of
from bridge.transport.deadlines import DeadlineSlot, deadlines_of
from bridge.transport.lingering import lingering_of
from bridge.transport.pending_ends import ends_of
from bridge.transport.ready import READABLE, WRITABLE, Ready, sockets_of
from bridge.transport.served import ServedTransport

SENT_BYTES_MAX: Final = 256 * 1024
"""Bytes sent in one turn to a socket with unsent bytes."""

WRITTEN_AT_ONCE: Final = 64
"""Sockets in one call of `write_all`."""

PIECES_MAX: Final = 64
"""Pieces in one system call (IOV_MAX is 1 024)."""

SMALL_BYTES: Final = 4 * 1024
"""Size up to which bytes are appended to the last piece: a separate piece costs 200 more bytes."""

CLOSING_S: Final = 5.0
"""Seconds for a peer to read the last bytes of a closed connection: 64 KiB on a slow link. Such a peer cannot be
distinguished from one that no longer reads and keeps the connection open."""


class Unsent:
    """Bytes that the socket of a connection has not taken."""

    __slots__ = ("deadline", "pieces", "size")

    def __init__(self) -> None:
        self.pieces: list[bytearray | memoryview] = []
        self.size = 0
        """Total bytes."""
        self.deadline: DeadlineSlot | None = None
        """Slot of the end of `CLOSING_S`, once the connection is closing."""


class TcpTransport(ServedTransport):
    """Transport that owns a connected socket. For use inside the loop only.

    Its creator calls `connection_made`; `connection_lost` follows in a later turn than the end.
    """

    __slots__ = (
        "_closing", "_descriptor", "_eof_written", "_events", "_high", "_host", "_kind", "_lingers", "_lost",
        "_peer_ended", "_port", "_protocol", "_reads", "_unsent", "_writing_paused",
    )  # fmt: skip

    def __init__(
        self, loop: asyncio.AbstractEventLoop, connection: socket.socket, peer: Any, protocol: asyncio.Protocol
    ) -> None:
        """`connection` is non-blocking, and its descriptor is taken out of it: a socket object for each of thousands of
        idle connections would double their memory. `peer` is its address."""
        self._descriptor = connection.detach()
        self._host, self._port = _host_and_port(peer)
        self._protocol = protocol
        self._kind: Ready = sockets_of(loop).unknown
        self._events = 0
        """Events that are watched."""
        self._high = 64 * 1024
        self._unsent: Unsent | None = None
        self._reads = True
        """The protocol reads."""
        self._writing_paused = False
        self._eof_written = False
        self._closing = False
        self._peer_ended = False
        """The peer has closed its half."""
        self._lingers = False
        """Everything was written: the socket lingers until the peer has read it (`bridge.transport.lingering`)."""
        self._lost = False
        """`connection_lost` was called or is scheduled."""
        self._watch()

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return self._kind.loop

    def identified(self) -> None:
        known = sockets_of(self._loop).known
        if self._kind is not known:
            events = self._events
            self._kind.watch(self._descriptor, self, events, 0)
            self._kind = known
            known.watch(self._descriptor, self, 0, events)

    @property
    def unread(self) -> bool:
        return self._poll(select.POLLIN)

    @property
    def hung_up(self) -> bool:
        return self._poll(select.POLLRDHUP)

    # --- asyncio.BaseTransport --------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See `asyncio.BaseTransport`; ``descriptor``: of the socket, -1 when it is closed."""
        if name == "peername":
            return (self._host, self._port) if self._host else default
        if name == "descriptor":
            return self._descriptor
        if name == "sockname":
            try:
                with socket_of(self._descriptor) as connection:
                    return connection.getsockname()
            except OSError:
                return default
        return default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Stop reading, send unsent bytes, then close, so that the peer can read them; close after `CLOSING_S` in any
        case."""
        if self._closing:
            return
        self._closing = True
        self._watch()
        if self._unsent is not None:
            self._unsent.deadline = deadlines_of(self._loop).watch(self, self._loop.time() + CLOSING_S)
        else:
            self._finish()

    def check_deadline(self) -> None:
        """Close at the end of `CLOSING_S` (`bridge.transport.deadlines.Watched`)."""
        if self._unsent is not None:
            self._unsent.deadline = None
        self._lose(None)

    # --- asyncio.ReadTransport --------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        return self._reads and not self._closing

    def pause_reading(self) -> None:
        self._reads = False
        self._watch()

    def resume_reading(self) -> None:
        self._reads = True
        self._watch()

    # --- asyncio.WriteTransport -------------------------------------------------------------------------------

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the high limit; the low limit is always a quarter of it."""
        if high is None:
            high = 64 * 1024 if low is None else 4 * low
        self._high = high

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._high // 4, self._high

    def get_write_buffer_size(self) -> int:
        return 0 if self._unsent is None else self._unsent.size

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._lost or not data:
            return
        if self._eof_written:
            raise RuntimeError("nothing can be written after write_eof")
        sent = 0
        if self._unsent is None:
            try:
                sent = os.write(self._descriptor, data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._lose(error)
                return
        self._sent(data, sent)

    def _sent(self, data: bytes | bytearray | memoryview, sent: int) -> None:
        """Keep the bytes that the socket did not take."""
        self._kind.counter.sent += sent
        if sent == len(data):
            return
        unsent = self._keep(data, sent)
        self._watch()
        if unsent.size > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    @property
    def takes_more(self) -> bool:
        """True if no output waits for the socket, so that `write_all` may send."""
        return self._unsent is None and not (self._lost or self._eof_written)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._eof_written or self._closing:
            return
        self._eof_written = True
        if self._unsent is None:
            self._shut_down()

    def abort(self) -> None:
        self._lose(None)

    # --- when the socket is ready -----------------------------------------------------------------------------

    @property
    def reads(self) -> bool:
        """See `bridge.transport.ready.ReadySocket`."""
        return bool(self._events & READABLE)

    def writable(self) -> None:
        """See `bridge.transport.ready.ReadySocket`."""
        if self._unsent is not None:
            self._send()

    def received(self, brought: bytes | int) -> None:
        """See `bridge.transport.ready.ReadySocket`. Another connection, served earlier in this call, may have ended
        this one, or paused it. A paused one still gets its bytes; the end of the stream is reported when it reads
        again."""
        if self._closing or self._lost:
            return
        if isinstance(brought, bytes):
            self._kind.counter.received += len(brought)
        elif self.reads:
            self._lose(OSError(brought, os.strerror(brought)))
            return
        if brought:
            self._call(self._protocol.data_received, brought)
        elif self.reads:
            self._peer_ended = True
            self._call(self._end_of_peer)

    def _end_of_peer(self) -> None:
        if self._protocol.eof_received():
            self.pause_reading()
        else:
            self.close()

    def _call(self, call: Callable[..., object], *arguments: object) -> None:
        """Call the protocol; an exception of it ends the connection."""
        try:
            call(*arguments)
        except Exception as error:
            self._report(error)

    def _send(self) -> None:
        unsent = self._unsent
        if unsent is None:
            return
        try:
            sent = os.writev(self._descriptor, _first(unsent.pieces))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        self._kind.counter.sent += sent
        unsent.size -= sent
        _drop(unsent.pieces, sent)
        if not unsent.size:
            self._forget_unsent()
            self._watch()
            if self._closing:
                self._finish()
            elif self._eof_written:
                self._shut_down()
        if self._writing_paused and unsent.size <= self._high // 4 and not self._lost:
            self._writing_paused = False
            try:
                self._protocol.resume_writing()
            except Exception as error:
                self._report(error)

    def end(self, error: Exception | None) -> None:
        """Call `connection_lost` and close the socket (`bridge.transport.pending_ends.EndingTransport`)."""
        if error is not None:
            error.__traceback__ = None  # its frames would keep transport and protocol alive
        try:
            self._protocol.connection_lost(error)
        except Exception as raised:
            self._report(raised)
        finally:
            descriptor, self._descriptor = self._descriptor, -1
            if self._lingers:
                lingering_of(self._loop).add(descriptor, self._host)
            else:
                os.close(descriptor)

    # --- inside -----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Update the watched events."""
        events = 0
        if not self._lost:
            if self._reads and not self._closing:
                events = READABLE
            if self._unsent is not None:
                events |= WRITABLE
        if events != self._events:
            before, self._events = self._events, events
            self._kind.watch(self._descriptor, self, before, events)

    def _poll(self, event: int) -> bool:
        """Return True when poll(2) reports this event or an error. False for a closed socket."""
        if self._descriptor < 0:
            return False
        asked = select.poll()
        asked.register(self._descriptor, event)
        return bool(asked.poll(0))

    def _keep(self, data: bytes | bytearray | memoryview, sent: int) -> Unsent:
        """Keep the bytes after `sent`, which the socket did not take."""
        rest = memoryview(data)[sent:]
        unsent = self._unsent
        if unsent is None:
            unsent = self._unsent = Unsent()
        unsent.size += len(rest)
        last = unsent.pieces[-1] if unsent.pieces else None
        if len(rest) > SMALL_BYTES:
            unsent.pieces.append(rest)
        elif type(last) is bytearray and len(last) < SENT_BYTES_MAX:
            last += rest
        else:
            unsent.pieces.append(bytearray(rest))
        return unsent

    def _forget_unsent(self) -> None:
        unsent, self._unsent = self._unsent, None
        if unsent is not None and unsent.deadline is not None:
            unsent.deadline.watched.discard(self)

    def _shut_down(self) -> None:
        try:
            with socket_of(self._descriptor) as connection:
                connection.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._lose(error)

    def _finish(self) -> None:
        """End the connection after everything was written."""
        self._lingers = not self._peer_ended and not self._lost
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        """End the connection and drop unsent bytes."""
        if self._lost:
            return
        self._lost = self._closing = True
        self._forget_unsent()
        self._watch()
        ends_of(self._loop).add(self, error)

    def _report(self, error: Exception) -> None:
        """Report an exception of the protocol and end the connection, as the state of the protocol is unknown."""
        context = {"message": "a protocol raised", "exception": error, "transport": self, "protocol": self._protocol}
        self._loop.call_exception_handler(context)
        self._lose(error)


def write_all(transports: Sequence[TcpTransport], data: Sequence[bytes]) -> None:
    """Write to many connections, which all have `takes_more`: to each the bytes at its index of `data`."""
    for start in range(0, len(transports), WRITTEN_AT_ONCE):
        some, theirs = transports[start : start + WRITTEN_AT_ONCE], data[start : start + WRITTEN_AT_ONCE]
        counts = native.tcp_send([each._descriptor for each in some], list(theirs))
        for transport, each, sent in zip(some, theirs, counts, strict=True):
            if sent < 0:
                transport._lose(OSError(-sent, os.strerror(-sent)))
            else:
                transport._sent(each, sent)


def _host_and_port(peer: Any) -> tuple[str, int]:
    """Return host and port of an address from `socket.socket.accept`; empty for a peer without an address."""
    return (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) and len(peer) >= 2 else ("", 0)


def _first(unsent: list[bytearray | memoryview]) -> list[bytearray | memoryview]:
    """Return the pieces that are sent at once."""
    count = size = 0
    for each in unsent:
        count += 1
        size += len(each)
        if size >= SENT_BYTES_MAX:
            break
    return unsent[: min(count, PIECES_MAX)]


def _drop(unsent: list[bytearray | memoryview], sent: int) -> None:
    """Remove bytes that were sent."""
    gone = 0
    while sent and sent >= len(unsent[gone]):
        sent -= len(unsent[gone])
        gone += 1
        if gone == len(unsent):
            break
    del unsent[:gone]
    if sent:
        first = unsent[0]
        if type(first) is bytearray:
            del first[:sent]
        else:
            unsent[0] = first[sent:]
