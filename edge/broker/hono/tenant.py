"""Who a device is and whom it may speak for: the tenant of the space, its devices and gateways. Pure."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from edge.broker.configuration import DeviceApiConfiguration
from edge.broker.hono.errors import DeviceError, bad_request
from edge.broker.hono.limits import DEVICE_CHARACTERS_MAX

ALL: Final = "*"
"""In the list of devices a gateway acts for: every device of the tenant."""
IDENTIFIER: Final = re.compile(r"[A-Za-z0-9._:=-]+")
"""Hono's own pattern for tenants and devices: none of it means anything in a topic filter or a URL."""


def check_identifier(text: str, what: str) -> str:
    """A tenant's or device's identifier. Raises DeviceError."""
    if len(text) > DEVICE_CHARACTERS_MAX or not IDENTIFIER.fullmatch(text):
        raise bad_request(f"{text[:40]!r} is no {what}: 1 to {DEVICE_CHARACTERS_MAX} of letters, digits and . _ : = -")
    return text


class DevicePrincipal(msgspec.Struct, frozen=True):
    """An authenticated device or gateway."""

    device: str
    acts_for: frozenset[str] = frozenset()
    everybody: bool = False

    @property
    def is_gateway(self) -> bool:
        """It may speak for others."""
        return self.everybody or bool(self.acts_for)

    def may_act_for(self, device: str) -> bool:
        """True for itself and for those it was given."""
        return device == self.device or self.everybody or device in self.acts_for


class DeviceTenant:
    """The tenant of a space, and its devices as they are configured."""

    def __init__(self, configuration: DeviceApiConfiguration) -> None:
        self.name = configuration.tenant
        self._suffix = f"@{configuration.tenant}"
        self._principals: dict[str, DevicePrincipal] = {}
        self._disabled: frozenset[str] = frozenset()
        self._known: frozenset[str] = frozenset()
        self.update(configuration)

    def update(self, configuration: DeviceApiConfiguration) -> None:
        """Follow a new configuration of the same tenant; connections keep what they were given."""
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
        """The device that authenticated under this name, ``auth-id@tenant``; None for a user that is no device.

        Raises DeviceError when the device is disabled, or could not be one.
        """
        if username is None or not username.endswith(self._suffix):
            return None
        found = self._principals.get(username)
        if found is None:
            found = DevicePrincipal(check_identifier(username.removesuffix(self._suffix), "device"))
        self._check_enabled(found.device)
        return found

    def device(self, principal: DevicePrincipal | None, tenant: str, device: str) -> str:
        """The device a topic, URL or address means. Raises DeviceError when there is none or it is not for `principal`
        to speak for; without a principal both parts have to be given, as nobody has said who he is."""
        if tenant and tenant != self.name:
            raise DeviceError(403, f"tenant {tenant[:40]!r} is not served here")
        if principal is None:
            if not tenant or not device:
                raise DeviceError(401, "tenant and device are needed where nobody has authenticated")
        elif not device:
            device = principal.device
        check_identifier(device, "device")
        if principal is not None and not principal.may_act_for(device):
            # Unknown, disabled or another's: one answer, so that a client cannot find out which names exist.
            raise DeviceError(403, f"{principal.device} does not act for {device}")
        self._check_enabled(device)
        return device

    def knows(self, device: str) -> bool:
        """It may be there, as far as it is known here which there are."""
        described = device in self._known if self._known else IDENTIFIER.fullmatch(device) is not None
        return described and device not in self._disabled

    def _check_enabled(self, device: str) -> None:
        if device in self._disabled:
            raise DeviceError(404, f"device {device} is disabled")
