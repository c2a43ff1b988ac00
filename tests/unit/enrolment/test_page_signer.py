"""Pages of devices that the authority's process makes and signs for hubs that lack its key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from bridge.device_pages import DevicePage, digest_of, read_page, read_signed, to_sign
from cloud.hub.devices import page_signer
from cloud.hub.devices.page_signer import DevicePageSigner
from cloud.hub.devices.pages import read_cursor
from cloud.hub.enrolment.authority import OwnAuthority
from cloud.hub.enrolment.device_page_request import NO_PAGE, DevicePageRequest, read_page_request
from cloud.hub.enrolment.limits import PAGE_REQUEST_CHARACTERS_MAX
from cloud.hub.enrolment.signature_request import UNKNOWN_REQUEST, SignatureRefused
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from tests.support.registered_devices import RegisteredRows

OWN = OwnAuthority.make("hub", 1_800_000_000.0)


class SignerSite:
    """Registry, and the signer on it."""

    def __init__(self, url: sa.URL) -> None:
        self.rows = RegisteredRows(url)
        opened = open_registry(url)
        opened.database.close()
        self.registry_id = opened.registry_id
        self.signer = DevicePageSigner(url, opened.registry_id, OWN.sign)

    def page(self, held: str = "", gateway: str = "gw1", *, restart: bool = False) -> DevicePage | None:
        """Return the page of a gateway, as a hub verifies it."""
        request = DevicePageRequest("acme", gateway, held, restart)
        answer = self.signer.answer(read_page_request(encoded(request)))
        if answer.text == NO_PAGE:
            return None
        signed = read_signed(answer.text.encode())
        assert OWN.has_signed(to_sign(signed.content), signed.signature_bytes)
        return read_page(signed.content)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SignerSite]:
    made = SignerSite(sqlite_url(tmp_path / "registry.db"))
    yield made
    made.signer.close()


def encoded(request: DevicePageRequest) -> str:
    return msgspec.json.encode(request).decode()


def test_page_has_the_devices_of_the_registry_for_that_gateway(site: SignerSite) -> None:
    site.rows.add("a")
    site.rows.add("b", "gw2")
    page = site.page()
    assert page is not None
    assert (page.tenant, page.gateway, page.base) == ("acme", "gw1", "")
    assert [each.device for each in page.entries] == ["a"]
    assert site.page(gateway="gw3") is None


def test_page_continues_the_cursor_of_the_request(site: SignerSite) -> None:
    site.rows.add("a")
    first = site.page()
    assert first is not None
    assert site.page(first.cursor) is None
    site.rows.add("b")
    second = site.page(first.cursor)
    assert second is not None
    assert second.base == digest_of(first.cursor)
    assert [each.device for each in second.entries] == ["b"]
    again = site.page(first.cursor, restart=True)
    assert again is not None
    assert ([each.device for each in again.entries], again.range is not None) == (["a", "b"], True)


def test_cursor_that_skips_changes_is_of_no_use(site: SignerSite) -> None:
    """A hub in wrong hands asks with a cursor that the gateway does not have."""
    site.rows.add("a")
    first = site.page()
    assert first is not None
    site.rows.add("b")
    ahead = site.page(first.cursor)
    site.rows.add("c")
    assert ahead is not None
    skipping = site.page(ahead.cursor)
    assert skipping is not None
    assert skipping.base != digest_of(first.cursor), "the gateway refuses it"


@pytest.mark.parametrize("held", ["no JSON", '{"registry":"other","tenants":{"acme":[99]}}', "\ud7ff\x00"])
def test_cursor_of_another_registry_begins_again(site: SignerSite, held: str) -> None:
    site.rows.add("a")
    page = site.page(held)
    assert page is not None
    assert [each.device for each in page.entries] == ["a"]
    assert read_cursor(page.cursor, site.registry_id).registry == site.registry_id


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[" * 5_000,
        '{"type":"gateway","tenant":"acme","gateway":"gw1","held":""}',
        '{"type":"devices","tenant":"acme","gateway":"gw1"}',
        '{"type":"devices","tenant":"acme","gateway":"gw1","held":"","content":7,"restart":"yes"}',
        encoded(DevicePageRequest("Acme", "gw1", "")),
        encoded(DevicePageRequest("acme", "two\nlines", "")),
        encoded(DevicePageRequest("acme", "gw1", "x" * PAGE_REQUEST_CHARACTERS_MAX)),
    ],
    ids=lambda text: text[:40],
)
def test_other_requests_are_refused(text: str) -> None:
    with pytest.raises(SignatureRefused):
        read_page_request(text)


def test_unknown_request_is_named_as_such() -> None:
    with pytest.raises(SignatureRefused) as refused:
        read_page_request('{"type":"newer"}')
    assert str(refused.value).startswith(UNKNOWN_REQUEST)


def test_page_that_cannot_be_made_is_refused(site: SignerSite, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_parts: object) -> None:
        raise ValueError("a damaged row")

    monkeypatch.setattr(page_signer, "make_page", fail)
    site.rows.add("a")
    with pytest.raises(SignatureRefused, match="ValueError"):
        site.page()
