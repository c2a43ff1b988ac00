"""The report: one HTML file, readable from top to bottom, that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from spark.report import charts, gold, words
from spark.report.axis import Axis, time_axis
from spark.report.facts import Fact, Facts
from spark.report.gold import Gold
from spark.report.html import Child, append, h, page
from spark.report.plot import Band, Plot, figure

_HERE = Path(__file__).parent
_DEFAULT_TITLE = "Fleet report"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""Content security policy: the page may load nothing, from anywhere."""
ROWS_MAX = 200
"""Rows of a table drawn; a fleet's worst come first."""


def write(root: Path, out: Path, facts: Facts | None = None, now: datetime | None = None) -> int:
    """Draw the lake at `root` into `out`; returns the file's bytes. Raises `OSError` when it cannot be written."""
    content = render(gold.read(root), facts or Facts(), now or datetime.now(UTC))
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = out.with_name(f".{out.name}.fresh")
    fresh.write_bytes(content)
    fresh.replace(out)
    return len(content)


def render(known: Gold, facts: Facts, now: datetime) -> bytes:
    """The page as bytes."""
    title = facts.title or _DEFAULT_TITLE
    main = h("main", *_head(title, known, now))
    append(main, _verdict(known, facts), *_told(facts), _tiles(known))
    if known.span is None:
        append(main, _nothing(known))
    else:
        _sections(main, known, facts, known.span)
    append(main, _foot(known))
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("title", f"{title} · Waypost"),
        h("style", (_HERE / "page.css").read_text()),
    )
    return page(h("html", head, h("body", main, h("script", (_HERE / "page.js").read_text())), lang="en"))


def _head(title: str, known: Gold, now: datetime) -> Iterable[Element]:
    yield h("h1", title)
    made = f"Waypost, made {words.moment(now)} UTC."
    if known.span is None:
        yield h("p", made, class_="soft")
        return
    first, last = (datetime.fromtimestamp(second, UTC) for second in known.span)
    until = words.clock(last) if first.date() == last.date() else words.moment(last)
    length = words.duration((last - first).total_seconds())
    yield h("p", f"{words.moment(first)} to {until} UTC ({length}). {made} All times are UTC.", class_="soft")


def _verdict(known: Gold, facts: Facts) -> Element:
    duplicates = gold.total(known.completeness, "duplicates")
    unexplained = gold.total(known.completeness, "unexplained")
    if not known.landed:
        state, text = "idle", "Nothing has landed in this lake yet"
    elif not known.completeness:
        state, text = "idle", f"{words.count(known.landed)} messages landed; the jobs have not run yet"
    else:
        state = "failed" if duplicates or unexplained else "ok"
        text = f"{words.count(known.landed)} messages in the lake, {words.count(duplicates)} duplicates, "
        text += f"{words.count(unexplained)} unexplained gaps"
    if facts.verdict is not None and not (facts.verdict == "ok" and state == "failed"):
        state = facts.verdict
    sign = {"ok": "\u2713", "failed": "\u2717", "idle": "\u2022"}[state]
    return h("div", h("span", sign, aria_hidden="true"), h("span", text), class_=f"verdict {state}", role="status")


def _told(facts: Facts) -> Iterable[Element]:
    """What the run's watcher wrote down."""
    if facts.facts:
        heads = ("", "seen", "expected", "")
        yield _table(heads, [_fact(fact) for fact in facts.facts], numeric=(1, 2))
    if facts.notes:
        yield h("ul", *(h("li", note) for note in facts.notes), class_="notes")


def _fact(fact: Fact) -> list[Child]:
    def shown(value: str | int | float | None) -> str:
        if value is None:
            return ""
        if isinstance(value, int):
            return words.count(value)
        return value if isinstance(value, str) else words.number(value)

    sign = {True: "\u2713", False: "\u2717 differs", None: ""}[fact.ok]
    cell = h("td", sign, class_={True: "good", False: "bad", None: None}[fact.ok])
    return [fact.name, shown(fact.value), shown(fact.expected), cell]


def _tiles(known: Gold) -> Element:
    gateways = [row for row in known.freshness if row["device"] is None]
    devices = [row for row in known.freshness if row["device"] is not None]
    duplicates = gold.total(known.completeness, "duplicates")
    unexplained = gold.total(known.completeness, "unexplained")
    rejected = sum(number for _, number in known.rejects)
    tiles = [
        ("messages landed", words.count(known.landed), ""),
        ("gateways", words.count(len(gateways)), ""),
        ("devices", words.count(len(devices)), ""),
        ("readings", words.count(known.readings), ""),
        ("rejected values", words.count(rejected), ""),
        ("duplicates", words.count(duplicates), "bad" if duplicates else "good"),
        ("unexplained gaps", words.count(unexplained), "bad" if unexplained else "good"),
    ]
    worst = max((row["lag_p95_s"] for row in gateways if row["lag_p95_s"] is not None), default=None)
    tiles.append(("slowest gateway\u2019s p95 lag", words.duration(worst), ""))
    if not known.completeness:
        tiles = tiles[:1]
    return h(
        "div",
        *(h("div", h("b", value), h("span", name), class_=f"tile {mark}".strip()) for name, value, mark in tiles),
        class_="tiles",
    )


