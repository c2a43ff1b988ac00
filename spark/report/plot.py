"""Plots over time as inline SVG that stretches with the page: lines keep their width, and text is HTML beside it.

A plot is a `figure`: caption, drawing, labels, and the numbers as JSON for the page's script, which adds a crosshair
and a reading of the values under it. Without the script the drawing is all there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree.ElementTree import Element

from spark.report.axis import Axis
from spark.report.html import append, data, h, name, svg

WIDTH, HEIGHT = 1000.0, 100.0
"""Units of the drawing's own coordinates; it is stretched to the space it gets."""

Kind = Literal["line", "steps", "area", "bars", "dots"]


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time. A null value is a pause.

    `style`  name of a colour of the page.
    `base`   for `area` and `bars`: what each value stands on; None: the axis.
    `width`  for `steps`, `area`, `bars`: seconds each value stands for.
    """

    name: str
    kind: Kind
    style: str
    times: Sequence[float]
    values: Sequence[float | None]
    base: Sequence[float] | None = None
    width: float = 0.0
    told: bool = True


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of time, or a moment when both ends are the same, marked in a plot."""

    number: int
    label: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Plot:
    """One drawing.

    `unit` follows the values read off it, `place` the title, `note` stands at the right; `summary` is what a screen
    reader says.
    """

    title: str
    series: Sequence[Series]
    x: Axis
    y: Axis
    unit: str = ""
    place: str = ""
    note: str = ""
    summary: str = ""
    bands: Sequence[Band] = ()
    small: bool = False


def figure(plot: Plot) -> Element:
    """The plot as an element of the page."""
    drawing = svg("svg", viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}", preserveAspectRatio="none")
    drawing.set("aria-hidden", "true")
    for value, _ in plot.y.ticks:
        y = _y(plot.y, value)
        drawing.append(svg("path", d=f"M0 {y:.1f}H{WIDTH:.0f}", class_="grid"))
    visible = [band for band in plot.bands if band.end >= plot.x.low and band.start <= plot.x.high]
    for band in visible:
        drawing.append(_band(band, plot.x))
    for series in plot.series:
        drawing.append(svg("path", d=_path(series, plot), class_=f"{_shape(series.kind)} {series.style}"))
    canvas = h("div", drawing, class_="canvas", tabindex="0", role="img", aria_label=_spoken(plot))
    append(canvas, *(_badge(band, plot.x) for band in visible))
    append(canvas, *_labels(plot))
    place = h("small", plot.place, title=plot.place) if plot.place else None
    caption = h("figcaption", h("b", *name(plot.title)), place, h("span", plot.note) if plot.note else None)
    return h("figure", caption, canvas, _numbers(plot), class_="plot small" if plot.small else "plot")


def _shape(kind: Kind) -> str:
    return {"line": "line", "steps": "line", "area": "fill", "bars": "fill", "dots": "dots"}[kind]


def _spoken(plot: Plot) -> str:
    title = f"{plot.title}, {plot.place}" if plot.place else plot.title
    return f"{title}: {plot.summary}" if plot.summary else title


def _x(axis: Axis, value: float) -> float:
    return axis.share(value) * WIDTH


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - axis.share(value) * HEIGHT


def _path(series: Series, plot: Plot) -> str:
    match series.kind:
        case "line":
            return _line(series, plot)
        case "dots":
            points = _points(series, plot)
            return "".join(f"M{x:.1f} {y:.1f}h0" for x, y, _ in points)
        case "steps":
            return _steps(series, plot)
        case _:
            return _fill(series, plot)


def _points(series: Series, plot: Plot) -> Iterable[tuple[float, float, int]]:
    for index, (time, value) in enumerate(zip(series.times, series.values, strict=True)):
        if value is not None:
            yield _x(plot.x, time), _y(plot.y, value), index


def _line(series: Series, plot: Plot) -> str:
    parts = []
    previous = -2
    for x, y, index in _points(series, plot):
        parts.append(f"{'L' if index == previous + 1 else 'M'}{x:.1f} {y:.1f}")
        previous = index
    return "".join(parts)


def _steps(series: Series, plot: Plot) -> str:
    parts = []
    previous = -2
    for x, y, index in _points(series, plot):
        end = _x(plot.x, series.times[index] + series.width)
        joined = index == previous + 1 and series.times[index] - series.times[index - 1] <= series.width * 1.01
        parts.append(f"{f'V{y:.1f}' if joined else f'M{x:.1f} {y:.1f}'}H{end:.1f}")
        previous = index
    return "".join(parts)


def _fill(series: Series, plot: Plot) -> str:
    """One rectangle a value, on its base; neighbours in one path melt together without a seam."""
    parts = []
    for time, value, base in zip(series.times, series.values, series.base or [0.0] * len(series.times), strict=True):
        if value is None or (series.kind == "area" and value == 0):
            continue
        start, end = _x(plot.x, time), _x(plot.x, time + series.width)
        low, high = _y(plot.y, base), _y(plot.y, base + value)
        if low - high < 1:  # a window whose lowest and highest are one value is still seen
            low, high = low + 0.5, high - 0.5
        parts.append(f"M{start:.1f} {low:.1f}V{high:.1f}H{end:.1f}V{low:.1f}Z")
    return "".join(parts)


def _band(band: Band, axis: Axis) -> Element:
    start, end = _x(axis, band.start), _x(axis, band.end)
    if end - start < 0.5:
        return svg("path", d=f"M{start:.1f} 0V{HEIGHT:.0f}", class_="moment")
    return svg("path", d=f"M{start:.1f} 0H{end:.1f}V{HEIGHT:.0f}H{start:.1f}Z", class_="band")


def _badge(band: Band, axis: Axis) -> Element:
    middle = (axis.share(band.start) + axis.share(band.end)) / 2
    return h("i", str(band.number), class_="badge", style=f"left:{middle * 100:.2f}%", title=band.label)


def _labels(plot: Plot) -> Iterable[Element]:
    for value, label in plot.y.ticks:
        yield h("span", label, class_="y", style=f"bottom:{plot.y.share(value) * 100:.2f}%")
    for value, label in plot.x.ticks:
        yield h("span", label, class_="x", style=f"left:{plot.x.share(value) * 100:.2f}%")


def _numbers(plot: Plot) -> Element:
    """What the crosshair reads: times relative to the axis' start, and each told series' values."""
    told = [series for series in plot.series if series.told]
    return data(
        {
            "from": plot.x.low,
            "to": plot.x.high,
            "unit": plot.unit,
            "series": [
                {
                    "name": series.name,
                    "style": series.style,
                    "width": series.width,
                    "at": [round(time - plot.x.low, 2) for time in series.times],
                    "values": [None if value is None else float(f"{value:.5g}") for value in series.values],
                }
                for series in told
            ],
        },
        class_="numbers",
    )
