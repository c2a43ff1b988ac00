"""Labels: the content of the page, and the content of its codes for a scanner."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as Xml
from pathlib import Path

import pytest
import segno

from bridge.enrolment import EnrolmentToken
from edge.appliance.main import run
from images.card.settings import apply_arguments
from images.flashing import cards
from images.flashing.labels import Label
from images.flashing.page import CODE_BYTES_MAX, MODULE_MM, QUIET_MODULES, render_page

NOW = 1_790_000_000.0
TOKEN = EnrolmentToken.make(bytes(32)).text
DATE = "2026-09-21"
HALL = Label("hall", "hall-1", "amqps://hub.example:5671", "10.1.2.20/24", "waypost-0.1.0-pi4.img.zst", "000000001206")
SVG = "{http://www.w3.org/2000/svg}"
Modules = list[list[bool]]


def drawn(shown: str) -> list[tuple[float, Modules]]:
    """Return the codes of a page: width in mm, and rows of dark modules, with the quiet zone."""
    found = []
    for text in re.findall(r"<svg.*?</svg>", shown, re.DOTALL):
        svg = Xml.fromstring(text if "xmlns" in text else text.replace("<svg", f'<svg xmlns="{SVG[1:-1]}"', 1))
        _, _, side, height = (int(word) for word in svg.attrib["viewBox"].split())
        assert side == height
        assert svg.attrib["width"] == svg.attrib["height"]
        light, dark = svg.findall(f"{SVG}path")
        assert (light.attrib["fill"], light.attrib["d"]) == ("#fff", f"M0 0h{side}v{side}h-{side}z")
        assert dark.attrib["stroke"] == "#000"
        found.append((float(svg.attrib["width"].removesuffix("mm")), painted(dark.attrib["d"], side)))
    return found


def painted(path: str, side: int) -> Modules:
    """Draw lines of width 1: `M` moves to a place, `m` by a distance, `h` draws to the right."""
    modules = [[False] * side for _ in range(side)]
    column, row = 0.0, 0.0
    for command, words in re.findall(r"([A-Za-z])([-\d. ]+)", path):
        numbers = [float(word) for word in words.split()]
        if command == "h":
            for each in range(int(column), int(column + numbers[0])):
                modules[int(row)][each] = True
            column += numbers[0]
        elif command == "m":
            column, row = column + numbers[0], row + numbers[1]
        else:
            assert command == "M"
            column, row = numbers
    return modules


def expected(text: str) -> tuple[segno.QRCode, Modules]:
    code = segno.make_qr(text, error="m", encoding="utf-8")
    return code, [[module == 1 for module in row] for row in code.matrix_iter(border=QUIET_MODULES)]


def test_code_contains_the_text_of_the_label() -> None:
    ((width, modules),) = drawn(render_page([HALL], NOW))
    code, matrix = expected(
        "name: hall\nhostname: hall-1\nhub: amqps://hub.example:5671\naddress: 10.1.2.20/24\n"
        f"image: waypost-0.1.0-pi4.img.zst\ncard: 000000001206\ndate: {DATE}"
    )
    assert modules == matrix
    assert code.error in ("M", "Q", "H")
    assert width == round(len(modules) * MODULE_MM, 1)
    assert width <= 26, "a usual label keeps its height"


def test_code_has_a_quiet_zone() -> None:
    ((_, modules),) = drawn(render_page([HALL], NOW))
    inner = [row[QUIET_MODULES:-QUIET_MODULES] for row in modules[QUIET_MODULES:-QUIET_MODULES]]
    assert sum(map(sum, modules)) == sum(map(sum, inner))
    for corner in (inner[0][:7], inner[0][-7:], inner[-1][:7]):
        assert all(corner), "the finder patterns touch the edge"


def test_each_card_has_a_label() -> None:
    west = HALL._replace(name="west", hostname="west", address="DHCP")
    assert [modules for _, modules in drawn(render_page([HALL, west], NOW))] == [
        expected(HALL.code_text(DATE))[1], expected(west.code_text(DATE))[1],
    ]  # fmt: skip


def test_card_without_settings_has_no_empty_lines() -> None:
    plain = Label("Waypost", "", "", "", "waypost.img.zst", "sdb")
    assert plain.code_text(DATE) == f"name: Waypost\nimage: waypost.img.zst\ncard: sdb\ndate: {DATE}"
    assert len(drawn(render_page([plain], NOW))) == 1


def test_names_are_escaped_on_the_page_and_in_the_code() -> None:
    odd = HALL._replace(name="<b>Höhe & 高</b>")
    shown = render_page([odd], NOW)
    assert "&lt;b&gt;Höhe &amp; 高&lt;/b&gt;" in shown
    ((_, modules),) = drawn(shown)
    assert modules == expected(odd.code_text(DATE))[1]


def test_text_too_long_for_a_code_is_reported() -> None:
    room = CODE_BYTES_MAX - len(HALL._replace(name="").code_text(DATE)) - len("name: \n")
    ((width, _),) = drawn(render_page([HALL._replace(name="n" * room)], NOW))
    assert width < 36
    longer = render_page([HALL._replace(name="n" * (room + 1))], NOW)
    assert not drawn(longer)
    assert "too long for a code" in longer


def test_label_shows_no_secret() -> None:
    secrets = {"hub.token": TOKEN, "wifi.password": "not for everybody", "lte.password": "apn-word", "lte.pin": "4711"}
    others = {"name": "hall", "hub.url": "amqps://hub.example:5671", "wifi.ssid": "plant", "wifi.country": "DE",
              "lte.apn": "web", "lte.user": "u"}  # fmt: skip
    card = apply_arguments([f"{name}={value}" for name, value in (secrets | others).items()], None).card
    label = cards.make_label(cards.CardResult(cards.CardJob(Path("sdb"), None, card), None, None), "waypost.img.zst")
    assert label == Label("hall", "hall", "amqps://hub.example:5671", "DHCP", "waypost.img.zst", "sdb")
    for secret in secrets.values():
        assert secret not in render_page([label], NOW)
        assert secret not in label.code_text(DATE)


def test_missing_library_is_reported_before_a_card_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "segno", None)
    (tmp_path / "img").touch()
    assert run(["flash", str(tmp_path / "img"), str(tmp_path / "card"), "--labels", str(tmp_path / "labels")]) == 2
    assert "segno, which is not installed" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["img"]
