"""The report: one self-contained HTML file, or a folder with a page per gateway.

Content of a lake is untrusted text. The templates escape all of it, and data for the scripts contains no `<`. The
page's security policy allows only the scripts and styles with the listed hashes.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import jinja2
import msgspec
from markupsafe import Markup

from spark import amounts
from spark.report import drawings, formatting, glossary, limits, names, queries, table
from spark.report.charts import Band
from spark.report.facts import Facts
from spark.report.findings import ReportFinding, worst_first
from spark.report.notices import as_of, find_remarks
from spark.report.queries import LakeFigures, ReportReader
from spark.report.section import UNKNOWN, Links, Tile, unknown_tile
from spark.report.sections import make_sections
from spark.report.snapshot import TableStanding
from spark.report.tables import Gateway

_HERE = Path(__file__).parent
_DEFAULT_TITLE = "Fleet report"
STYLES = ("uplot/uPlot.min.css", "page.css")
SCRIPTS = (
    "uplot/uPlot.iife.min.js",
    "words.js",
    "local.js",
    "folds.js",
    "csv.js",
    "drawings.js",
    "tables.js",
    "charts.js",
)
"""Scripts of the page in the order of execution."""


def write(known: LakeFigures, out: Path, facts: Facts | None = None) -> int:
    """Write the page of `known` to `out` and return its size in bytes. Raises `OSError` if it cannot be written."""
    return _write(render(known, facts or Facts()), out)


def write_folder(lake: ReportReader, out: Path, facts: Facts | None = None) -> tuple[LakeFigures, int]:
    """Write the fleet's page as `index.html` and linked pages of the worst gateways, at most `PAGES_MAX`.

    Returns the figures and the number of pages. Raises `OSError` if a page cannot be written.
    """
    known = lake.fleet()
    chosen = [member.gateway for member in known.members[: limits.PAGES_MAX]]
    links = {gateway: f"gateways/{file_name(gateway)}" for gateway in chosen}
    for gateway, place in links.items():
        _write(render(lake.gateway(gateway), facts or Facts(), home="../index.html"), out / place)
    _write(render(known, facts or Facts(), links), out / "index.html")
    return known, len(links) + 1


def file_name(gateway: Gateway) -> str:
    """Return a unique file name for the page of a gateway that is valid in all file systems and addresses."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", names.short_name(gateway))[:60]
    return f"{name}-{sha256(names.full_name(gateway).encode()).hexdigest()[:8]}.html"


def _write(content: bytes, out: Path) -> int:
    """Replace the page atomically; an error names the file."""
    try:
        out = out.resolve()  # a link, as /dev/stdout is one, stays what it is
        if out.exists() and not out.is_file():  # a device or a pipe stays what it is
            out.write_bytes(content)
            return len(content)
        out.parent.mkdir(parents=True, exist_ok=True)
        fresh = out.with_name(f".{out.name}.fresh")
        fresh.write_bytes(content)
        fresh.replace(out)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(out)) from error
    return len(content)


def render(known: LakeFigures, facts: Facts, links: Links | None = None, home: str | None = None) -> bytes:
    """Return the page as bytes. `links`: addresses of pages of gateways; `home`: that of the fleet's page."""
    bands, first = _make_bands(facts), list_problems(known, facts)
    assets, made = _assets(), make_sections(known, bands, links)
    page = _environment().get_template("page.html.j2").render(
        title=_title(known, facts),
        policy=assets.policy,
        styles=assets.styles,
        scripts=assets.scripts,
        home=home,
        known=known,
        span=[datetime.fromtimestamp(second, UTC) for second in known.span] if known.span is not None else None,
        verdict=_make_headline(known, first),
        first=first,
        notices=[one.sentence for one in find_remarks(known) if one.severity == "note"],
        facts=facts,
        told=[(fact, _format_fact(fact.value), _format_fact(fact.expected)) for fact in facts.facts],
        tiles=_tiles(known),
        events=bands,
        sections=made,
        ids={section.id for section in made},
    )  # fmt: skip
    return page.encode()


class _Assets(msgspec.Struct):
    """Scripts and styles that each page contains."""

    styles: list[Markup]
    scripts: list[Markup]
    policy: str


