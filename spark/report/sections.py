"""The sections of the page below its head, each appended to `main`; they take what was read and the plots of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any
from xml.etree.ElementTree import Element

from spark.report import charts, formatting
from spark.report.axis import Axis
from spark.report.html import append, h
from spark.report.notices import as_of
from spark.report.plot import Band, Plot, figure
from spark.report.queries import LakeFigures
from spark.report.table import table

ROWS_MAX = 200
"""Rows of a table drawn; a fleet's worst come first."""

_ABOUT_BACKLOG = "Messages a gateway had accepted that were not in the lake yet."
_ABOUT_THROUGHPUT = (
    "Messages a second: received by the gateway from its devices, and landed in the lake. Where the line "
    "runs on and the filling stops, the gateway was cut off and kept receiving."
)
_ABOUT_FRESHNESS = (
    "How long messages took from the device to the lake. The plots show, for each moment, the slowest of the "
    "messages that landed then."
)
_ABOUT_COMPLETENESS = (
    "Every message has a number that is dense per gateway and address, so the lake itself shows what is "
    "missing. A missing range is explained when the gateway\u2019s loss ledger names it."
)


def _legend(*entries: tuple[str, str, str]) -> Element:
    """Entries of (colour, shape, words)."""
    return h(
        "div",
        *(h("span", h("i", class_=f"{style} {shape}".strip()), text) for style, shape, text in entries),
        class_="legend",
    )


def throughput(main: Element, plots: Sequence[Plot]) -> None:
    append(
        main,
        h("h2", "Throughput"),
        h(
            "p",
            _ABOUT_THROUGHPUT,
            class_="soft",
        ),
        _legend(
            ("received", "thin", "received at the gateway"),
            ("live", "", "landed, live lane"),
            ("drain", "", "landed, backlog lane"),
        ),
        h("div", *map(figure, plots), class_="grid2"),
    )


def backlog(main: Element, plots: Sequence[Plot], reported: bool) -> None:
    entries = [("backlog", "", "held at the gateway (received minus landed)")]
    if reported:
        entries.append(("reported", "dot", "as the gateway reported it"))
    append(
        main,
        h("h2", "Backlog and drain"),
        h("p", _ABOUT_BACKLOG, class_="soft"),
        _legend(*entries),
        h("div", *map(figure, plots), class_="grid2"),
    )


def freshness(main: Element, known: LakeFigures, plots: Sequence[Plot]) -> None:
    gateways = [row for row in known.freshness if row["device"] is None]
    devices = [row for row in known.freshness if row["device"] is not None]
    append(
        main,
        h("h2", "Freshness"),
        h(
            "p",
            _ABOUT_FRESHNESS,
            class_="soft",
        ),
        h("div", *map(figure, plots), class_="grid2"),
    )
    if gateways:
        append(main, h("h3", "Per gateway"), _lag_table(gateways, "gateway"))
    if devices:
        text = f"Per device ({formatting.count(len(devices))})"
        append(main, h("details", h("summary", text), _lag_table(devices, "device")))


def _lag_table(rows: Sequence[dict[str, Any]], level: str) -> Element:
    rows = sorted(rows, key=lambda row: -(row["lag_p95_s"] or 0.0))[:ROWS_MAX]
    longest = max((row["lag_p95_s"] or 0.0 for row in rows), default=0.0) or 1.0
    body = []
    for row in rows:
        name = charts.name_of((row["tenant"], row["gateway"]))
        p95 = row["lag_p95_s"]
        bar = h("span", class_="bar", style=f"width:{(p95 or 0.0) / longest * 55:.0f}%")
        body.append(
            [
                name if level == "gateway" else row["device"],
                *([] if level == "gateway" else [name]),
                formatting.count(row["rows"]),
                h("td", formatting.moment(row["last_event_time"]), class_="n wide"),
                formatting.duration(row["lag_p50_s"]),
                h("td", bar, formatting.duration(p95), class_="track"),
                formatting.duration(row["lag_max_s"]),
                formatting.percent(row["late_share"]),
                formatting.count(row["suspect_rows"]),
            ]
        )
    heads = [
        level,
        *([] if level == "gateway" else ["gateway"]),
        "messages",
        "last message",
        "lag\u00a0p50",
        "lag\u00a0p95",
        "worst",
        "late",
        "clock suspect",
    ]
    shift = 0 if level == "gateway" else 1
    return table(f"Freshness by {level}", heads, body, numeric=[column + shift for column in (1, 2, 3, 5, 6, 7)])


