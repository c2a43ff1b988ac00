"""The report in Debian's Chromium: the page loads nothing else, and no script fails."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from spark.report import facts, page, queries, table
from tests.spark import gold
from tests.spark.gold import address, anomaly, device, fresh, put, window
from tests.spark.lakes import START

CHROMIUM = shutil.which("chromium")
PHONE = {"width": 400, "height": 800}
WITHIN_MS = 20_000
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian package chromium)")


@dataclass
class Reading:
    """Open page and its errors."""

    page: Page
    wrong: list[str] = field(default_factory=list)

    def rows(self, section: str) -> list[list[str]]:
        """Return the cells of the first table of a section."""
        script = "s => [...s.querySelector('tbody').rows].map(row => [...row.cells].map(cell => cell.textContent))"
        found: list[list[str]] = self.page.locator(f"#{section}").evaluate(script)
        return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Page of a fleet of 120 gateways."""
    folder = tmp_path_factory.mktemp("report")
    gold.fleet(folder / "lake", 120)
    page.write(queries.read(folder / "lake", START + timedelta(days=1, minutes=1)), folder / "report.html")
    return folder / "report.html"


def opened(browser: Browser, path: Path, *, init: str = "", **options: Any) -> Reading:
    """Open the page; `init` is a script that runs before those of the page."""
    context = browser.new_context(**options)
    context.add_init_script(init)
    context.set_default_timeout(WITHIN_MS)
    reading = Reading(context.new_page())
    reading.page.on("console", lambda said: reading.wrong.append(said.text))
    reading.page.on("pageerror", lambda error: reading.wrong.append(str(error)))
    reading.page.on("request", lambda request: request.url.startswith("file:") or reading.wrong.append(request.url))
    reading.page.on("dialog", lambda dialog: reading.wrong.append(dialog.message))
    reading.page.goto(path.as_uri())
    return reading


def test_the_fleet_is_searched_sorted_and_leafed_through(browser: Browser, report: Path) -> None:
    reading = opened(browser, report)
    fleet = reading.page.locator("#fleet")
    before = reading.rows("fleet")
    assert (before[0][0], len(before)) == ("gw00001", 50)
    assert fleet.locator(".leaf").inner_text().replace("\u202f", " ") == "1\u201350 of 120"
    fleet.get_by_role("button", name="Next").click()
    assert fleet.locator(".leaf").inner_text() == "51\u2013100 of 120"
    fleet.get_by_role("searchbox").fill("GW0011")
    assert {row[0] for row in reading.rows("fleet")} == {f"gw{number:05}" for number in range(110, 120)}
    fleet.get_by_role("searchbox").fill("no such gateway")
    assert (reading.rows("fleet"), fleet.locator(".leaf").inner_text()) == ([], "nothing found")
    fleet.get_by_role("searchbox").fill("")
    head = fleet.get_by_role("columnheader", name="gateway")
    head.get_by_role("button").press("Enter")
    assert (head.get_attribute("aria-sort"), reading.rows("fleet")[0][0]) == ("ascending", "gw00000")
    head.get_by_role("button").press("Enter")
    assert (head.get_attribute("aria-sort"), reading.rows("fleet")[0][0]) == ("descending", "gw00119")
    fleet.get_by_role("columnheader", name="state").get_by_role("button").click()
    assert reading.rows("fleet") == before, "what the template drew is what the script draws"
    assert reading.wrong == []


def test_charts_are_drawn_read_by_keys_and_told_as_tables(browser: Browser, report: Path) -> None:
    reading = opened(browser, report)
    figure = reading.page.locator("#throughput figure").first
    figure.scroll_into_view_if_needed()
    figure.locator("canvas").wait_for()
    figure.locator(".canvas").focus()
    reading.page.keyboard.press("ArrowRight")
    reading.page.keyboard.press("ArrowRight")
    assert "2026-03-14 10:00:00" in figure.locator(".u-legend").inner_text()
    figure.locator("summary").click()
    figure.locator("details table").wait_for()
    told = json.loads(figure.locator("script.chart").inner_text())
    times = {at for line in told["lines"] for at in line["x"]}
    assert figure.locator("details tbody tr").count() == len(times)
    marked = reading.page.locator("#metrics figure").first
    marked.scroll_into_view_if_needed()
    marked.locator("canvas").wait_for()
    marked.locator(".canvas").focus()
    for _ in range(60):
        reading.page.keyboard.press("ArrowRight")
        if "expected" in marked.locator(".note").inner_text():
            break
    assert "spike 0.80, expected 2" in marked.locator(".note").inner_text()
    assert reading.wrong == []


