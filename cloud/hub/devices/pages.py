"""Pages of devices for gateways, made from the registry's changes. Pure, except for the signature.

A page has hashes that a gateway verifies, subjects of certificates, and the authorities of the tenant. Pre-shared keys,
raw public keys and hashes of bcrypt stay at the hub: no listener of a gateway uses them.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from bridge.device_pages import (
    ARGON2ID,
    HASH_FUNCTIONS,
    DeviceAccount,
    DeviceEntry,
    DevicePage,
    DeviceRange,
    DeviceSecretHash,
    DeviceSubject,
    OfferedUpdate,
    SignedDevicePage,
    TrustAnchor,
    digest_of,
    to_sign,
)
from bridge.hidden import hides
from bridge.limits import DEVICE_CURSOR_BYTES_MAX, DEVICE_PAGE_BYTES_MAX
from cloud.hub.devices.anchors import anchors_in
from cloud.hub.devices.credentials import CERTIFICATE, HASHED, StoredCredentials, StoredSecret
from cloud.hub.devices.documents import is_device_id
from cloud.hub.groups import Key
from cloud.hub.registry.device_changes import DeviceCursor, DeviceState, TenantChanges, TenantPosition
from cloud.hub.registry.devices import CredentialRow

log = logging.getLogger(__name__)

PAGE_ROOM: int = DEVICE_PAGE_BYTES_MAX - DEVICE_CURSOR_BYTES_MAX - 8 * 1024
"""Bytes of a page for its devices; the rest is for cursor and names."""

SignBytes = Callable[[bytes], bytes]
"""Signs with the key of the hub's authority."""


@hides("page")
class MadePage(NamedTuple):
    """Page for one gateway."""

    page: DevicePage
    cursor: DeviceCursor
    """Cursor of the gateway once it has the page."""


class _Enabled(msgspec.Struct):
    enabled: bool = True


class _Taken(NamedTuple):
    entries: list[DeviceEntry]
    removed: list[str]
    last: DeviceState | None
    """Last state in the page if others are left."""


def make_page(gateway: Key, changes: TenantChanges, held: str) -> MadePage:
    """Return the page with the first of some changes. `held`: the cursor that the gateway has stored."""
    anchors = _anchors(changes)
    taken = _take(changes.states, PAGE_ROOM - len(msgspec.json.encode(anchors)))
    end = taken.last.position if taken.last is not None else changes.end
    cursor = changes.cursor.at(changes.tenant, end)
    covered = None
    if changes.after is not None:
        cut = taken.last or (None if changes.complete else changes.states[-1])
        covered = DeviceRange(changes.after, cut.device if cut is not None else None)
    page = DevicePage(
        tenant=gateway[0],
        gateway=gateway[1],
        base=digest_of(held),
        cursor=write_cursor(cursor),
        devices_of=changes.tenant,
        enabled=changes.document is not None and _is_enabled(changes.document),
        range=covered,
        entries=tuple(taken.entries),
        removed=tuple(taken.removed) if covered is None else (),
        anchors=anchors,
    )
    return MadePage(page, cursor)


def sign_page(page: DevicePage, sign: SignBytes) -> bytes:
    """Return the signed page as it is sent."""
    content = msgspec.json.encode(page).decode()
    signature = base64.b64encode(sign(to_sign(content))).decode()
    return msgspec.json.encode(SignedDevicePage(content, signature))


def write_cursor(cursor: DeviceCursor) -> str:
    """Return a cursor as the gateway stores it."""
    return msgspec.json.encode(cursor).decode()


def read_cursor(text: str, registry: str) -> DeviceCursor:
    """Return the cursor of a gateway. One of another registry, or that cannot be read, begins again."""
    try:
        found = msgspec.json.decode(text[: DEVICE_CURSOR_BYTES_MAX + 1], type=DeviceCursor)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return DeviceCursor(registry)
    if found.registry != registry or not all(map(_is_place, found.tenants.values())):
        return found.restarted(registry)
    return found


def _is_place(position: TenantPosition) -> bool:
    """Return whether the ids in a position can be ids of devices."""
    given = (position.snapshot_after, position.changed_after)
    return all(not name or is_device_id(name) for name in given)


