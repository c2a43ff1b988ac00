"""Reports of a gateway about devices that it has let in by itself, for the registry of its hub.

A device that was provisioned by its certificate is one report; the hub accepts it once the registry has the device, or
rejects it with the reason. Devices that were added at the gateway are reported as a list, in parts. Sans-I/O, and
without cryptography.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Final

import msgspec

from bridge.limits import DEVICE_CHARACTERS_MAX

CERTIFICATE_BYTES_MAX: Final = 16 * 1024
"""Certificate of a device in DER: some 1 KiB, with many names 4 KiB."""

DEVICE_REPORT_BYTES_MAX: Final = 512 * 1024
"""JSON text of a report: a part of a list with the longest names, in bytes that JSON escapes."""

REPORTS_MAX: Final = 8
"""Reports of a gateway that have no answer yet."""

REFUSED: Final = "waypost:device-refused"
"""Condition of a hub that refuses a device; the description is the reason."""

PART_NAMES_MAX: Final = 200
"""Names in one part of the list of devices that were added at a gateway: 50 KiB of the longest."""

LOCAL_DEVICES_MAX: Final = 20_000
"""Devices that were added at one gateway, in the registry: as many as a gateway has users."""

_OUT_OF_STEP: Final = "the report does not continue the list of the hub: "
_Token = Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[0-9a-f]*\Z")]
_Name = Annotated[str, msgspec.Meta(max_length=DEVICE_CHARACTERS_MAX, pattern=r"^[^\x00-\x1f\x7f-\x9f]*\Z")]


class ProvisionedReport(msgspec.Struct, frozen=True, kw_only=True, tag="provisioned"):
    """Device that a gateway has let in by its certificate, without a registration."""

    devices_of: _Name
    """Tenant of the device."""
    certificate: Annotated[bytes, msgspec.Meta(max_length=CERTIFICATE_BYTES_MAX)]
    """DER. The hub verifies it, and makes the names of the device by itself."""


class LocalDevicesCheck(msgspec.Struct, frozen=True, kw_only=True, tag="check"):
    """Digest of the list of devices that were added at the gateway. The hub accepts it if it has that list."""

    digest: _Token
    position: _Token
    """Position of the hub's list afterwards; parts that were sent before do not continue it."""


class LocalDevicesPart(msgspec.Struct, frozen=True, kw_only=True, tag="list"):
    """Part of that list, which replaces a range of names."""

    base: _Token
    """Position of the hub's list before the part; empty: it has none."""
    position: _Token
    """Position afterwards."""
    digest: _Token
    """Digest of the whole list, with the last part; else empty."""
    after: _Name
    """Begin of the range, exclusive; empty: from the first."""
    until: _Name | None
    """End of the range, inclusive; None: to the last."""
    names: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=PART_NAMES_MAX)]
    """In order, each once, and all in the range."""

    def __post_init__(self) -> None:
        """Check that the names are those of the range. Raises ValueError, which a decoder reports."""
        if any(after >= name for after, name in pairwise((self.after, *self.names))):
            raise ValueError("the names of a part must be in order, each once, and after its begin")
        if self.until is not None and (self.until <= self.after or (self.names and self.names[-1] > self.until)):
            raise ValueError("the end of a part must be after its begin, and no name after its end")


DeviceReport = ProvisionedReport | LocalDevicesCheck | LocalDevicesPart


def out_of_step(position: str) -> str:
    """Return the reason for which a hub refuses a report about a list that it does not have."""
    return f"{_OUT_OF_STEP}{position}"


def position_in(why: str) -> str | None:
    """Return the position in the reason of a refusal; None if it has none."""
    return why.removeprefix(_OUT_OF_STEP) if why.startswith(_OUT_OF_STEP) else None
