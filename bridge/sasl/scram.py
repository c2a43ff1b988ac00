"""SCRAM-SHA-256 (RFC 5802, RFC 7677), both roles, without channel binding: messages in, messages out, no I/O.

The server stores no password, only a salt, an iteration count and two keys per secret. Only a search can find the
password from these. Several secrets of one user share salt and count, so that a client may prove any of them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

from bridge.hidden import hides

MECHANISM: Final = "SCRAM-SHA-256"
ITERATIONS: Final = 15_000
"""Rounds of PBKDF2 for a client; RFC 7677 requires at least 4 096. About 10 ms on a Pi, once per connection."""
ITERATIONS_MIN: Final = 4_096
"""Fewest rounds a client accepts (RFC 7677 section 4): with fewer, an impostor could search the password."""
ITERATIONS_MAX: Final = 1_000_000
"""Most rounds a client accepts: a hostile server must not keep it busy for minutes."""
SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 18


class ScramError(ValueError):
    """A message does not follow the exchange, or its proof is wrong. The text contains no secret."""


@hides("stored", "server")
class ScramKeys(NamedTuple):
    """StoredKey and ServerKey of one secret (RFC 5802 section 3)."""

    stored: bytes
    server: bytes


@hides("salt")
class ScramVerifier(NamedTuple):
    """A server's data of a user. `keys` is empty for an unknown user, so that every proof fails."""

    salt: bytes
    iterations: int
    keys: Sequence[ScramKeys]


def prepare(password: str) -> str:
    """Normalize a password with SASLprep (RFC 4013). Raises ScramError for prohibited characters."""
    import stringprep as tables  # noqa: PLC0415 - 0.7 MiB, only where passwords are used
    import unicodedata  # noqa: PLC0415

    mapped = "".join(" " if tables.in_table_c12(c) else c for c in password if not tables.in_table_b1(c))
    normal = unicodedata.normalize("NFKC", mapped)
    prohibited = (
        tables.in_table_c12, tables.in_table_c21_c22, tables.in_table_c3, tables.in_table_c4, tables.in_table_c5,
        tables.in_table_c6, tables.in_table_c7, tables.in_table_c8, tables.in_table_c9,
    )  # fmt: skip
    if any(table(c) for table in prohibited for c in normal):
        raise ScramError("this password has characters that SASLprep prohibits, such as control characters")
    return normal


def derive(password: str, salt: bytes, iterations: int) -> ScramKeys:
    """Derive the keys of a secret, which takes the time of `iterations` rounds. Raises ScramError as `prepare` does."""
    client, server = _keys(password, salt, iterations)
    return ScramKeys(hashlib.sha256(client).digest(), server)


