"""Gateways that let devices in by certificate, and the registry that they tell: real files, without processes."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections import deque
from collections.abc import Callable, Set
from functools import partial
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from bridge.device_reports import REPORTS_MAX, DeviceReport
from cloud.hub.devices.documents import read_registration
from cloud.hub.devices.pages import make_page, read_cursor
from cloud.hub.devices.provisioning import counts_now, describing
from cloud.hub.devices.tenants import read_tenant
from cloud.hub.registry.certificate_registrations import CertificateRegistrations, ProvisionRefused
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_changes import DeviceChanges
from cloud.hub.registry.device_tenants import DeviceTenants, TenantChange
from cloud.hub.registry.devices import CredentialRow, DevicesFull, NewDeviceRow, RegisteredDevices, TenantLimits
from cloud.hub.registry.opening import open_registry
from edge.appliance.devices.provisioning import DeviceProvisioner, load_provisioned
from edge.broker.configuration import AuthenticationMode
from edge.broker.model.authorization import Ended
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.certified_devices import CertifiedDevices
from edge.broker.security.hub_device_file import AppliedPage
from edge.broker.security.hub_devices import DeviceNames, FittedPage, HubDevices
from edge.broker.security.proof import CertifiedIdentity, VerifiedIdentity
from tests.support.device_certificates import DeviceCertificate

OWNER: Final = "acme"
REGISTRY: Final = "r"
NOW_US: Final = 1_800_000_000_000_000
BY_COMMON_NAME: Final = {"auto-provisioning-device-id-template": "{{subject-cn}}"}


def any_revision(_there: int | None) -> None:
    """Accept every revision."""


class ProvisioningRegistry:
    """Registry with one tenant of devices, and its hub's decisions."""

    def __init__(self, url: sa.URL, devices_max: int = 1_000) -> None:
        self.database: Database = open_registry(url).database
        self.tenants, self.devices = DeviceTenants(self.database), RegisteredDevices(self.database)
        self.changes = DeviceChanges(self.database)
        self.registrations = CertificateRegistrations(self.database, lambda _tenant: devices_max)
        self.now_us = NOW_US

    def trust(self, *authorities: dict[str, Any], enabled: bool = True, tenant: str = OWNER) -> None:
        self.put({"enabled": enabled, "trusted-ca": authorities}, tenant)

    def put(self, document: dict[str, Any], tenant: str = OWNER) -> None:
        """Replace the document of a tenant."""
        self.now_us += 1
        wanted = read_tenant(json.dumps(document).encode())
        self.tenants.put(TenantChange(tenant, wanted.text, wanted.anchors, self.now_us, "ann"), OWNER, 9, any_revision)

    def register(self, device: str, auth_id: str, *gateways: str, **more: Any) -> None:
        """Add a device, as an operator does."""
        self.now_us += 1
        document, links = read_registration(json.dumps({"ext": {"waypost": {"gateways": gateways}}, **more}).encode())
        self.devices.add(
            NewDeviceRow(OWNER, device, document, links, self.now_us, "ann"), TenantLimits(None, lambda _: 99)
        )
        self.set_credentials(device, auth_id)

    def set_credentials(self, device: str, auth_id: str, *, enabled: bool = True) -> None:
        stored = {"type": "x509-cert", "auth_id": auth_id, "enabled": enabled, "secrets": [{"id": "one"}]}
        row = CredentialRow("x509-cert", auth_id, json.dumps(stored))
        self.devices.set_credentials(OWNER, device, lambda _known, _rows: [row], any_revision)

    def replace(self, device: str, **document: Any) -> None:
        """Replace the registration of a device, with what it has unless `document` has another value."""
        self.now_us += 1
        there = {**self.document(device), **document}
        text, links = read_registration(json.dumps(there).encode())
        self.devices.replace(NewDeviceRow(OWNER, device, text, links, self.now_us, "ann"), any_revision)

    def document(self, device: str) -> dict[str, Any]:
        return dict(json.loads(self.devices.get(OWNER, device).document))

    def gateways(self, device: str) -> list[str]:
        return list(self.document(device)["ext"]["waypost"]["gateways"])

    def decide(self, gateway: str, certificate: bytes, tenant: str = OWNER) -> str:
        """Return the id of a device that a gateway has let in. Raises `ProvisionRefused`, `DevicesFull`."""
        now = datetime.datetime.now(datetime.UTC)
        is_valid = partial(counts_now, now=now)
        return self.registrations.settle((OWNER, gateway), tenant, describing(certificate), is_valid)


