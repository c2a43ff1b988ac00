"""Records of Hono's registries: what its files, its management API and an export of its MongoDB have, by their shapes.

| source | record |
|---|---|
| device-identities.json | ``{"tenant": T, "devices": [{"device-id": D, "data": {…}}]}`` |
| credentials.json | ``{"tenant": T, "credentials": [{"device-id": D, "type": …, "secrets": […]}]}`` |
| tenants.json | ``{"tenant-id": T, …}`` |
| MongoDB | ``{"tenant-id": T, "device-id": D, "device": {…}}``, or with ``"credentials": […]``, or ``"tenant": {…}`` |
| management API | ``{"total": N, "result": [{"id": …, …}]}`` |

A file has a list of them, or one a line, or one object with the members ``tenants``, ``devices`` (or
``device-identities``) and ``credentials``, which are such lists. Pure, except for `read_content`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bridge.hidden import hides
from cloud.fleet.hono.limits import FILE_BYTES_MAX

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_TRAILING: Final = "trailing characters"
_MISSING: Final = msgspec.Raw()
_NO_LIST: Final = "it is not a list"
_UNKNOWN: Final = "it is neither a tenant nor a device nor credentials of Hono"


class HonoFileError(Exception):
    """A file cannot be read; the message says why, and quotes nothing of it."""


@hides("document")
class HonoTenantRecord(NamedTuple):
    """Tenant as a file has it."""

    tenant: str
    document: msgspec.Raw


@hides("document")
class HonoDeviceRecord(NamedTuple):
    """Device as a file has it."""

    tenant: str
    device: str
    document: msgspec.Raw


@hides("credentials")
class HonoCredentialsRecord(NamedTuple):
    """Some credentials of a device."""

    tenant: str
    device: str
    credentials: list[msgspec.Raw]
    exported: bool = False
    """True: of MongoDB, where Hono may have encrypted the keys."""


class UnknownHonoRecord(NamedTuple):
    """Part of a file that is none of the others."""

    place: str
    words: str


HonoRecord = HonoTenantRecord | HonoDeviceRecord | HonoCredentialsRecord | UnknownHonoRecord


class PageMeaning(NamedTuple):
    """Meaning of the rows of the management API in one file: they do not name their tenant."""

    tenants: bool | None
    """True: each row is a tenant; False: a device; None: unclear."""
    tenant: str = ""
    """Tenant of the rows, which are devices; empty: unknown."""


@hides("credentials")
class HonoObject(msgspec.Struct):
    """Members of an object that show its kind; missing ones are empty."""

    tenant_id: msgspec.Raw = msgspec.field(name="tenant-id", default=_MISSING)
    device_id: msgspec.Raw = msgspec.field(name="device-id", default=_MISSING)
    identities: msgspec.Raw = msgspec.field(name="device-identities", default=_MISSING)
    tenant: msgspec.Raw = _MISSING
    tenants: msgspec.Raw = _MISSING
    device: msgspec.Raw = _MISSING
    devices: msgspec.Raw = _MISSING
    credentials: msgspec.Raw = _MISSING
    data: msgspec.Raw = _MISSING
    result: msgspec.Raw = _MISSING
    id: msgspec.Raw = _MISSING


def read_content(path: Path) -> bytes:
    """Return the content of a file. Raises `HonoFileError`."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > FILE_BYTES_MAX:
                raise HonoFileError(f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB")
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as why:
        raise HonoFileError(f"{path} cannot be read: {why.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise HonoFileError(f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB")
    return content.removeprefix(_BYTE_ORDER_MARK)


def read_records(content: bytes, place: str, meaning: PageMeaning) -> Iterator[HonoRecord]:
    """Yield the records of a file; `place` is its name. Raises `HonoFileError`."""
    for number, element in enumerate(_elements(content, place), 1):
        yield from _records(element, f"{place}: record {number}", meaning)


def _elements(content: bytes, place: str) -> list[msgspec.Raw]:
    """Return the objects of a file: of a list, of its lines, or the only one."""
    try:
        whole = msgspec.json.decode(content, type=msgspec.Raw)
        listed = memoryview(whole)[:1].tobytes() == b"["
        return msgspec.json.decode(whole, type=list[msgspec.Raw]) if listed else [whole]
    except msgspec.DecodeError as error:
        if _TRAILING not in str(error):
            raise HonoFileError(f"{place} is not JSON: {error}") from None
    try:
        return msgspec.json.Decoder(msgspec.Raw).decode_lines(content)
    except msgspec.DecodeError as error:
        raise HonoFileError(f"{place} is not JSON, and has not one object a line: {error}") from None


def _records(element: msgspec.Raw, place: str, meaning: PageMeaning) -> Iterator[HonoRecord]:
    found = _object(element)
    if found is None:
        yield UnknownHonoRecord(place, _UNKNOWN)
        return
    tenant, name = _text(found.tenant), _text(found.tenant_id)
    if found.result:
        yield from _page(_list(found.result), place, meaning)
    elif tenant and (found.devices or found.credentials):
        yield from _of_tenant(found, tenant, place)
    elif name:
        yield from _single(found, name, element, place)
    elif found.tenants or found.identities or found.devices or found.credentials:
        yield from _together(found, place, meaning)
    else:
        yield UnknownHonoRecord(place, _UNKNOWN)


def _together(found: HonoObject, place: str, meaning: PageMeaning) -> Iterator[HonoRecord]:
    """Yield the records of an object that has all lists."""
    for member, below, what in (
        (found.tenants, "tenants", PageMeaning(tenants=True)),
        (found.identities, "device-identities", meaning._replace(tenants=False)),
        (found.devices, "devices", meaning._replace(tenants=False)),
        (found.credentials, "credentials", meaning._replace(tenants=False)),
    ):
        if not member:
            continue
        rows = _list(member)
        if rows is None:
            yield from _records(member, f"{place}: {below}", what)  # a page
        for number, row in enumerate(rows or (), 1):
            yield from _records(row, f"{place}: {below} {number}", what)


def _of_tenant(found: HonoObject, tenant: str, place: str) -> Iterator[HonoRecord]:
    """Yield the devices and credentials of a tenant in the files of Hono's registry."""
    for member, what in ((found.devices, "devices"), (found.credentials, "credentials")):
        if member and _list(member) is None:
            yield UnknownHonoRecord(f"{place}: {what}", _NO_LIST)
    for number, row in enumerate(_list(found.devices) or (), 1):
        each = _object(row)
        device = _text(each.device_id) if each is not None else ""
        if each is None or not device:
            yield UnknownHonoRecord(f"{place}: device {number}", "it has no device-id")
            continue
        yield HonoDeviceRecord(tenant, device, each.data or msgspec.Raw(b"{}"))
    for number, row in enumerate(_list(found.credentials) or (), 1):
        each = _object(row)
        device = _text(each.device_id) if each is not None else ""
        if device:
            yield HonoCredentialsRecord(tenant, device, [row])
        else:
            yield UnknownHonoRecord(f"{place}: credentials {number}", "they have no device-id")


def _single(found: HonoObject, tenant: str, element: msgspec.Raw, place: str) -> Iterator[HonoRecord]:
    """Yield the records of an object that names its tenant."""
    device = _text(found.device_id)
    if not device:
        whole = UnknownHonoRecord(f"{place}: device-id", "it is not a text")
        yield whole if found.device_id else HonoTenantRecord(tenant, found.tenant or element)
        return
    if found.device:
        yield HonoDeviceRecord(tenant, device, found.device)
    if found.credentials:
        rows = _list(found.credentials)
        if rows is None:
            yield UnknownHonoRecord(f"{place}: credentials", _NO_LIST)
        else:
            yield HonoCredentialsRecord(tenant, device, rows, exported=True)
    if not (found.device or found.credentials):
        yield UnknownHonoRecord(place, f"device {device[:80]} has neither device nor credentials")


def _page(rows: list[msgspec.Raw] | None, place: str, meaning: PageMeaning) -> Iterator[HonoRecord]:
    """Yield the rows of a page of the management API. Raises `HonoFileError`."""
    if meaning.tenants is None:
        raise HonoFileError(
            f"{place}: files with pages of tenants are tenants.json, tenants-1.json and so on, and names of files with "
            "pages of devices begin otherwise"
        )
    if not meaning.tenants and not meaning.tenant:
        raise HonoFileError(f"{place}: a page of devices of the management API does not name their tenant")
    if rows is None:
        yield UnknownHonoRecord(f"{place}: result", _NO_LIST)
    for number, row in enumerate(rows or (), 1):
        each = _object(row)
        name = _text(each.id) if each is not None else ""
        if not name:
            yield UnknownHonoRecord(f"{place}: row {number}", "it has no id")
        elif meaning.tenants:
            yield HonoTenantRecord(name, row)
        else:
            yield HonoDeviceRecord(meaning.tenant, name, row)


def _object(raw: msgspec.Raw) -> HonoObject | None:
    """Return the members of an object; None for anything else."""
    try:
        return msgspec.json.decode(raw, type=HonoObject)
    except msgspec.MsgspecError:
        return None


def _list(raw: msgspec.Raw) -> list[msgspec.Raw] | None:
    try:
        return msgspec.json.decode(raw, type=list[msgspec.Raw])
    except msgspec.MsgspecError:
        return None


def _text(raw: msgspec.Raw) -> str:
    """Return a text; empty for anything else."""
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.MsgspecError:
        return ""
