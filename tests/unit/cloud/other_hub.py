"""Another hub of a registry, with gateways and devices of tenant acme."""

from __future__ import annotations

import msgspec

from cloud.hub.commands.service import Draft
from cloud.hub.registry.commands import CommandNews, CommandRecord, Commands, CommandState
from cloud.hub.registry.database import Database
from cloud.hub.registry.devices import NewDeviceRow, RegisteredDevices, TenantLimits
from cloud.hub.registry.schema import gateways, tenants


def row(device: str, gateway: str) -> NewDeviceRow:
    document = msgspec.json.encode({"ext": {"waypost": {"gateways": [gateway]}}}).decode()
    return NewDeviceRow("acme", device, document, [], 1, "ann")


def draft(device: str, gateway: str) -> Draft:
    return Draft("acme", gateway, device, "go", b"", None, 60.0)


class OtherHub:
    """Another hub of the registry, with gateway hall; devices are registered there."""

    def __init__(self, database: Database, commands: Commands) -> None:
        self.commands = commands
        self.devices = RegisteredDevices(database)
        there = {"first_seen": 1, "last_seen": 1, "connected": False, "remote": "", "generation": 0, "landed": 0}
        rows = [{"tenant": "acme", "name": name, **there} for name in ("hall", "roof")]
        database.transaction(lambda tx: tx.execute(tenants.insert().values(name="acme", created_at=1)))
        database.transaction(lambda tx: tx.execute(gateways.insert(), rows))

    def send(self, device: str, now_us: int) -> CommandRecord:
        self.devices.add(row(device, "hall"), TenantLimits("acme", lambda _row: 100))
        return self.commands.add(draft(device, "hall").record(now_us), gateway_max=9, tenant_max=9)

    def move(self, device: str) -> None:
        self.devices.replace(row(device, "roof"), lambda _there: None)

    def tell(self, command: CommandRecord, state: CommandState) -> None:
        self.commands.keep([CommandNews(command.id, *command.key, command.device, 5, state, moves=0)])
