"""Sessions that outlive a restart: what is kept of each, and where.

Only the SHA-256 of a token is kept, so who reads the archive cannot use a session. What the issuer of a person needs to
renew its rights is encrypted with a key that is made from the token (`seal`): only the browser has it.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

from bridge.hidden import hides
from edge.broker.http.limits import SESSION_IDLE_S, SESSION_LIFE_S, SESSION_STAY_S
from edge.broker.model.authorization import AccessRule
from edge.broker.security.proof import TokenOrigin, VerifiedIdentity

BY_PASSWORD: Final = "password"  # noqa: S105 - a word
BY_OPERATOR: Final = "operator"
_NONCE_BYTES: Final = 12
_SEAL: Final = b"waypost: what the issuer needs to renew a session"


class ArchiveFailed(Exception):
    """The archive cannot be used; the message has the reason and the next step."""


@hides("key", "sealed")
class KeptSession(msgspec.Struct, frozen=True, kw_only=True):
    """One session of a browser. Times are UTC seconds."""

    key: bytes
    """SHA-256 of its token."""
    user: str
    by: str
    """`BY_PASSWORD`, `BY_OPERATOR` (a link), or the issuer of its token."""
    secret: str = ""
    """Id of the password."""
    rules: tuple[AccessRule, ...] = ()
    """Rights of the token."""
    expires_at_s: float | None = None
    """End of the token; None without one."""
    stays: bool = False
    opened_at_s: float
    used_at_s: float
    """Last use that was kept; the last one may be `SESSION_TOUCHES` of the idle time later."""
    sealed: bytes = b""
    """Encrypted `IssuerMemory`; empty without one."""
    origin: TokenOrigin | None = None
    """Origin of the token; None without one."""

    @property
    def idle_s(self) -> float:
        """Seconds without a request after which it ends."""
        return SESSION_STAY_S if self.stays else SESSION_IDLE_S

    def is_over(self, now_s: float) -> bool:
        """Return True for a session that was idle for too long, is too old, or has an expired token that cannot be
        renewed. A clock that was set back makes no session older.
        """
        if not self.sealed and self.has_expired(now_s):
            return True
        return now_s - self.used_at_s >= self.idle_s or now_s - self.opened_at_s >= SESSION_LIFE_S

    def has_expired(self, now_s: float) -> bool:
        """Return True if its token has ended."""
        return self.expires_at_s is not None and self.expires_at_s <= now_s


@hides("refresh_token", "id_token")
class IssuerMemory(msgspec.Struct, frozen=True):
    """Tokens that the issuer of a person needs."""

    refresh_token: str
    """Token with which the issuer is asked again; empty if it gave none."""
    id_token: str
    """Names the person when it signs out."""


class SessionArchive(Protocol):
    """Keeps sessions, for the thread that opens it. Every method is durable on return; raises `ArchiveFailed`."""

    def all(self) -> list[KeptSession]:
        """Return all sessions."""
        ...

    def find(self, key: bytes) -> KeptSession | None:
        """Return one session."""
        ...

    def add(self, kept: KeptSession) -> list[bytes]:
        """Keep a session. Return the keys of those that made room for it, and are not kept any more."""
        ...

    def touch(self, used: Mapping[bytes, float]) -> None:
        """Set later times of use, UTC seconds; forget sessions that are over."""
        ...

    def claim(self, key: bytes, expires_at_s: float, now_s: float) -> bool:
        """Return True if this node is to renew the token that ends at a time. No other node is for
        `SESSION_RENEWAL_S`."""
        ...

    def renewed(self, kept: KeptSession) -> None:
        """Set rights, end and sealed memory of a session that is kept."""
        ...

    def remove(self, keys: Iterable[bytes]) -> None:
        """Forget sessions."""
        ...

    def remove_user(self, user: str) -> list[bytes]:
        """Forget the sessions of a user; return their keys."""
        ...

    def close(self) -> None:
        """Close it. Raises nothing."""
        ...


def kept_origin(proven: VerifiedIdentity) -> TokenOrigin | None:
    """Return the origin of a token as it is kept. The issuer cannot be asked about a token that was not kept."""
    return proven.origin._replace(digest="", text=b"") if proven.origin is not None else None


def sealing_key(token: str) -> bytes:
    """Return the key of a session's sealed memory. The kept SHA-256 of the token does not lead to it."""
    return hmac.digest(token.encode("utf-8", "surrogatepass"), _SEAL, "sha256")


def seal(key: bytes, memory: IssuerMemory) -> bytes:
    """Encrypt what the issuer needs."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - 10 MiB, loaded by the issuer

    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, msgspec.json.encode(memory), None)


def unseal(key: bytes, sealed: bytes) -> IssuerMemory | None:
    """Decrypt what the issuer needs; None if it was sealed with another key, or is damaged."""
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

    try:
        plain = AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
        return msgspec.json.decode(plain, type=IssuerMemory)
    except (InvalidTag, ValueError, msgspec.DecodeError):
        return None
