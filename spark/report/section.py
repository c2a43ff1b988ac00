"""One section of the page, and the context that all sections share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from spark.report import charts, limits, names
from spark.report.charts import Band, Chart
from spark.report.queries import LakeFigures
from spark.report.table import ReportColumn, ReportTable
from spark.report.tables import Gateway

Links = Mapping[Gateway, str]
"""Addresses of the pages of gateways."""
GATEWAY = ReportColumn("gateway", "gateway")


class Tile(msgspec.Struct):
    """A figure with its name. `mark`: `bad`, `look`, `good` or empty; `section`: the id of the section with the
    details.
    """

    name: str
    value: str
    mark: Literal["", "good", "look", "bad"] = ""
    section: str = ""


UNKNOWN: Final = "\u2013"
"""Text for an unknown figure."""


class ReportSection(msgspec.Struct):
    """A section, drawn in this order: `about`, `tiles`, `charts`, `tables`, `notes`.

    `at`: landing of the newest data that its table knows, in seconds since 1970; `age`: seconds since then.
    """

    id: str
    title: str
    about: str = ""
    tiles: list[Tile] = []
    charts: list[Chart] = []
    tables: list[ReportTable] = []
    notes: list[str] = []
    at: float | None = None
    age: float = 0.0

    @property
    def old(self) -> bool:
        """Return whether the age needs a look."""
        return self.age > limits.BEHIND_S


class SectionContext(msgspec.Struct):
    """Figures, bands for all charts over time, and addresses of the pages of gateways."""

    known: LakeFigures
    bands: Sequence[Band]
    links: Links

    def gateway(self, gateway: Gateway) -> tuple[str, str]:
        """Return a gateway as a cell of a table."""
        return names.short_name(gateway), self.links.get(gateway, "")

    def bands_of(self, gateway: Gateway | None) -> Sequence[Band]:
        """Return the bands of the whole fleet, or else the outages of this gateway."""
        if self.bands or gateway is None:
            return self.bands
        return charts.outage_bands(self.known.outages, gateway)


def unknown_tile(known: LakeFigures, table: str, name: str) -> Tile | None:
    """Return the tile of an unknown figure, if its table was never made or cannot be read; None if it is known."""
    if table in known.unreadable:
        return Tile(f"{name}: `{table}` cannot be read", UNKNOWN)
    job = known.never_made.get(table)
    return Tile(f"{name}: `{job}` has not run", UNKNOWN) if job is not None else None