def test_a_unit_follows_the_value_under_the_cursor(browser: Browser, tmp_path: Path) -> None:
    gold.fleet(tmp_path / "lake", 1)
    known = queries.read(tmp_path / "lake")
    for track in known.tracks:
        track.unit = "s"  # not a duration in words: a device sent this unit
    page.write(known, tmp_path / "r.html")
    reading = opened(browser, tmp_path / "r.html")
    figure = reading.page.locator("#metrics figure").first
    figure.scroll_into_view_if_needed()
    figure.locator("canvas").wait_for()
    figure.locator(".canvas").focus()
    reading.page.keyboard.press("ArrowRight")
    assert re.search(r"^\d\d:\d\d:\d\d [\d.]+\u202fs$", figure.locator(".note").inner_text())
    figure.locator("summary").click()
    assert re.search(r"\d\u202fs$", figure.locator("details tbody td").nth(1).inner_text())
    assert reading.wrong == []


def test_no_text_of_a_chart_is_cut_at_its_edge(browser: Browser, tmp_path: Path) -> None:
    """The last time of an axis, centred below the end of the drawing, was once cut."""
    inked = """canvas => {
        const {width, height} = canvas;
        const {data} = canvas.getContext("2d").getImageData(width - 1, 0, 1, height);
        return data.some((value, place) => place % 4 === 3 && value > 0);
    }"""
    put(tmp_path / "minute", "throughput", gold.bucket(0, 4, 4), gold.bucket(50, 4, 4))
    put(tmp_path / "minute", "rollup_1m", window(0, 1.0, 3.0))
    gold.fleet(tmp_path / "day", 1)
    for lake in (tmp_path / "minute", tmp_path / "day"):
        page.write(queries.read(lake), tmp_path / "r.html")
        reading = opened(browser, tmp_path / "r.html")
        for figure in reading.page.locator("figure.plot").all():
            figure.scroll_into_view_if_needed()
            figure.locator("canvas").wait_for()
            assert figure.locator("canvas").evaluate(inked) is False, (lake.name, figure.inner_text())


def test_axes_have_steps_that_a_person_counts_in(browser: Browser, tmp_path: Path) -> None:
    """Bad steps were 0.01, 0.01, 0 messages a second; 0.25 messages; 99.8, 99.5, 99.3 %."""
    gold.fleet(tmp_path / "lake", 1)
    page.write(queries.read(tmp_path / "lake"), tmp_path / "r.html")
    reading = opened(browser, tmp_path / "r.html", init="""
        const drawn = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {
            (this.canvas.texts ??= []).push(String(text));
            drawn.call(this, text, ...more);
        };
    """)  # fmt: skip
    for section, steps in (
        ("delivery", ["99 %", "99.5 %", "100 %"]),
        ("throughput", ["0", "0.005", "0.01"]),
        ("backlog", ["0", "1"]),
    ):
        figure = reading.page.locator(f"#{section} figure").first
        figure.scroll_into_view_if_needed()
        figure.locator("canvas").wait_for()
        texts = figure.locator("canvas").evaluate("canvas => canvas.texts")
        values = [text.replace("\u202f", " ") for text in texts if ":" not in text and "Mar" not in text]
        assert values == steps, section


def test_it_fits_a_phone_and_follows_the_dark(browser: Browser, report: Path) -> None:
    light = opened(browser, report, viewport=PHONE, color_scheme="light")
    dark = opened(browser, report, viewport=PHONE, color_scheme="dark")
    assert len(light.rows("fleet")) == 10
    for reading in (light, dark):
        assert reading.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    colours = [each.page.evaluate("getComputedStyle(document.body).backgroundColor") for each in (light, dark)]
    assert colours == ["rgb(251, 251, 250)", "rgb(20, 23, 26)"]
    assert (light.wrong, dark.wrong) == ([], [])


def test_on_a_phone_no_value_lies_over_another(browser: Browser, tmp_path: Path) -> None:
    gold.fleet(tmp_path / "lake", 2)
    told = facts.Facts(facts=(facts.Fact("Proved", "8,132 in 13 statements and one more", 8132, True),))
    page.write(queries.read(tmp_path / "lake"), tmp_path / "r.html", told)
    cells = opened(browser, tmp_path / "r.html", viewport=PHONE).page.locator(".facts td")
    assert cells.evaluate_all("all => all.filter(each => each.scrollWidth > each.clientWidth).length") == 0


