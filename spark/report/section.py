"""One section of the page, and what all of them are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from spark.report import charts, names
from spark.report.charts import Band, Chart
from spark.report.queries import LakeFigures
from spark.report.table import Column, Table
from spark.report.tables import Gateway

Links = Mapping[Gateway, str]
"""Addresses of the pages of gateways."""
Tile = tuple[str, str, str]
"""Name, value, `bad` or `good` or nothing."""
GATEWAY = Column("gateway", "gateway")


class Section(msgspec.Struct):
    """In this order: `about`, `tiles`, `charts`, `tables`, `notes`."""

    id: str
    title: str
    about: str = ""
    tiles: list[Tile] = []
    charts: list[Chart] = []
    tables: list[Table] = []
    notes: list[str] = []


class Subject(msgspec.Struct):
    """What is known, what is marked in all charts over time, and where the pages of gateways are."""

    known: LakeFigures
    bands: Sequence[Band]
    links: Links

    def gateway(self, gateway: Gateway) -> tuple[str, str]:
        """A gateway as a cell of a table."""
        return names.name_of(gateway), self.links.get(gateway, "")

    def bands_of(self, gateway: Gateway | None) -> Sequence[Band]:
        """What happened to all, or else when this one was cut off."""
        if self.bands or gateway is None:
            return self.bands
        return charts.outage_bands(self.known.outages, gateway)
