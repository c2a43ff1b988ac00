"""Which plots the page has, made from what was read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from spark.report import formatting
from spark.report.axis import Axis, count_axis, value_axis
from spark.report.plot import Band, Plot, Series
from spark.report.queries import Flow, Gateway, Track

RATE_POINTS_MAX = 60
"""Buckets of a rate plot. The hub lands in commits of a second or two; narrower buckets would draw its commits."""
_WIDTHS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)
FLOWS_MAX = 6
"""Gateways drawn one by one; the rest are in the sum over the fleet and in the tables."""
TRACKS_MAX = 48
"""Small plots drawn."""


def name_of(gateway: Gateway) -> str:
    """A gateway's name; the tenant only where it is not the default one."""
    tenant, name = gateway
    return name if tenant == "default" else f"{tenant} / {name}"


def drawn(flows: Sequence[Flow]) -> list[Flow]:
    """The gateways to draw: all, or the sum of the fleet and those that held most."""
    if len(flows) <= FLOWS_MAX:
        return list(flows)
    held_most = sorted(flows, key=lambda flow: -max(flow.backlog))[: FLOWS_MAX - 1]
    return [_sum(flows), *sorted(held_most, key=lambda flow: flow.gateway)]


def _sum(flows: Sequence[Flow]) -> Flow:
    """One flow of the whole fleet; all flows have the same buckets."""

    def added(lists: Iterable[list[float]]) -> list[float]:
        return [sum(values) for values in zip(*lists, strict=True)]

    lags = zip(*(flow.lag_max for flow in flows), strict=True)
    return Flow(
        ("default", f"all {len(flows)} gateways"),
        flows[0].start,
        flows[0].width,
        received=added(flow.received for flow in flows),
        landed_live=added(flow.landed_live for flow in flows),
        landed_backlog=added(flow.landed_backlog for flow in flows),
        lag_max=[max((lag for lag in at if lag is not None), default=None) for at in lags],
    )


def _counts(flow: Flow) -> tuple[list[float], list[float], list[float]]:
    return flow.received, flow.landed_live, flow.landed_backlog


def throughput(flows: Sequence[Flow], x: Axis, bands: Sequence[Band]) -> list[Plot]:
    """Received against landed, in messages a second; all to one scale."""
    plots = [_rates(flow, x, bands) for flow in flows]
    y = count_axis(max((_top(plot.series) for plot in plots), default=0.0))
    return [replace(plot, y=y) for plot in plots]


def _rates(flow: Flow, x: Axis, bands: Sequence[Band]) -> Plot:
    span = len(flow.received) * flow.width
    enough = (float(width) for width in _WIDTHS_S if width >= flow.width and span / width <= RATE_POINTS_MAX)
    width = next(enough, max(flow.width, float(_WIDTHS_S[-1])))
    times, (received, live, late) = _coarser(flow, width)
    series = [
        Series("landed, live lane", "area", "live", times, live, width=width),
        Series("landed, backlog lane", "area", "drain", times, late, base=live, width=width),
        Series("received", "steps", "received", times, received, width=width),
    ]
    total = sum(flow.received)
    landed = sum(flow.landed_live) + sum(flow.landed_backlog)
    summary = f"{formatting.count(round(total))} messages received, {formatting.count(round(landed))} landed"
    note = f"{formatting.count(round(total))} received"
    return Plot(name_of(flow.gateway), series, x, count_axis(1), "/s", note=note, summary=summary, bands=bands)


def _coarser(flow: Flow, width: float) -> tuple[list[float], list[list[float]]]:
    """Buckets of about `width` seconds, as rates a second. The last one is divided by what it really covers."""
    step = max(1, round(width / flow.width))
    times = flow.times[::step]
    rates = []
    for counts in _counts(flow):
        chunks = (counts[index : index + step] for index in range(0, len(counts), step))
        rates.append([sum(chunk) / (len(chunk) * flow.width) for chunk in chunks])
    return times, rates


def _top(series: Iterable[Series]) -> float:
    tops = (
        value + (one.base[index] if one.base is not None else 0.0)
        for one in series
        for index, value in enumerate(one.values)
        if value is not None
    )
    return max(tops, default=0.0)


def backlog(flows: Sequence[Flow], x: Axis, bands: Sequence[Band]) -> list[Plot]:
    """What each gateway held: received minus landed, and what it reported itself."""
    plots = []
    for flow in flows:
        held = flow.backlog
        series = [Series("held", "area", "backlog", flow.times, held, width=flow.width)]
        if flow.reported:
            times, values = zip(*flow.reported, strict=True)
            series.append(Series("reported by the gateway", "dots", "reported", times, values))
        peak = max(held, default=0.0)
        summary = (
            f"at most {formatting.count(round(peak))} messages held, {formatting.count(round(held[-1]))} at the end"
        )
        note = f"peak {formatting.count(round(peak))}, now {formatting.count(round(held[-1]))}"
        plots.append(Plot(name_of(flow.gateway), series, x, count_axis(1), note=note, summary=summary, bands=bands))
    y = count_axis(max((_top(plot.series) for plot in plots), default=0.0))
    return [replace(plot, y=y) for plot in plots]


def lag(flows: Sequence[Flow], x: Axis, bands: Sequence[Band]) -> list[Plot]:
    """How long what landed had been under way, at worst."""
    plots = []
    for flow in flows:
        series = [Series("longest delay to the lake", "area", "lag", flow.times, flow.lag_max, width=flow.width)]
        worst = max((value for value in flow.lag_max if value is not None), default=0.0)
        summary = f"at most {formatting.duration(worst)}"
        plots.append(
            Plot(
                name_of(flow.gateway),
                series,
                x,
                count_axis(1),
                "s",
                note=f"worst {formatting.duration(worst)}",
                summary=summary,
                bands=bands,
            )
        )
    y = count_axis(max((_top(plot.series) for plot in plots), default=0.0))
    ticks = tuple((value, f"{label}{formatting.THIN_SPACE}s") for value, label in y.ticks)
    return [replace(plot, y=replace(y, ticks=ticks)) for plot in plots]


def tracks(known: Sequence[Track], x: Axis, bands: Sequence[Band]) -> list[Plot]:
    """One small plot a metric: range and mean of each window, and the readings behind them."""
    return [_track(track, x, bands) for track in known[:TRACKS_MAX]]


def _track(track: Track, x: Axis, bands: Sequence[Band]) -> Plot:
    starts, lows, highs, means = (list(column) for column in zip(*track.windows, strict=True))
    spread = [high - low for low, high in zip(lows, highs, strict=True)]
    series = [Series("range", "bars", "range reading", starts, spread, base=lows, width=track.width, told=False)]
    if track.readings:
        times, values = zip(*track.readings, strict=True)
        series.append(Series("readings", "line", "faint reading", times, values))
    mean = "mean of the minute" if track.width == 60 else "mean of the hour"
    series.append(Series(mean, "steps", "strong reading", starts, means, width=track.width))
    y = value_axis(min(lows), max(highs))
    summary = (
        f"from {formatting.number(min(lows))} to {formatting.number(max(highs))}, last {formatting.number(track.last)}"
    )
    note = formatting.number(track.last)
    return Plot(track.metric, series, x, y, place=track.device, note=note, summary=summary, bands=bands, small=True)
