"""Import of a registry into that of a running hub, device by device.

Nothing that is at the hub is changed or removed: what is missing is added, and what differs is reported. A device and
its credentials are two changes. What may have been removed or revoked at the hub is reported and not given back: a
device that is missing in a tenant that was there before (unless `add_missing` is set), and credentials of a device that
may have had some. One tenant or device at which the hub fails is refused, and the others are imported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeVar

import msgspec

from cloud.fleet.device_store import open_devices
from cloud.fleet.hono.attempt import DeviceAttempt, WantedDevice, digests_of
from cloud.fleet.hono.device_credentials import convert_credentials
from cloud.fleet.hono.documents import LeftOut, convert_device, convert_tenant
from cloud.fleet.hono.limits import RETRY_WAITS_S
from cloud.fleet.hono.plan import HonoImportPlan
from cloud.fleet.hono.report import RegistryOutcome, RegistryReport
from cloud.fleet.hono.source import HonoRegistry
from cloud.fleet.hono.tenant_attempt import TenantAttempt
from cloud.fleet.hono.unused import NOWHERE, NOWHERE_PLANNED, unused_of_device, unused_of_tenant, works_nowhere
from cloud.fleet.place import HubPlace
from cloud.hub.devices.documents import InvalidDocument
from cloud.hub.devices.tenants import DeviceTenantDocument
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
MISSING: Final = "the hub had this tenant before, so the device may have been removed there: --add-missing adds it"
REVOKED: Final = (
    "the device has none at the hub, where they may have been removed: give it a new password with waypost hub device "
    "credentials rotate"
)


class HonoImporter:
    """Import into one hub; `run` once."""

    def __init__(
        self,
        client: ConsoleClient,
        report: RegistryReport,
        plan: HonoImportPlan | None = None,
        *,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        """`client`: keeps its connection. `wait` takes seconds."""
        self._client = client
        self._report = report
        self._plan = plan or HonoImportPlan()
        self._wait = wait

    def run(self, registry: HonoRegistry, progress: Callable[[int], object]) -> None:
        """Import everything; `progress` gets the number of devices so far. Raises CommandError when the hub stays away;
        then the run may be repeated."""
        for unknown in registry.unknown:
            self._report.note(RegistryOutcome.REFUSED, "", "", unknown.place, unknown.words)
        for tenant, device in registry.twice:
            words = "it has two different documents: the last one was taken"
            self._report.note(RegistryOutcome.LEFT_OUT, tenant, device, "registration" if device else "tenant", words)
        done = 0
        for tenant in dict.fromkeys([*registry.tenants, *registry.devices, *registry.credentials]):
            for _ in self._import_devices(registry, tenant, self._import_tenant(tenant, registry.tenants.get(tenant))):
                done += 1
                progress(done)
            owners = registry.credentials.get(tenant, {}).keys() - registry.devices.get(tenant, {}).keys()
            for name in sorted(owners):
                self._report.count("credentials", RegistryOutcome.LEFT_OUT)
                words = "their device is not in the files"
                self._report.note(RegistryOutcome.LEFT_OUT, tenant, name, "credentials", words)

    # --- tenants ------------------------------------------------------------------------------------------------------

    def _import_tenant(self, name: str, raw: msgspec.Raw | None) -> TenantAttempt | None:
        """Import a tenant. Return its finished attempt; None if it is refused."""
        try:
            wanted = convert_tenant(name, raw, self._plan.owner, self._left_out(name, "")) if raw is not None else None
            attempt = TenantAttempt(self._client, name, wanted, dry_run=self._plan.dry_run)
            outcome = self._repeated(attempt.put)
        except (InvalidDocument, CommandError) as why:
            _raise_lasting(why)
            if raw is not None:
                self._report.count("tenants", RegistryOutcome.REFUSED)
            self._report.note(RegistryOutcome.REFUSED, name, "", "tenant", str(why))
            return None
        if wanted is None:
            return attempt
        self._report.count("tenants", outcome)
        for each, words in unused_of_tenant(wanted.stored).items():
            self._report.note(RegistryOutcome.STORED, name, "", each, words)
        if outcome is RegistryOutcome.DIFFERS:
            words = "the hub has it with other fields, and was not changed"
            self._report.note(outcome, name, "", "tenant", words)
        return attempt

    # --- devices ------------------------------------------------------------------------------------------------------

    def _import_devices(self, registry: HonoRegistry, tenant: str, attempt: TenantAttempt | None) -> Iterator[None]:
        """Import the devices of a tenant, and yield after each. `attempt`: result of `_import_tenant`."""
        devices, credentials = registry.devices.get(tenant, {}), registry.credentials.get(tenant, {})
        if attempt is None:
            yield from self._refuse_all(registry, tenant, "its tenant is not at the hub")
            return
        with open_devices(HubPlace(None, None, self._client), tenant) as store:
            try:
                known = self._repeated(lambda: digests_of(store, devices)) if attempt.known and devices else {}
            except CommandError as why:
                _raise_lasting(why)
                yield from self._refuse_all(registry, tenant, f"the devices of its tenant cannot be read: {why}")
                return
            for name, raw in devices.items():
                there = known.get(name)
                encrypted = (tenant, name) in registry.exported and not self._plan.plain_keys
                wanted = self._wanted(
                    tenant, name, raw, credentials.get(name, []), attempt.document, keys_encrypted=encrypted
                )
                if wanted is not None:
                    addable = attempt.addable or self._plan.add_missing
                    self._import_device(
                        tenant,
                        wanted,
                        DeviceAttempt(store, wanted, there, addable=addable, dry_run=self._plan.dry_run),
                    )
                yield

    def _wanted(
        self,
        tenant: str,
        name: str,
        raw: msgspec.Raw,
        credentials: list[msgspec.Raw],
        document: DeviceTenantDocument,
        *,
        keys_encrypted: bool,
    ) -> WantedDevice | None:
        """Return a device in the form of the hub; None for one that its registry refuses. `document`: of its tenant."""
        left_out = self._left_out(tenant, name)
        try:
            entity = convert_device(name, raw, self._plan.choice, left_out)
        except InvalidDocument as why:
            self._refuse(tenant, name, str(why), with_credentials=bool(credentials))
            return None

        def refused(setting: str, words: str) -> None:
            self._report.note(RegistryOutcome.REFUSED, tenant, name, setting, words)

        found = None
        try:
            found = convert_credentials(credentials, document, left_out, refused, keys_encrypted=keys_encrypted)
        except InvalidDocument as why:
            refused("credentials", str(why))
        if credentials and found is None:
            self._report.count("credentials", RegistryOutcome.REFUSED)
        return WantedDevice(name, entity, found)

    def _import_device(self, tenant: str, wanted: WantedDevice, attempt: DeviceAttempt) -> None:
        """Import a device and its credentials."""
        try:
            outcome = self._repeated(attempt.put)
        except CommandError as why:
            _raise_lasting(why)
            self._refuse(tenant, wanted.name, str(why), with_credentials=wanted.credentials is not None)
            return
        self._report.count("devices", outcome)
        if outcome is RegistryOutcome.DIFFERS:
            words = "the hub has it with other fields, and was not changed"
            self._report.note(outcome, tenant, wanted.name, "registration", words)
        if outcome is RegistryOutcome.WITHHELD:
            self._report.note(outcome, tenant, wanted.name, "registration", MISSING)
        if outcome in (RegistryOutcome.ADDED, RegistryOutcome.UNCHANGED):
            self._tally_unused(tenant, wanted, there=outcome is RegistryOutcome.UNCHANGED)
        if wanted.credentials is None:
            return
        if outcome is RegistryOutcome.WITHHELD:
            self._report.count("credentials", outcome)
            return
        try:
            outcome = self._repeated(partial(attempt.put_credentials, wanted.credentials))
        except CommandError as why:
            _raise_lasting(why)
            self._report.count("credentials", RegistryOutcome.REFUSED)
            self._report.note(RegistryOutcome.REFUSED, tenant, wanted.name, "credentials", str(why))
            return
        self._report.count("credentials", outcome)
        if outcome is RegistryOutcome.DIFFERS:
            words = "the hub has others for it, which were not changed"
            self._report.note(outcome, tenant, wanted.name, "credentials", words)
        if outcome is RegistryOutcome.WITHHELD:
            self._report.note(outcome, tenant, wanted.name, "credentials", REVOKED)

    def _tally_unused(self, tenant: str, wanted: WantedDevice, *, there: bool) -> None:
        """Count what the registry stores and gateways do not use. `there`: the hub had the device before."""
        for each, words in unused_of_device(wanted.entity.stored, wanted.credentials).items():
            self._report.tally(RegistryOutcome.STORED, tenant, each, words)
        if works_nowhere(wanted.entity.stored):
            words = NOWHERE_PLANNED if self._plan.dry_run and not there else NOWHERE
            self._report.tally(RegistryOutcome.STORED, tenant, "registration", words)

    def _refuse_all(self, registry: HonoRegistry, tenant: str, words: str) -> Iterator[None]:
        """Refuse the devices of a tenant, and yield after each."""
        for name in registry.devices.get(tenant, {}):
            self._refuse(tenant, name, words, with_credentials=name in registry.credentials.get(tenant, {}))
            yield

    def _refuse(self, tenant: str, device: str, words: str, *, with_credentials: bool) -> None:
        self._report.count("devices", RegistryOutcome.REFUSED)
        if with_credentials:
            self._report.count("credentials", RegistryOutcome.REFUSED)
        self._report.note(RegistryOutcome.REFUSED, tenant, device, "registration", words)

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


def _raise_lasting(why: Exception) -> None:
    """Raise an error that the next tenants and devices would have too."""
    if isinstance(why, CommandError) and why.error in FATAL | TRANSIENT:
        raise why
