"""Documents of the reports of devices in the API of a hub. Times are milliseconds since 1970, UTC."""

from __future__ import annotations

import msgspec

from cloud.hub.registry.device_updates import DeviceUpdate, UpdateCount


class ArtefactReportDocument(msgspec.Struct, kw_only=True):
    """Newest report of a device about one version of an artefact."""

    tenant: str
    artefact: str
    version: str
    device: str
    """Its name; of another tenant of the device registry than that of the same name: ``id@tenant``."""
    state: str
    """``downloading``, ``verified``, ``installed``, ``healthy`` or ``rolled-back``."""
    reason: str
    gateway: str
    """Gateway at which the device reported."""
    reported_at: int
    """Time at which the gateway received the report."""


class ArtefactReportPage(msgspec.Struct, kw_only=True):
    """Page of reports, by artefact, version and device."""

    reports: list[ArtefactReportDocument]
    next: str | None
    """Value of `after` for the next page; null on the last one."""


class ArtefactReportCount(msgspec.Struct, kw_only=True):
    """Number of devices with one state of one version."""

    artefact: str
    version: str
    state: str
    devices: int


class ArtefactReportCounts(msgspec.Struct, kw_only=True):
    """Numbers of devices, by artefact, version and state."""

    counts: list[ArtefactReportCount]


def report_document(row: DeviceUpdate) -> ArtefactReportDocument:
    """Return the document of a report."""
    return ArtefactReportDocument(
        tenant=row.tenant,
        artefact=row.name,
        version=row.version,
        device=row.device,
        state=row.state,
        reason=row.reason,
        gateway=row.gateway,
        reported_at=row.reported_at // 1_000,
    )


def count_document(row: UpdateCount) -> ArtefactReportCount:
    """Return the document of a number of devices."""
    return ArtefactReportCount(artefact=row.name, version=row.version, state=row.state, devices=row.devices)
