"""Password hashes in the forms of Mosquitto's password file."""

from __future__ import annotations

import base64
import hashlib

SALT = b"twelve bytes"


def mosquitto_hash(password: str, iterations: int = 101) -> str:
    """Return the hash of a password; with 0 iterations in the older form."""
    salt = base64.b64encode(SALT).decode()
    if not iterations:
        digest = hashlib.sha512(password.encode() + SALT).digest()
        return f"$6${salt}${base64.b64encode(digest).decode()}"
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), SALT, iterations)
    return f"$7${iterations}${salt}${base64.b64encode(digest).decode()}"
