"""Attempts at one tenant of devices: it is added if the hub has no document of it.

A step looks before it changes something, so it may be repeated after an error with an unknown outcome.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import msgspec

from cloud.fleet.device_store import API
from cloud.fleet.hono.documents import WantedEntity
from cloud.fleet.hono.report import RegistryOutcome
from cloud.hub.devices.tenants import EMPTY, DeviceTenantDocument, stored_tenant
from edge.output.errors import CommandError
from edge.remote.client import ConsoleClient


class TenantAttempt:
    """Steps for one tenant. Methods raise CommandError, and may then be called again."""

    def __init__(self, client: ConsoleClient, name: str, wanted: WantedEntity | None, *, dry_run: bool) -> None:
        """`wanted`: None if no file has it, so that the hub has to know it."""
        self._client = client
        self._path = f"tenants/{quote(name, safe='')}"
        self._wanted = wanted
        self._dry_run = dry_run
        self._sent = False
        self.known = False
        """True: the hub knows the tenant, so it can be asked for its devices."""
        self.addable = False
        """True: the hub had no document of the tenant before this attempt, so that no missing device was removed."""
        self.document = stored_tenant(EMPTY)
        """Document that the hub has, or will have."""

    def put(self) -> RegistryOutcome:
        """Add the tenant if it is in a file and the hub has no document of it."""
        found = self._look()
        if self._wanted is None:
            return self._require(found)
        if found is None or "status" not in found:
            self.document = stored_tenant(json.dumps(self._wanted.stored))
            self.known, self.addable = found is not None or not self._dry_run, True
            if self._dry_run:
                return RegistryOutcome.ADDED
            self._sent = True
            try:
                self._send(self._wanted)
            except CommandError as why:
                found = self._look() if why.error == "conflict" else None
                if found is None or "status" not in found:
                    raise
                self._sent = False  # another user has added it
            else:
                return RegistryOutcome.ADDED
        same = found == {**self._wanted.stored, "status": found["status"]}
        self.known, self.addable = True, same and self._sent
        self.document = _readable(found, self._wanted.stored)
        if not same:
            return RegistryOutcome.DIFFERS
        return RegistryOutcome.ADDED if self._sent else RegistryOutcome.UNCHANGED

    def _require(self, found: dict[str, Any] | None) -> RegistryOutcome:
        """Take a tenant that no file has. Raises CommandError if the hub does not know it."""
        if found is None:
            words = "the tenant is neither in the files nor at the hub: import its file too, or create it"
            raise CommandError(words, error="not-found")
        self.known, self.addable = True, "status" not in found
        self.document = _readable(found, json.loads(EMPTY))
        return RegistryOutcome.UNCHANGED

    def _send(self, wanted: WantedEntity) -> None:
        with self._client.open(self._path, api=API, method="POST", body=wanted.body) as answer:
            self._client.document(answer, "POST")

    def _look(self) -> dict[str, Any] | None:
        """Return the document of the tenant, without `status` if it has none of its own; None for an unknown one."""
        try:
            with self._client.open(self._path, api=API) as answer:
                found: dict[str, Any] = self._client.document(answer, "GET")
        except CommandError as why:
            if why.error in ("not-found", "invalid-request"):
                return None
            raise
        return found


def _readable(found: dict[str, Any], otherwise: dict[str, Any]) -> DeviceTenantDocument:
    """Return the document at the hub, or another one if a newer hub has fields that are unknown here."""
    try:
        return stored_tenant(json.dumps({name: value for name, value in found.items() if name != "status"}))
    except msgspec.ValidationError:
        return stored_tenant(json.dumps(otherwise))
