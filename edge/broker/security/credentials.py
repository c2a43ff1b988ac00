"""Users and their secrets, and the file that stores them.

A password is stored as an argon2id hash (for MQTT and SASL PLAIN) and as SCRAM-SHA-256 keys, which are never logged or
shown. A user from another broker may have that broker's hash instead, without keys (`password_hashes`). The file is a
small SQLite database next to the store. `waypost user` writes it whether the gateway runs or not, and a running gateway
notices a change within a second.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self

import msgspec

from bridge.hidden import hides
from bridge.sasl.scram import ITERATIONS, SALT_BYTES, ScramKeys, derive
from edge.broker.model.authorization import AccessRule
from edge.broker.security import password_hashes
from edge.broker.security.limits import (
    PASSWORD_BYTES_MAX,
    RULES_PER_USER_MAX,
    SECRETS_PER_USER_MAX,
    USERNAME_CHARACTERS_MAX,
    USERS_MAX,
)

if TYPE_CHECKING:
    import argon2

FILE: Final = "credentials.db"
FORMAT: Final = 1
"""Version of the file's layout; a newer program writes a higher number."""
FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
BUSY_S: Final = 10.0
"""Seconds that a writer waits for another writer."""

GENERATED_BYTES: Final = 18
"""Random bytes of a generated password: 24 characters that need no quoting in shells and firmware strings."""

_SCHEMA: Final = """
CREATE TABLE users (
    name TEXT PRIMARY KEY, origin TEXT NOT NULL, salt BLOB NOT NULL, iterations INTEGER NOT NULL, rules BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE secrets (
    user TEXT NOT NULL REFERENCES users (name) ON DELETE CASCADE, id TEXT NOT NULL, argon2 TEXT NOT NULL,
    stored_key BLOB NOT NULL, server_key BLOB NOT NULL, not_before REAL NOT NULL, not_after REAL,
    PRIMARY KEY (user, id)
);
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
"""

BY_HAND: Final = "device"
"""Origin of users created with `waypost user`."""
BY_RESOURCE: Final = "resource"
"""Origin of users that a `MessagingUser` resource describes."""


class CredentialsError(Exception):
    """The file cannot be used, or a change is not possible. The message says why and contains no secret."""


class CredentialsUnavailable(CredentialsError):
    """The place of the users failed; a change may have been made."""


class UserChanged(CredentialsError):
    """The user was added, changed or removed at the same time."""


class CredentialsDamaged(CredentialsError):
    """The file is damaged or is not a credential file."""


@hides("hashed", "keys")
class CredentialSecret(msgspec.Struct, frozen=True):
    """One secret of a user. Times are UTC seconds; `not_after` None: forever."""

    id: str
    hashed: str = msgspec.field(name="argon2")
    """Hash of the password: argon2id as a PHC string, or that of another broker."""
    keys: ScramKeys
    """Empty with the hash of another broker."""
    not_before: float = 0.0
    not_after: float | None = None

    def valid(self, at_s: float) -> bool:
        """Return True if it is accepted at this time."""
        return self.not_before <= at_s and (self.not_after is None or at_s < self.not_after)

    @property
    def imported(self) -> bool:
        """True with the hash of another broker."""
        return not self.keys.stored


