"""The report: one HTML file, readable from top to bottom, that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from xml.etree.ElementTree import Element

from spark.report import charts, formatting, queries, sections
from spark.report.axis import time_axis
from spark.report.facts import Fact, Facts
from spark.report.html import Child, append, h, page
from spark.report.notices import as_of, notices
from spark.report.plot import Band
from spark.report.queries import LakeFigures
from spark.report.snapshot import Standing
from spark.report.table import table

_HERE = Path(__file__).parent
_DEFAULT_TITLE = "Fleet report"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""Content security policy: the page may load nothing, from anywhere."""


def write(known: LakeFigures, out: Path, facts: Facts | None = None, now: datetime | None = None) -> int:
    """Draw what is `known` into `out`; returns the file's bytes. Raises `OSError` when it cannot be written."""
    content = render(known, facts or Facts(), now or datetime.now(UTC))
    if out.exists() and not out.is_file():  # a device or a pipe stays what it is
        out.write_bytes(content)
        return len(content)
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = out.with_name(f".{out.name}.fresh")
    fresh.write_bytes(content)
    fresh.replace(out)
    return len(content)


def render(known: LakeFigures, facts: Facts, now: datetime) -> bytes:
    """The page as bytes."""
    title = facts.title or _DEFAULT_TITLE
    main = h("main", *_head(title, known, now))
    append(main, _verdict(known, facts), *(_notice(text) for text in notices(known)), *_told(facts), _tiles(known))
    if known.span is not None:
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


def _head(title: str, known: LakeFigures, now: datetime) -> Iterable[Element]:
    yield h("h1", title)
    made = ("Waypost, made ", _time(now), " UTC.")
    if known.span is None:
        yield h("p", *made, class_="soft")
        return
    first, last = (datetime.fromtimestamp(second, UTC) for second in known.span)
    until = formatting.clock(last) if first.date() == last.date() else formatting.moment(last)
    length = formatting.duration((last - first).total_seconds())
    span = (_time(first), " to ", h("time", until, datetime=last.isoformat()), f" UTC ({length}). ")
    yield h("p", *span, *_as_of(known), *made, " All times are UTC.", class_="soft")


def _as_of(known: LakeFigures) -> Iterable[Child]:
    if known.telemetry is None:
        return
    yield f"As of telemetry version {known.telemetry.version}"
    if known.telemetry.committed_at is not None:
        yield ", landed by "
        yield _time(known.telemetry.committed_at)
    yield ". "


def _time(at: datetime) -> Element:
    return h("time", formatting.moment(at), datetime=at.isoformat())


def _verdict(known: LakeFigures, facts: Facts) -> Element:
    duplicates = queries.total(known.completeness, "duplicates")
    unexplained = queries.total(known.completeness, "unexplained")
    if not known.landed:
        state, text = "idle", "Nothing has landed in this lake yet"
    elif not known.completeness:
        left = "duplicates and gaps are not known" if known.freshness or known.flows else "the jobs have not run"
        state, text = "idle", f"{formatting.count(known.landed)} messages landed; {left} yet"
    else:
        state = "failed" if duplicates or unexplained else "ok"
        text = f"{formatting.count(known.landed)} messages in the lake, {formatting.count(duplicates)} duplicates, "
        text += f"{formatting.count(unexplained)} unexplained gaps"
    if facts.verdict is not None and not (facts.verdict == "ok" and state == "failed"):
        state = facts.verdict
    sign = {"ok": "\u2713", "failed": "\u2717", "idle": "\u2022"}[state]
    return h("div", h("span", sign, aria_hidden="true"), h("span", text), class_=f"verdict {state}", role="status")


def _told(facts: Facts) -> Iterable[Element]:
    """What the run's watcher wrote down."""
    if facts.facts:
        heads = ("", "seen", "expected", "")
        yield table("Seen and expected", heads, [_fact(fact) for fact in facts.facts], numeric=(1, 2))
    if facts.notes:
        yield h("ul", *(h("li", note) for note in facts.notes), class_="notes")


