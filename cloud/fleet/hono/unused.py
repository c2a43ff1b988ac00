"""Fields and credentials that the registry of a hub stores, and that gateways do not use, with the reasons."""

from __future__ import annotations

from typing import Any, Final

from cloud.fleet.hono.device_credentials import WantedDeviceCredentials
from cloud.hub.devices.documents import WAYPOST

_OF_DEVICES: Final = {
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
_OF_TENANTS: Final = {
    "adapters": "they are for Hono's adapters",
    "defaults": "gateways do not use them yet",
    "minimum-message-size": "it is for Hono's metering",
    "resource-limits": "they are for Hono's adapters: a hub has quotas",
    "tracing": "it is for Hono's adapters",
    "trusted-ca": "it stays at the hub: a gateway trusts the authorities of its own listeners",
}
NOWHERE_PLANNED: Final = (
    "the device would work at no gateway: name some with --gateway or --selector, or in ext.waypost"
)
NOWHERE: Final = (
    "the device works at no gateway yet: give it ext.waypost.gateways at the hub: PUT /v1/devices/TENANT/DEVICE"
)


def unused_of_tenant(document: dict[str, Any]) -> dict[str, str]:
    """Return the unused fields of a tenant with their reasons."""
    return {name: words for name, words in _OF_TENANTS.items() if document.get(name)}


def unused_of_device(document: dict[str, Any], credentials: WantedDeviceCredentials | None) -> dict[str, str]:
    """Return the unused fields and types of credentials of a device with their reasons."""
    kinds = {each["type"] for each in credentials.body} if credentials is not None else set()
    return {name: words for name, words in _OF_DEVICES.items() if document.get(name) or name in kinds}


def works_nowhere(document: dict[str, Any]) -> bool:
    """Return whether a registration names no gateways."""
    extension = document.get("ext", {}).get(WAYPOST, {})
    return not (extension.get("gateways") or extension.get("selector"))
