"""The charts of the page, made from the figures. `assets/charts.js` draws them with uPlot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from spark import amounts
from spark.report import formatting, limits
from spark.report.delivery import DeliveryTimes, DeliveryWindow
from spark.report.flows import MessageFlow
from spark.report.names import short_name
from spark.report.outages import Outage
from spark.report.tables import Gateway
from spark.report.tracks import Anomaly, Track

_WIDTHS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)
Values = Sequence[float | None]
Unit = Literal["", "/s", "s", "share"]


class Band(msgspec.Struct):
    """Period that is marked in a chart, or a moment if both ends are equal. Number 0 has no badge."""

    number: int
    label: str
    start: float
    end: float


class ChartLine(msgspec.Struct, omit_defaults=True):
    """Values over time, with the name of a colour of the page. `y2`: the upper end of a range; `notes`: one text per
    value.
    """

    label: str
    kind: Literal["area", "steps", "line", "dots", "marks", "range", "ticks"]
    style: str
    x: list[float]
    y: list[float | None]
    y2: list[float | None] | None = None
    notes: list[str] | None = None


class Chart(msgspec.Struct):
    """One drawing from `start` to `end`.

    `place` follows the title; `note` is at the right; `summary` is the text for screen readers; `zero`: the scale of
    values begins at 0; `measured`: the unit of readings, shown as it is.
    """

    title: str
    lines: list[ChartLine]
    start: float
    end: float
    unit: Unit = ""
    place: str = ""
    note: str = ""
    summary: str = ""
    bands: Sequence[Band] = ()
    zero: bool = True
    small: bool = False
    measured: str = ""

    @property
    def spoken(self) -> str:
        """Return title and summary."""
        title = f"{self.title}, {self.place}" if self.place else self.title
        return f"{title}: {self.summary}" if self.summary else title

    @property
    def data(self) -> dict[str, Any]:
        """Return the data for the script; times are seconds after `start`."""

        def place(line: ChartLine) -> dict[str, Any]:
            encoded: dict[str, Any] = msgspec.to_builtins(line)
            encoded["x"] = [round(at - self.start, 2) for at in line.x]
            for name in ("y", "y2"):
                if encoded.get(name) is not None:
                    encoded[name] = [None if value is None else float(f"{value:.5g}") for value in encoded[name]]
            return encoded

        bands = [msgspec.to_builtins(band) for band in self.bands if band.end >= self.start and band.start <= self.end]
        ends: dict[str, Any] = {
            "from": self.start,
            "to": self.end,
            "unit": self.unit,
            "zero": self.zero,
            "small": self.small,
        }
        if self.measured:
            ends["measured"] = self.measured
        return ends | {"lines": [place(line) for line in self.lines], "bands": bands}


def outage_bands(outages: Sequence[Outage], gateway: Gateway) -> list[Band]:
    """Return the outages of a gateway as bands for its charts."""
    return [Band(0, "outage", one.began, one.until) for one in outages if one.gateway == gateway]


def _to_steps(times: Sequence[float], values: Values, width: float) -> tuple[list[float], list[float | None]]:
    """Draw each value for `width` seconds, with a gap if the next value does not follow at once, and an end."""
    x: list[float] = []
    y: list[float | None] = []
    for index, (at, value) in enumerate(zip(times, values, strict=True)):
        x.append(at)
        y.append(value)
        follows = index + 1 < len(times)
        if not follows or times[index + 1] - at > width * 1.01:
            x.append(at + width)
            y.append(None if follows else value)
    return x, y


def _title(flow: MessageFlow, total: int) -> str:
    return short_name(flow.gateway) if flow.gateway is not None else f"all {amounts.count(total)} gateways"


def _count(number: float) -> str:
    return amounts.count(round(number))


def throughput(flow: MessageFlow, total: int, bands: Sequence[Band]) -> Chart:
    """Return the chart of received against landed messages per second."""
    span = len(flow.received) * flow.width
    enough = (float(each) for each in _WIDTHS_S if each >= flow.width and span / each <= limits.RATE_POINTS_MAX)
    width = next(enough, max(flow.width, float(_WIDTHS_S[-1])))
    step = max(1, round(width / flow.width))
    times = flow.times[::step]

    def rates(counts: Sequence[float]) -> Values:
        """Return rates in buckets of about `width` seconds; the last one is divided by the time that it covers."""
        chunks = (counts[index : index + step] for index in range(0, len(counts), step))
        return [sum(chunk) / (len(chunk) * flow.width) for chunk in chunks]

    lines = [
        ChartLine("landed, live lane", "area", "live", *_to_steps(times, rates(flow.landed_live), width)),
        ChartLine("landed, backlog lane", "area", "drain", *_to_steps(times, rates(flow.landed_backlog), width)),
        ChartLine("received", "steps", "received", *_to_steps(times, rates(flow.received), width)),
    ]
    received, landed = sum(flow.received), sum(flow.landed_live) + sum(flow.landed_backlog)
    summary = f"{_count(received)} messages received, {_count(landed)} landed"
    note = f"{_count(received)} received"
    return Chart(_title(flow, total), lines, flow.start, flow.end, "/s", note=note, summary=summary, bands=bands)


def backlog(flow: MessageFlow, total: int, bands: Sequence[Band]) -> Chart:
    """Return the chart of the backlog: received minus landed, and the amount that the gateway reported."""
    held = flow.backlog
    lines = [ChartLine("held", "area", "backlog", *_to_steps(flow.times, held, flow.width))]
    if flow.reported:
        lines.append(
            ChartLine(
                "reported by the gateway",
                "dots",
                "reported",
                [at for at, _ in flow.reported],
                [v for _, v in flow.reported],
            )
        )
    peak = max(held, default=0.0)
    summary = f"at most {_count(peak)} messages held, {_count(held[-1])} at the end"
    note = f"peak {_count(peak)}, at the end {_count(held[-1])}"
    return Chart(_title(flow, total), lines, flow.start, flow.end, note=note, summary=summary, bands=bands)


def lag(flow: MessageFlow, total: int, bands: Sequence[Band]) -> Chart:
    """Return the chart of the longest delay of landed messages."""
    lines = [ChartLine("longest delay to the lake", "area", "lag", *_to_steps(flow.times, flow.lag_max, flow.width))]
    worst = formatting.duration(max((value for value in flow.lag_max if value is not None), default=0.0))
    return Chart(
        _title(flow, total),
        lines,
        flow.start,
        flow.end,
        "s",
        note=f"worst {worst}",
        summary=f"at most {worst}",
        bands=bands,
    )


def delivery(found: DeliveryTimes, bands: Sequence[Band]) -> list[Chart]:
    """Return the chart of the share within the target and of the delivery times, by hour or day."""
    windows, width = found.windows, float(found.width_s)
    if len(windows) < 2:
        return []
    start, end = windows[0].start, windows[-1].start + width
    starts = [window.start for window in windows]

    def line(label: str, style: str, values: Values) -> ChartLine:
        return ChartLine(label, "steps", style, *_to_steps(starts, values, width))

    alone = any(window.p50_s is not None for window in windows)
    percentiles = [
        *([line("p50", "live", [window.p50_s for window in windows])] if alone else []),
        line("p95" if alone else "p95, worst gateway", "lag", [window.p95_s for window in windows]),
        line("p99" if alone else "p99, worst gateway", "drain", [window.p99_s for window in windows]),
    ]
    share = [line("within the target", "live", [window.share for window in windows])]
    worst = min(windows, key=lambda window: window.share if window.share is not None else 2.0)
    return [
        Chart(
            "In the lake within 60 s",
            share,
            start,
            end,
            "share",
            summary=_worst(worst),
            note=_worst(worst),
            bands=bands,
            zero=False,
        ),
        Chart(
            "Delivery time",
            percentiles,
            start,
            end,
            "s",
            bands=bands,
            summary=f"p95 at most {formatting.duration(max((each.p95_s or 0.0 for each in windows), default=0.0))}",
        ),
    ]


def _worst(window: DeliveryWindow) -> str:
    return f"worst {formatting.percent(window.share)}" if window.share is not None else ""


def track(one: Track, span: tuple[float, float], bands: Sequence[Band]) -> Chart:
    """Return the chart of one metric: range and mean of each window, the readings, and the unusual values."""
    starts, lows, highs, means = (list(column) for column in zip(*one.windows, strict=True))
    x, low = _to_steps(starts, lows, one.width)
    _, high = _to_steps(starts, highs, one.width)
    lines = [ChartLine("range", "range", "reading", x, low, high)]
    if one.readings:
        times, values = zip(*one.readings, strict=True)
        lines.append(ChartLine("readings", "line", "faint", list(times), list(values)))
    mean = "mean of the minute" if one.width == 60 else "mean of the hour"
    lines.append(ChartLine(mean, "steps", "reading", *_to_steps(starts, means, one.width)))
    if one.anomalies:
        ordered = sorted(one.anomalies, key=lambda anomaly: anomaly.at)
        at = [each.at for each in ordered]
        notes = [describe_anomaly(each) for each in ordered]
        expected = [each.expected for each in ordered]
        if any(each is not None for each in expected):
            # Their range is part of the scale, so that no line from what was expected leaves the drawing.
            lines.append(ChartLine("expected", "ticks", "good", at, expected))
        lines.append(ChartLine("anomalies", "marks", "bad", at, [each.value for each in ordered], notes=notes))
    unit = f"{formatting.THIN_SPACE}{_shorten(one.unit)}" if one.unit is not None else ""
    last = formatting.number(one.last) + unit
    summary = f"from {formatting.number(min(lows))} to {formatting.number(max(highs))}, last {last}"
    if one.anomalies:
        summary += f", {amounts.counted(len(one.anomalies), 'anomaly', 'anomalies')}"
    # With only the newest windows, an axis of the whole lake would squeeze them into a corner.
    start = starts[0] if len(starts) == limits.WINDOWS_DRAWN else min(span[0], starts[0])
    end = max(span[1], starts[-1] + one.width)
    return Chart(
        one.metric,
        lines,
        start,
        end,
        place=one.device,
        note=last,
        summary=summary,
        bands=bands,
        zero=False,
        small=True,
        measured=unit,
    )


def _shorten(unit: str) -> str:
    """Return a unit that fits next to a number."""
    if len(unit) <= limits.UNIT_CHARACTERS_MAX:
        return unit
    return unit[: limits.UNIT_CHARACTERS_MAX - 1] + "\u2026"


def describe_anomaly(anomaly: Anomaly) -> str:
    """Return the rule of an anomaly, its score and the expected value."""
    text = f"{anomaly.rule or 'several rules'} {anomaly.score:.2f}"
    if anomaly.expected is None or anomaly.off_by is None:
        return text
    expected = formatting.number(anomaly.expected)
    # A value of 24.24 G where 24.2 G was expected reads as if nothing was unusual.
    off = f", off by {formatting.number(anomaly.off_by)}" if expected == formatting.number(anomaly.value) else ""
    return f"{text}, expected {expected}{off}"