@cache
def _assets() -> _Assets:
    """Read the assets once. The page loads nothing else."""
    styles = [(_HERE / "assets" / name).read_text(encoding="utf-8") for name in STYLES]
    scripts = [(_HERE / "assets" / name).read_text(encoding="utf-8") for name in SCRIPTS]
    policy = f"default-src 'none'; style-src {_hashes(styles)}; script-src {_hashes(scripts)}"
    return _Assets([Markup(text) for text in styles], [Markup(text) for text in scripts], policy)  # noqa: S704 - files of ours


def _hashes(texts: list[str]) -> str:
    return " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts)


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "moment": formatting.moment,
        "clock": formatting.clock,
        "duration": formatting.duration,
        "ago": formatting.ago,
        "count": amounts.count,
        "at": lambda second: datetime.fromtimestamp(second, UTC),
        "data": _data,
        "breakable": table.breakable,
    }
    made.globals |= {
        "cell": table.cell,
        "mark": table.mark,
        "spark": drawings.spark,
        "glossary": glossary.WORDS,
        "as_of": as_of,
    }
    return made


def _data(value: Any) -> Markup:
    """Return JSON for the page's scripts, with `<` escaped so that no text can end the element."""
    text = msgspec.json.encode(value).decode()
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)  # noqa: S704 - it has no markup left


def _title(known: LakeFigures, facts: Facts) -> str:
    title = facts.title or _DEFAULT_TITLE
    return title if known.gateway is None else f"Gateway {names.short_name(known.gateway)}"


class Headline(msgspec.Struct):
    """The headline: `state` with its sign, the worst finding as `text`, the number of further ones, and the totals."""

    state: str
    sign: str
    text: str
    more: int
    totals: str


_STATES = {"wrong": ("failed", "\u2717"), "look": ("look", "!"), "note": ("ok", "\u2713")}


def list_problems(known: LakeFigures, facts: Facts) -> list[ReportFinding]:
    """Return all findings, the worst first."""
    found = [one for one in (*find_remarks(known), *known.findings) if one.severity != "note"]
    if known.gateway is None and facts.verdict == "failed":
        found.insert(0, ReportFinding("wrong", "The run that this page is of has failed.", "Its facts are below."))
    return worst_first(found)


def _make_headline(known: LakeFigures, first: Sequence[ReportFinding]) -> Headline:
    if not known.landed and not first:
        return Headline("idle", "\u2022", "Nothing has landed in this lake yet", 0, "")
    totals = _totals(known)
    if not first:
        return Headline(*_STATES["note"], "Nothing needs a look", 0, totals)
    text = first[0].text.removesuffix(".")
    if not known.accounts.known and not known.members and not known.flows and first[0].severity == "look":
        return Headline("idle", "\u2022", text, len(first) - 1, totals)
    return Headline(*_STATES[first[0].severity], text, len(first) - 1, totals)


def _totals(known: LakeFigures) -> str:
    landed = amounts.counted(known.landed, "message")
    if not known.accounts.known:
        left = "duplicates and gaps are not known" if known.members or known.flows else "the jobs have not run"
        return f"{landed} landed; {left} yet"
    balance = known.accounts.balance
    duplicates = amounts.counted(balance.duplicates, "duplicate")
    return f"{landed} in the lake, {duplicates}, {amounts.counted(balance.unexplained, 'unexplained gap')}"


def _format_fact(value: str | int | float | None) -> str:
    """Return a fact's value as text."""
    if value is None:
        return ""
    if isinstance(value, int):
        return amounts.count(value)
    return value if isinstance(value, str) else formatting.number(value)


def _tiles(known: LakeFigures) -> list[Tile]:
    """Return the main figures: state of the fleet, completeness, unusual values, and delivery time."""
    if not known.landed:
        return []
    landed = Tile("messages landed", amounts.count(known.landed), section="throughput" if known.flows else "")
    if not (known.accounts.known or known.members or known.flows):
        return [landed]
    made = [*_freshness_tiles(known), landed, *_fleet_tiles(known), *_message_tiles(known), *_value_tiles(known)]
    return [tile for tile in made if tile is not None]


def _zero_tile(name: str, number: int, section: str, mark: Literal["look", "bad"]) -> Tile:
    """Return the tile of a number that should be zero."""
    return Tile(name, amounts.count(number), mark if number else "good", section)


