"""Documents of Hono in the form that the registry of a hub takes.

Names of fields are the same. What an older Hono or MongoDB writes in another form is changed, fields that the registry
does not know are left out, and what it refuses raises its own error. Pure.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from bridge.hidden import hides
from cloud.hub.devices.documents import (
    WAYPOST,
    DeviceRegistration,
    InvalidDocument,
    read_registration,
    require_device_id,
    require_tenant_id,
)
from cloud.hub.devices.limits import DEVICE_BYTES_MAX, TENANT_BYTES_MAX
from cloud.hub.devices.tenants import DeviceTenantDocument, TrustedAuthority, read_tenant
from cloud.hub.peers import tenant_fault

LeftOut = Callable[[str, str], None]
"""Takes the name of a part that is left out, and the reason."""
NO_FIELD: Final = "the registry of a hub has no such field"
_ZONE: Final = re.compile(r"([+-]\d\d)(\d\d)$")
"""Offset from UTC without a colon, as older versions write it."""
_ENDS: Final = ("not-before", "not-after")
_WRAPPERS: Final[dict[str, Callable[[Any], Any]]] = {
    "$numberInt": int,
    "$numberLong": int,
    "$numberDouble": float,
    "$date": lambda value: value,
    "$oid": lambda value: value,
}
"""Types of values in MongoDB's Extended JSON."""
_RECORDS: Final = frozenset({"_id", "id", "tenant-id", "device-id", "status", "version"})
"""Fields of a record rather than of its document; the registry makes its own."""


@hides("body", "stored")
class WantedEntity(NamedTuple):
    """Tenant or device to import."""

    body: dict[str, Any]
    """Body of the request."""
    stored: dict[str, Any]
    """Document as the registry stores it."""


class GatewayChoice(NamedTuple):
    """Gateways at which imported devices may appear."""

    gateways: tuple[str, ...] = ()
    selector: str = ""

    @property
    def extension(self) -> dict[str, Any]:
        """Fields that Hono does not have, for a registration."""
        made: dict[str, Any] = {"gateways": list(self.gateways), "selector": self.selector}
        return {name: value for name, value in made.items() if value}

    def check(self) -> None:
        """Raise `InvalidDocument` for a choice that no registration may have."""
        read_registration(msgspec.json.encode({"ext": {WAYPOST: self.extension}}))


def convert_tenant(name: str, raw: msgspec.Raw, owner: str, left_out: LeftOut) -> WantedEntity:
    """Return a tenant. `owner`: tenant of the hub that it belongs to, if its name allows another. Raises
    `InvalidDocument`."""
    require_tenant_id(name)
    body = keep_fields(plain_object(raw), DeviceTenantDocument, "", left_out)
    given = body.get("trusted-ca")
    authorities = given if isinstance(given, list) else [given] if isinstance(given, dict) else []
    if authorities:
        body["trusted-ca"] = [
            keep_fields(each, TrustedAuthority, "trusted-ca ", left_out, kept=("id",))
            if isinstance(each, dict)
            else each
            for each in authorities
        ]
        for each in body["trusted-ca"]:
            mend_times(each)
    if owner and tenant_fault(name) is not None:
        body["ext"] = _extended(body, {"tenant": owner})
    return WantedEntity(body, json.loads(read_tenant(encode_checked(body, TENANT_BYTES_MAX, "the tenant")).text))


def convert_device(name: str, raw: msgspec.Raw, choice: GatewayChoice, left_out: LeftOut) -> WantedEntity:
    """Return a device. Raises `InvalidDocument`."""
    require_device_id(name)
    body = keep_fields(plain_object(raw), DeviceRegistration, "", left_out)
    if choice.extension:
        body["ext"] = _extended(body, choice.extension)
    text, _ = read_registration(encode_checked(body, DEVICE_BYTES_MAX, "the registration"))
    return WantedEntity(body, json.loads(text))


# --- inside -----------------------------------------------------------------------------------------------------------


def plain_object(raw: msgspec.Raw) -> dict[str, Any]:
    """Return an object with values in plain JSON. Raises `InvalidDocument`."""
    try:
        found = msgspec.json.decode(raw, type=dict[str, Any])
        return {name: _plain(value) for name, value in found.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise InvalidDocument("it is not an object") from None
    except RecursionError:
        raise InvalidDocument("it has too many levels of lists and mappings") from None


def _plain(value: Any) -> Any:
    """Return a value of MongoDB's Extended JSON in plain JSON."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (name, inner), *_ = value.items()
        if name in _WRAPPERS:
            try:
                return _WRAPPERS[name](inner)
            except (TypeError, ValueError):
                return value
    return {name: _plain(each) for name, each in value.items()}


def keep_fields(
    given: dict[str, Any], kind: type[msgspec.Struct], where: str, left_out: LeftOut, *, kept: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the fields that a document of the registry has, without those of the record."""
    known = _fields_of(kind)
    made: dict[str, Any] = {}
    for name, value in given.items():
        if name in _RECORDS and name not in kept:
            continue
        if name not in known and name not in kept:
            left_out(f"{where}{name}"[:200], NO_FIELD)
        elif name == "enabled" and value in ("true", "false"):
            made[name] = value == "true"
        elif value is not None:
            made[name] = value
    return made


@functools.cache
def _fields_of(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(each.encode_name for each in msgspec.structs.fields(kind))


def mend_times(given: object) -> None:
    """Give the offset from UTC its colon."""
    for name in _ENDS:
        if isinstance(given, dict) and isinstance(value := given.get(name), str):
            given[name] = _ZONE.sub(r"\1:\2", value)


def _extended(body: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return `ext` with more of the fields that Hono does not have; those of the file win."""
    ext = body.get("ext", {})
    if not isinstance(ext, dict) or not isinstance(ext.get(WAYPOST, {}), dict):
        raise InvalidDocument(f"ext and its member {WAYPOST} are objects")
    return {**ext, WAYPOST: {**more, **ext.get(WAYPOST, {})}}


def encode_checked(body: object, most: int, what: str) -> bytes:
    made = msgspec.json.encode(body)
    if len(made) > most:
        raise InvalidDocument(f"{what} has more than {most >> 10} KiB")
    return made
