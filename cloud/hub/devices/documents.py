"""Documents of devices in the form of Hono's management API, and their checks. Pure.

Names of fields are Hono's. A registration has no secrets: `ext` and `defaults` are shown to all who may view the
tenant.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec

from cloud.hub.devices.limits import DOCUMENT_DEPTH_MAX, LINKS_MAX, NAME_CHARACTERS_MAX
from cloud.hub.labels import LabelError, parse_selector, validate_labels
from cloud.hub.peers import gateway_fault
from cloud.hub.registry.devices import DeviceLink, DeviceRow, LinkKind

_DEVICE: Final = re.compile(r"[a-zA-Z0-9_.:=-]+")
_TENANT: Final = re.compile(r"[a-zA-Z0-9_.-]+")
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_DEEP: Final = f"it has more than {DOCUMENT_DEPTH_MAX} levels of lists and mappings"
WAYPOST: Final = "waypost"
"""Member of `ext` for fields that Hono does not have (`DeviceExtension`)."""

Names = Annotated[list[str], msgspec.Meta(max_length=LINKS_MAX)]
"""Names of devices or groups; one name may be given without a list."""


class InvalidDocument(ValueError):
    """A document or name cannot be used; the message says why, and quotes no secret."""


class CommandEndpoint(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Endpoint that an adapter sends commands to. It is stored for Hono's adapters; gateways do not use it."""

    uri: str
    headers: dict[str, Any] = {}
    payload_properties: dict[str, Any] = msgspec.field(name="payload-properties", default={})


class EntityStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Times of a device or tenant."""

    created: str
    """UTC, as ``2026-11-29T17:00:00Z``."""
    updated: str | None = None
    """Missing before the first change."""
    last_user: str = msgspec.field(name="last-user", default="")
    """User of the last change."""
    auto_provisioned: bool = msgspec.field(name="auto-provisioned", default=False)
    """True for a device that was registered by its certificate."""


class DeviceRegistration(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Registration of a device, in the form of Hono."""

    enabled: bool | None = None
    """False: gateways refuse the device. Default: true."""
    defaults: dict[str, Any] = {}
    """Properties of its messages unless a message has them."""
    via: Names | str = []
    """Devices that act for it."""
    via_groups: Names | str = msgspec.field(name="viaGroups", default=[])
    """Groups of devices that act for it."""
    member_of: Names | str = msgspec.field(name="memberOf", default=[])
    """Groups of acting devices that it belongs to. Not together with `via` or `viaGroups`."""
    authorities: Names = []
    """Rights of an acting device, as ``auto-provisioning-enabled``."""
    downstream_message_mapper: str | None = msgspec.field(name="downstream-message-mapper", default=None)
    """Stored for Hono's adapters; gateways do not use it."""
    upstream_message_mapper: str | None = msgspec.field(name="upstream-message-mapper", default=None)
    """Stored for Hono's adapters; gateways do not use it."""
    command_endpoint: CommandEndpoint | None = msgspec.field(name="command-endpoint", default=None)
    """Stored for Hono's adapters; gateways do not use it."""
    ext: dict[str, Any] = {}
    """Further properties. Its member ``waypost`` is a `DeviceExtension`."""
    status: dict[str, Any] | None = None
    """In answers, an `EntityStatus`. In requests it is ignored."""