class ReportQueue:
    """Reports of a gateway on their way to the hub (`bridge.reports.Reports`)."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[DeviceReport, Callable[[str | None], None]]] = deque()
        self.attach: Callable[[], None] = lambda: None

    @property
    def devices(self) -> ReportQueue:
        return self

    @property
    def credit(self) -> int:
        return REPORTS_MAX - len(self.waiting)

    def begin_devices(self, report: Callable[[], None]) -> None:
        self.attach = report

    def report_device(self, report: DeviceReport, decided: Callable[[str | None], None]) -> None:
        self.waiting.append((report, decided))


class ProvisioningGateway:
    """Gateway of the registry's owner."""

    def __init__(self, folder: Path, name: str, registry: ProvisioningRegistry) -> None:
        self.folder, self.name, self.registry = folder, name, registry
        self.users: set[str] = set()
        self.now_s = NOW_US / 1e6
        self.disconnected: list[str] = []
        self.connections: dict[DeviceCertificate, str] = {}
        self.loop = asyncio.new_event_loop()
        self.start()

    def start(self) -> None:
        self.reports = ReportQueue()
        provisioned = load_provisioned(self.folder)
        self.devices = HubDevices(self.folder, (), None, provisioned)
        self.provisioner = DeviceProvisioner(
            self.folder,
            self.devices,
            provisioned,
            self.decided,
            lambda: self.now_s,
        )
        self.gate = Authenticator(
            AuthenticationMode.STANDARD, worker=lambda work, done: done(work()), clock=lambda: self.now_s
        )
        self.gate.look_up_devices(self.devices)
        self.certified = CertifiedDevices(
            self.devices, lambda: self.users, lambda: self.now_s, self.provisioner.provision
        )
        self.certified.call_to_review(self.close_unproven)
        self.run(self.provisioner.follow_all)
        self.provisioner.tell(self.reports)  # type: ignore[arg-type]
        self.provisioned = provisioned

    def decided(self, names: DeviceNames) -> None:
        """Apply a change as `follow_hub_devices` does."""
        self.disconnected.extend(names.identities)
        self.gate.update_devices(names.identities, names.users)
        self.certified.review(names.identities)

    def close_unproven(self, identities: Set[str]) -> None:
        """Close connections as a listener does."""
        for shown, identity in list(self.connections.items()):
            if identity in identities and self.known(shown) != identity:
                del self.connections[shown]

    def enter(self, shown: DeviceCertificate) -> str | None:
        """Connect, and stay connected."""
        identity = self.connect(shown)
        if identity is not None:

            def ended(_why: Ended) -> None:
                self.connections.pop(shown, None)

            assert self.gate.grant(VerifiedIdentity(CertifiedIdentity(identity)), identity, ended) is not None
            self.connections[shown] = identity
        return identity

    def stop(self) -> None:
        self.loop.run_until_complete(self.provisioner.stop())
        self.devices.close()

    def close(self) -> None:
        self.stop()
        self.loop.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def run(self, call: Callable[[], None]) -> None:
        """Call on the loop, and finish what it writes."""

        async def done() -> None:
            call()
            await self.provisioner.finish()

        self.loop.run_until_complete(done())

    def connect(self, shown: DeviceCertificate) -> str | None:
        """Return the identity of a client with a certificate; None if it is none."""
        found = self.certified.recognize(shown.der)
        if found.candidate is None:
            return found.identity
        candidate, decided = found.candidate, list[bool]()
        self.run(lambda: self.certified.provision(candidate, decided.append))
        assert len(decided) == 1
        return self.known(shown) if decided[0] else None

    def known(self, shown: DeviceCertificate) -> str | None:
        """Return the identity of a certificate without letting a device in."""
        return self.certified.recognize(shown.der).identity

    def page(self, rows: int = 100) -> bool:
        """Take the next page of the hub; return False if there is none."""
        stored = self.store_page(rows)
        if stored is None:
            return False
        self.run(lambda: self.take(stored))
        return True

    def store_page(self, rows: int = 100) -> tuple[FittedPage, AppliedPage] | None:
        """Write the next page of the hub to the file, without using it; return None if there is none."""
        held = self.devices.cursor
        found = self.registry.changes.read((OWNER, self.name), read_cursor(held, REGISTRY), rows)
        if found.changes is None:
            return None
        fitted = self.devices.fit(make_page((OWNER, self.name), found.changes, held).page)
        return fitted, self.devices.store(fitted)

    def take(self, stored: tuple[FittedPage, AppliedPage]) -> None:
        """Use a page that is in the file, as `HubDeviceFollower` does."""
        names = self.devices.take(*stored)
        self.provisioner.follow(stored[0].page)
        self.gate.update_devices(names.identities, names.users)
        self.certified.follow()

    def pages(self) -> None:
        while self.page():
            pass

    def decide(self) -> str | None:
        """Let the hub decide about the next report; return the reason of a refusal."""
        report, decided = self.reports.waiting.popleft()
        why: str | None = None
        try:
            self.registry.decide(self.name, report.certificate, report.devices_of)
        except (ProvisionRefused, DevicesFull) as error:
            why = str(error)
        self.run(lambda: decided(why))
        return why

    def settle(self) -> None:
        """Connect to the hub, and exchange everything."""
        self.run(self.reports.attach)
        for _ in range(50):
            while self.reports.waiting:
                self.decide()
            if not self.page() and not self.reports.waiting:
                return
        raise AssertionError("reports or pages without end")
