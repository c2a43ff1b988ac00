"""File that is encrypted with a passphrase while it is written, and checked while it is read.

```
magic line | length (4 bytes) | header (MessagePack) | block | block | …
```

A block is up to 64 KiB of content, encrypted with AES-256-GCM. Its nonce is its number and whether it is the last one,
so blocks cannot be left out, repeated, moved or cut off unnoticed (the STREAM construction, as in age and Tink). The
key is made from the passphrase and a random salt (scrypt), so no two files share one. Each block authenticates the
header.
"""

from __future__ import annotations

import io
import secrets
from typing import IO, Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

MAGIC: Final = b"waypost-hub-backup 1\n"
BLOCK_BYTES: Final = 64 * 1024
TAG_BYTES: Final = 16
SALT_BYTES: Final = 16
COST: Final = 1 << 17
"""scrypt N: 128 MiB and some 0.4 s for each guess of the passphrase (OWASP's recommendation)."""
COST_MAX: Final = 1 << 20
"""Largest N that is tried: a damaged header must not take all memory (1 GiB)."""
HEADER_BYTES_MAX: Final = 1_024
"""Bytes of a header: a larger number is none."""


class SealBroken(Exception):
    """The file is not complete, was changed, or the passphrase is another one; the message says which."""


class SealHeader(msgspec.Struct, frozen=True):
    """Parameters of the key."""

    salt: bytes
    cost: int
    block_bytes: int = BLOCK_BYTES


class SealedWriter:
    """Writes into a file; `finish` ends the content, and leaves the file open."""

    def __init__(self, file: IO[bytes], passphrase: str, *, cost: int = COST) -> None:
        header = msgspec.msgpack.encode(SealHeader(secrets.token_bytes(SALT_BYTES), cost))
        self._blocks = _Blocks(header, passphrase)
        self._file = file
        self._left = bytearray()
        file.write(MAGIC + len(header).to_bytes(4, "big") + header)

    def write(self, content: bytes) -> int:
        self._left += content
        while len(self._left) > BLOCK_BYTES:  # the last block is written at the end, even if it is full
            self._put(bytes(self._left[:BLOCK_BYTES]), last=False)
            del self._left[:BLOCK_BYTES]
        return len(content)

    def finish(self) -> None:
        """Write the last block."""
        self._put(bytes(self._left), last=True)
        self._left.clear()

    def _put(self, content: bytes, *, last: bool) -> None:
        self._file.write(self._blocks.encrypt(content, last=last))


class SealedReader(io.RawIOBase):
    """Reads the content of a file. Every read raises `SealBroken` if the content is not what was written."""

    def __init__(self, file: IO[bytes], passphrase: str) -> None:
        self._file = file
        if file.read(len(MAGIC)) != MAGIC:
            raise SealBroken("it is not a backup of a hub")
        length = int.from_bytes(file.read(4), "big")
        header = file.read(length) if 0 < length <= HEADER_BYTES_MAX else b""
        self._blocks = _Blocks(header, passphrase)
        self._next = file.read(BLOCK_BYTES + TAG_BYTES)
        self._content = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        target = memoryview(buffer)  # type: ignore[arg-type]
        while not self._content and not self._ended:
            self._advance()
        count = min(len(target), len(self._content))
        target[:count] = self._content[:count]
        self._content = self._content[count:]
        return count

    def _advance(self) -> None:
        block, self._next = self._next, self._file.read(BLOCK_BYTES + TAG_BYTES)
        self._ended = not self._next
        self._content = memoryview(self._blocks.decrypt(block, last=self._ended))


class _Blocks:
    """Key, and number of the next block."""

    def __init__(self, header: bytes, passphrase: str) -> None:
        try:
            parameters = msgspec.msgpack.decode(header, type=SealHeader)
            if not 1 < parameters.cost <= COST_MAX or parameters.block_bytes != BLOCK_BYTES:
                raise SealBroken("its begin was changed, or a newer program wrote it")
            made = Scrypt(salt=parameters.salt, length=32, n=parameters.cost, r=8, p=1).derive(passphrase.encode())
        except (msgspec.DecodeError, ValueError) as error:
            raise SealBroken("its begin was changed or is missing") from error
        self._cipher = AESGCM(made)
        self._header = header
        self._number = 0

    def encrypt(self, content: bytes, *, last: bool) -> bytes:
        return self._cipher.encrypt(self._nonce(last=last), content, self._header)

    def decrypt(self, block: bytes, *, last: bool) -> bytes:
        first = self._number == 0
        try:
            return self._cipher.decrypt(self._nonce(last=last), block, self._header)
        except (InvalidTag, ValueError) as error:
            words = "the passphrase is another one, or it was changed" if first else "it was changed or is not complete"
            raise SealBroken(words) from error

    def _nonce(self, *, last: bool) -> bytes:
        self._number += 1
        return self._number.to_bytes(11, "big") + bytes([last])
