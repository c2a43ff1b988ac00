"""Password hashes of other brokers: users who come from there keep their passwords.

Those are the hashes of Mosquitto and Artemis, and those that Eclipse Hono's registry stores. They verify a password
that a client sends (MQTT, HTTP, SASL PLAIN). SCRAM needs keys that such a hash does not have: it works once the user
has a new password. Pure.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple

from bridge.hidden import hides

ITERATIONS_MAX: Final = 1_000_000
"""Iterations of PBKDF2: some 0.5 s on a Raspberry Pi 4, during which other passwords wait. Mosquitto's default is
101, that of Artemis 1024."""
SALT_BYTES_MAX: Final = 64
"""Longest salt; Mosquitto's has 12 bytes, or 64 since version 2.1, that of Artemis 32."""
HASH_BYTES: Final = 64
"""Length of a SHA-512 hash, and of the keys that Mosquitto and Artemis derive."""
FORMS: Final = "$7$iterations$salt$hash or $6$salt$hash (Mosquitto), or ENC(iterations:salt:hash) (Artemis)"
"""Forms of a hash, for messages to people."""
_ARTEMIS: Final = ("ENC(", ")")
_SHA512: Final = "6"
_PBKDF2: Final = "7"
SALTED: Final[Mapping[str, str]] = {"sha-256": "sha256", "sha-512": "sha512"}
"""Functions of Hono, which hash salt and password, and their names in `hashlib`."""


@hides("salt", "digest")
class ForeignHash(NamedTuple):
    """Parsed password hash of another broker."""

    algorithm: str
    """Hash function: ``sha512`` (Mosquitto) or ``sha1`` (Artemis)."""
    iterations: int
    """Iterations of PBKDF2 with HMAC; 0: one hash over password and salt."""
    salt: bytes
    digest: bytes


def parse_hash(text: str) -> ForeignHash:
    """Parse a hash of `mosquitto_passwd` or of ``artemis mask --hash``, see `FORMS`. Raises ValueError."""
    start, end = _ARTEMIS
    if text.startswith(start) and text.endswith(end):
        algorithm, parts, decode = "sha1", text[len(start) : -len(end)].split(":"), bytes.fromhex
        known = len(parts) == 3
    else:
        empty, kind, *parts = (*text.split("$"), "", "")
        algorithm, parts, decode = "sha512", parts[:-2], _base64
        known = not empty and {_SHA512: 2, _PBKDF2: 3}.get(kind) == len(parts)
    if not known:
        raise ValueError(f"a hash of a password is {FORMS}")
    iterations = _iterations(parts.pop(0)) if len(parts) == 3 else 0
    try:
        salt, digest = map(decode, parts)
    except ValueError:
        raise ValueError("salt and hash must be Base64 (Mosquitto) or hexadecimal (Artemis)") from None
    if len(digest) != HASH_BYTES or not 1 <= len(salt) <= SALT_BYTES_MAX:
        raise ValueError(f"a hash has {HASH_BYTES} bytes, and its salt up to {SALT_BYTES_MAX}")
    return ForeignHash(algorithm, iterations, salt, digest)


def salted_hash(function: str, salt: bytes, digest: str) -> str:
    """Return the text of a hash of Hono; `function` is one of `SALTED`, `digest` Base64."""
    return f"{function}${base64.b64encode(salt).decode()}${digest}"


def matches(text: str, password: bytes) -> bool:
    """Return whether a password has this hash; False for any other text."""
    function, _, rest = text.partition("$")
    if function in SALTED:
        return _matches_salted(SALTED[function], rest, password)
    try:
        algorithm, iterations, salt, digest = parse_hash(text)
    except ValueError:
        return False
    found = (
        hashlib.pbkdf2_hmac(algorithm, password, salt, iterations, HASH_BYTES)
        if iterations
        else hashlib.new(algorithm, password + salt).digest()
    )
    return hmac.compare_digest(found, digest)


# --- inside -----------------------------------------------------------------------------------------------------------


def _base64(text: str) -> bytes:
    """Decode Base64. Raises ValueError."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError(text) from None


def _iterations(text: str) -> int:
    """Parse a number of iterations. Raises ValueError."""
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= ITERATIONS_MAX:
        raise ValueError(f"the iterations of a hash are 1 to {ITERATIONS_MAX}")
    return int(text[:9])


def _matches_salted(function: str, text: str, password: bytes) -> bool:
    salt, _, digest = text.partition("$")
    try:
        expected = base64.b64decode(digest, validate=True)
        found = hashlib.new(function, base64.b64decode(salt, validate=True) + password).digest()
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(found, expected)
