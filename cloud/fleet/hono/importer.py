"""Import of a registry into that of a running hub, device by device.

Nothing that is at the hub is changed or removed: what is missing is added, and what differs is reported. So a run that
was interrupted at any point can be repeated, and a second run changes nothing. A device and its credentials are two
changes; a device without credentials gets them, whoever added it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from cloud.fleet.device_store import API, DeviceStore, open_devices
from cloud.fleet.hono.attempt import DeviceAttempt, WantedDevice, digests_of
from cloud.fleet.hono.documents import (
    GatewayChoice,
    LeftOut,
    WantedDeviceCredentials,
    WantedEntity,
    convert_credentials,
    convert_device,
    convert_tenant,
)
from cloud.fleet.hono.limits import RETRY_WAITS_S
from cloud.fleet.hono.report import RegistryOutcome, RegistryReport
from cloud.fleet.hono.source import HonoRegistry
from cloud.fleet.place import HubPlace
from cloud.hub.devices.documents import InvalidDocument
from edge.output.errors import CommandError
from edge.remote.client import ConsoleClient

T = TypeVar("T")
TRANSIENT: Final = frozenset(
    {"unreachable", "outcome-unknown", "connection-lost", "not-available", "not-delivered", "too-many-requests"}
)
"""Codes of errors that may be gone in a minute: the hub restarts or is busy, or a proxy before it does not reach it.
A fault of the hub at one document is not among them, so that the others are imported."""
FATAL: Final = frozenset({"not-signed-in", "certificate-not-trusted", "certificate-changed"})
"""Codes of errors that every further request has too."""
UNUSED: Final = {
    "via": "gateways do not use it yet",
    "viaGroups": "gateways do not use it yet",
    "memberOf": "gateways do not use it yet",
    "defaults": "gateways do not use it yet",
    "authorities": "gateways do not use it yet",
    "downstream-message-mapper": "it is for Hono's adapters",
    "upstream-message-mapper": "it is for Hono's adapters",
    "command-endpoint": "it is for Hono's adapters",
    "psk": "it stays at the hub: a device logs in at a gateway with a password",
    "x509-cert": "it stays at the hub: with a certificate a device is the user that the certificate names",
    "rpk": "it stays at the hub: a device logs in at a gateway with a password",
}
"""Fields and credentials that the registry stores, and that gateways do not use."""
UNUSED_OF_TENANTS: Final = {
    "adapters": "they are for Hono's adapters",
    "defaults": "gateways do not use them yet",
    "minimum-message-size": "it is for Hono's metering",
    "resource-limits": "they are for Hono's adapters: a hub has quotas",
    "tracing": "it is for Hono's adapters",
    "trusted-ca": "it stays at the hub: a gateway trusts the authorities of its own listeners",
}
"""Fields of a tenant that the registry stores, and that gateways do not use."""
NOWHERE: Final = "the device works at no gateway yet: name some with --gateway or --selector, or in ext.waypost"


class HonoImporter:
    """Import into one hub; `run` once."""

    def __init__(
        self,
        client: ConsoleClient,
        report: RegistryReport,
        *,
        dry_run: bool = False,
        owner: str = "",
        choice: GatewayChoice | None = None,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        """`client`: keeps its connection. `owner`: tenant of the hub for new tenants that may have another one. `wait`
        takes seconds."""
        self._client = client
        self._report = report
        self._dry_run = dry_run
        self._owner = owner
        self._choice = choice or GatewayChoice()
        self._wait = wait

    def run(self, registry: HonoRegistry, progress: Callable[[int], object]) -> None:
        """Import everything; `progress` gets the number of devices so far. Raises CommandError when the hub stays away;
        then the run may be repeated."""
        for unknown in registry.unknown:
            self._report.note(RegistryOutcome.LEFT_OUT, "", "", unknown.place, unknown.words)
        for tenant, device in registry.twice:
            words = "it has two different documents: the last one was taken"
            self._report.note(RegistryOutcome.LEFT_OUT, tenant, device, "registration" if device else "tenant", words)
        done = 0
        for tenant in dict.fromkeys([*registry.tenants, *registry.devices, *registry.credentials]):
            there = self._import_tenant(tenant, registry.tenants.get(tenant))
            devices = registry.devices.get(tenant, {})
            credentials = registry.credentials.get(tenant, {})
            for _ in self._import_devices(tenant, devices, credentials, there=there):
                done += 1
                progress(done)
            for name in credentials.keys() - devices.keys():
                self._report.count("credentials", RegistryOutcome.LEFT_OUT)
                words = "their device is not in the files"
                self._report.note(RegistryOutcome.LEFT_OUT, tenant, name, "credentials", words)

    # --- tenants ------------------------------------------------------------------------------------------------------

    def _import_tenant(self, name: str, raw: msgspec.Raw | None) -> bool | None:
        """Import a tenant. Return True if it is at the hub, False if a dry run would add it, None without one."""
        if raw is None:
            found = self._repeated(lambda: self._ask_tenant(name))
            if found is None:
                words = "the tenant is neither in the files nor at the hub: import its file too, or create it"
                self._report.note(RegistryOutcome.REFUSED, name, "", "tenant", words)
            return None if found is None else True
        try:
            wanted = convert_tenant(name, raw, self._owner, self._left_out(name, ""))
        except InvalidDocument as why:
            self._report.count("tenants", RegistryOutcome.REFUSED)
            self._report.note(RegistryOutcome.REFUSED, name, "", "tenant", str(why))
            return None
        try:
            outcome = self._repeated(lambda: self._put_tenant(name, wanted))
        except CommandError as why:
            if why.error in FATAL | TRANSIENT:
                raise
            self._report.count("tenants", RegistryOutcome.REFUSED)
            self._report.note(RegistryOutcome.REFUSED, name, "", "tenant", str(why))
            return None
        self._report.count("tenants", outcome)
        for each in [each for each in UNUSED_OF_TENANTS if wanted.stored.get(each)]:
            self._report.note(RegistryOutcome.STORED, name, "", each, UNUSED_OF_TENANTS[each])
        if outcome is RegistryOutcome.DIFFERS:
            words = "the hub has it with other fields, and was not changed"
            self._report.note(outcome, name, "", "tenant", words)
        return not (self._dry_run and outcome is RegistryOutcome.ADDED)

    def _put_tenant(self, name: str, wanted: WantedEntity) -> RegistryOutcome:
        """Add a tenant that is missing, or that has no document yet; return what became of it."""
        found = self._ask_tenant(name)
        if found is None or "status" not in found:
            try:
                if not self._dry_run:
                    self._send_tenant(name, wanted)
            except CommandError as why:
                found = self._ask_tenant(name) if why.error == "conflict" else None
                if found is None or "status" not in found:
                    raise
            else:
                return RegistryOutcome.ADDED
        found.pop("status")
        return RegistryOutcome.UNCHANGED if found == wanted.stored else RegistryOutcome.DIFFERS

    def _send_tenant(self, name: str, wanted: WantedEntity) -> None:
        path = f"tenants/{quote(name, safe='')}"
        with self._client.open(path, api=API, method="POST", body=wanted.body) as answer:
            self._client.document(answer, "POST")

    def _ask_tenant(self, name: str) -> dict[str, Any] | None:
        """Return the document of a tenant, without `status` if it has none of its own; None for an unknown one."""
        try:
            with self._client.open(f"tenants/{quote(name, safe='')}", api=API) as answer:
                found: dict[str, Any] = self._client.document(answer, "GET")
        except CommandError as why:
            if why.error in ("not-found", "invalid-request"):
                return None
            raise
        return found

    # --- devices ------------------------------------------------------------------------------------------------------

    def _import_devices(
        self,
        tenant: str,
        devices: dict[str, msgspec.Raw],
        credentials: dict[str, list[msgspec.Raw]],
        *,
        there: bool | None,
    ) -> Iterator[None]:
        """Import the devices of a tenant, and yield after each. `there`: result of `_import_tenant`."""
        if there is None:
            for name in devices:
                self._report.count("devices", RegistryOutcome.REFUSED)
                words = "its tenant is not at the hub"
                self._report.note(RegistryOutcome.REFUSED, tenant, name, "registration", words)
                yield
            return
        with open_devices(HubPlace(None, None, self._client), tenant) as store:
            known = self._repeated(lambda: digests_of(store, devices)) if there and devices else {}
            for name, raw in devices.items():
                wanted = self._wanted(tenant, name, raw, credentials.get(name, []))
                if wanted is not None:
                    self._import_device(store, tenant, wanted, known.get(name))
                yield

    def _wanted(self, tenant: str, name: str, raw: msgspec.Raw, credentials: list[msgspec.Raw]) -> WantedDevice | None:
        """Return a device in the form of the hub; None for one that its registry refuses."""
        left_out = self._left_out(tenant, name)
        try:
            entity = convert_device(name, raw, self._choice, left_out)
        except InvalidDocument as why:
            self._refuse(tenant, name, "registration", str(why))
            return None

        def refused(setting: str, words: str) -> None:
            self._report.note(RegistryOutcome.REFUSED, tenant, name, setting, words)

        found = None
        try:
            found = convert_credentials(credentials, left_out, refused)
        except InvalidDocument as why:
            refused("credentials", str(why))
        if credentials and found is None:
            self._report.count("credentials", RegistryOutcome.REFUSED)
        self._tally_unused(tenant, entity, found)
        return WantedDevice(name, entity, found)

    def _tally_unused(self, tenant: str, entity: WantedEntity, credentials: WantedDeviceCredentials | None) -> None:
        """Count what the registry stores and gateways do not use."""
        kinds = {each["type"] for each in credentials.body} if credentials is not None else set()
        for name in [each for each in UNUSED if entity.stored.get(each) or each in kinds]:
            self._report.tally(RegistryOutcome.STORED, tenant, name, UNUSED[name])
        extension = entity.stored.get("ext", {}).get("waypost", {})
        if not (extension.get("gateways") or extension.get("selector")):
            self._report.tally(RegistryOutcome.STORED, tenant, "registration", NOWHERE)

    def _import_device(self, store: DeviceStore, tenant: str, wanted: WantedDevice, known: bytes | None) -> None:
        """Import a device and its credentials. `known`: digest of its document at the hub, if it is there."""
        attempt = DeviceAttempt(store, wanted, known, dry_run=self._dry_run)
        try:
            outcome = self._repeated(attempt.put)
        except CommandError as why:
            if why.error in FATAL | TRANSIENT:
                raise
            self._refuse(tenant, wanted.name, "registration", str(why))
            return
        self._report.count("devices", outcome)
        if outcome is RegistryOutcome.DIFFERS:
            words = "the hub has it with other fields, and was not changed"
            self._report.note(outcome, tenant, wanted.name, "registration", words)
        if wanted.credentials is None:
            return
        try:
            outcome = self._repeated(partial(attempt.put_credentials, wanted.credentials))
        except CommandError as why:
            if why.error in FATAL | TRANSIENT:
                raise
            self._report.count("credentials", RegistryOutcome.REFUSED)
            self._report.note(RegistryOutcome.REFUSED, tenant, wanted.name, "credentials", str(why))
            return
        self._report.count("credentials", outcome)
        if outcome is RegistryOutcome.DIFFERS:
            words = "the hub has others for it, which were not changed"
            self._report.note(outcome, tenant, wanted.name, "credentials", words)

    def _refuse(self, tenant: str, device: str, setting: str, words: str) -> None:
        self._report.count("devices", RegistryOutcome.REFUSED)
        self._report.note(RegistryOutcome.REFUSED, tenant, device, setting, words)

    def _left_out(self, tenant: str, device: str) -> LeftOut:
        return lambda setting, words: self._report.note(RegistryOutcome.LEFT_OUT, tenant, device, setting, words)

    def _repeated(self, step: Callable[[], T]) -> T:
        """Return what a step returns; repeat it while the hub is away or others change the same. Each step looks before
        it changes something, so that it may be repeated. Raises CommandError."""
        for wait_s in RETRY_WAITS_S:
            try:
                return step()
            except CommandError as why:
                if why.error not in TRANSIENT:
                    raise
            self._wait(wait_s)
        return step()
