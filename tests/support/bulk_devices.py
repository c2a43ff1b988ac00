"""Thousands of devices in the registry of a stopped hub: over its API they take minutes."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar, cast

import sqlalchemy as sa

from cloud.hub.devices.credentials import StoredCredentials, StoredSecret
from cloud.hub.devices.documents import encode_document
from cloud.hub.peers import DEFAULT_TENANT
from cloud.hub.registry.database import Database
from cloud.hub.registry.devices import CredentialRow, NewDeviceRow, RegisteredDevices, TenantLimits
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry

SECRET_ID: Final = "1"
"""Id of the password of each device."""
_SALT: Final = b"16 bytes of salt"

T = TypeVar("T")


class _OneTransaction:
    """Runs all work inside one transaction: each commit takes milliseconds."""

    def __init__(self, tx: sa.Connection) -> None:
        self._tx = tx

    def transaction(self, work: Callable[[sa.Connection], T]) -> T:
        return work(self._tx)


def hashed_password(password: str) -> dict[str, str]:
    """Return a password as a hash of Hono's usual function, which takes the machine of a test less time than ours."""
    digest = hashlib.sha256(_SALT + password.encode()).digest()
    return {
        "hash-function": "sha-256",
        "salt": base64.b64encode(_SALT).decode(),
        "pwd-hash": base64.b64encode(digest).decode(),
    }


def register_many(hub: Path, devices: Iterable[tuple[str, str]], password: str) -> None:
    """Register devices with their gateways, and one password for all, in the data directory of a stopped hub."""
    given = hashed_password(password)
    secret = StoredSecret(id=SECRET_ID, hash_function="sha-256", pwd_hash=given["pwd-hash"], salt=given["salt"])
    limits, now_us = TenantLimits(DEFAULT_TENANT, lambda _: 1_000_000), time.time_ns() // 1_000

    def work(tx: sa.Connection) -> None:
        registered = RegisteredDevices(cast(Database, _OneTransaction(tx)))
        for device, gateway in devices:
            document = json.dumps({"ext": {"waypost": {"gateways": [gateway]}}})
            registered.add(NewDeviceRow(DEFAULT_TENANT, device, document, [], now_us, "test"), limits)
            found = StoredCredentials(type="hashed-password", auth_id=device, secrets=[secret])
            rows = [CredentialRow(found.type, device, encode_document(found))]
            registered.set_credentials(DEFAULT_TENANT, device, lambda *_, rows=rows: rows, lambda _: None)  # type: ignore[misc]

    with contextlib.closing(open_registry(sqlite_url(hub / "registry.db")).database) as database:
        database.transaction(work)
