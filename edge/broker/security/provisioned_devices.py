"""Devices that were let in by their certificates before the hub knows them, for the authenticator. Sans-I/O.

What the hub says about a device or a subject counts as soon as it is there: such an entry is never used then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from edge.broker.security.limits import PROVISIONED_HOURLY_MAX, PROVISIONED_MAX
from edge.broker.security.provisioned_file import ProvisionedDevice, ProvisioningRate

HOUR_S: Final = 3_600.0


class ProvisionedDevices:
    """Devices by identifier and by id."""

    def __init__(
        self,
        devices: Iterable[ProvisionedDevice] = (),
        rates: Mapping[tuple[str, str], ProvisioningRate] | None = None,
    ) -> None:
        """`rates` by tenant and authority."""
        self._by_auth_id = {(each.tenant, each.auth_id): each for each in devices}
        self._by_id = {(each.tenant, each.device): each for each in self._by_auth_id.values()}
        self._rates = dict(rates or {})

    def __iter__(self) -> Iterator[ProvisionedDevice]:
        return iter(list(self._by_auth_id.values()))

    def __len__(self) -> int:
        return len(self._by_auth_id)

    def find(self, tenant: str, auth_id: str) -> ProvisionedDevice | None:
        """Return the device with an identifier in its certificate."""
        return self._by_auth_id.get((tenant, auth_id))

    def named(self, tenant: str, device: str) -> ProvisionedDevice | None:
        """Return the device with an id."""
        return self._by_id.get((tenant, device))

    def put(self, device: ProvisionedDevice) -> None:
        """Add or replace a device."""
        self.remove(device)
        self._by_auth_id[device.tenant, device.auth_id] = device
        self._by_id[device.tenant, device.device] = device

    def remove(self, device: ProvisionedDevice) -> None:
        """Remove a device, if it is there."""
        before = self._by_auth_id.pop((device.tenant, device.auth_id), None)
        if before is not None:
            self._by_id.pop((before.tenant, before.device), None)

    def rate_with(self, tenant: str, authority: str, now_s: float) -> ProvisioningRate:
        """Return the rate of an authority with one more device. A clock that went back begins another hour."""
        known = self._rates.get((tenant, authority))
        if known is None or not 0.0 <= now_s - known.begun_s < HOUR_S:
            return ProvisioningRate(now_s, 1)
        return ProvisioningRate(known.begun_s, known.count + 1)

    def count(self, tenant: str, authority: str, rate: ProvisioningRate) -> None:
        """Note the rate of an authority."""
        self._rates[tenant, authority] = rate

    def objection(self, rate: ProvisioningRate) -> str | None:
        """Return why no further device is let in; None if one may be."""
        if len(self) >= PROVISIONED_MAX:
            return f"{PROVISIONED_MAX} devices that the hub does not know yet are let in, the most that may be"
        if rate.count > PROVISIONED_HOURLY_MAX:
            return f"{PROVISIONED_HOURLY_MAX} devices of its authority were let in within an hour, the most that may be"
        return None