def _nothing(known: Gold) -> Element:
    if known.landed:
        text = "Messages have landed, but nothing has been made of them. Run "
        return h("p", text, h("code", "waypost analytics run --lake DIR"), " and draw the report again.")
    return h(
        "p",
        "There is nothing to draw. Messages land here when a gateway forwards to this hub; then run ",
        h("code", "waypost analytics run --lake DIR"),
        ".",
    )


def _sections(main: Element, known: Gold, facts: Facts, span: tuple[float, float]) -> None:
    x = time_axis(*span)
    bands = _bands(facts)
    if bands:
        append(main, h("h2", "What happened"), h("ol", *(_event(band) for band in bands), class_="events"))
    flows = charts.drawn(known.flows)
    if len(flows) < len(known.flows):
        append(
            main,
            h(
                "p",
                f"Drawn below: the fleet as a whole and the {len(flows) - 1} gateways that held most, of {len(known.flows)}.",
                class_="soft",
            ),
        )
    _throughput(main, charts.throughput(flows, x, bands))
    _backlog(main, charts.backlog(flows, x, bands), reported=any(flow.reported for flow in flows))
    _freshness(main, known, charts.lag(flows, x, bands))
    _completeness(main, known)
    _devices(main, known, x, bands)
    _rejects(main, known)


def _bands(facts: Facts) -> list[Band]:
    ordered = sorted(facts.events, key=lambda event: event.at)
    return [
        Band(number, event.label, event.at.timestamp(), (event.until or event.at).timestamp())
        for number, event in enumerate(ordered, start=1)
    ]


def _event(band: Band) -> Element:
    start, end = (datetime.fromtimestamp(second, UTC) for second in (band.start, band.end))
    when = words.clock(start) if start == end else f"{words.clock(start)}\u2013{words.clock(end)}"
    return h("li", h("i", str(band.number), class_="badge"), f" {when} ", h("span", band.label))


def _legend(*entries: tuple[str, str, str]) -> Element:
    """Entries of (colour, shape, words)."""
    return h(
        "div",
        *(h("span", h("i", class_=f"{style} {shape}".strip()), text) for style, shape, text in entries),
        class_="legend",
    )


def _throughput(main: Element, plots: Sequence[Plot]) -> None:
    append(
        main,
        h("h2", "Throughput"),
        h(
            "p",
            "Messages a second: received by the gateway from its devices, and landed in the lake. Where the line runs on and the filling stops, the gateway was cut off and kept receiving.",
            class_="soft",
        ),
        _legend(
            ("received", "thin", "received at the gateway"),
            ("live", "", "landed, live lane"),
            ("drain", "", "landed, backlog lane"),
        ),
        h("div", *map(figure, plots), class_="grid2"),
    )


def _backlog(main: Element, plots: Sequence[Plot], reported: bool) -> None:
    entries = [("backlog", "", "held at the gateway (received minus landed)")]
    if reported:
        entries.append(("reported", "dot", "as the gateway reported it"))
    append(
        main,
        h("h2", "Backlog and drain"),
        h("p", "Messages a gateway had accepted that were not in the lake yet.", class_="soft"),
        _legend(*entries),
        h("div", *map(figure, plots), class_="grid2"),
    )


def _freshness(main: Element, known: Gold, plots: Sequence[Plot]) -> None:
    gateways = [row for row in known.freshness if row["device"] is None]
    devices = [row for row in known.freshness if row["device"] is not None]
    append(
        main,
        h("h2", "Freshness"),
        h(
            "p",
            "How long messages took from the device to the lake. The plots show, at each moment, the longest way of what landed then.",
            class_="soft",
        ),
        h("div", *map(figure, plots), class_="grid2"),
        h("h3", "Per gateway"),
        _lag_table(gateways, "gateway"),
    )
    if devices:
        text = f"Per device ({words.count(len(devices))})"
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
                words.count(row["rows"]),
                words.moment(row["last_event_time"]),
                words.duration(row["lag_p50_s"]),
                h("td", bar, words.duration(p95), class_="track"),
                words.duration(row["lag_max_s"]),
                words.percent(row["late_share"]),
                words.count(row["suspect_rows"]),
            ]
        )
    heads = [
        level,
        *([] if level == "gateway" else ["gateway"]),
        "messages",
        "last message",
        "lag p50",
        "lag p95",
        "worst",
        "late",
        "clock suspect",
    ]
    shift = 0 if level == "gateway" else 1
    return _table(heads, body, numeric=[column + shift for column in (1, 2, 3, 5, 6, 7)])


