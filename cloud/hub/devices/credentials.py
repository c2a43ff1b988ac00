"""Credentials of devices in the form of Hono's management API, and how they are stored. Pure, except for hashing.

The registry never shows a secret. Answers have the metadata of each secret with an id, and a request may keep a secret
by naming its id (Hono's patch mode). A password in plain text is stored as the argon2id hash and the SCRAM keys that
gateways verify; hashes that Hono's registry had are stored as they are.
"""

from __future__ import annotations

import base64
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from bridge.hidden import hides
from bridge.limits import AUTH_ID_CHARACTERS_MAX
from cloud.hub.devices.documents import InvalidDocument, decode_document, encode_document
from cloud.hub.devices.limits import CREDENTIALS_MAX, SECRETS_MAX
from cloud.hub.devices.subjects import (
    algorithm_of,
    apply_template,
    decode_base64,
    encode_public_key,
    normalize_subject,
    read_certificate,
    read_public_key,
    subject_text,
)
from cloud.hub.devices.tenants import DeviceTenantDocument, Instant, authorities_of
from cloud.hub.registry.devices import CredentialRow
from edge.broker.security.credentials import CredentialsError, CredentialUser, with_secret

HASHED: Final = "hashed-password"
PSK: Final = "psk"
CERTIFICATE: Final = "x509-cert"
RAW_KEY: Final = "rpk"
_USER: Final = re.compile(r"[a-zA-Z0-9_=.-]+")
_HASH_BYTES: Final[Mapping[str, int]] = {"sha-256": 32, "sha-512": 64}
_SALT_BYTES_MAX: Final = 64
_KEY_BYTES_MAX: Final = 64
"""Bytes of a pre-shared key: the longest that RFC 4279 section 5.3 asks for."""
_ID_BYTES: Final = 8


