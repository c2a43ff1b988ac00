"""The sections of the page below its head, in order."""

from __future__ import annotations

from collections.abc import Sequence

from spark.report.charts import Band
from spark.report.fleet_sections import FleetSections
from spark.report.lake_section import LakeSection
from spark.report.message_sections import MessageSections
from spark.report.queries import LakeFigures
from spark.report.section import Links, Section, Subject


def sections(known: LakeFigures, bands: Sequence[Band], links: Links | None = None) -> list[Section]:
    """Those that have something to say. `bands`: what is marked in all charts over time."""
    subject = Subject(known, bands, links or {})
    fleet, messages, lake = FleetSections(subject), MessageSections(subject), LakeSection(subject)
    makers = (
        fleet.fleet,
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
    return [section for section in (make() for make in makers) if section is not None]
