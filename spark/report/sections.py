"""The sections of the page below its head, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from spark.report.charts import Band
from spark.report.fleet_sections import FleetSections
from spark.report.lake_section import LakeSection
from spark.report.message_sections import MessageSections
from spark.report.queries import LakeFigures
from spark.report.section import Links, ReportSection, SectionContext

_TABLES: Final[Mapping[str, str]] = {
    "fleet": "gateway_freshness",
    "changes": "gateway_freshness",
    "hours": "delivery_slo",
    "delivery": "delivery_slo",
    "completeness": "completeness",
    "throughput": "throughput",
    "backlog": "throughput",
    "freshness": "throughput",
    "outages": "outages",
    "devices": "device_health",
    "anomalies": "anomalies",
}
"""The table that determines the age of a section. Files of the lake are always current; metrics use one of two."""


def make_sections(known: LakeFigures, bands: Sequence[Band], links: Links | None = None) -> list[ReportSection]:
    """Return the sections that have content. `bands`: bands for all charts over time."""
    context = SectionContext(known, bands, links or {})
    fleet, messages, lake = FleetSections(context), MessageSections(context), LakeSection(context)
    makers = (
        fleet.fleet,
        fleet.hours,
        fleet.changes,
        messages.delivery,
        messages.completeness,
        messages.flow,
        messages.backlog,
        messages.freshness,
        messages.outages,
        fleet.devices,
        fleet.anomalies,
        fleet.metrics,
        lake.lake,
    )
    return [_set_age(section, known) for section in (make() for make in makers) if section is not None]


def _set_age(section: ReportSection, known: LakeFigures) -> ReportSection:
    """Set the age of a section."""
    table = _TABLES.get(section.id)
    at = known.recency.now if section.id == "lake" else known.as_of.get(table or known.tracks_of)
    if at is not None:
        # A commit is a little later than its newest row, and one without rows much later.
        section.at = min(at, known.recency.landed_at or at) if section.id != "lake" else at
        section.age = known.recency.now - section.at
    return section
