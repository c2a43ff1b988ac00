"""Devices of a gateway for its operator: those added here, and those of its hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from bridge.device_pages import HASH_FUNCTIONS, DeviceEntry
from edge.appliance.accounts.profiles import PROFILES
from edge.broker.model.authorization import Operation
from edge.broker.security import rights
from edge.broker.security.credentials import CredentialUser
from edge.broker.security.hub_device_file import FILE, HubDeviceFile, decode_entry, identity_of
from edge.broker.security.hub_devices import BY_HUB
from edge.broker.security.provisioned_file import FILE as PROVISIONED_FILE
from edge.broker.security.provisioned_file import ProvisionedFile

CONFLICT: Final = "conflict"
"""State of a device that was added here and has the name of a device of the hub: the one added here works."""
DISABLED: Final = "disabled"
BY_CERTIFICATE: Final = "certificate"
"""Origin of devices that were let in by their certificates, before the hub knows them."""
NEW: Final = "new"
"""State of such a device: the hub is told when it is there."""
REFUSED: Final = "refused"
"""State of such a device that the hub has refused."""
IN_FORCE: Final = "ok"


class HubDeviceRow(NamedTuple):
    """Device of a hub."""

    name: str
    """Its id; of another tenant than the gateway's: ``id@tenant``."""
    tenant: str
    entry: DeviceEntry
    enabled: bool

    @property
    def secrets(self) -> list[dict[str, Any]]:
        """Passwords, without secrets."""
        return [
            {"id": each.id, "login": login.auth_id, "not_before": each.not_before, "not_after": each.not_after}
            for login in self.entry.logins
            for each in login.secrets
            if each.function in HASH_FUNCTIONS
        ]


def is_device(user: CredentialUser) -> bool:
    """Return whether a user has no right to the console."""
    return not any({Operation.VIEW, Operation.MANAGE} & rule.operations for rule in user.rules)


def hub_devices(data: Path) -> dict[str, HubDeviceRow]:
    """Return the devices of the hub by name. Raises CredentialsError."""
    if not (data / FILE).exists():
        return {}
    with HubDeviceFile.open(data) as file:
        owner, hono_tenant, enabled = file.owner(), file.hono_tenant(), file.tenants()
        found = {}
        for stored in file.devices():
            name = identity_of(stored.tenant, stored.device, owner, hono_tenant)
            entry = decode_entry(stored.entry)
            found[name] = HubDeviceRow(name, stored.tenant, entry, entry.enabled and enabled.get(stored.tenant, False))
    return found


def provisioned_rows(data: Path) -> list[dict[str, Any]]:
    """Return the rows of devices that were let in by their certificates, or are refused. Raises CredentialsError."""
    if not (data / PROVISIONED_FILE).exists():
        return []
    owner = hono_tenant = ""
    if (data / FILE).exists():
        with HubDeviceFile.open(data) as known:
            owner, hono_tenant = known.owner(), known.hono_tenant()
    with ProvisionedFile.open(data) as file:
        return [
            {
                "name": identity_of(each.tenant, each.device, owner, hono_tenant),
                "origin": BY_CERTIFICATE,
                "state": REFUSED if each.refused else NEW,
                "allow": [] if each.refused else list(PROFILES["sensor"]),
                "tenant": each.tenant,
                "subject": each.auth_id,
                **({"reason": each.refused} if each.refused else {}),
                "secrets": 0,
            }
            for each in file.devices()
        ]


def device_rows(users: Mapping[str, CredentialUser], devices: Mapping[str, HubDeviceRow]) -> list[dict[str, Any]]:
    """Return the rows of a list, by name; in a conflict that of the device added here is first."""
    rows = [local_row(user, devices) | {"secrets": len(user.secrets)} for user in users.values() if is_device(user)]
    rows += [hub_row(device, users) | {"secrets": len(device.secrets)} for device in devices.values()]
    return sorted(rows, key=lambda row: (row["name"], row["origin"] == BY_HUB))


def local_row(user: CredentialUser, devices: Mapping[str, HubDeviceRow]) -> dict[str, Any]:
    """Return the row of a device that was added here."""
    state = CONFLICT if user.name in devices else IN_FORCE
    return {"name": user.name, "origin": user.origin, "state": state, "allow": rights.format_rights(user.rules)}


def hub_row(device: HubDeviceRow, users: Mapping[str, CredentialUser]) -> dict[str, Any]:
    """Return the row of a device of the hub."""
    state = IN_FORCE if device.enabled else DISABLED
    return {
        "name": device.name,
        "origin": BY_HUB,
        "state": CONFLICT if device.name in users else state,
        "allow": list(PROFILES["sensor"]),
        "tenant": device.tenant,
    }
