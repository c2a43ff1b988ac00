"""The settings page in Chromium: its checks are those of a gateway, and nothing leaves it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser

from bridge.enrolment import EnrolmentToken
from bridge.resources.errors import ConfigurationRejected, ResourceOrigin
from bridge.resources.resource import Resource
from bridge.resources.schema import build
from docs.generate.settings_page import FILE as PUBLISHED
from edge.card.fields import PLACEHOLDER
from edge.card.location import FILE
from edge.card.resource import FILE_BYTES_MAX, KEYS_MAX, KINDS, read
from edge.card.text import document
from images.card.settings import LISTS, NAMES
from images.card.settings_page.rendering import PAGE, SECTIONS, render_page
from images.card.settings_page.rules import list_fields
from tests.console.visit import NARROW, PHONE, Visit, visiting

Values = dict[str, Any]

TOKEN: Final = EnrolmentToken.make(bytes(range(32))).text
SSH: Final = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ3cQ2p2d0pXyJfYf0W2l1X9c1u2kq8YwJ3gq0Y2m7aB ann@laptop"
CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----\nTUlJQg==\n-----END CERTIFICATE-----\n"
PRIVATE_KEY: Final = "-----BEGIN PRIVATE KEY-----\nhidden00\n-----END PRIVATE KEY-----\n"
VALID: Final[Values] = {
    "name": "hall", "hostname": "hall-1", "cable.address": "192.168.1.20/24", "cable.gateway": "192.168.1.1",
    "cable.dns": ["192.168.1.1", "9.9.9.9"], "wifi.ssid": "plänt 🌱", "wifi.password": "a: 'secret' #1\\\"",
    "wifi.country": "DE", "wifi.login.user": "gateway7@plant", "wifi.login.password": "hidden login",
    "wifi.login.certificate": CERTIFICATE * 2, "wifi.login.key": PRIVATE_KEY, "wifi.login.authority": CERTIFICATE,
    "wifi.login.server": "radius.example", "lte.apn": "internet", "lte.user": "u", "lte.password": "hidden-lte",
    "lte.pin": "0123",
    "sshKeys": [SSH, SSH], "hub.url": "amqps://hub.example:5671", "hub.failover": ["wss://hub.example:443/x"],
    "hub.proxy.host": "proxy.example", "hub.proxy.port": "8080", "hub.proxy.username": "plant",
    "hub.proxy.password": "hidden-proxy", "hub.token": TOKEN, "hub.forward": ["plant/#", "alarm/+"],
    "timeServers": ["192.168.1.1", "time.example"], "data.disk": "nvme", "data.keepFree": "1.5Gi",
}  # fmt: skip
ADDRESSES: Final = (
    "1.2.3", "1.2.3.04", "256.1.1.1", "1.2.3.4.5", "0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::1",
    "1::", "::1.2.3.4", "1::2::3", ":1::2", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "1:2:3:4:5:6:7:8:9", "::12345",
    "fe80::1", "fe80::1%eth0", "fe80::1%", "ff02::1", "2001:db8::5", "2001:DB8::5", "\uff11.2.3.4", "1.2.3.4 ", "",
    "a/b",
)  # fmt: skip
HOSTS: Final = ("", "a b", "a/b", "a@b", "[::1]", "xn--bcher-kva", "bücher", "a\tb", "a;b", "a_b", "x" * 300, "::1")
CASES: Final[dict[str, tuple[str, ...]]] = {
    "name": ("-x", "a.b", "A", "", "x" * 64, "x" * 254, "<b>", "a\n"),
    "hostname": ("-x", "x-", "X", "a.b", "x" * 63, "x" * 64, "", "ä"),
    "cable.address": (
        *(f"{each}/24" for each in ADDRESSES), *(f"{each}/64" for each in ADDRESSES), "192.168.1.0/24",
        "192.168.1.0/31",
        "192.168.1.255/24", "192.168.1.9/32", "192.168.1.9/33", "192.168.1.9/024", "192.168.1.9/255.255.255.0",
        "192.168.1.9/0.0.0.255", "192.168.1.9/255.0.255.0", "192.168.1.9/0.0.0.0", "192.168.1.9", "1.2.3.4/0",
        "1.2.3.4//",
        "2001:db8::/64", "2001:db8::1/129", "2001:db8::1/127", "2001:db8::1/ffff::", "10.0.0.1/8", "0.1.2.3/8",
    ),
    "cable.gateway": (*ADDRESSES, "192.168.1.20", "192.168.2.1"),
    "cable.dns": ADDRESSES,
    "wifi.ssid": (
        "x" * 32, "x" * 33, "ä" * 16, "ä" * 17, " x ", "\x07", "a\u00a0b", "a\u200bb", "\u202eevil",
        "</script>", "of Unicode 16 \U0001fae9", "unassigned \u0378", "private \ue000",
    ),
    "wifi.password": (
        "1234567", "12345678", "x" * 63, "f" * 64, "g" * 64, "f" * 65, "pässword1", PLACEHOLDER,
        " 1234567 ",
    ),
    "wifi.country": ("de", "UK", "EN", "el", "ZZ", "00", "Germany", "GB", "constructor", "ß", ""),
    "wifi.login.user": ("", "a b", "ä", "x" * 253, "x" * 254, "a\tb"),
    "wifi.login.password": ("", " ", "ä", "x" * 256, "x" * 257, PLACEHOLDER),
    "wifi.login.certificate": (
        "", "x", PRIVATE_KEY, f"x{CERTIFICATE}", CERTIFICATE.replace("\n", "\r\n"), CERTIFICATE[:-9],
    ),
    "wifi.login.key": (
        "", CERTIFICATE, PLACEHOLDER, PRIVATE_KEY.replace("PRIVATE", "RSA PRIVATE"),
        PRIVATE_KEY.replace("PRIVATE", "ENCRYPTED PRIVATE"), PRIVATE_KEY * 2, PRIVATE_KEY.strip(),
    ),
    "wifi.login.authority": ("", "\ufeff" + CERTIFICATE, CERTIFICATE * 3, f"{CERTIFICATE}\x1c", f" \t{CERTIFICATE}"),
    "wifi.login.server": HOSTS,
    "lte.apn": ("a b", "a.b", "-a", "x" * 100, "x" * 101), "lte.user": ("", "a b", PLACEHOLDER, "x" * 64, "x" * 65),
    "lte.password": ("ä", PLACEHOLDER), "lte.pin": ("12", "12345678", "123456789", "١٢٣٤", PLACEHOLDER),
    "sshKeys": (
        "ssh-ed25519 AAAA", "ssh-dss AAAAB3NzaC1kc3M=", "-----BEGIN OPENSSH PRIVATE KEY-----",
        SSH.replace("AAAAI", "AAAA!"),
        SSH.rpartition(" ")[0], f"{SSH}\u202e", f"from=x {SSH}", SSH.replace("ssh-ed25519 ", "ssh-rsa "),
        "ssh-rsa ä", "",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5=", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5==",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5A",
    ),
    "hub.url": (
        "hub", "amqp://hub", "ws://hub", "http://hub", "amqps://", "amqps://hub/", "amqps://hub:0",
        "amqps://hub:65536",
        "amqps://hub:x", "amqps://[::1]", "amqps://[::1]:5671", "amqps://::1", "amqps://a@b", "wss://hub/ä",
        "wss://hub/a b",
        "wss://hub", "wss://hub:0/x", "constructor://x", "amqps://hub:", "AMQPS://hub", "amqps://hub//",
        "amqps://h/x", "",
    ),
    "hub.failover": ("amqps://hub:0", "hub", "ws://x"), "hub.proxy.host": HOSTS,
    "hub.proxy.port": ("0", "65535", "65536", "http", "-1", "1.5", "٣", "00080"),
    "hub.proxy.username": ("a:b", "a b"),
    "hub.proxy.password": (PLACEHOLDER, " ", "\x07"),
    "hub.token": (
        PLACEHOLDER, "x", "wpt1.x.y.z", f" {TOKEN} ", TOKEN[:-1], f"{TOKEN}A", TOKEN.replace("wpt1", "wpt2"),
        f"{TOKEN}.x",
        TOKEN.replace(".", ".ä", 1), f"{TOKEN[:-4]}ä+/=", "wpt1.0123456789ab..",
    ),
    "hub.forward": ("a/#/b", "a#", "a+", "+/x/#", "*", "a/*", "#", "/", "x" * 65_535, "x" * 65_536, "ä" * 40_000,
        "\0"),
    "timeServers": HOSTS,
    "data.disk": ("usb", "sda", "NVME", "nvme|usb", ""),
    "data.keepFree": ("1", "1.5 Gi", "1 gb", "9007199254740992", "9007199254740993000", "8192Ti", "8193Ti", "-1",
        "٣", "1..2"),
}  # fmt: skip
WIFI: Final[Values] = {"name": "hall", "wifi.ssid": "x", "wifi.country": "DE"}
MISSING: Final[tuple[Values, ...]] = (
    {}, {"name": "hall"}, {"name": "hall", "wifi.ssid": "x"}, {"name": "hall", "cable.dns": ["::1"]},
    {"name": "hall", "hub.proxy.port": "1"}, {"name": "hall", "hub.forward": ["#"]}, {"name": "a.b"},
    {"name": "hall", "wifi.login.user": "u"}, {"name": "hall", "wifi.login.key": PRIVATE_KEY},
    {**WIFI, "wifi.login.user": "u", "wifi.login.authority": CERTIFICATE},
    {**WIFI, "wifi.login.user": "u", "wifi.login.authority": CERTIFICATE, "wifi.login.key": PRIVATE_KEY},
    {**WIFI, "wifi.login.user": "u", "wifi.login.authority": CERTIFICATE, "wifi.login.password": "p"},
    {"name": "hall", "lte.apn": "x", "lte.user": "u"}, {"name": "hall", "timeServers": ["x"] * (KEYS_MAX + 1)},
    {"name": "hall", "cable.address": "2001:db8::5/64", "cable.gateway": "fe80::1"},
    {"name": "hall", "cable.address": "fe80::5/64", "cable.gateway": "fe80::5"},
    {"name": "hall", "cable.address": "10.0.0.5/24", "cable.gateway": "fe80::1"},
    {"name": "hall", "hub.url": "amqps://h", "hub.token": TOKEN, "hub.proxy.host": "p", "hub.proxy.username": "u"},
)  # fmt: skip
MUTATIONS: Final = 60
"""Values for each setting, made from the valid one by changed characters."""
LETTERS: Final = "aZ09 .:-_/#+*%@[]\"'\\\n\tä🌱\u202e<&"
FAULTS: Final = "cases => cases.map(values => listFaults(values).map(({ path, words }) => [path, words]))"


def cases() -> Iterator[Values]:
    yield VALID
    yield from MISSING
    dice = random.Random(40)
    for name in NAMES:
        first = VALID[name][0] if name in LISTS else VALID[name]
        for value in (*CASES[name], *(_mutate(dice, first) for _ in range(MUTATIONS))):
            yield {**VALID, name: [VALID[name][0], value] if name in LISTS else value}


def _mutate(dice: random.Random, text: str) -> str:
    letters = list(text)
    for _ in range(dice.randint(1, 2)):
        letters[dice.randrange(len(letters))] = dice.choice(LETTERS) * dice.randint(0, 2)
    return "".join(letters)


def product_faults(values: Values) -> list[tuple[str, str]]:
    """Return the path and reason of each error that the product finds."""
    found = build(KINDS, to_document(values), ResourceOrigin(FILE, {(): 0}))
    errors = KINDS.validate([found]) if isinstance(found, Resource) else found
    return sorted((each.path.rpartition(": ")[2], each.message) for each in errors)


def to_document(values: Values) -> dict[str, Any]:
    made = document(values.get("name", ""), {})
    if "name" not in values:
        del made["metadata"]["name"]
    for name, value in values.items():
        if name == "name":
            continue
        *outer, last = name.split(".")
        place = made["spec"]
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = value
    return made


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("page") / PAGE
    made.write_text(render_page(), encoding="utf-8")
    return made


@pytest.fixture
def visit(browser: Browser, page_file: Path) -> Iterator[Visit]:
    with visiting(browser, page_file.as_uri(), viewport=PHONE) as opened:
        opened.page.goto(page_file.as_uri())
        yield opened


def test_the_published_page_is_up_to_date() -> None:
    assert PUBLISHED.read_text(encoding="utf-8") == render_page(), "run python -m docs.generate.settings_page"


def test_the_form_has_every_setting() -> None:
    names = [each.name for each in list_fields()]
    shown = [each.name for section in SECTIONS for each in section.inputs]
    assert sorted(shown) == sorted(names) == sorted(NAMES)
    assert {each.name for each in list_fields() if each.many} == set(LISTS)


def test_the_page_and_the_product_find_the_same_errors(visit: Visit) -> None:
    given = list(cases())
    found = visit.page.evaluate(FAULTS, given)
    for values, faults in zip(given, found, strict=True):
        shown = sorted((path, words) for path, words in faults if path)  # the file's size has no path
        assert shown == product_faults(values), values


def test_a_file_of_the_page_is_read_back_equal(visit: Visit) -> None:
    valid = [each for each in cases() if not product_faults(each) and len(str(each)) < FILE_BYTES_MAX // 2]
    assert len(valid) > 100
    texts = visit.page.evaluate("cases => cases.map(makeFile)", valid)
    for values, text in zip(valid, texts, strict=True):
        card = read(text.encode(), FILE)
        expected = build(KINDS, to_document(values), ResourceOrigin(FILE, {(): 0}))
        assert card is not None
        assert isinstance(expected, Resource)
        assert (card.name, card.spec) == (expected.name, expected.spec)


def test_a_file_that_is_too_large_is_refused_on_both_sides(visit: Visit) -> None:
    values = {"name": "hall", "sshKeys": [f"{SSH}{'x' * 1_000}"] * (FILE_BYTES_MAX // 1_000)}
    [faults] = visit.page.evaluate(FAULTS, [values])
    assert faults == [["", f"larger than {FILE_BYTES_MAX} bytes"]]
    with pytest.raises(ConfigurationRejected, match="larger than"):
        read(visit.page.evaluate("makeFile", values).encode(), FILE)


def fill(visit: Visit, values: Values) -> None:
    visit.page.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true; })")
    for name, value in values.items():
        visit.page.locator(f"[id='{name}']").fill("\n".join(value) if name in LISTS else value)


def test_a_person_saves_the_file_from_a_phone(visit: Visit, tmp_path: Path) -> None:
    fill(visit, VALID)
    preview = visit.page.locator("#preview").inner_text()
    assert TOKEN not in preview
    assert "hidden" not in preview
    assert PLACEHOLDER in preview
    with visit.page.expect_download() as download:
        visit.page.get_by_role("button", name=f"Save {FILE}").click()
    assert download.value.suggested_filename == FILE
    download.value.save_as(tmp_path / FILE)
    card = read((tmp_path / FILE).read_bytes(), FILE)
    assert card is not None
    assert card.spec.hub is not None
    assert card.spec.hub.token == TOKEN
    assert visit.page.evaluate("localStorage.length + sessionStorage.length") == 0
    assert visit.overflow() == 0


def test_nothing_is_saved_before_every_problem_is_corrected(visit: Visit) -> None:
    fill(visit, {**VALID, "wifi.country": "uk", "hub.proxy.host": "a/b"})
    visit.page.eval_on_selector_all("details", "all => all.forEach(each => { each.open = false; })")
    saved: list[str] = []
    visit.page.on("download", lambda download: saved.append(download.suggested_filename))
    visit.page.get_by_role("button", name=f"Save {FILE}").click()
    visit.see("2 problems: nothing was saved")
    visit.see("did you mean GB?")
    visit.see('"a/b" is not a host')
    assert not saved
    assert visit.page.evaluate("document.activeElement.id") in ("wifi.country", "hub.proxy.host")


def test_the_policy_stops_what_a_hostile_value_would_run(visit: Visit) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    fill(visit, {"name": hostile, "wifi.ssid": hostile, "hub.url": hostile})
    visit.page.get_by_role("button", name=f"Save {FILE}").click()
    visit.see(f'"{hostile}" is not a name')
    assert visit.page.locator("img").count() == 0
    reached = visit.page.evaluate("fetch('https://hub.example/').then(() => true, () => false)")
    assert reached is False
    assert any("connect-src" in each or "default-src" in each for each in visit.wrong)
    visit.wrong.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(browser: Browser, page_file: Path, scheme: str) -> None:
    with visiting(browser, page_file.as_uri(), viewport=NARROW, color_scheme=scheme) as visit:
        visit.page.goto(page_file.as_uri())
        assert visit.violations() == []
        fill(visit, {**VALID, "wifi.country": "UK"})
        visit.page.get_by_role("button", name=f"Save {FILE}").click()
        assert visit.violations() == []
        visit.page.locator("[id='wifi.country']").fill("DE")
        visit.page.locator("#preview").wait_for()
        assert visit.violations() == []
        assert visit.overflow() == 0