def completeness(main: Element, known: LakeFigures) -> None:
    if not known.completeness:
        return  # a notice at the top says so
    append(
        main,
        h("h2", "Completeness"),
        h(
            "p",
            _ABOUT_COMPLETENESS,
            class_="soft",
        ),
    )
    rows = sorted(
        known.completeness,
        key=lambda row: (-row["unexplained"] - row["duplicates"], -row["missing"], row["gateway"], row["address"]),
    )
    body = [
        [
            charts.name_of((row["tenant"], row["gateway"])),
            row["address"],
            _numbers(row),
            formatting.count(row["rows"]),
            formatting.count(row["missing"]),
            formatting.count(row["explained"]),
            _zero(row["unexplained"]),
            _zero(row["duplicates"]),
        ]
        for row in rows[:ROWS_MAX]
    ]
    heads = ("gateway", "address", "sequences", "rows", "missing", "explained", "unexplained", "duplicates")
    append(main, table("Completeness by address", heads, body, numeric=(2, 3, 4, 5, 6, 7)))
    if len(rows) > ROWS_MAX:
        append(
            main, h("p", f"{formatting.count(len(rows) - ROWS_MAX)} more addresses, none of them worse.", class_="soft")
        )
    if known.gaps:
        ranges = sorted(known.gaps, key=lambda row: (row["explained"], -row["missing"]))[:ROWS_MAX]
        body = [
            [
                charts.name_of((row["tenant"], row["gateway"])),
                row["address"],
                _numbers(row),
                formatting.count(row["missing"]),
                h("td", f"explained: {row['reason']}") if row["explained"] else h("td", "unexplained", class_="bad"),
            ]
            for row in ranges
        ]
        append(
            main,
            h("h3", "Missing ranges"),
            table("Missing ranges", ("gateway", "address", "sequences", "missing", ""), body, numeric=(2, 3)),
        )


def _numbers(row: dict[str, Any]) -> str:
    return f"{formatting.count(row['first_sequence'])}\u2013{formatting.count(row['last_sequence'])}"


def _zero(number: int) -> Element:
    return h("td", formatting.count(number), class_="n bad" if number else "n good")


def devices(main: Element, known: LakeFigures, x: Axis, bands: Sequence[Band]) -> None:
    if not known.tracks:
        return
    raw = any(track.readings for track in known.tracks)
    text = (
        "Each metric of each device: the mean of each minute"
        if known.tracks[0].width == 60
        else "Each metric of each device: the mean of each hour"
    )
    text += ", the range it moved in" + (", and the readings themselves." if raw else ".")
    at = as_of(known.tracks_at)
    text += " The number is the last value" + (f", as of {at}." if at is not None else ".")
    append(main, h("h2", "Devices"), h("p", text, class_="soft"))
    entries = [("reading", "thin", "mean and range of the window")]
    append(main, _legend(*entries))
    shown = known.tracks[: charts.TRACKS_MAX]
    for gateway, group in groupby(shown, key=lambda track: track.gateway):
        plots = charts.tracks(list(group), x, bands)
        append(main, h("h3", charts.name_of(gateway)), h("div", *map(figure, plots), class_="grid4"))
    left = len(known.tracks) - len(shown)
    if left:
        append(
            main,
            h("p", f"{formatting.count(left)} more metrics are in the tables rollup_1m and rollup_1h.", class_="soft"),
        )


def rejects(main: Element, known: LakeFigures) -> None:
    if not known.rejects:
        return
    append(
        main,
        h("h2", "Rejected values"),
        h("p", "Kept in table reject with their message; nothing is dropped.", class_="soft"),
    )
    append(
        main,
        table(
            "Rejected values",
            ("reason", "values"),
            [[reason, formatting.count(number)] for reason, number in known.rejects],
            numeric=(1,),
        ),
    )