def test_a_long_name_hides_nothing(browser: Browser, tmp_path: Path) -> None:
    """An address of 300 letters once hid every other column, and a metric of 200 its chart."""
    put(tmp_path, "throughput", gold.bucket(0, 4, 4))
    put(tmp_path, "completeness", address(address="a" * 300))
    put(tmp_path, "rollup_1m", window(0, 1.0, 3.0, metric="m" * 200))
    page.write(queries.read(tmp_path), tmp_path / "r.html")
    reading = opened(browser, tmp_path / "r.html", viewport={"width": 1280, "height": 900})
    sheet = reading.page.locator("#completeness .scroll").first
    assert sheet.evaluate("sheet => sheet.scrollWidth <= sheet.clientWidth") is True
    title = reading.page.locator("#metrics figcaption b").first
    assert title.evaluate("title => title.clientHeight < 4 * 21") is True
    assert title.get_attribute("title") == "m" * 200


def test_in_print_all_charts_are_there(browser: Browser, report: Path) -> None:
    reading = opened(browser, report)
    printed = reading.page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    figures = reading.page.locator("figure.plot").count()
    assert reading.page.locator("figure.plot canvas").count() == figures > 10
    assert reading.page.evaluate("document.documentElement.dataset.print") is None
    assert reading.wrong == []


def test_names_of_devices_do_nothing(browser: Browser, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7*7 }}"
    mine = {"gateway": evil}
    put(tmp_path, "gateway_freshness", fresh(None, **mine), *(fresh(None, gateway=f"{evil}{n}") for n in range(12)))
    put(tmp_path, "completeness", address(address=evil, **mine))
    series = mine | {"device": evil, "metric": evil}
    put(tmp_path, "rollup_1m", window(0, 1.0, 3.0, **series))
    put(tmp_path, "anomalies", anomaly(0, 9.0, rule=evil, **series))
    put(tmp_path, "device_health", device(evil, missed=99, **mine))
    put(tmp_path, "throughput", gold.bucket(0, 4, 4, **mine))
    told = facts.Facts(title=evil, events=(facts.Event(START, evil),))
    page.write(queries.read(tmp_path), tmp_path / "r.html", told)
    reading = opened(browser, tmp_path / "r.html")
    reading.page.locator("#fleet").get_by_role("columnheader", name="gateway").get_by_role("button").click()
    for figure in reading.page.locator("figure.plot").all():
        figure.scroll_into_view_if_needed()
        figure.locator("canvas").wait_for()
        figure.locator("summary").click()
    assert reading.rows("fleet")[0][0] == f"default/{evil}"
    assert reading.page.locator("img").count() == 0
    assert reading.wrong == []


VALUES = (
    0,
    1,
    0.25,
    0.0123,
    0.005,
    -0.123456,
    -0.5,
    7.006,
    12,
    99.96,
    999.4,
    1000,
    1234,
    9999,
    12_345,
    2.4e6,
    5e9,
    1.2e12,
    3e15,
    1e-4,
    -40.27,
    119.99,
    120,
)


def test_the_script_has_the_words_of_the_page(browser: Browser, report: Path) -> None:
    reading = opened(browser, report)
    for kind in get_args(table.Kind):
        if kind in ("name", "text", "spark", "heat"):
            values: list[Any] = ["a/b", ""]
        elif kind in ("state", "gateway"):
            values = [(1, "look"), (0, "")]
        elif kind == "share":
            values = [0, 0.0001, 0.1333, 0.995, 0.9994, 0.9995, 0.99999, 1]
        else:
            whole = kind in ("count", "time")
            values = [each for each in VALUES if not whole or (isinstance(each, int) and each >= 0)]
            values = [each for each in values if kind != "bytes" or each >= 0]
        said = reading.page.evaluate("([kind, values]) => values.map(value => words.cell(kind, value))", [kind, values])
        assert said == [table.cell(kind, value) for value in values], kind


def test_colours_can_be_told_apart() -> None:
    """WCAG 2.2, 1.4.3: text has a contrast of 4.5 to its background; 1.4.11: lines of charts have 3."""
    style = (Path(page.__file__).parent / "assets" / "page.css").read_text()
    blocks = re.findall(r"--paper:.*?(?=\n\s*\})", style, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6});", block))
        for ground in ("paper", "card"):
            for name in ("ink", "soft", "good", "bad", "look"):
                assert _contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
            for name in ("received", "live", "backlog", "lag", "reading", "reported", "band"):
                assert _contrast(colours[name], colours[ground]) >= 3, (name, ground)
        assert _contrast(colours["good"], colours["good-wash"]) >= 4.5
        assert _contrast(colours["bad"], colours["bad-wash"]) >= 4.5
        assert _contrast(colours["look"], colours["look-wash"]) >= 4.5


