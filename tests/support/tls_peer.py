"""TLS peer with access to its records, which can send records that OpenSSL would not."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

CIPHER: Final = "TLS_AES_256_GCM_SHA384"
RECORD_BYTES: Final = 16 * 1024
HANDSHAKE: Final = 22
APPLICATION_DATA: Final = 23
KEY_UPDATE: Final = b"\x18\0\0\x01\x01"
"""KeyUpdate that requests one in return (RFC 8446 section 4.6.3)."""


class TlsPeer:
    """TLS over a blocking socket; reads only as much as the handshake needs."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, *, server_side: bool = False) -> None:
        self.socket = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        host = None if server_side else "localhost"
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side, host)
        self._run(self.tls.do_handshake)

    def send(self, data: bytes) -> None:
        self.socket.sendall(self.encrypted(data))

    def encrypted(self, *parts: bytes) -> bytes:
        """Return a record for each part, or several for a large one."""
        for data in parts:
            for start in range(0, len(data), RECORD_BYTES):
                self.tls.write(data[start : start + RECORD_BYTES])
        return self._outgoing.read()

    def read(self) -> bytes:
        """Wait for data and return it; empty at the end."""
        found = self._run(lambda: self.tls.read(1 << 16))
        assert isinstance(found, bytes)
        return found

    def _run(self, step: Callable[[], Any]) -> Any:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self.socket.sendall(self._outgoing.read())
                data = self.socket.recv(1 << 16)
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            finally:
                if self._outgoing.pending:
                    self.socket.sendall(self._outgoing.read())


class TrafficKeys:
    """Writes records of TLS 1.3 for an end that has not sent any yet (RFC 8446 sections 5 and 7)."""

    def __init__(self, log: Path, end: str = "CLIENT") -> None:
        """`log`: file of a context's logged secrets; the last connection counts. `end`: `CLIENT` or `SERVER`."""
        lines = [line.split() for line in log.read_text().splitlines() if line.startswith(f"{end}_TRAFFIC_SECRET_0")]
        self._take(bytes.fromhex(lines[-1][2]))

    def key_updates(self, count: int) -> bytes:
        """Return this many requests for new keys, each in its own record."""
        return b"".join(self._key_update() for _ in range(count))

    def _key_update(self) -> bytes:
        record = self._record(KEY_UPDATE, HANDSHAKE)
        self._take(_expanded(self._secret, b"traffic upd", 48))
        return record

    def _take(self, secret: bytes) -> None:
        self._secret = secret
        self._key = AESGCM(_expanded(secret, b"key", 32))
        self._iv = int.from_bytes(_expanded(secret, b"iv", 12))
        self._number = 0

    def _record(self, content: bytes, kind: int) -> bytes:
        header = bytes([APPLICATION_DATA, 3, 3]) + (len(content) + 17).to_bytes(2)
        nonce = (self._iv ^ self._number).to_bytes(12)
        self._number += 1
        return header + self._key.encrypt(nonce, content + bytes([kind]), header)


def _expanded(secret: bytes, label: bytes, length: int) -> bytes:
    """HKDF-Expand-Label without a context (RFC 8446 section 7.1)."""
    info = length.to_bytes(2) + bytes([6 + len(label)]) + b"tls13 " + label + b"\0"
    return HKDFExpand(SHA384(), length, info).derive(secret)
