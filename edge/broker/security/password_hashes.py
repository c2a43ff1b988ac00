"""Password hashes of other brokers: users who come from there keep their passwords.

They verify a password that a client sends (MQTT, HTTP, SASL PLAIN). SCRAM needs keys that such a hash does not have: it
works once the user has a new password. Pure.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final, NamedTuple

from bridge.hidden import hides

ITERATIONS_MAX: Final = 1_000_000
"""Iterations of PBKDF2: some 0.5 s on a Raspberry Pi 4, during which other passwords wait. Mosquitto's default is
101."""
SALT_BYTES_MAX: Final = 64
"""Longest salt; Mosquitto's has 12 bytes, or 64 since version 2.1."""
HASH_BYTES: Final = 64
"""Length of a SHA-512 hash, and of the key that Mosquitto derives."""
SHA512: Final = "6"
PBKDF2: Final = "7"


@hides("salt", "digest")
class MosquittoHash(NamedTuple):
    """Parsed hash of a password file of Mosquitto."""

    iterations: int
    """Iterations of PBKDF2-HMAC-SHA512; 0: one SHA-512 over password and salt."""
    salt: bytes
    digest: bytes


def parse_hash(text: str) -> MosquittoHash:
    """Parse ``$7$iterations$salt$hash`` or ``$6$salt$hash`` (`mosquitto_passwd`). Raises ValueError."""
    empty, kind, *rest = (*text.split("$"), "", "")
    rest = rest[:-2]
    if empty or {SHA512: 2, PBKDF2: 3}.get(kind) != len(rest):
        raise ValueError("a hash of Mosquitto is $7$iterations$salt$hash or $6$salt$hash")
    iterations = 0
    if kind == PBKDF2:
        number = rest.pop(0)
        if not (number.isascii() and number.isdigit()) or not 1 <= int(number[:9]) <= ITERATIONS_MAX:
            raise ValueError(f"the iterations of a hash are 1 to {ITERATIONS_MAX}")
        iterations = int(number[:9])
    try:
        salt, digest = (base64.b64decode(each, validate=True) for each in rest)
    except (binascii.Error, ValueError):
        raise ValueError("salt and hash must be Base64") from None
    if len(digest) != HASH_BYTES or not 1 <= len(salt) <= SALT_BYTES_MAX:
        raise ValueError(f"a hash has {HASH_BYTES} bytes, and its salt up to {SALT_BYTES_MAX}")
    return MosquittoHash(iterations, salt, digest)


def matches(text: str, password: bytes) -> bool:
    """Return whether a password has this hash; False for any other text."""
    try:
        iterations, salt, digest = parse_hash(text)
    except ValueError:
        return False
    found = (
        hashlib.pbkdf2_hmac("sha512", password, salt, iterations, HASH_BYTES)
        if iterations
        else hashlib.sha512(password + salt).digest()
    )
    return hmac.compare_digest(found, digest)