def _contrast(one: str, other: str) -> float:
    bright, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(each * 2 for each in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _open(reading: Reading) -> dict[str, bool]:
    """Return the sections of the page, and whether each is open."""
    script = "all => Object.fromEntries(all.map(each => [each.parentElement.id, each.open]))"
    found: dict[str, bool] = reading.page.locator("details.fold").evaluate_all(script)
    return found


def test_sections_fold_by_keys_and_stay_as_they_were_left(browser: Browser, report: Path) -> None:
    reading = opened(browser, report)
    assert set(_open(reading).values()) == {True}
    reading.page.locator("#completeness summary").first.focus()
    reading.page.keyboard.press("Enter")
    reading.page.locator("#completeness tbody").first.wait_for(state="hidden")
    assert [name for name, is_open in _open(reading).items() if not is_open] == ["completeness"]
    reading.page.reload()
    assert [name for name, is_open in _open(reading).items() if not is_open] == ["completeness"]
    reading.page.get_by_role("button", name="Fold all").click()
    reading.page.get_by_role("button", name="Open all").wait_for()
    assert set(_open(reading).values()) == {False}
    reading.page.get_by_role("button", name="Open all").click()
    assert set(_open(reading).values()) == {True}
    assert reading.wrong == []


def test_tiles_and_findings_lead_to_what_they_count(browser: Browser, report: Path) -> None:
    reading = opened(browser, report)
    reading.page.get_by_role("button", name="Fold all").click()
    for link, section in (
        (reading.page.locator("a.tile", has_text="devices that need a look").first, "devices"),
        (reading.page.locator("ol.first a", has_text="missing without an explanation"), "completeness"),
    ):
        link.focus()
        reading.page.keyboard.press("Enter")
        reading.page.locator(f"#{section} tbody").first.wait_for()
        assert reading.page.locator(f"#{section}").evaluate("each => each.getBoundingClientRect().top < innerHeight")
    assert {name for name, is_open in _open(reading).items() if is_open} == {"devices", "completeness"}
    targets = reading.page.locator("a.tile").evaluate_all("all => all.map(each => each.getAttribute('href').slice(1))")
    assert set(targets) <= set(_open(reading))
    assert len(targets) > 5
    assert reading.wrong == []


def test_print_opens_what_is_folded_and_folds_it_again(browser: Browser, report: Path) -> None:
    reading = opened(browser, report)
    reading.page.get_by_role("button", name="Fold all").click()
    reading.page.evaluate("""addEventListener("beforeprint", () => {
        window.printed = [...document.querySelectorAll("details.fold")].map(each => each.open);
    })""")
    assert reading.page.pdf(format="A4").startswith(b"%PDF")
    printed = reading.page.evaluate("window.printed")
    assert printed == [True] * len(_open(reading))
    assert set(_open(reading).values()) == {False}
    reading.page.get_by_role("button", name="Open all").click()
    figure = reading.page.locator("#throughput figure").first
    figure.scroll_into_view_if_needed()
    reading.page.wait_for_function(
        "document.querySelector('#throughput figure canvas').clientWidth > 200", timeout=WITHIN_MS
    )
    assert reading.wrong == []


def _downloaded(reading: Reading, name: str) -> tuple[str, bytes]:
    """Return name and content of the file that a table's CSV button downloads."""
    with reading.page.expect_download(timeout=WITHIN_MS) as expected:
        reading.page.get_by_role("button", name=f"Download {name} as CSV").click()
    return expected.value.suggested_filename, expected.value.path().read_bytes()


def test_a_table_is_downloaded_as_it_is_shown(browser: Browser, report: Path) -> None:
    reading = opened(browser, report)
    name, content = _downloaded(reading, "Gateways")
    rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    assert name == "fleet-report-waypost-gateways.csv"
    assert content.endswith(b"\r\n")
    assert content.count(b"\n") == content.count(b"\r\n") == 121, "all rows, not those of the leaf"
    assert rows[0][:4] == ["gateway", "state", "messages", "last landed (UTC)"]
    assert {len(row) for row in rows} == {len(rows[0])}
    assert rows[1][0] == "gw00001"
    assert rows[1][2:4] == ["1000", "2026-03-15T09:26:00Z"], "numbers and times as programs read them"
    fleet = reading.page.locator("#fleet")
    fleet.get_by_role("columnheader", name="gateway").get_by_role("button").click()
    fleet.get_by_role("searchbox").fill("gw0011")
    _, content = _downloaded(reading, "Gateways")
    assert [row.split(b",")[0] for row in content.splitlines()[1:]] == [b"gw00%d" % n for n in range(110, 120)]
    assert reading.wrong == []


def test_no_cell_of_a_download_is_a_formula(browser: Browser, tmp_path: Path) -> None:
    names = [
        "=1+1",
        "+1",
        "-2+3",
        "@SUM(1)",
        "\t=1",
        "\r=1",
        " =1",
        "\uff1d1",
        'a"b',
        "a,b",
        "a\r\nb",
        "plain",
        "a=b",
        "",
    ]
    put(tmp_path, "gateway_freshness", *(fresh(None, gateway=name, tenant="default") for name in names))
    put(tmp_path, "completeness", address())
    put(tmp_path, "throughput", gold.bucket(0, 4, 4))
    put(tmp_path, "anomalies", anomaly(0, -9.5, expected=-2.0, device="=cmd()"))
    page.write(queries.read(tmp_path), tmp_path / "r.html")
    reading = opened(browser, tmp_path / "r.html")
    _, content = _downloaded(reading, "Gateways")
    found = {row[0] for row in csv.reader(io.StringIO(content.decode(), newline=""))}
    safe = {name if name[:1] not in set("=+-@\t\r \uff1d") else f"'{name}" for name in names}
    assert found == {"gateway", "gw1", *safe}
    _, content = _downloaded(reading, "Unusual values")
    (_, row) = csv.reader(io.StringIO(content.decode(), newline=""))
    assert row[1] == "'=cmd()"
    assert row[4:7] == ["-9.5", "-2", "-7.5"], "numbers stay numbers"
    assert reading.wrong == []


def test_the_readers_time_stands_beside_utc(browser: Browser, report: Path) -> None:
    reading = opened(browser, report, timezone_id="Asia/Kolkata")
    assert "2026-03-15 09:27:00 (14:57:00)" in reading.page.locator("main > p.soft").first.inner_text()
    assert "Asia/Calcutta" in reading.page.locator(".zone").inner_text().replace("Kolkata", "Calcutta")
    fleet = reading.page.locator("#fleet")
    assert "2026-03-15 09:26:00 (14:56:00)" in " ".join(fleet.locator("tbody tr").nth(2).inner_text().split())
    fleet.get_by_role("button", name="Next").click()
    assert "2026-03-15 09:26:00 (14:56:00)" in " ".join(fleet.locator("tbody tr").nth(2).inner_text().split())
    other_day = opened(browser, report, timezone_id="Pacific/Auckland")
    assert "(22:26:00)" in other_day.page.locator("#fleet").inner_text()
    assert other_day.page.evaluate("words.local(Date.UTC(2026, 2, 15, 20) / 1e3)") == "03-16 09:00:00"
    assert opened(browser, report, timezone_id="UTC").page.locator(".local").count() == 0
    assert (reading.wrong, other_day.wrong) == ([], [])


def test_strips_and_sparks_are_drawn(browser: Browser, report: Path) -> None:
    reading = opened(browser, report)
    strips = reading.page.locator("#hours svg.heat")
    assert strips.count() == 40
    label = strips.first.get_attribute("aria-label")
    assert label is not None
    assert label.startswith("25 hours")
    cut = reading.page.locator("#hours tr", has_text="gw00003").locator("svg")
    assert "3 late" in (cut.get_attribute("aria-label") or "")
    cut.hover(position={"x": 4, "y": 4})
    assert cut.locator("title").text_content() == "2026-03-14 09:00:00 UTC: in time"
    _, content = _downloaded(reading, "Hours of gateways")
    head, *rows = csv.reader(io.StringIO(content.decode(), newline=""))
    assert head[:2] == ["gateway", "2026-03-14T09:00:00Z"]
    (told,) = (row for row in rows if row[0] == "gw00003")
    assert (len(told), told.count("late"), told[-1]) == (len(head), 3, "no messages")
    fleet = reading.page.locator("#fleet")
    drawn = "all => all.map(each => each.outerHTML)"
    before = fleet.locator("svg.spark").evaluate_all(drawn)
    assert len(before) == 50
    state = fleet.get_by_role("columnheader", name="state").get_by_role("button")
    state.click()
    again = fleet.locator("svg.spark path").evaluate_all("all => all.map(each => each.getAttribute('d'))")
    assert again == [re.findall(r' d="([^"]*)"', each)[0] for each in before], "as the template drew them"
    assert reading.wrong == []