def _fact(fact: Fact) -> list[Child]:
    def shown(value: str | int | float | None) -> str:
        if value is None:
            return ""
        if isinstance(value, int):
            return formatting.count(value)
        return value if isinstance(value, str) else formatting.number(value)

    sign = {True: "\u2713", False: "\u2717 differs", None: ""}[fact.ok]
    cell = h("td", sign, class_={True: "good", False: "bad", None: None}[fact.ok])
    return [fact.name, shown(fact.value), shown(fact.expected), cell]


def _tiles(known: LakeFigures) -> Element:
    gateways = [row for row in known.freshness if row["device"] is None]
    devices = [row for row in known.freshness if row["device"] is not None]
    duplicates = queries.total(known.completeness, "duplicates")
    unexplained = queries.total(known.completeness, "unexplained")
    rejected = sum(number for _, number in known.rejects)
    tiles = [
        ("messages landed", formatting.count(known.landed), ""),
        ("gateways", formatting.count(len(gateways)), ""),
        ("devices", formatting.count(len(devices)), ""),
        (_dated("readings", known.readings_at), formatting.count(known.readings), ""),
        (_dated("rejected values", known.readings_at), formatting.count(rejected), ""),
        ("duplicates", formatting.count(duplicates), "bad" if duplicates else "good"),
        ("unexplained gaps", formatting.count(unexplained), "bad" if unexplained else "good"),
    ]
    worst = max((row["lag_p95_s"] for row in gateways if row["lag_p95_s"] is not None), default=None)
    tiles.append(("slowest gateway\u2019s p95 lag", formatting.duration(worst), ""))
    if not known.completeness:
        tiles = tiles[:1]
    return h(
        "div",
        *(h("div", h("b", value), h("span", name), class_=f"tile {mark}".strip()) for name, value, mark in tiles),
        class_="tiles",
    )


def _dated(name: str, standing: Standing | None) -> str:
    at = as_of(standing)
    return f"{name} as of {at}" if at is not None else name


def _notice(text: str) -> Element:
    """A notice; what stands between backticks is a command."""
    parts = text.split("`")
    words = (h("code", part) if index % 2 else part for index, part in enumerate(parts))
    return h("p", *words, class_="notice", role="note")


def _sections(main: Element, known: LakeFigures, facts: Facts, span: tuple[float, float]) -> None:
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
                f"Drawn: the whole fleet, and of {len(known.flows)} gateways the {len(flows) - 1} that held most.",
                class_="soft",
            ),
        )
    sections.throughput(main, charts.throughput(flows, x, bands))
    sections.backlog(main, charts.backlog(flows, x, bands), reported=any(flow.reported for flow in flows))
    sections.freshness(main, known, charts.lag(flows, x, bands))
    sections.completeness(main, known)
    sections.devices(main, known, x, bands)
    sections.rejects(main, known)


def _bands(facts: Facts) -> list[Band]:
    ordered = sorted(facts.events, key=lambda event: event.at)
    return [
        Band(number, event.label, event.at.timestamp(), (event.until or event.at).timestamp())
        for number, event in enumerate(ordered, start=1)
    ]


def _event(band: Band) -> Element:
    start, end = (datetime.fromtimestamp(second, UTC) for second in (band.start, band.end))
    when = formatting.clock(start) if start == end else f"{formatting.clock(start)}\u2013{formatting.clock(end)}"
    return h("li", h("i", str(band.number), class_="badge"), f" {when} ", h("span", band.label))


def _foot(known: LakeFigures) -> Element:
    versions = ", ".join(f"{name} {version}" for name, version in known.versions.items())
    return h(
        "footer",
        f"Drawn from the lake\u2019s tables at these versions: {versions}." if versions else "No tables found.",
    )
