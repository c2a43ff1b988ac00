"""TLS connection as an `asyncio.Transport`, client or server, over a TCP connection.

The TCP connection has its turns and limits (`bridge.transport.tcp`); its bytes go through OpenSSL in memory. The bytes
of one turn are decrypted and given to the protocol as one read, or as several in the slow lane when that takes longer
than `DECRYPT_S` (`bridge.transport.slow_lane`). Output is encrypted at once, so that unsent bytes are counted as
without TLS. Handshakes are work for unauthenticated peers: `begin` starts them, and each step waits for its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from bridge.transport.deadlines import DeadlineSlot, deadlines_of
from bridge.transport.peer_protocol import BEGINNING_BYTES, foreign_protocol
from bridge.transport.served import ServedTransport
from bridge.transport.slow_lane import slow_lane_of
from bridge.transport.tcp import TcpTransport
from bridge.transport.tls_records import TlsRecords

RECORD_BYTES: Final = 16 * 1024
"""Largest content of a record (RFC 8446 section 5.1). OpenSSL's buffers grow to the size of a write and stay so;
a write has at most this size."""

DECRYPT_S: Final = 0.0003
"""Time limit to decrypt bytes of one connection before other connections are served: 256 KiB in full records take
0.1 ms, in one-byte records 14 ms, in key updates 200 ms. It is short because all connections that are ready in one
turn wait for each other. The monotonic clock is used, because uvloop's counts whole milliseconds."""

OWED_BYTES_MAX: Final = 16 * 1024
"""Bytes that OpenSSL may produce by itself while the peer reads nothing. It answers each key update (RFC 8446 section
4.6.3) or renegotiation of a client with as many bytes: 16 KiB are 600 answers."""


COUNTED_BYTES: Final = 4 * 1024
"""Changes of held bytes up to this are not reported: most reads end within a small record."""


class Handshaking(Protocol):
    """Starts handshakes and creates the protocols of secured connections."""

    def arrived(self, transport: TlsTransport) -> None:
        """Handle a new connection; it is read once `TlsTransport.begin` was called."""
        ...

    def secured(self, transport: TlsTransport) -> asyncio.Protocol | None:
        """Return the protocol of a connection after its handshake; None: close it."""
        ...

    def failed(self, transport: TlsTransport, error: Exception | None) -> None:
        """Handle the end of a connection before its handshake was done; None: unknown reason."""
        ...


class WrongProtocolError(ssl.SSLError):
    """A client speaks another protocol instead of TLS."""

    def __init__(self, spoken: str) -> None:
        super().__init__(1, f"the client speaks {spoken}, without TLS")
        self.spoken = spoken