class DeviceSecret(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Metadata of a secret."""

    id: str | None = None
    """Set by the registry. In a request it keeps or changes the secret with this id."""
    enabled: bool | None = None
    """False: it is refused. Default: true."""
    not_before: Instant | None = msgspec.field(name="not-before", default=None)
    not_after: Instant | None = msgspec.field(name="not-after", default=None)
    comment: str | None = None


@hides("pwd_hash", "salt", "pwd_plain")
class PasswordSecret(DeviceSecret, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Password: `pwd-plain`, or its hash. Answers have the metadata only."""

    hash_function: str | None = msgspec.field(name="hash-function", default=None)
    """``sha-256`` or ``sha-512``."""
    pwd_hash: str | None = msgspec.field(name="pwd-hash", default=None)
    """Base64."""
    salt: str | None = None
    """Base64; it is before the password in what is hashed."""
    pwd_plain: str | None = msgspec.field(name="pwd-plain", default=None)
    """Password in plain text. The registry stores its hash."""


@hides("key")
class PskSecret(DeviceSecret, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Pre-shared key. Answers have the metadata only."""

    key: str | None = None
    """Base64."""


class RawKeySecret(DeviceSecret, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Public key of a device that signs tokens. Answers have the metadata only."""

    algorithm: str | None = None
    key: str | None = None
    """Base64 of the DER encoding."""
    cert: str | None = None
    """Certificate with the key, Base64 of the DER encoding."""


class _Credentials(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Fields of every kind."""

    enabled: bool | None = None
    """False: they are refused. Default: true."""
    ext: dict[str, Any] = {}
    comment: str | None = None


class PasswordCredentials(
    _Credentials, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag=HASHED
):
    """Passwords of a user name."""

    auth_id: str = msgspec.field(name="auth-id")
    """User name, without the tenant."""
    secrets: list[PasswordSecret]


class PskCredentials(
    _Credentials, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag=PSK
):
    """Keys of an identity in TLS."""

    auth_id: str = msgspec.field(name="auth-id")
    secrets: list[PskSecret]


class CertificateCredentials(
    _Credentials, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag=CERTIFICATE
):
    """Subject of the certificates of a device."""

    auth_id: str | None = msgspec.field(name="auth-id", default=None)
    """Subject, as ``CN=pump,O=ACME``."""
    secrets: list[DeviceSecret] | None = None
    """One, with the time in which the certificate is valid."""
    cert: str | None = None
    """Certificate, Base64 of the DER encoding, in place of `auth-id` and `secrets`."""


class RawKeyCredentials(
    _Credentials, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag=RAW_KEY
):
    """Public keys of an identity."""

    auth_id: str = msgspec.field(name="auth-id")
    secrets: list[RawKeySecret]


TypedCredentials = PasswordCredentials | PskCredentials | CertificateCredentials | RawKeyCredentials


@hides("argon2", "stored_key", "server_key", "pwd_hash", "salt", "key")
class StoredSecret(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Secret in the registry."""

    id: str
    enabled: bool = True
    not_before: Instant | None = None
    not_after: Instant | None = None
    comment: str | None = None
    argon2: str = ""
    """Hash of a password that came in plain text, with the SCRAM keys next to it."""
    stored_key: bytes = b""
    server_key: bytes = b""
    hash_function: str = ""
    """Function of a hash that came in the request."""
    pwd_hash: str = ""
    salt: str = ""
    key: str = ""
    """Pre-shared key or public key."""
    algorithm: str = ""

    @property
    def empty(self) -> bool:
        """True without anything to verify."""
        return not (self.argon2 or self.pwd_hash or self.key)


@hides("scram_salt", "secrets", "plain")
class StoredCredentials(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Credentials in the registry."""

    type: str
    auth_id: str
    enabled: bool = True
    ext: dict[str, Any] = {}
    comment: str | None = None
    scram_salt: bytes = b""
    """Salt of all SCRAM keys."""
    scram_iterations: int = 0
    secrets: list[StoredSecret] = []


class CredentialsFull(Exception):
    """The tenant allows fewer credentials of a device."""


class SaltChanged(Exception):
    """The credentials were changed while a password for them was hashed; hash it again."""


class WantedCredentials:
    """Credentials that a request has. Passwords in plain text are hashed before the transaction, and kept secrets are
    found in it."""

    def __init__(self, given: Sequence[TypedCredentials]) -> None:
        """Raises `InvalidDocument`."""
        if len(given) > CREDENTIALS_MAX:
            raise InvalidDocument(f"a device has {CREDENTIALS_MAX} credentials at most")
        self._wanted = [_Wanted(each) for each in given]

    @property
    def shown(self) -> list[dict[str, Any]]:
        """Types and identifiers, for the audit."""
        return [{"type": each.made.type, "auth-id": each.made.auth_id} for each in self._wanted]

    def hash_passwords(self, present: Iterable[CredentialRow]) -> None:
        """Hash the passwords in plain text with the salts of the present credentials. Takes some 50 ms for each. Raises
        `InvalidDocument`."""
        there = {(each.type, each.auth_id): each for each in _stored(present)}
        for each in self._wanted:
            each.hash_passwords(there.get((each.made.type, each.made.auth_id)))

    def merge(self, tenant: DeviceTenantDocument, present: Iterable[CredentialRow]) -> list[CredentialRow]:
        """Return the rows that replace the present ones. Pure. Raises `InvalidDocument`, `CredentialsFull`,
        `SaltChanged`."""
        limits = tenant.registration_limits
        if limits is not None and 0 <= limits.max_credentials_per_device < len(self._wanted):
            raise CredentialsFull(f"the tenant allows {limits.max_credentials_per_device} credentials of a device")
        there = {(each.type, each.auth_id): each for each in _stored(present)}
        made: dict[tuple[str, str], CredentialRow] = {}
        for wanted in self._wanted:
            found = wanted.merged(tenant, there)
            if (found.type, found.auth_id) in made:
                raise InvalidDocument(f"{found.type} {found.auth_id} is there twice")
            made[found.type, found.auth_id] = CredentialRow(found.type, found.auth_id, encode_document(found))
        return list(made.values())


class _Wanted:
    """One of the wanted credentials."""

    def __init__(self, given: TypedCredentials) -> None:
        self.given = given
        self.certificate: x509.Certificate | None = None
        auth_id, found = self._read(given)
        if not 0 < len(found) <= SECRETS_MAX:
            raise InvalidDocument(f"credentials have 1 to {SECRETS_MAX} secrets")
        for each in found:
            if each.not_before is not None and each.not_after is not None and each.not_before >= each.not_after:
                raise InvalidDocument("not-before of a secret is not before its not-after")
        kind = str(given.__struct_config__.tag)
        self.made = StoredCredentials(
            type=kind,
            auth_id=auth_id,
            enabled=given.enabled is not False,
            ext=given.ext,
            comment=given.comment,
            secrets=found,
        )
        self._named = [each.id is not None for each in given.secrets or ()] or [False]

    def _read(self, given: TypedCredentials) -> tuple[str, list[StoredSecret]]:
        match given:
            case CertificateCredentials():
                return self._read_certificate(given)
            case PasswordCredentials():
                if len(given.auth_id) > 255 or not _USER.fullmatch(given.auth_id):
                    raise InvalidDocument("the auth-id of a password is 1 to 255 letters, digits, '-', '_', '=' or '.'")
                return given.auth_id, [_password(each) for each in given.secrets]
            case PskCredentials():
                return _identity(given.auth_id), [_pre_shared(each) for each in given.secrets]
            case RawKeyCredentials():
                return _identity(given.auth_id), [_raw_key(each) for each in given.secrets]

    def _read_certificate(self, given: CertificateCredentials) -> tuple[str, list[StoredSecret]]:
        if given.cert:
            found = self.certificate = read_certificate(given.cert, "cert")
            given.secrets = None
            valid = StoredSecret(id="", not_before=found.not_valid_before_utc, not_after=found.not_valid_after_utc)
            return subject_text(found.subject, "cert"), [valid]
        if not given.auth_id or given.secrets is None or len(given.secrets) != 1:
            raise InvalidDocument("credentials of type x509-cert have cert, or auth-id with one secret")
        found_secrets = [_secret(given.secrets[0])]
        try:
            return normalize_subject(given.auth_id, "auth-id"), found_secrets
        except InvalidDocument:
            if given.secrets[0].id is None:
                raise
        return _identity(given.auth_id), found_secrets  # of a template: it has to be there already

    def hash_passwords(self, there: StoredCredentials | None) -> None:
        if not isinstance(self.given, PasswordCredentials):
            return
        plain = [each.pwd_plain for each in self.given.secrets]
        if not any(plain):
            return
        user = CredentialUser(name=self.made.auth_id, salt=there.scram_salt if there else b"")
        user = msgspec.structs.replace(user, salt=user.salt or secrets.token_bytes(16))
        for each, password in zip(self.made.secrets, plain, strict=True):
            if not password:
                continue
            try:
                (made,) = with_secret(user, password, at_s=time.time()).secrets
            except CredentialsError as why:
                raise InvalidDocument(str(why)) from None
            each.argon2, each.stored_key, each.server_key = made.hashed, made.keys.stored, made.keys.server
        self.made.scram_salt, self.made.scram_iterations = user.salt, user.iterations

    def merged(
        self, tenant: DeviceTenantDocument, present: Mapping[tuple[str, str], StoredCredentials]
    ) -> StoredCredentials:
        """Return what is stored. Raises `InvalidDocument`, `SaltChanged`."""
        made = msgspec.structs.replace(self.made, auth_id=self._auth_id(tenant))
        there = present.get((made.type, made.auth_id))
        known = {each.id: each for each in there.secrets} if there is not None else {}
        if there is not None and there.scram_salt:
            if made.scram_salt not in (b"", there.scram_salt):
                raise SaltChanged
            made.scram_salt, made.scram_iterations = there.scram_salt, there.scram_iterations
        named = zip(made.secrets, self._named, strict=True)
        made.secrets = [_kept(each, known, made.type) if by_id else _numbered(each, made.type) for each, by_id in named]
        if len({each.id for each in made.secrets}) < len(made.secrets):
            raise InvalidDocument("two secrets have the same id")
        return made

    def _auth_id(self, tenant: DeviceTenantDocument) -> str:
        if self.certificate is None:
            return self.made.auth_id
        issuer = self.certificate.issuer.rfc4514_string()
        for each in authorities_of(tenant):
            if each.subject_dn == issuer and each.auth_id_template is not None:
                return apply_template(each.auth_id_template, self.certificate.subject)
        return self.made.auth_id


def read_credentials(body: bytes) -> WantedCredentials:
    """Read the credentials of a request. Raises `InvalidDocument`."""
    return WantedCredentials(decode_document(body, list[TypedCredentials]))


def credentials_answer(rows: Iterable[CredentialRow]) -> list[dict[str, Any]]:
    """Return the credentials of a device without secrets."""
    return [_answer(each) for each in _stored(rows)]


def _answer(each: StoredCredentials) -> dict[str, Any]:
    shown: dict[str, Any] = {"type": each.type, "auth-id": each.auth_id, "enabled": each.enabled}
    if each.ext:
        shown["ext"] = each.ext
    if each.comment is not None:
        shown["comment"] = each.comment
    shown["secrets"] = [
        msgspec.to_builtins(
            DeviceSecret(
                id=one.id,
                enabled=one.enabled,
                not_before=one.not_before,
                not_after=one.not_after,
                comment=one.comment,
            )
        )
        for one in each.secrets
    ]
    return shown


def _stored(rows: Iterable[CredentialRow]) -> list[StoredCredentials]:
    return [msgspec.json.decode(each.document, type=StoredCredentials) for each in rows]


def _secret(given: DeviceSecret) -> StoredSecret:
    return StoredSecret(
        id=given.id or "",
        enabled=given.enabled is not False,
        not_before=given.not_before,
        not_after=given.not_after,
        comment=given.comment,
    )


def _password(given: PasswordSecret) -> StoredSecret:
    """Return a password without the hash of its plain text. Raises `InvalidDocument`."""
    made = _secret(given)
    if given.pwd_plain or not given.pwd_hash:
        if not given.pwd_plain and not given.id:
            raise InvalidDocument("a password has pwd-plain, or hash-function and pwd-hash, or the id of a kept one")
        return made
    made.hash_function, made.pwd_hash, made.salt = given.hash_function or "", given.pwd_hash, given.salt or ""
    size = _HASH_BYTES.get(made.hash_function)
    if size is None:
        raise InvalidDocument(
            "hash-function is sha-256 or sha-512, which gateways verify; a device with a hash of bcrypt needs a new "
            "password: pwd-plain"
        )
    if len(decode_base64(made.pwd_hash, "pwd-hash")) != size:
        raise InvalidDocument(f"pwd-hash has not the {size} bytes of {made.hash_function}")
    if len(decode_base64(made.salt, "salt")) > _SALT_BYTES_MAX:
        raise InvalidDocument(f"salt is longer than {_SALT_BYTES_MAX} bytes")
    return made


def _pre_shared(given: PskSecret) -> StoredSecret:
    made = _secret(given)
    if not given.key:
        if not given.id:
            raise InvalidDocument("a pre-shared key has key, or the id of a kept one")
        return made
    key = decode_base64(given.key, "key")
    if not 0 < len(key) <= _KEY_BYTES_MAX:
        raise InvalidDocument(f"a pre-shared key has 1 to {_KEY_BYTES_MAX} bytes")
    made.key = base64.b64encode(key).decode()
    return made


def _raw_key(given: RawKeySecret) -> StoredSecret:
    made = _secret(given)
    if given.cert:
        found = read_certificate(given.cert, "cert")
        made.not_before, made.not_after = found.not_valid_before_utc, found.not_valid_after_utc
        key: PublicKeyTypes = found.public_key()
    elif given.key:
        key = read_public_key(given.key, "key")
    elif given.id:
        return made
    else:
        raise InvalidDocument("a raw public key has key or cert, or the id of a kept one")
    made.key, made.algorithm = encode_public_key(key), algorithm_of(key, "key")
    return made


def _identity(text: str) -> str:
    if 0 < len(text) <= AUTH_ID_CHARACTERS_MAX and text.isprintable():
        return text
    raise InvalidDocument(f"an auth-id is 1 to {AUTH_ID_CHARACTERS_MAX} printable characters")


def _kept(wanted: StoredSecret, known: Mapping[str, StoredSecret], kind: str) -> StoredSecret:
    """Return a secret with the confidential part of the one with its id, unless it has its own."""
    before = known.get(wanted.id)
    if before is None:
        raise InvalidDocument(f"these credentials have no secret with the id {wanted.id[:80]!r}")
    if kind == CERTIFICATE or not wanted.empty:
        return wanted
    made = msgspec.structs.replace(before)
    for name in ("enabled", "not_before", "not_after", "comment"):
        setattr(made, name, getattr(wanted, name))
    return made


def _numbered(wanted: StoredSecret, kind: str) -> StoredSecret:
    """Return a new secret with an id."""
    return msgspec.structs.replace(wanted, id=secrets.token_hex(_ID_BYTES))