def _completeness(main: Element, known: Gold) -> None:
    append(
        main,
        h("h2", "Completeness"),
        h(
            "p",
            "Every message has a number that is dense per gateway and address, so the lake itself shows what is missing. A missing range is explained when the gateway\u2019s loss ledger names it.",
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
            words.count(row["rows"]),
            words.count(row["missing"]),
            words.count(row["explained"]),
            _zero(row["unexplained"]),
            _zero(row["duplicates"]),
        ]
        for row in rows[:ROWS_MAX]
    ]
    heads = ("gateway", "address", "sequences", "rows", "missing", "explained", "unexplained", "duplicates")
    append(main, _table(heads, body, numeric=(2, 3, 4, 5, 6, 7)))
    if len(rows) > ROWS_MAX:
        append(main, h("p", f"{words.count(len(rows) - ROWS_MAX)} more addresses, none of them worse.", class_="soft"))
    if known.gaps:
        ranges = sorted(known.gaps, key=lambda row: (row["explained"], -row["missing"]))[:ROWS_MAX]
        body = [
            [
                charts.name_of((row["tenant"], row["gateway"])),
                row["address"],
                _numbers(row),
                words.count(row["missing"]),
                h("td", f"explained: {row['reason']}") if row["explained"] else h("td", "unexplained", class_="bad"),
            ]
            for row in ranges
        ]
        append(
            main,
            h("h3", "Missing ranges"),
            _table(("gateway", "address", "sequences", "missing", ""), body, numeric=(2, 3)),
        )


def _numbers(row: dict[str, Any]) -> str:
    return f"{words.count(row['first_sequence'])}\u2013{words.count(row['last_sequence'])}"


def _zero(number: int) -> Element:
    return h("td", words.count(number), class_="n bad" if number else "n good")


def _devices(main: Element, known: Gold, x: Axis, bands: Sequence[Band]) -> None:
    if not known.tracks:
        return
    raw = any(track.readings for track in known.tracks)
    text = (
        "Each metric of each device: the mean of each minute"
        if known.tracks[0].width == 60
        else "Each metric of each device: the mean of each hour"
    )
    text += ", the range it moved in" + (", and the readings themselves." if raw else ".")
    append(main, h("h2", "Devices"), h("p", text + " The number is the last value.", class_="soft"))
    entries = [("reading", "thin", "mean and range of the window")]
    append(main, _legend(*entries))
    shown = known.tracks[: charts.TRACKS_MAX]
    for gateway, group in groupby(shown, key=lambda track: track.gateway):
        plots = charts.tracks(list(group), x, bands)
        append(main, h("h3", charts.name_of(gateway)), h("div", *map(figure, plots), class_="grid4"))
    left = len(known.tracks) - len(shown)
    if left:
        append(
            main, h("p", f"{words.count(left)} more metrics are in the tables rollup_1m and rollup_1h.", class_="soft")
        )


def _rejects(main: Element, known: Gold) -> None:
    if not known.rejects:
        return
    append(
        main,
        h("h2", "Rejected values"),
        h("p", "Kept in table reject with their message; nothing is dropped.", class_="soft"),
    )
    append(
        main,
        _table(("reason", "values"), [[reason, words.count(number)] for reason, number in known.rejects], numeric=(1,)),
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[Child]], numeric: Sequence[int] = ()) -> Element:
    """A table; a cell that is an element already stands as it is. The columns in `numeric` are set to the right."""
    head = h(
        "tr",
        *(h("th", text, class_="n" if index in numeric else None, scope="col") for index, text in enumerate(heads)),
    )
    body = h("tbody")
    for row in rows:
        cells = [
            cell if isinstance(cell, Element) else h("td", cell, class_="n" if index in numeric else "name")
            for index, cell in enumerate(row)
        ]
        body.append(h("tr", *cells))
    return h("div", h("table", h("thead", head), body), class_="scroll")


def _foot(known: Gold) -> Element:
    versions = ", ".join(f"{name} {version}" for name, version in known.versions.items())
    return h(
        "footer",
        f"Drawn from the lake\u2019s tables at these versions: {versions}." if versions else "No tables found.",
    )