class DeviceExtension(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Member ``waypost`` of `ext`: gateways and labels, for which Hono has no fields."""

    gateways: Names = []
    """Gateways of the hub at which the device may appear."""
    selector: str = ""
    """Further ones by their labels, as ``site=berlin``."""
    labels: dict[str, str] = {}
    """Labels of the device."""
    provisioned: bool = False
    """True: it was registered by its certificate, and is given to each further gateway at which it appears."""


class CreatedEntity(msgspec.Struct, kw_only=True):
    """Answer to a creation."""

    id: str


class DeviceSearchAnswer(msgspec.Struct, kw_only=True):
    """Page of devices. `Link` with ``rel="next"`` is the address of the next page where pages are ordered by id."""

    total: int
    """Devices that match, on all pages."""
    result: list[dict[str, Any]]
    """Each is a `DeviceRegistration` with its `id`."""


def require_tenant_id(name: str) -> str:
    """Check the id of a device tenant, and return it. Raises `InvalidDocument`."""
    if len(name) <= NAME_CHARACTERS_MAX and _TENANT.fullmatch(name):
        return name
    raise InvalidDocument(f"the id of a tenant is 1 to {NAME_CHARACTERS_MAX} letters, digits, '-', '_' or '.'")


def is_device_id(name: str) -> bool:
    """Return whether a text can be the id of a device."""
    return len(name) <= NAME_CHARACTERS_MAX and _DEVICE.fullmatch(name) is not None


def require_device_id(name: str) -> str:
    """Check the id of a device, and return it. Raises `InvalidDocument`."""
    if is_device_id(name):
        return name
    words = f"the id of a device is 1 to {NAME_CHARACTERS_MAX} letters, digits, '-', '_', '.', ':' or '='"
    raise InvalidDocument(words)


def read_registration(body: bytes) -> tuple[str, list[DeviceLink]]:
    """Return the stored document of a registration, and its links. An empty body is an empty registration. Raises
    `InvalidDocument`."""
    document = decode_document(body or b"{}", DeviceRegistration)
    via, groups, member_of = (_names(each) for each in (document.via, document.via_groups, document.member_of))
    if member_of and (via or groups):
        raise InvalidDocument("a device with memberOf has neither via nor viaGroups")
    _check_extension(document.ext)
    document.enabled = document.enabled is not False
    document.via, document.via_groups, document.member_of, document.status = via, groups, member_of, None
    links = [
        *(DeviceLink(LinkKind.VIA, require_device_id(name)) for name in via),
        *(DeviceLink(LinkKind.VIA_GROUP, require_device_id(name)) for name in groups),
        *(DeviceLink(LinkKind.MEMBER_OF, require_device_id(name)) for name in member_of),
    ]
    return encode_document(document), links


def device_answer(row: DeviceRow) -> dict[str, Any]:
    """Return the registration of a device, with its status."""
    document = json.loads(row.document)
    status = status_of(row.created_at, row.updated_at, row.updated_by)
    if document.get("ext", {}).get(WAYPOST, {}).get("provisioned") is True:
        status["auto-provisioned"] = True
    return {**document, "status": status}


def status_of(created_us: int, updated_us: int, by: str) -> dict[str, Any]:
    """Return an `EntityStatus`."""
    updated = _time(updated_us) if updated_us != created_us else None
    status = EntityStatus(created=_time(created_us), updated=updated, last_user=by)
    found: dict[str, Any] = msgspec.to_builtins(status)
    return found


def decode_document(body: bytes, kind: Any) -> Any:
    """Decode a JSON document. Raises `InvalidDocument` for one that the databases could not search."""
    try:
        plain = msgspec.json.decode(body)
        _check_values(plain, DOCUMENT_DEPTH_MAX)
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise InvalidDocument(str(error)) from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise InvalidDocument("the body is not JSON") from None
    except RecursionError:
        raise InvalidDocument(_DEEP) from None


def encode_document(document: Any) -> str:
    """Return the stored form of a document."""
    return msgspec.json.encode(document).decode()


def _check_values(value: Any, depth: int) -> None:
    """Raise `InvalidDocument` for NUL in a text, which PostgreSQL cannot search, for numbers that JSON has no form for,
    and for too many levels."""
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidDocument("a text in it has a NUL")
    elif isinstance(value, dict | list):
        if not depth:
            raise InvalidDocument(_DEEP)
        for each in _parts(value):
            _check_values(each, depth - 1)


def _parts(value: dict[str, Any] | list[Any]) -> Iterator[Any]:
    if isinstance(value, list):
        yield from value
    else:
        yield from value
        yield from value.values()


def _names(given: list[str] | str) -> list[str]:
    return [given] if isinstance(given, str) else list(dict.fromkeys(given))


def _check_extension(ext: dict[str, Any]) -> None:
    if WAYPOST not in ext:
        return
    try:
        extension = msgspec.convert(ext[WAYPOST], DeviceExtension)
        validate_labels(extension.labels)
        if extension.selector:
            parse_selector(extension.selector)
    except (msgspec.ValidationError, LabelError) as error:
        raise InvalidDocument(f"ext.{WAYPOST}: {error}") from None
    for name in extension.gateways:
        if fault := gateway_fault(name):
            raise InvalidDocument(f"ext.{WAYPOST}.gateways: {fault}")


def _time(at_us: int) -> str:
    return (_EPOCH + datetime.timedelta(seconds=at_us // 1_000_000)).isoformat().replace("+00:00", "Z")