def _freshness_tiles(known: LakeFigures) -> Iterator[Tile]:
    """Return the age of the newest data of the lake, and of the gateway on its page."""
    recency = known.recency
    for one in known.members if known.gateway is not None else ():
        if one.silent_s is not None:
            silent = one.silent_s > limits.SILENT_S
            yield Tile("last data of this gateway", formatting.ago(one.silent_s), "look" if silent else "good")
    if recency.silent_s is not None:
        bad = recency.silent_s > limits.LAKE_DEAD_S or recency.ahead_s > limits.FUTURE_S
        mark: Literal["bad", "look", "good"] = (
            "bad" if bad else "look" if recency.silent_s > limits.SILENT_S else "good"
        )
        age = -recency.ahead_s if recency.ahead_s > limits.FUTURE_S else recency.silent_s
        name = "last data" if known.gateway is None else "last data of the lake"
        yield Tile(name, formatting.ago(age), mark, "fleet" if known.members and known.gateway is None else "")


def _fleet_tiles(known: LakeFigures) -> Iterator[Tile | None]:
    if known.gateway is None:
        unknown = unknown_tile(known, "gateway_freshness", "gateways")
        if unknown is not None:
            yield unknown
        else:
            ill = sum(member.state != "ok" for member in known.members)
            wrong = any(member.state == "wrong" for member in known.members)
            yield Tile("gateways", amounts.count(len(known.members)), section="fleet")
            yield _zero_tile("gateways that need a look", ill, "fleet", "bad" if wrong else "look")
    yield unknown_tile(known, "device_health", "devices that need a look")
    if known.health.devices:
        yield Tile("devices", amounts.count(known.health.devices), section="devices")
        yield _zero_tile("devices that need a look", known.health.need_a_look, "devices", "look")


def _message_tiles(known: LakeFigures) -> Iterator[Tile | None]:
    balance = known.accounts.balance
    if known.accounts.known:
        yield _zero_tile("unexplained gaps", balance.unexplained, "completeness", "bad")
        yield _zero_tile("duplicates", balance.duplicates, "completeness", "bad")
    else:
        for name in ("unexplained gaps", "duplicates"):
            yield unknown_tile(known, "completeness", name) or Tile(f"{name}: not stated yet", UNKNOWN)
    yield unknown_tile(known, "delivery_slo", "in the lake within 60 s")
    if known.delivery.share is not None:
        late = known.delivery.share < limits.WITHIN_SHARE
        share = formatting.percent(known.delivery.share)
        yield Tile("in the lake within 60 s", share, "look" if late else "good", "delivery")
    outages = Tile("outages", amounts.count(known.outages_total), section="outages" if known.outages else "")
    yield unknown_tile(known, "outages", "outages") or outages


def _value_tiles(known: LakeFigures) -> Iterator[Tile | None]:
    anomalies = known.anomalies.count
    yield unknown_tile(known, "anomalies", "anomalies") or Tile(
        "anomalies", amounts.count(anomalies), section="anomalies" if anomalies else ""
    )
    unknown = unknown_tile(known, "readings", "readings")
    if unknown is not None:
        yield unknown
    else:
        rejected = queries.count_rejected(known)
        metrics = "metrics" if known.tracks and known.span is not None else ""
        yield Tile(_with_date("readings", known.readings_at), amounts.count(known.readings), section=metrics)
        yield Tile(
            _with_date("rejected values", known.readings_at),
            amounts.count(rejected),
            section="lake" if rejected else "",
        )
    slowest = max((one.lag_p95_s for one in known.members if one.lag_p95_s is not None), default=None)
    name = "slowest gateway\u2019s p95 lag" if known.gateway is None else "p95 lag"
    if slowest is not None:
        yield Tile(name, formatting.duration(slowest), section="freshness" if known.flows else "")


def _with_date(name: str, standing: TableStanding | None) -> str:
    at = as_of(standing)
    return f"{name} as of {at}" if at is not None else name


def _make_bands(facts: Facts) -> list[Band]:
    ordered = sorted(facts.events, key=lambda event: event.at)
    return [
        Band(number, event.label, event.at.timestamp(), (event.until or event.at).timestamp())
        for number, event in enumerate(ordered, start=1)
    ]