def _keys(password: str, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    salted = hashlib.pbkdf2_hmac("sha256", prepare(password).encode(), salt, iterations)
    return _mac(salted, b"Client Key"), _mac(salted, b"Server Key")


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _xor(a: bytes, b: bytes) -> bytes:
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


def _nonce() -> str:
    return base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()


def _attributes(message: bytes, expected: str) -> list[str]:
    """Return the values of a message that begins with these attributes; optional extensions may follow."""
    try:
        parts = message.decode("utf-8").split(",")
    except UnicodeDecodeError:
        raise ScramError("a SCRAM message that is not UTF-8") from None
    if len(parts) < len(expected) or any(not p.startswith(f"{n}=") for n, p in zip(expected, parts, strict=False)):
        raise ScramError(f"a SCRAM message without its attributes {', '.join(expected)}")
    return [part[2:] for part in parts]


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError("bad Base64 in a SCRAM message") from None


def _named(text: str) -> str:
    """Decode a saslname, with escaped comma and equals sign."""
    if text.replace("=2C", "").replace("=3D", "").count("="):
        raise ScramError("a user name with a bare equals sign")
    return text.replace("=2C", ",").replace("=3D", "=")


class ScramServer:
    """Server of one exchange: call `first`, then `challenge` with the verifier of `username`, then `finish`."""

    def __init__(self, nonce: str | None = None) -> None:
        self.username = ""
        self._own = _nonce() if nonce is None else nonce
        self._gs2 = b""
        self._client_first = ""
        self._server_first = ""
        self._nonce = ""
        self._keys: Sequence[ScramKeys] = ()

    def first(self, message: bytes) -> None:
        """Handle client-first-message; set `username`. Raises ScramError."""
        parts = message.split(b",", 2)
        if len(parts) != 3 or parts[0] not in (b"n", b"y"):
            raise ScramError("channel binding is not supported")
        username, nonce = _attributes(parts[2], "nr")[:2]
        self.username = _named(username)
        authority = parts[1].decode("utf-8", "replace")
        if authority not in ("", f"a={username}"):
            raise ScramError("a user may act only for itself")
        if not nonce or not self.username:
            raise ScramError("an empty user name or nonce")
        self._gs2 = parts[0] + b"," + parts[1] + b","
        self._client_first = parts[2].decode("utf-8")
        self._nonce = nonce + self._own

    def challenge(self, verifier: ScramVerifier) -> bytes:
        """Return server-first-message."""
        self._keys = verifier.keys
        salt = base64.b64encode(verifier.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={verifier.iterations}"
        return self._server_first.encode()

    def finish(self, message: bytes) -> bytes:
        """Handle client-final-message; return server-final-message. Raises ScramError when the proof is wrong."""
        bare, separator, proof_text = message.rpartition(b",p=")
        binding, nonce = _attributes(bare, "cr")[:2]
        if not separator or _decoded(binding) != self._gs2 or nonce != self._nonce:
            raise ScramError("a SCRAM response to another challenge")
        proof = _decoded(proof_text.decode("ascii", "replace"))
        exchange = f"{self._client_first},{self._server_first},".encode() + bare
        if len(proof) == hashlib.sha256().digest_size:
            for keys in self._keys:
                client = _xor(proof, _mac(keys.stored, exchange))
                if hmac.compare_digest(hashlib.sha256(client).digest(), keys.stored):
                    return b"v=" + base64.b64encode(_mac(keys.server, exchange))
        raise ScramError("the proof does not match a secret of this user")


class ScramClient:
    """Client of one exchange: call `first`, `answer`, then `check` with the server's final message."""

    def __init__(self, username: str, password: str, nonce: str | None = None) -> None:
        self._password = password
        escaped = username.replace("=", "=3D").replace(",", "=2C")
        self._nonce = _nonce() if nonce is None else nonce
        self._client_first = f"n={escaped},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """Return client-first-message."""
        return f"n,,{self._client_first}".encode()

    def answer(self, challenge: bytes) -> bytes:
        """Return client-final-message for a server-first-message. Raises ScramError."""
        nonce, salt, count = _attributes(challenge, "rsi")[:3]
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server's nonce does not extend ours")
        if not count.isascii() or not count.isdigit() or len(count) > 9:
            raise ScramError("the server's iteration count is not a number")
        if not ITERATIONS_MIN <= int(count) <= ITERATIONS_MAX:
            bounds = (
                f"this client accepts {ITERATIONS_MIN} to {ITERATIONS_MAX}: set the user's password at the server again"
            )
            raise ScramError(f"the server requests {count} iterations of SCRAM-SHA-256, {bounds}")
        salt_bytes = _decoded(salt)
        if not salt_bytes:
            raise ScramError("the server sent an empty salt")
        client, server = _keys(self._password, salt_bytes, int(count))
        bare = f"c={base64.b64encode(b'n,,').decode()},r={nonce}"
        exchange = f"{self._client_first},{challenge.decode()},{bare}".encode()
        self._signature = _mac(server, exchange)
        proof = _xor(client, _mac(hashlib.sha256(client).digest(), exchange))
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()

    def check(self, final: bytes) -> None:
        """Verify the server's signature. Raises ScramError when the server does not know the user's keys."""
        if not self._signature or not hmac.compare_digest(_decoded(_attributes(final, "v")[0]), self._signature):
            raise ScramError("the server does not know the secret of this user")
