"""The device registry that a command works with: over HTTP, or in the data directory of a hub.

Both ways take and return the documents of Hono's management API, so that a command is written once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import quote, unquote

import msgspec

from bridge.hidden import hides
from cloud.fleet.place import DEFAULT_TENANT, HubPlace, current_user, hub_of
from edge.output.errors import CommandError, Exit
from edge.remote.client import ConsoleClient

if TYPE_CHECKING:
    from cloud.hub.devices.credentials import WantedCredentials
    from cloud.hub.registry.device_tenants import DeviceTenantRow
    from cloud.hub.registry.devices import CredentialRow, NewDeviceRow, RegisteredDevices
    from cloud.hub.registry.local_devices import LocalDevices
    from cloud.hub.tenants import Tenants

API: Final = "/v1/"
PAGE: Final = 200
"""Devices of a page: as many as the API gives."""
_ATTEMPTS: Final = 3
"""Times that a password is hashed while others change the same credentials."""


class FoundSet(NamedTuple):
    """Credentials of a device, without secrets."""

    credentials: list[dict[str, Any]]
    tag: str
    """Entity tag, for a change of what was read."""


@hides("document")
class FoundDevice(NamedTuple):
    """Registration of a device, with its status."""

    document: dict[str, Any]
    tag: str
    """Entity tag. It is that of the credentials as long as neither was changed since the device was added."""


class DeviceStore(Protocol):
    """Devices of one tenant. Methods raise CommandError."""

    def add(self, device: str, document: dict[str, Any]) -> str:
        """Add a device; return the entity tag of its credentials, which are none."""

    def get(self, device: str) -> FoundDevice:
        """Return a device."""

    def find(self, filters: list[dict[str, Any]], gateways: bool | None) -> Iterator[dict[str, Any]]:
        """Yield the devices that match, by id."""

    def local(self, gateway: str | None) -> Iterator[dict[str, Any]]:
        """Yield the devices that were added at gateways, by name; those of one gateway, or of all."""

    def replace(self, device: str, document: dict[str, Any], tag: str) -> None:
        """Replace the registration of a device, if it is as it was read. Its credentials stay."""

    def remove(self, device: str) -> None:
        """Remove a device with its credentials."""

    def credentials(self, device: str) -> FoundSet:
        """Return the credentials of a device."""

    def set_credentials(self, device: str, wanted: list[dict[str, Any]], tag: str) -> None:
        """Replace the credentials of a device, if they are as they were read."""


class _RemoteDevices:
    """Devices over HTTP."""

    def __init__(self, client: ConsoleClient, tenant: str) -> None:
        self._client = client
        self._tenant = quote(tenant or client.ask("status")["tenant"] or DEFAULT_TENANT, safe="")

    def add(self, device: str, document: dict[str, Any]) -> str:
        with self._client.open(self._path(device), api=API, method="POST", body=document) as answer:
            self._client.document(answer, "POST")
            return answer.headers.get("ETag", "")

    def get(self, device: str) -> FoundDevice:
        with self._client.open(self._path(device), api=API) as answer:
            return FoundDevice(self._client.document(answer, "GET"), answer.headers.get("ETag", ""))

    def find(self, filters: list[dict[str, Any]], gateways: bool | None) -> Iterator[dict[str, Any]]:
        wanted = [msgspec.json.encode(each).decode() for each in filters] or None
        kind = None if gateways is None else str(gateways).lower()
        after = None
        while True:
            try:
                page = self._client.ask(
                    f"devices/{self._tenant}", api=API, pageSize=PAGE, after=after, filterJson=wanted, isGateway=kind
                )
            except CommandError as error:
                if error.error == "not-found":
                    return  # nothing matches
                raise
            yield from page["result"]
            if len(page["result"]) < PAGE:
                return
            after = page["result"][-1]["id"]

    def local(self, gateway: str | None) -> Iterator[dict[str, Any]]:
        yield from self._client.pages("local-devices", "devices", {"tenant": unquote(self._tenant), "gateway": gateway})

    def replace(self, device: str, document: dict[str, Any], tag: str) -> None:
        headers = {"If-Match": tag}
        with self._client.open(self._path(device), api=API, method="PUT", body=document, headers=headers) as answer:
            answer.read()

    def remove(self, device: str) -> None:
        self._client.ask(self._path(device), api=API, method="DELETE")

    def credentials(self, device: str) -> FoundSet:
        with self._client.open(self._path(device, "credentials"), api=API) as answer:
            return FoundSet(self._client.document(answer, "GET"), answer.headers.get("ETag", ""))

    def set_credentials(self, device: str, wanted: list[dict[str, Any]], tag: str) -> None:
        headers = {"If-Match": tag}
        with self._client.open(
            self._path(device, "credentials"), api=API, method="PUT", body=wanted, headers=headers
        ) as answer:
            answer.read()

    def _path(self, device: str, kind: str = "devices") -> str:
        return f"{kind}/{self._tenant}/{quote(device, safe='')}"


class _OwnRegistry:
    """Devices in the registry of a data directory."""

    def __init__(self, devices: RegisteredDevices, local: LocalDevices, quotas: Tenants, tenant: str) -> None:
        self._devices = devices
        self._local = local
        self._quotas = quotas
        self._tenant = tenant

    def add(self, device: str, document: dict[str, Any]) -> str:
        from cloud.hub.devices.service import devices_max
        from cloud.hub.devices.tenants import EMPTY
        from cloud.hub.peers import tenant_fault
        from cloud.hub.registry.devices import TenantLimits

        owner = self._tenant if tenant_fault(self._tenant) is None else None
        limits = TenantLimits(owner, lambda known: devices_max(self._quotas, known), EMPTY)
        return str(self._devices.add(self._row(device, document), limits))

    def get(self, device: str) -> FoundDevice:
        from cloud.hub.devices.documents import device_answer

        found = self._devices.get(self._tenant, device)
        return FoundDevice(device_answer(found), str(found.revision))

    def find(self, filters: list[dict[str, Any]], gateways: bool | None) -> Iterator[dict[str, Any]]:
        from cloud.hub.devices.documents import device_answer
        from cloud.hub.registry.device_search import FieldFilter, SearchPage, SearchQuery
        from cloud.hub.registry.device_tenants import UnknownDeviceTenant

        wanted = [FieldFilter(tuple(each["field"][1:].split("/")), each["value"]) for each in filters]
        query = SearchQuery(SearchPage(PAGE), wanted, gateways=gateways)
        while True:
            try:
                rows = self._devices.search(self._tenant, query).rows
            except UnknownDeviceTenant:
                return
            yield from ({"id": row.device, **device_answer(row)} for row in rows)
            if len(rows) < PAGE:
                return
            query = query._replace(page=SearchPage(PAGE, after=rows[-1].device))

    def local(self, gateway: str | None) -> Iterator[dict[str, Any]]:
        after = None
        while rows := self._local.page(self._tenant, gateway, after, PAGE):
            yield from (row._asdict() for row in rows)
            after = rows[-1][:2]

    def replace(self, device: str, document: dict[str, Any], tag: str) -> None:
        self._devices.replace(self._row(device, document), _only(tag, f"device {device} was"))

    def remove(self, device: str) -> None:
        self._devices.remove(self._tenant, device, lambda _: None)

    def credentials(self, device: str) -> FoundSet:
        from cloud.hub.devices.credentials import credentials_answer

        found = self._devices.credentials(self._tenant, device)
        return FoundSet(credentials_answer(found.rows), str(found.revision))

    def set_credentials(self, device: str, wanted: list[dict[str, Any]], tag: str) -> None:
        from cloud.hub.devices.credentials import SaltChanged, read_credentials

        read = read_credentials(msgspec.json.encode(wanted))
        for _ in range(_ATTEMPTS):
            read.hash_passwords(self._devices.credentials(self._tenant, device).rows)
            try:
                self._devices.set_credentials(self._tenant, device, _merging(read), _only(tag, "the credentials were"))
            except SaltChanged:
                continue
            return
        raise CommandError("others change these credentials all the time", "try again", error="changed-meanwhile")

    def _row(self, device: str, document: dict[str, Any]) -> NewDeviceRow:
        from cloud.hub.devices.documents import read_registration, require_device_id, require_tenant_id
        from cloud.hub.registry.devices import NewDeviceRow

        text, links = read_registration(msgspec.json.encode(document))
        tenant, name = require_tenant_id(self._tenant), require_device_id(device)
        return NewDeviceRow(tenant, name, text, links, time.time_ns() // 1_000, current_user())


@contextlib.contextmanager
def open_devices(place: HubPlace, tenant: str) -> Iterator[DeviceStore]:
    """Open the devices of a tenant. Raises CommandError, also for errors of the registry in the body."""
    if place.client is not None:
        yield _RemoteDevices(place.client, tenant)
        return
    from cloud.hub.devices.credentials import CredentialsFull
    from cloud.hub.devices.documents import InvalidDocument
    from cloud.hub.registry.device_search import UnsearchableField
    from cloud.hub.registry.device_tenants import UnknownDeviceTenant
    from cloud.hub.registry.devices import CredentialsTaken, DeviceExists, DevicesFull, RegisteredDevices, UnknownDevice
    from cloud.hub.registry.local_devices import LocalDevices
    from cloud.hub.registry.opening import open_registry

    look = f"list them: waypost hub device list {place.quoted()}"
    with hub_of(place) as (settings, registry), contextlib.closing(open_registry(registry).database) as database:
        try:
            yield _OwnRegistry(RegisteredDevices(database), LocalDevices(database), settings.quotas, tenant)
        except (InvalidDocument, UnsearchableField) as why:
            raise CommandError(str(why), error="invalid-request", code=Exit.USAGE) from None
        except UnknownDevice as why:
            raise CommandError(f"no device {why} in tenant {tenant}", look, error="not-found") from None
        except UnknownDeviceTenant as why:
            raise CommandError(
                f"no tenant {why}", "create it at the running hub: POST /v1/tenants", error="not-found"
            ) from None
        except DeviceExists as why:
            raise CommandError(f"there is a device {why} already", look, error="conflict") from None
        except (CredentialsTaken, DevicesFull, CredentialsFull) as why:
            raise CommandError(str(why), look, error="conflict") from None


def _merging(wanted: WantedCredentials) -> Any:
    from cloud.hub.devices.tenants import stored_tenant

    def merge(known: DeviceTenantRow, rows: list[CredentialRow]) -> list[CredentialRow]:
        return wanted.merge(stored_tenant(known.document), rows)

    return merge


def _only(tag: str, what: str) -> Any:
    """Return a check that refuses a change if others have made one since it was read. `what`: begin of the message."""

    def check(revision: int | None) -> None:
        if str(revision) != tag:
            words = f"{what} changed at the same time"
            raise CommandError(words, "look again, and try again", error="changed-meanwhile")

    return check