def _anchors(changes: TenantChanges) -> tuple[TrustAnchor, ...] | None:
    """Return the authorities of a tenant; None if the gateway has them already."""
    if not changes.described:
        return None
    try:
        return tuple(anchors_in(changes.document)) if changes.document is not None else ()
    except (msgspec.MsgspecError, ValueError) as error:
        log.warning("the authorities of tenant %s cannot be read, and gateways trust none: %s", changes.tenant, error)
        return ()


def _take(states: Iterable[DeviceState], room: int) -> _Taken:
    """Return the states that fit in a page, at least one. `room`: bytes for them."""
    entries, removed, size = list[DeviceEntry](), list[str](), 0
    last: DeviceState | None = None
    for state in states:
        entry = _entry(state)
        size += len(state.device) + 3 if entry is None else len(msgspec.json.encode(entry)) + 1
        if size > room and last is not None:
            return _Taken(entries, removed, last)
        if entry is None:
            removed.append(state.device)
        else:
            entries.append(entry)
        last = state
    return _Taken(entries, removed, None)


def _entry(state: DeviceState) -> DeviceEntry | None:
    """Return what a gateway gets of a device; None if it must not have it, or it cannot be read."""
    if state.document is None:
        return None
    try:
        return entry_of(state.device, state.document, state.credentials, state.offers)
    except (msgspec.MsgspecError, ValueError) as error:
        log.warning("device %s cannot be read, and gateways refuse it: %s", state.device, error)
        return None


def entry_of(
    device: str, document: str, credentials: Iterable[CredentialRow], offers: Iterable[OfferedUpdate] = ()
) -> DeviceEntry:
    """Return what a gateway gets of a device."""
    used = [row for row in credentials if row.type in (HASHED, CERTIFICATE)]
    stored = [msgspec.json.decode(row.document, type=StoredCredentials) for row in used]
    passwords = (_login(each) for each in stored if each.type == HASHED and each.enabled)
    return DeviceEntry(
        device=device,
        enabled=_is_enabled(document),
        logins=tuple(each for each in passwords if each.secrets),
        subjects=tuple(_subject(each, one) for each in stored if each.type != HASHED for one in each.secrets),
        offers=tuple(offers),
    )


def _subject(stored: StoredCredentials, secret: StoredSecret) -> DeviceSubject:
    """Return a subject, also a disabled one: else a gateway would take its certificate for one of a new device."""
    not_before = secret.not_before.timestamp() if secret.not_before is not None else None
    not_after = secret.not_after.timestamp() if secret.not_after is not None else None
    enabled = stored.enabled and secret.enabled
    return DeviceSubject(auth_id=stored.auth_id, not_before=not_before, not_after=not_after, enabled=enabled)


def _login(stored: StoredCredentials) -> DeviceAccount:
    secrets = (_secret(each) for each in stored.secrets if each.enabled)
    kept = tuple(each for each in secrets if each.function in HASH_FUNCTIONS)
    salt, iterations = stored.scram_salt, stored.scram_iterations
    return DeviceAccount(auth_id=stored.auth_id, salt=salt, iterations=iterations, secrets=kept)


def _secret(stored: StoredSecret) -> DeviceSecretHash:
    not_before = stored.not_before.timestamp() if stored.not_before is not None else None
    not_after = stored.not_after.timestamp() if stored.not_after is not None else None
    if stored.argon2:
        return DeviceSecretHash(
            id=stored.id,
            function=ARGON2ID,
            hashed=stored.argon2,
            stored_key=stored.stored_key,
            server_key=stored.server_key,
            not_before=not_before,
            not_after=not_after,
        )
    return DeviceSecretHash(
        id=stored.id,
        function=stored.hash_function,
        hashed=stored.pwd_hash,
        salt=base64.b64decode(stored.salt),
        not_before=not_before,
        not_after=not_after,
    )


def _is_enabled(document: str) -> bool:
    """Return whether a document is enabled; False for one that cannot be read."""
    try:
        return msgspec.json.decode(document, type=_Enabled).enabled
    except (msgspec.MsgspecError, UnicodeError):
        return False
