"""The report: one HTML file, readable from top to bottom, that needs nothing but itself; or a folder with a page a
gateway.

What comes from a lake is text in it, wherever it stands: the templates escape everything, data for the scripts has no
`<`, and
the page's security policy runs no script and applies no style but those whose hashes it names.
"""

from __future__ import annotations

import re
from base64 import b64encode
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from spark import amounts
from spark.report import formatting, limits, names, queries, table
from spark.report.charts import Band
from spark.report.facts import Facts
from spark.report.notices import as_of, notices
from spark.report.queries import LakeFigures, LakeReader
from spark.report.section import Links, Tile
from spark.report.sections import sections
from spark.report.snapshot import Standing
from spark.report.tables import Gateway

_HERE = Path(__file__).parent
_DEFAULT_TITLE = "Fleet report"
_STYLES = ("uplot/uPlot.min.css", "page.css")
_SCRIPTS = ("uplot/uPlot.iife.min.js", "words.js", "tables.js", "charts.js")


def write(known: LakeFigures, out: Path, facts: Facts | None = None) -> int:
    """Draw what is `known` into `out`; returns the file's bytes. Raises `OSError` when it cannot be written."""
    return _write(render(known, facts or Facts()), out)


def write_folder(lake: LakeReader, out: Path, facts: Facts | None = None) -> tuple[LakeFigures, int]:
    """The fleet's page as `index.html`, and beside it, linked, those of the gateways that need a look most, as many as
    `PAGES_MAX`; returns what is known and how many pages. Raises `OSError` when one cannot be written."""
    known = lake.fleet()
    chosen = [member.gateway for member in known.members[: limits.PAGES_MAX]]
    links = {gateway: f"gateways/{file_name(gateway)}" for gateway in chosen}
    for gateway, place in links.items():
        _write(render(lake.gateway(gateway), facts or Facts(), home="../index.html"), out / place)
    _write(render(known, facts or Facts(), links), out / "index.html")
    return known, len(links) + 1


def file_name(gateway: Gateway) -> str:
    """A name for the page of a gateway that every file system and address takes, of this gateway only."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", names.name_of(gateway))[:60]
    return f"{name}-{sha256(names.full_name(gateway).encode()).hexdigest()[:8]}.html"


def _write(content: bytes, out: Path) -> int:
    """The page is there whole, or as it was; what fails names it."""
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
    """The page as bytes. `links`: addresses of pages of gateways; `home`: that of the fleet's page."""
    bands = _bands(facts)
    assets = _assets()
    page = _environment().get_template("page.html.j2").render(
        title=_title(known, facts),
        policy=assets.policy,
        styles=assets.styles,
        scripts=assets.scripts,
        home=home,
        known=known,
        span=[datetime.fromtimestamp(second, UTC) for second in known.span] if known.span is not None else None,
        verdict=_verdict(known, facts),
        notices=[text.split("`") for text in notices(known)],
        facts=facts,
        told=[(fact, _shown(fact.value), _shown(fact.expected)) for fact in facts.facts],
        tiles=_tiles(known),
        events=bands,
        sections=sections(known, bands, links),
    )  # fmt: skip
    return page.encode()


class _Assets(msgspec.Struct):
    """What each page has inside it."""

    styles: list[Markup]
    scripts: list[Markup]
    policy: str


@cache
def _assets() -> _Assets:
    """Read once. Nothing else runs, and nothing is loaded from anywhere."""
    styles = [(_HERE / "assets" / name).read_text(encoding="utf-8") for name in _STYLES]
    scripts = [(_HERE / "assets" / name).read_text(encoding="utf-8") for name in _SCRIPTS]
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
        "count": amounts.count,
        "at": lambda second: datetime.fromtimestamp(second, UTC),
        "data": _data,
        "breakable": table.breakable,
    }
    made.globals |= {"cell": table.cell, "mark": table.mark, "as_of": as_of}
    return made


def _data(value: Any) -> Markup:
    """JSON for the page's scripts; `<` is spelt so that no text can end the element."""
    text = msgspec.json.encode(value).decode()
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)  # noqa: S704 - it has no markup left


def _title(known: LakeFigures, facts: Facts) -> str:
    title = facts.title or _DEFAULT_TITLE
    return title if known.gateway is None else f"Gateway {names.name_of(known.gateway)}"


def _verdict(known: LakeFigures, facts: Facts) -> tuple[str, str, str]:
    """State, sign, words."""
    balance = known.accounts.balance
    if not known.landed:
        state, text = "idle", "Nothing has landed in this lake yet"
    elif not known.accounts.known:
        left = "duplicates and gaps are not known" if known.members or known.flows else "the jobs have not run"
        state, text = "idle", f"{amounts.counted(known.landed, 'message')} landed; {left} yet"
    else:
        state = "failed" if balance.duplicates or balance.unexplained else "ok"
        landed = amounts.counted(known.landed, "message")
        duplicates = amounts.counted(balance.duplicates, "duplicate")
        text = f"{landed} in the lake, {duplicates}, {amounts.counted(balance.unexplained, 'unexplained gap')}"
    if known.gateway is None and facts.verdict is not None and not (facts.verdict == "ok" and state == "failed"):
        state = facts.verdict
    return state, {"ok": "\u2713", "failed": "\u2717", "idle": "\u2022"}[state], text


def _shown(value: str | int | float | None) -> str:
    """A fact's value."""
    if value is None:
        return ""
    if isinstance(value, int):
        return amounts.count(value)
    return value if isinstance(value, str) else formatting.number(value)


def _tiles(known: LakeFigures) -> list[Tile]:
    """The answer in numbers: is the fleet well, is the data complete, what is unusual, how long until it is known."""
    count = amounts.count
    tiles: list[Tile] = [("messages landed", count(known.landed), "")]
    if not known.accounts.known:
        return tiles
    balance = known.accounts.balance
    if known.gateway is None:
        ill = sum(member.state != "ok" for member in known.members)
        tiles += [("gateways", count(len(known.members)), ""), ("need a look", count(ill), "bad" if ill else "good")]
    if known.health.devices:
        ill = known.health.need_a_look
        tiles += [
            ("devices", count(known.health.devices), ""),
            ("devices that need a look", count(ill), "bad" if ill else "good"),
        ]
    tiles += [
        ("unexplained gaps", count(balance.unexplained), "bad" if balance.unexplained else "good"),
        ("duplicates", count(balance.duplicates), "bad" if balance.duplicates else "good"),
    ]
    if known.delivery.share is not None:
        late = known.delivery.share < limits.WITHIN_SHARE
        tiles.append(("in the lake within 60 s", formatting.percent(known.delivery.share), "bad" if late else "good"))
    tiles += [
        ("outages", count(known.outages_total), ""),
        ("anomalies", count(known.anomalies.count), ""),
        (_dated("readings", known.readings_at), count(known.readings), ""),
        (_dated("rejected values", known.readings_at), count(queries.rejected(known)), ""),
    ]
    slowest = max((one.lag_p95_s for one in known.members if one.lag_p95_s is not None), default=None)
    tiles.append(
        ("slowest gateway\u2019s p95 lag" if known.gateway is None else "p95 lag", formatting.duration(slowest), "")
    )
    return tiles


def _dated(name: str, standing: Standing | None) -> str:
    at = as_of(standing)
    return f"{name} as of {at}" if at is not None else name


def _bands(facts: Facts) -> list[Band]:
    ordered = sorted(facts.events, key=lambda event: event.at)
    return [
        Band(number, event.label, event.at.timestamp(), (event.until or event.at).timestamp())
        for number, event in enumerate(ordered, start=1)
    ]
