"""Devices that gateways have let in by a certificate, and that the registry takes or refuses.

The decision is one transaction, and may be repeated: a device that is there for its gateway changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from bridge.hidden import hides
from cloud.hub.groups import Key
from cloud.hub.labels import parse_selector
from cloud.hub.registry.command_moves import follow_device
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_changes import CERTIFICATE_TYPE
from cloud.hub.registry.device_targets import GATEWAY, SELECTOR, put_targets, targets_of
from cloud.hub.registry.device_tenants import DeviceTenantRow, raise_revision, tenant_row
from cloud.hub.registry.devices import CredentialRow, DeviceRow, NewDeviceRow, TenantLimits, add_device, find_device
from cloud.hub.registry.labels import labels_of
from cloud.hub.registry.schema import device_credentials, devices

EXTENSION: Final = "waypost"
PROVISIONED: Final = "provisioned"
"""Member of ``ext.waypost`` of a device that was registered by its certificate. While it is there, the device is given
to each further gateway at which it appears."""
GATEWAYS_MAX: Final = 100
"""Gateways of a device that was registered by its certificate: the latest ones. It is `LINKS_MAX` of registrations."""


class ProvisionRefused(Exception):
    """The registry refuses a device; the message is the reason, for its gateway."""


@hides("document", "credentials")
class CertifiedRegistration(NamedTuple):
    """Device as its certificate and the present document of its tenant make it."""

    device: str
    document: dict[str, Any]
    """Registration of a new one, without gateways."""
    credentials: CredentialRow


Describe = Callable[[DeviceTenantRow], CertifiedRegistration]
"""Returns the device, for the present state of its tenant. Raises `ProvisionRefused`."""
IsValid = Callable[[str], bool]
"""Returns whether stored credentials count now."""


class CertificateRegistrations:
    """Registrations by certificate, for the thread that opened the database. Raises `RegistryError`."""

    def __init__(self, database: Database, devices_max: Callable[[DeviceTenantRow], int]) -> None:
        """`devices_max`: devices that a tenant may have."""
        self._database = database
        self._devices_max = devices_max

    def settle(self, gateway: Key, tenant: str, describe: Describe, is_valid: IsValid) -> str:
        """Register a device that a gateway has let in, and give it to this gateway; return its id. Raises
        `ProvisionRefused`, `DevicesFull`."""

        def work(tx: sa.Connection) -> str:
            known = tenant_row(tx, tenant)
            if known is None or known.owner != gateway[0]:
                raise ProvisionRefused(f"tenant {tenant} is not one of this gateway")
            wanted = describe(known)
            there = _of_certificate(tx, tenant, wanted.credentials.auth_id)
            if there is None:
                self._add(tx, known, gateway, wanted)
                return wanted.device
            if not is_valid(there.credentials):
                raise ProvisionRefused(
                    f"the credentials of device {there.device.device} with its subject do not count now"
                )
            _give(tx, known, there.device, gateway)
            return there.device.device

        return self._database.transaction(work)

    def _add(self, tx: sa.Connection, known: DeviceTenantRow, gateway: Key, wanted: CertifiedRegistration) -> None:
        tenant, name = known.tenant, wanted.device
        if find_device(tx, tenant, name) is not None:
            raise ProvisionRefused(f"the registry has a device {name} already, with other credentials")
        document = {**wanted.document, "ext": {EXTENSION: {"gateways": [gateway[1]], PROVISIONED: True}}}
        at_us = self._database.now_us(tx)
        new = NewDeviceRow(
            tenant, name, json.dumps(document, separators=(",", ":")), [], at_us, f"gateway {gateway[1]}"
        )
        add_device(tx, known, new, TenantLimits(None, self._devices_max))
        tx.execute(device_credentials.insert().values(tenant=tenant, device=name, **wanted.credentials._asdict()))


@hides("credentials")
class _CertifiedDevice(NamedTuple):
    device: DeviceRow
    credentials: str
    """Stored document of its credentials."""


def _of_certificate(tx: sa.Connection, tenant: str, auth_id: str) -> _CertifiedDevice | None:
    columns = device_credentials.c
    mine = (columns.tenant == tenant, columns.type == CERTIFICATE_TYPE, columns.auth_id == auth_id)
    row = tx.execute(sa.select(columns.device, columns.document).where(*mine)).first()
    device = find_device(tx, tenant, row.device) if row is not None else None
    return _CertifiedDevice(device, row.document) if row is not None and device is not None else None


def _give(tx: sa.Connection, known: DeviceTenantRow, there: DeviceRow, gateway: Key) -> None:
    """Give a registered device to a further gateway, unless it has it. Raises `ProvisionRefused`."""
    owner, name = gateway
    labels = labels_of(tx, owner, (name,)).get(name, {})
    for target in targets_of(there.document):
        if target == f"{GATEWAY}{name}":
            return
        if target.startswith(SELECTOR) and parse_selector(target.removeprefix(SELECTOR)).matches(labels):
            return
    document = json.loads(there.document)
    extension = document.get("ext", {}).get(EXTENSION, {})
    if extension.get(PROVISIONED) is not True:
        raise ProvisionRefused(f"device {there.device} is registered, and not for this gateway")
    extension["gateways"] = [*extension.get("gateways", ()), name][-GATEWAYS_MAX:]
    revision, text = raise_revision(tx, known), json.dumps(document, separators=(",", ":"))
    mine = (devices.c.tenant == known.tenant, devices.c.device == there.device)
    changed = {"document": text, "revision": revision, "updated_by": f"gateway {name}"}
    tx.execute(devices.update().where(*mine).values(**changed))
    put_targets(tx, known.tenant, there.device, revision, targets_of(text))
    follow_device(tx, known.owner, known.tenant, there.device)