@hides("salt", "secrets")
class CredentialUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user with its rights and secrets. All secrets share the salt of SCRAM."""

    name: str
    salt: bytes
    iterations: int = ITERATIONS
    secrets: tuple[CredentialSecret, ...] = ()
    rules: tuple[AccessRule, ...] = ()
    origin: str = BY_HAND


def new_user(name: str, rules: Iterable[AccessRule] = (), origin: str = BY_HAND) -> CredentialUser:
    """Return a user without a secret. Raises CredentialsError for an invalid name or too many rules."""
    if not name or len(name) > USERNAME_CHARACTERS_MAX or not name.isprintable():
        raise CredentialsError(f"a user name is 1 to {USERNAME_CHARACTERS_MAX} printable characters")
    return with_rules(CredentialUser(name=name, salt=secrets.token_bytes(SALT_BYTES), origin=origin), rules)


def with_rules(user: CredentialUser, rules: Iterable[AccessRule]) -> CredentialUser:
    """Return the user with these rules instead of its own. Raises CredentialsError if there are too many."""
    kept = tuple(rules)
    if max(len(kept), *(len(rule.addresses) for rule in kept), 0) > RULES_PER_USER_MAX:
        raise CredentialsError(f"user {user.name}: more than {RULES_PER_USER_MAX} rules, or addresses in a rule")
    return msgspec.structs.replace(user, rules=kept)


def with_secret(
    user: CredentialUser, password: str, *, at_s: float, not_before: float = 0.0, not_after: float | None = None
) -> CredentialUser:
    """Return the user with a further secret, without the secrets that have ended at `at_s` (UTC seconds).

    A secret that is valid at once has a `not_before` of 0: a gateway without a battery clock starts in the past and
    must still accept its devices. Takes some 50 ms. Raises CredentialsError for an invalid password or too many
    secrets.
    """
    if not password or len(password.encode("utf-8", "surrogatepass")) > PASSWORD_BYTES_MAX:
        raise CredentialsError(f"a password is 1 to {PASSWORD_BYTES_MAX} bytes")
    kept = tuple(secret for secret in user.secrets if secret.not_after is None or secret.not_after > at_s)
    if len(kept) >= SECRETS_PER_USER_MAX:
        raise CredentialsError(
            f"user {user.name} has {len(kept)} secrets already: wait until one ends, or rotate without overlap"
        )
    try:
        keys = derive(password, user.salt, user.iterations)
        hashed = _hasher().hash(password)
    except ValueError as why:  # of SASLprep, or a character without UTF-8
        raise CredentialsError(f"this password cannot be used: {why}") from None
    fresh = CredentialSecret(secrets.token_hex(4), hashed, keys, not_before, not_after)
    return msgspec.structs.replace(user, secrets=(*kept, fresh))


def with_hash(user: CredentialUser, hashed: str) -> CredentialUser:
    """Return the user with the hash of another broker as its only secret. Raises ValueError for an unknown form."""
    password_hashes.parse_hash(hashed)
    secret = CredentialSecret(secrets.token_hex(4), hashed, ScramKeys(b"", b""))
    return msgspec.structs.replace(user, secrets=(secret,))


def end_secrets(user: CredentialUser, at_s: float) -> CredentialUser:
    """Return the user with every secret ending at `at_s` (UTC seconds) or before."""
    ended = tuple(
        msgspec.structs.replace(secret, not_after=at_s if secret.not_after is None else min(at_s, secret.not_after))
        for secret in user.secrets
    )
    return msgspec.structs.replace(user, secrets=ended)


@cache
def _hasher() -> argon2.PasswordHasher:
    """Return a hasher with OWASP's parameters of 2023 (19 MiB, two passes): 25-50 ms, fits a 512 MiB Pi."""
    import argon2  # noqa: PLC0415 - 0.6 MiB, only with passwords

    return argon2.PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1, type=argon2.Type.ID)


def generated_password() -> str:
    """Return a new random password."""
    return secrets.token_urlsafe(GENERATED_BYTES)


def verify(user: CredentialUser, password: bytes, at_s: float) -> CredentialSecret | None:
    """Return the valid secret that this password matches, or None. Takes some 30 ms for every valid secret."""
    valid = (secret for secret in user.secrets if secret.valid(at_s))
    return next((secret for secret in valid if _is_of(secret, password)), None)


def _is_of(secret: CredentialSecret, password: bytes) -> bool:
    if secret.imported:
        return password_hashes.matches(secret.hashed, password)
    from argon2.exceptions import InvalidHashError, VerificationError  # noqa: PLC0415 - as above

    try:
        return _hasher().verify(secret.hashed, password)
    except (VerificationError, InvalidHashError):
        return False


@hides("decoy_key")
class CredentialSnapshot(msgspec.Struct, frozen=True):
    """All users by name, and the key that derives the salts of unknown users."""

    users: Mapping[str, CredentialUser] = {}
    decoy_key: bytes = b""


class CredentialStore(Protocol):
    """Place where users are kept. Its methods raise CredentialsError."""

    def load(self) -> CredentialSnapshot:
        """Load all users."""
        ...

    def put(self, users: Iterable[CredentialUser], *, new: bool = False) -> None:
        """Add or replace users, all or none; with `new` none of them may exist."""
        ...

    def remove(self, names: Iterable[str]) -> list[str]:
        """Remove users; return the names that existed."""
        ...


def connect_private(path: Path) -> sqlite3.Connection:
    """Open or create a database that only its owner reads, with its folder. Raises CredentialsError."""
    try:
        path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        path.touch(mode=FILE_MODE)
        return sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    except OSError as why:
        raise CredentialsError(f"cannot open {path}: {why.strerror}; check owner, mode and medium") from why
    except sqlite3.Error as why:
        raise CredentialsError(f"cannot open {path}: {why}") from why


