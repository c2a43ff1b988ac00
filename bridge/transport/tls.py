"""One connection with TLS, either end, as `asyncio.Transport` has it, around the TCP connection below it.

The TCP connection has its turns and bounds (`bridge.transport.tcp`); here its bytes go through OpenSSL, in memory.
What one turn received is decrypted and given to the protocol as one read, or as several where that takes longer than
`DECRYPT_S`: the others in turns (`bridge.transport.slow_lane`). What is written is encrypted at once, so that what the
socket does not take is counted as without TLS. Handshakes are work of peers nobody knows: OpenSSL begins when whoever
accepted or dialed says so, and each step waits for its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from bridge.transport.deadlines import DeadlineSlot, deadlines_of
from bridge.transport.served import ServedTransport
from bridge.transport.slow_lane import slow_lane_of
from bridge.transport.spoken import BEGINNING_BYTES, foreign_protocol
from bridge.transport.tcp import TcpTransport
from bridge.transport.tls_records import TlsRecords

RECORD_BYTES: Final = 16 * 1024
"""The most one record says (RFC 8446 section 5.1). OpenSSL's buffers grow to what they are given at once and stay so:
they are given no more than this."""

DECRYPT_S: Final = 0.0003
"""How long what came of one connection may be decrypted before others have their turn: 256 KiB in whole records take
0.1 ms, in records of a byte 14, in requests for new keys 200. It is short, as everybody waits for the first of it of
all who come at the same moment. Not by the loop's clock: uvloop's counts whole milliseconds."""

OWED_BYTES_MAX: Final = 16 * 1024
"""What OpenSSL may have to say by itself while the peer takes nothing. A client that asks for new keys (RFC 8446
section 4.6.3) or for another handshake gets an answer each time, as long as what it sent: 16 KiB are 600 of them."""


COUNTED_BYTES: Final = 4 * 1024
"""Changes up to this of what is held are not told: most reads end in the middle of a small record."""


class Handshaking(Protocol):
    """Who has handshakes begin, and knows to whom connections belong."""

    def arrived(self, transport: TlsTransport) -> None:
        """It is connected, and read when `TlsTransport.begin` was called."""
        ...

    def secured(self, transport: TlsTransport) -> asyncio.Protocol | None:
        """Its handshake is done; returns whose it is now. None: it is closed."""
        ...

    def failed(self, transport: TlsTransport, error: Exception | None) -> None:
        """It is gone before its handshake was done; None: nobody said why."""
        ...


class WrongProtocolError(ssl.SSLError):
    """A client speaks another protocol where it has to begin TLS."""

    def __init__(self, spoken: str) -> None:
        super().__init__(1, f"the client speaks {spoken}, without TLS")
        self.spoken = spoken


class TlsTransport(ServedTransport, asyncio.Protocol):
    """The protocol of a `TcpTransport` below it. Used inside the loop only."""

    __slots__ = (
        "_closing", "_count", "_counted_bytes", "_deadline", "_deaf", "_error", "_handshaking", "_in_lane", "_incoming",
        "_loop", "_more", "_outgoing", "_owed_bytes", "_protocol", "_reads", "_records", "_slot", "_ssl", "_tcp",
    )  # fmt: skip

    def __init__(self, handshaking: Handshaking) -> None:
        self._handshaking = handshaking
        self._loop = asyncio.get_running_loop()
        self._tcp: TcpTransport
        self._ssl: ssl.SSLObject | None = None
        """None until the handshake begins, and when the connection is over."""
        self._incoming: ssl.MemoryBIO
        self._outgoing: ssl.MemoryBIO
        self._protocol: asyncio.Protocol | None = None
        """None until the handshake is done."""
        self._records = TlsRecords()
        """Received, and not yet given to OpenSSL."""
        self._count: Callable[[], None] | None = None
        self._counted_bytes = 0
        """What was held when it was called."""
        self._owed_bytes = 0
        """Of what OpenSSL said by itself, since the peer took all there was."""
        self._more = False
        """There is some of it, or of what OpenSSL was given, that nobody got."""
        self._in_lane = False
        """The slow lane knows of it."""
        self._reads = True
        """The protocol wants to be given what comes."""
        self._closing = False
        self._deaf = False
        """What comes is dropped: our end is closed, or there is no TLS."""
        self._error: Exception | None = None
        """Why TLS ended."""
        self._deadline = 0.0
        """By when the handshake has to be done, or the peer to close."""
        self._slot: DeadlineSlot | None = None

    def begin(self, context: ssl.SSLContext, deadline: float) -> None:
        """Begin the handshake as the server, which has until then by the loop's clock."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._until(deadline)
        self._tcp.resume_reading()

    def begin_as_client(self, context: ssl.SSLContext, deadline: float, host: str) -> None:
        """Begin the handshake as the client, and say to whom: `host`, a name (Server Name Indication, RFC 6066 section
        3) or an address, which the server's certificate has to be of where the context says so. Raises `ValueError`
        where it is neither, `ssl.SSLError` where the context can say nothing."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        with contextlib.suppress(ssl.SSLWantReadError):
            self._ssl.do_handshake()
        self._send()
        self._until(deadline)
        self._tcp.resume_reading()

    # --- asyncio.Protocol, of the TCP connection --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = cast(TcpTransport, transport)
        self._tcp.pause_reading()
        self._handshaking.arrived(self)

    def data_received(self, data: bytes) -> None:
        self._records.add(data)
        if self._take():
            self._tcp.pause_reading()
            self._go_on_later()
        self._tell_held()

    def take_slice(self) -> bool:
        """`bridge.transport.slow_lane.Sliced`: records of a byte each take a hundred times as long as long ones."""
        self._in_lane = self._reads and self._take() and self._reads
        if self._reads and not self._more:
            self._tcp.resume_reading()
        self._tell_held()
        return self._in_lane

    def eof_received(self) -> bool:
        """The peer sends no more, whether TLS says so or TCP alone: every protocol we speak knows by itself whether
        what came is complete."""
        if self._protocol is not None and not self._closing:
            self._protocol.eof_received()
        return False

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave_slot()
        self._closing = True
        self._tcp.set_protocol(_NOBODY)  # it knows us, and we know it: nothing would be freed
        error, self._error = self._error or exc, None
        protocol, self._protocol = self._protocol, None
        self._ssl = self._count = None
        self._records.clear()
        if protocol is not None:
            protocol.connection_lost(error)
        else:
            self._handshaking.failed(self, error)

    # --- asyncio.BaseTransport --------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if self._ssl is None:
            return self._tcp.get_extra_info(name, default)
        if name == "ssl_object":
            return self._ssl
        if name == "sslcontext":
            return self._ssl.context
        if name == "peercert":
            return self._ssl.getpeercert()
        return self._tcp.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol or self

    def is_closing(self) -> bool:
        return self._closing or self._tcp.is_closing()

    def close(self) -> None:
        """As `TcpTransport.close`, behind a close_notify (RFC 8446 section 6.1), whose answer nobody waits for."""
        if not self._closing:
            self._take_leave()
            self._closing = True
            self._tcp.close()

    def abort(self) -> None:
        """What was held is given back in this turn."""
        self._closing = True
        self._records.clear()
        self._tcp.abort()

    # --- bridge.transport.served.ServedTransport --------------------------------------------------------------

    def identified(self) -> None:
        self._tcp.identified()

    @property
    def unread(self) -> bool:
        return self._more or self._tcp.unread

    @property
    def hung_up(self) -> bool:
        return self._tcp.hung_up

    @property
    def held_bytes(self) -> int:
        """Received, and not decrypted."""
        return self._records.held_bytes

    def held_by(self, count: Callable[[], None]) -> None:
        self._count = count

    # --- asyncio.ReadTransport --------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        return self._tcp.is_reading()

    def pause_reading(self) -> None:
        self._reads = False
        self._tcp.pause_reading()

    def resume_reading(self) -> None:
        self._reads = True
        if self._more:
            self._go_on_later()
        else:
            self._tcp.resume_reading()

    # --- asyncio.WriteTransport -------------------------------------------------------------------------------

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._tcp.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._tcp.get_write_buffer_limits()

    def get_write_buffer_size(self) -> int:
        """Encrypted, and not sent."""
        return self._tcp.get_write_buffer_size()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self._ssl is None or not data:
            return
        if self._deaf:
            raise RuntimeError("nothing can be written after write_eof")
        secured: list[bytes] = []
        try:
            if len(data) <= RECORD_BYTES:
                self._ssl.write(data)
                secured.append(self._outgoing.read())
            else:
                pieces = memoryview(data)
                for start in range(0, len(pieces), RECORD_BYTES):
                    self._ssl.write(pieces[start : start + RECORD_BYTES])
                    secured.append(self._outgoing.read())
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._tcp.write(secured[0] if len(secured) == 1 else b"".join(secured))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Nothing more is written. What comes is dropped: TLS 1.2 knows no half that is closed (RFC 5246 section
        7.2.1), and the connection is over when the peer closes."""
        if not (self._deaf or self._closing):
            self._take_leave()
            self._deaf = True
            self._tcp.write_eof()

    # --- inside -----------------------------------------------------------------------------------------------

    def _take(self) -> bool:
        """A slice of what came; True when there is more."""
        self._more = False
        secure = self._ssl
        if self._deaf or self._closing or secure is None:
            return False
        came: list[bytes] = []
        try:
            ended = self._decrypt(secure, came)
        except ssl.SSLError as error:
            self._fail(error)
            return False
        self._send()
        self._more = not ended and bool(self._records or self._incoming.pending or secure.pending())
        if came and self._protocol is not None and not self._closing:
            self._protocol.data_received(came[0] if len(came) == 1 else b"".join(came))
        if ended:
            self.eof_received()
            self.close()
        return self._more

    def _decrypt(self, secure: ssl.SSLObject, came: list[bytes]) -> bool:
        """As much as there is time for; True at the end of all. Raises `ssl.SSLError`."""
        incoming, records, begun, until = self._incoming, self._records, False, time.monotonic() + DECRYPT_S
        while True:
            if not (incoming.pending or secure.pending()):
                if not records or (begun and time.monotonic() > until):
                    return False
                begun = True
                begins = self._protocol is None and secure.server_side and not records.within_record
                piece = records.next()
                if begins:
                    _require_tls(piece)
                incoming.write(piece)
            try:
                if self._protocol is None and not self._shaken(secure):
                    return True
                plain = secure.read(RECORD_BYTES)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLZeroReturnError:
                return True
            if not plain:
                return True
            came.append(plain)

    def _shaken(self, secure: ssl.SSLObject) -> bool:
        """The handshake is done, and the connection is somebody's."""
        secure.do_handshake()
        self._leave_slot()
        owner = self._handshaking.secured(self)
        self._protocol = owner or _NOBODY
        self._send()
        if owner is None:
            self.close()
            return False
        owner.connection_made(self)
        return not self._closing

    def _tell_held(self) -> None:
        held = self._records.held_bytes
        if not -COUNTED_BYTES <= held - self._counted_bytes <= COUNTED_BYTES and self._count is not None:
            self._counted_bytes = held
            self._count()

    def _go_on_later(self) -> None:
        if not self._in_lane:
            self._in_lane = True
            slow_lane_of(self._loop).add(self)

    def _send(self) -> None:
        """What OpenSSL has to say by itself."""
        if self._ssl is None or not self._outgoing.pending:
            return
        if not self._tcp.get_write_buffer_size():
            self._owed_bytes = 0
        said = self._outgoing.read()
        self._owed_bytes += len(said)
        if self._owed_bytes > OWED_BYTES_MAX and self._protocol is not None:
            self._error = ConnectionAbortedError("it makes us answer, and does not read")
            self.abort()
            return
        self._tcp.write(said)

    def _take_leave(self) -> None:
        if self._protocol is not None and self._ssl is not None:
            with contextlib.suppress(ssl.SSLError):
                self._ssl.unwrap()  # raises: it would wait for the peer's
            self._send()

    def _fail(self, error: ssl.SSLError) -> None:
        """There is no TLS with the peer: an alert says why (RFC 8446 section 6.2), and it has time to read that."""
        self._error = error
        self._error.__traceback__ = None  # its frames know us
        self._closing = self._deaf = True
        self._send()
        self._ssl = None
        self._tcp.close()

    def _until(self, deadline: float) -> None:
        self._leave_slot()
        self._deadline = deadline
        self._slot = deadlines_of(self._loop).watch(self, deadline)

    def _leave_slot(self) -> None:
        if self._slot is not None:
            self._slot.watched.discard(self)
            self._slot = None

    def look(self) -> None:
        """`bridge.transport.deadlines.Watched`."""
        self._slot = None
        if self._deadline <= self._loop.time():
            self._error = self._error or TimeoutError("its handshake took too long")
            self._tcp.abort()
        else:
            self._until(self._deadline)


def _require_tls(record: memoryview) -> None:
    """Raise `WrongProtocolError` where a record of a client's handshake is the beginning of another protocol."""
    spoken = foreign_protocol(bytes(record[:BEGINNING_BYTES]), "TLS")
    if spoken:
        raise WrongProtocolError(spoken)


_NOBODY: Final = asyncio.Protocol()
"""Whose a TCP connection is that is over."""
