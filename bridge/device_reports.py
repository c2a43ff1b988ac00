"""Reports of a gateway about devices that it has let in by itself, for the registry of its hub.

A device that was provisioned by its certificate is one report; the hub accepts it once the registry has the device, or
rejects it with the reason. Sans-I/O, and without cryptography.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from bridge.limits import DEVICE_CHARACTERS_MAX

CERTIFICATE_BYTES_MAX: Final = 16 * 1024
"""Certificate of a device in DER: some 1 KiB, with many names 4 KiB."""

DEVICE_REPORT_BYTES_MAX: Final = 64 * 1024
"""JSON text of a report."""

REPORTS_MAX: Final = 8
"""Reports of a gateway that have no answer yet."""

REFUSED: Final = "waypost:device-refused"
"""Condition of a hub that refuses a device; the description is the reason."""

_Name = Annotated[str, msgspec.Meta(max_length=DEVICE_CHARACTERS_MAX)]


class ProvisionedReport(msgspec.Struct, frozen=True, kw_only=True, tag="provisioned"):
    """Device that a gateway has let in by its certificate, without a registration."""

    devices_of: _Name
    """Tenant of the device."""
    certificate: Annotated[bytes, msgspec.Meta(max_length=CERTIFICATE_BYTES_MAX)]
    """DER. The hub verifies it, and makes the names of the device by itself."""


DeviceReport = ProvisionedReport
