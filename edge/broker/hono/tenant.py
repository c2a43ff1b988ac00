"""The tenant of a space with its devices and gateways, without I/O."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from edge.broker.configuration import DeviceApiConfiguration
from edge.broker.hono.errors import DeviceError, bad_request
from edge.broker.hono.limits import DEVICE_CHARACTERS_MAX

ALL: Final = "*"
"""Entry for all devices of the tenant in the list of a gateway."""
IDENTIFIER: Final = re.compile(r"[A-Za-z0-9._:=-]+")
"""Hono's pattern for tenants and devices, without characters that are special in topic filters and URLs."""


def check_identifier(text: str, what: str) -> str:
    """Return the identifier of a tenant or device if it is valid. Raises DeviceError."""
    if len(text) > DEVICE_CHARACTERS_MAX or not IDENTIFIER.fullmatch(text):
        raise bad_request(
            f"{text[:40]!r} is not a valid {what}: 1 to {DEVICE_CHARACTERS_MAX} letters, digits or . _ : = -"
        )
    return text


class DevicePrincipal(msgspec.Struct, frozen=True):
    """An authenticated device or gateway."""

    device: str
    acts_for: frozenset[str] = frozenset()
    all_devices: bool = False

    @property
    def is_gateway(self) -> bool:
        """True if it may act for other devices."""
        return self.all_devices or bool(self.acts_for)

    def may_act_for(self, device: str) -> bool:
        """Return True for itself and for its configured devices."""
        return device == self.device or self.all_devices or device in self.acts_for


class DeviceTenant:
    """The tenant of a space with its configured devices."""

    def __init__(self, configuration: DeviceApiConfiguration) -> None:
        self.name = configuration.tenant
        self._suffix = f"@{configuration.tenant}"
        self._principals: dict[str, DevicePrincipal] = {}
        self._disabled: frozenset[str] = frozenset()
        self._known: frozenset[str] = frozenset()
        self.update(configuration)

    def update(self, configuration: DeviceApiConfiguration) -> None:
        """Apply a new configuration of the same tenant. Open connections keep their rights."""
        self._disabled = configuration.disabled
        identified = {identity.device for identity in configuration.identities}
        self._known = configuration.devices | identified if configuration.devices else frozenset()
        self._principals = {
            identity.user: DevicePrincipal(
                identity.device, frozenset(identity.acts_for) - {ALL}, ALL in identity.acts_for
            )
            for identity in configuration.identities
        }

    def principal(self, username: str | None) -> DevicePrincipal | None:
        """Return the device of a user name ``auth-id@tenant``; None for other users.

        Raises DeviceError if the device is disabled or its name invalid.
        """
        if username is None or not username.endswith(self._suffix):
            return None
        found = self._principals.get(username)
        if found is None:
            found = DevicePrincipal(check_identifier(username.removesuffix(self._suffix), "device"))
        self._check_enabled(found.device)
        return found

    def device(self, principal: DevicePrincipal | None, tenant: str, device: str) -> str:
        """Return the device of a topic, URL or address. Raises DeviceError if `principal` may not act for it.

        Without a principal (no authentication) tenant and device have to be given.
        """
        if tenant and tenant != self.name:
            raise DeviceError(403, f"tenant {tenant[:40]!r} is not served here")
        if principal is None:
            if not tenant or not device:
                raise DeviceError(401, "tenant and device are required without authentication")
        elif not device:
            device = principal.device
        check_identifier(device, "device")
        if principal is not None and not principal.may_act_for(device):
            # One answer for unknown, disabled and other devices, so that a client cannot probe names.
            raise DeviceError(403, f"{principal.device} does not act for {device}")
        self._check_enabled(device)
        return device

    def knows(self, device: str) -> bool:
        """Return False if the device is disabled, or not among the configured ones."""
        described = device in self._known if self._known else IDENTIFIER.fullmatch(device) is not None
        return described and device not in self._disabled

    def _check_enabled(self, device: str) -> None:
        if device in self._disabled:
            raise DeviceError(404, f"device {device} is disabled")
