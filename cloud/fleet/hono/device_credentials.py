"""Credentials of a device of Hono in the form that the registry of a hub takes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from bridge.hidden import hides
from cloud.fleet.hono.documents import LeftOut, encode_checked, keep_fields, mend_times, plain_object
from cloud.hub.devices.credentials import (
    CERTIFICATE,
    HASHED,
    PSK,
    RAW_KEY,
    CertificateCredentials,
    CredentialsFull,
    DeviceSecret,
    PasswordCredentials,
    PasswordSecret,
    PskCredentials,
    PskSecret,
    RawKeyCredentials,
    RawKeySecret,
    credentials_answer,
    read_credentials,
)
from cloud.hub.devices.documents import InvalidDocument
from cloud.hub.devices.limits import CREDENTIALS_BYTES_MAX
from cloud.hub.devices.tenants import DeviceTenantDocument

WITHOUT_CONTENT: Final = "the secret is not in the file: Hono's management API does not give it"
MAYBE_ENCRYPTED: Final = "Hono may have encrypted the keys in its MongoDB: state that it did not with --plain-keys"
_NAME_CHARACTERS_MAX: Final = 80
"""Characters of an identifier that a report shows."""
_KINDS: Final[dict[str, tuple[type[msgspec.Struct], type[msgspec.Struct]]]] = {
    HASHED: (PasswordCredentials, PasswordSecret),
    PSK: (PskCredentials, PskSecret),
    CERTIFICATE: (CertificateCredentials, DeviceSecret),
    RAW_KEY: (RawKeyCredentials, RawKeySecret),
}
_CONFIDENTIAL: Final = {HASHED: ("pwd-plain", "pwd-hash"), PSK: ("key",), RAW_KEY: ("key", "cert")}


@hides("body", "stored")
class WantedDeviceCredentials(NamedTuple):
    """Credentials of a device to import."""

    body: list[dict[str, Any]]
    stored: list[dict[str, Any]]
    """Their description, without secrets, as `described` returns it."""


def convert_credentials(
    raws: Iterable[msgspec.Raw],
    tenant: DeviceTenantDocument,
    left_out: LeftOut,
    refused: LeftOut,
    *,
    keys_encrypted: bool = False,
) -> WantedDeviceCredentials | None:
    """Return the credentials of a device that the registry takes; None if there are none. `tenant`: document that the
    hub has, or will have. `keys_encrypted`: refuse pre-shared keys. Raises `InvalidDocument` when the registry does not
    take them together."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for number, raw in enumerate(raws, 1):
        try:
            given = plain_object(raw)
        except InvalidDocument as why:
            refused("credentials", str(why))
            continue
        kind, auth_id = str(given.get("type")), given.get("auth-id")
        name = f"{kind} {number if auth_id is None else auth_id}"[:_NAME_CHARACTERS_MAX]
        if kind == PSK and keys_encrypted:
            refused(name, MAYBE_ENCRYPTED)
            continue
        made = _credential(given, kind, name, left_out, refused)
        if made is None:
            continue
        key = (kind, str(made.get("cert") or auth_id))
        if found.get(key, made) != made:
            left_out(name, "it is there twice: the last one was taken")
        found[key] = made
    if not found:
        return None
    body = list(found.values())
    return WantedDeviceCredentials(body, described(_stored(body, tenant)))


def described(answer: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return credentials as the management API shows them, in one order and without what the registry adds."""
    shown = [
        {
            **each,
            "secrets": [{name: value for name, value in one.items() if name != "id"} for one in each["secrets"]],
        }
        for each in answer
    ]
    return sorted(shown, key=lambda each: (each["type"], each["auth-id"]))


# --- inside -----------------------------------------------------------------------------------------------------------


def _credential(
    given: dict[str, Any], kind: str, name: str, left_out: LeftOut, refused: LeftOut
) -> dict[str, Any] | None:
    """Return one of the credentials with the secrets that the registry takes; None if it takes none."""
    if kind not in _KINDS:
        refused(name, "the registry of a hub has no credentials of this type")
        return None
    whole, part = _KINDS[kind]
    made = {"type": kind, **keep_fields(given, whole, f"{name} ", left_out, kept=("type",))}
    secrets = made.get("secrets")
    if not isinstance(secrets, list):
        secrets = [{}] if kind == CERTIFICATE and made.get("cert") is None else None
    if not secrets:
        return made if _taken(made, name, refused) else None
    kept = []
    for number, each in enumerate(secrets, 1):
        where = name if len(secrets) == 1 else f"{name} secret {number}"
        secret = _secret(each, kind, part, where, left_out, refused)
        if secret is not None and _taken({**made, "secrets": [secret]}, where, refused):
            kept.append(secret)
    made["secrets"] = kept
    return made if kept and (len(kept) == 1 or _taken(made, name, refused)) else None


def _secret(
    given: object, kind: str, part: type[msgspec.Struct], where: str, left_out: LeftOut, refused: LeftOut
) -> dict[str, Any] | None:
    """Return a secret without its id, which is the other registry's."""
    if not isinstance(given, dict):
        refused(where, "a secret is an object")
        return None
    secret = keep_fields(given, part, f"{where} ", left_out)
    if kind in _CONFIDENTIAL and not any(secret.get(each) for each in _CONFIDENTIAL[kind]):
        refused(where, WITHOUT_CONTENT)
        return None
    if kind == HASHED and not secret.get("pwd-plain"):
        secret.setdefault("hash-function", "sha-256")  # the default of Hono
    mend_times(secret)
    return secret


def _taken(made: dict[str, Any], name: str, refused: LeftOut) -> bool:
    """Return whether the registry takes credentials; tell the reason otherwise."""
    try:
        read_credentials(msgspec.json.encode([made]))
    except InvalidDocument as why:
        refused(name, str(why))
        return False
    return True


def _stored(body: list[dict[str, Any]], tenant: DeviceTenantDocument) -> list[dict[str, Any]]:
    """Return credentials as the registry shows them. Templates of the tenant decide identifiers of certificates."""
    wanted = read_credentials(encode_checked(body, CREDENTIALS_BYTES_MAX, "the credentials"))
    try:
        return credentials_answer(wanted.merge(tenant, ()))
    except CredentialsFull as why:
        raise InvalidDocument(str(why)) from None