class CredentialFile:
    """The credential file. Calls block for a few milliseconds; use it from one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.path = path
        self._connection = connection
        self._seen = -1

    @classmethod
    def open(cls, data: Path) -> Self:
        """Open or create the file in a data directory. Raises CredentialsError."""
        path = data / FILE
        opened = cls(connect_private(path), path)
        try:
            opened._prepare()
        except sqlite3.DatabaseError as why:
            opened.close()
            kind = CredentialsError if isinstance(why, sqlite3.OperationalError) else CredentialsDamaged
            raise kind(f"{path}: {why}") from why
        except (CredentialsError, sqlite3.Error) as why:
            opened.close()
            raise CredentialsError(f"{path}: {why}") from why
        return opened

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def changed(self) -> bool:
        """Return True if another process has written since the last `load`. Takes some 10 us; never raises."""
        try:
            return bool(self._version() != self._seen)
        except sqlite3.Error:
            return False

    def load(self) -> CredentialSnapshot:
        """Load all users. Raises CredentialsError."""
        try:
            self._connection.execute("BEGIN")
            try:
                self._seen = self._version()
                found: dict[str, list[CredentialSecret]] = {}
                for user, id_, hashed, stored, server, *times in self._connection.execute(
                    "SELECT user, id, argon2, stored_key, server_key, not_before, not_after FROM secrets"
                    " ORDER BY rowid"  # the oldest first
                ):
                    found.setdefault(user, []).append(CredentialSecret(id_, hashed, ScramKeys(stored, server), *times))
                users = {
                    name: CredentialUser(
                        name=name,
                        salt=salt,
                        iterations=iterations,
                        secrets=tuple(found.get(name, ())),
                        rules=msgspec.json.decode(rules, type=tuple[AccessRule, ...]),
                        origin=origin,
                    )
                    for name, origin, salt, iterations, rules in self._connection.execute(
                        "SELECT name, origin, salt, iterations, rules FROM users ORDER BY name"
                    )
                }
                (key,) = self._connection.execute("SELECT value FROM meta WHERE name = 'decoy'").fetchone()
            finally:
                self._connection.execute("COMMIT")
        except (sqlite3.Error, msgspec.MsgspecError) as why:
            raise CredentialsUnavailable(f"cannot read {self.path}: {why}") from why
        return CredentialSnapshot(users, key)

    def put(self, users: Iterable[CredentialUser], *, new: bool = False) -> None:
        """Add or replace users, all or none; with `new` none of them may exist. Raises CredentialsError."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            with self._connection:
                for user in users:
                    self._put(user, new=new)
                (count,) = self._connection.execute("SELECT count(*) FROM users").fetchone()
                if count > USERS_MAX:
                    raise CredentialsError(f"there can be at most {USERS_MAX} users")
        except sqlite3.Error as why:
            raise CredentialsUnavailable(f"cannot write {self.path}: {why}") from why

    def remove(self, names: Iterable[str]) -> list[str]:
        """Remove users; return the names that existed. Raises CredentialsError."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            with self._connection:
                return [
                    name
                    for name in names
                    if self._connection.execute("DELETE FROM users WHERE name = ?", (name,)).rowcount
                ]
        except sqlite3.Error as why:
            raise CredentialsUnavailable(f"cannot write {self.path}: {why}") from why

    # --- inside -------------------------------------------------------------------------------------------------

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def _prepare(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA synchronous = EXTRA")
        execute("PRAGMA foreign_keys = ON")
        (found,) = execute("PRAGMA user_version").fetchone()
        if found > FORMAT:
            raise CredentialsError(
                f"a newer version of Waypost wrote it (format {found}; this version reads {FORMAT}): upgrade"
            )
        if found == FORMAT:
            return
        execute("BEGIN IMMEDIATE")
        with self._connection:
            if execute("PRAGMA user_version").fetchone()[0] == FORMAT:
                return  # another process created it first
            for statement in _SCHEMA.split(";"):
                execute(statement)
            execute("INSERT INTO meta VALUES ('decoy', ?)", (secrets.token_bytes(32),))
            execute(f"PRAGMA user_version = {FORMAT}")

    def _put(self, user: CredentialUser, *, new: bool) -> None:
        execute = self._connection.execute
        gone = execute("DELETE FROM users WHERE name = ?", (user.name,)).rowcount
        if gone and new:
            raise UserChanged(f"user {user.name} exists already")
        rules = msgspec.json.encode(user.rules)
        execute("INSERT INTO users VALUES (?, ?, ?, ?, ?)", (user.name, user.origin, user.salt, user.iterations, rules))
        self._connection.executemany(
            "INSERT INTO secrets VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (user.name, s.id, s.hashed, s.keys.stored, s.keys.server, s.not_before, s.not_after)
                for s in user.secrets
            ],
        )