class TlsTransport(ServedTransport, asyncio.Protocol):
    """TLS transport, and the protocol of the `TcpTransport` below it. For use inside the loop only."""

    __slots__ = (
        "_closing", "_count", "_counted_bytes", "_deadline", "_deaf", "_error", "_handshaking", "_in_lane", "_incoming",
        "_loop", "_more", "_outgoing", "_owed_bytes", "_protocol", "_reads", "_records", "_slot", "_ssl", "_tcp",
    )  # fmt: skip

    def __init__(self, handshaking: Handshaking) -> None:
        self._handshaking = handshaking
        self._loop = asyncio.get_running_loop()
        self._tcp: TcpTransport
        self._ssl: ssl.SSLObject | None = None
        """None before the handshake and after the end of the connection."""
        self._incoming: ssl.MemoryBIO
        self._outgoing: ssl.MemoryBIO
        self._protocol: asyncio.Protocol | None = None
        """None until the handshake is done."""
        self._records = TlsRecords()
        """Records received and not yet given to OpenSSL."""
        self._count: Callable[[], None] | None = None
        self._counted_bytes = 0
        """Held bytes at the last call of `_count`."""
        self._owed_bytes = 0
        """Bytes that OpenSSL produced by itself since the peer last read everything."""
        self._more = False
        """Records, or bytes within OpenSSL, are left for another slice."""
        self._in_lane = False
        """The transport is in the slow lane."""
        self._reads = True
        """The protocol reads."""
        self._closing = False
        self._deaf = False
        """Received bytes are dropped: our end is closed, or TLS has failed."""
        self._error: Exception | None = None
        """Reason of the end of TLS."""
        self._deadline = 0.0
        """Time by which the handshake must be done, or the peer must close."""
        self._slot: DeadlineSlot | None = None

    def begin(self, context: ssl.SSLContext, deadline: float) -> None:
        """Begin the handshake as the server. `deadline`: by the loop's clock."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._until(deadline)
        self._tcp.resume_reading()

    def begin_as_client(self, context: ssl.SSLContext, deadline: float, host: str) -> None:
        """Begin the handshake as the client. `host`: name (Server Name Indication, RFC 6066 section 3) or address of
        the server, which its certificate must have if the context verifies that. Raises `ValueError` when it is
        neither, `ssl.SSLError` when the context cannot begin."""
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
            self._continue_later()
        self._tell_held()

    def take_slice(self) -> bool:
        """Decrypt for one slice (`bridge.transport.slow_lane.Sliced`): one-byte records take 100 times as long."""
        self._in_lane = self._reads and self._take() and self._reads
        if self._reads and not self._more:
            self._tcp.resume_reading()
        self._tell_held()
        return self._in_lane

    def eof_received(self) -> bool:
        """Handle the end of the peer's stream, of TLS or of TCP alone: all our protocols detect truncation
        themselves."""
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
        self._tcp.set_protocol(_NOBODY)  # breaks the reference cycle
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
        """Close as `TcpTransport.close`, after a close_notify (RFC 8446 section 6.1) without waiting for its answer."""
        if not self._closing:
            self._take_leave()
            self._closing = True
            self._tcp.close()

    def abort(self) -> None:
        """Drop the connection; held memory is freed in this turn."""
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
        """Bytes received and not decrypted."""
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
            self._continue_later()
        else:
            self._tcp.resume_reading()

    # --- asyncio.WriteTransport -------------------------------------------------------------------------------

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._tcp.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._tcp.get_write_buffer_limits()

    def get_write_buffer_size(self) -> int:
        """Encrypted bytes that are not sent."""
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
        """Write nothing more, and drop received bytes: TLS 1.2 has no half-close (RFC 5246 section 7.2.1), and the
        connection ends when the peer closes."""
        if not (self._deaf or self._closing):
            self._take_leave()
            self._deaf = True
            self._tcp.write_eof()

    # --- inside -----------------------------------------------------------------------------------------------

    def _take(self) -> bool:
        """Decrypt one slice and give it to the protocol; return True when there is more."""
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
        """Decrypt as much as there is time for; return True at the end of the stream. Raises `ssl.SSLError`."""
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
        """Continue the handshake; return True when it is done and the connection has a protocol."""
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

    def _continue_later(self) -> None:
        if not self._in_lane:
            self._in_lane = True
            slow_lane_of(self._loop).add(self)

    def _send(self) -> None:
        """Send the bytes that OpenSSL produced by itself."""
        if self._ssl is None or not self._outgoing.pending:
            return
        if not self._tcp.get_write_buffer_size():
            self._owed_bytes = 0
        data = self._outgoing.read()
        self._owed_bytes += len(data)
        if self._owed_bytes > OWED_BYTES_MAX and self._protocol is not None:
            self._error = ConnectionAbortedError("it sends requests and does not read the answers")
            self.abort()
            return
        self._tcp.write(data)

    def _take_leave(self) -> None:
        if self._protocol is not None and self._ssl is not None:
            with contextlib.suppress(ssl.SSLError):
                self._ssl.unwrap()  # writes our close_notify, and raises as it would wait for the peer's
            self._send()

    def _fail(self, error: ssl.SSLError) -> None:
        """End the connection after a TLS error; the peer has time to read our alert (RFC 8446 section 6.2)."""
        self._error = error
        self._error.__traceback__ = None  # its frames would keep this object alive
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

    def check_deadline(self) -> None:
        """End a handshake that takes too long (`bridge.transport.deadlines.Watched`)."""
        self._slot = None
        if self._deadline <= self._loop.time():
            self._error = self._error or TimeoutError("its handshake took too long")
            self._tcp.abort()
        else:
            self._until(self._deadline)


def _require_tls(record: memoryview) -> None:
    """Raise `WrongProtocolError` when the first record of a client is the start of another protocol."""
    spoken = foreign_protocol(bytes(record[:BEGINNING_BYTES]), "TLS")
    if spoken:
        raise WrongProtocolError(spoken)


_NOBODY: Final = asyncio.Protocol()
"""Protocol of a TCP connection that is over."""
