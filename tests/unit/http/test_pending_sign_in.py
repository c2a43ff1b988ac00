"""Sign-ins in progress at an issuer: one secret in the cookie of a browser, which a stranger may have set."""

from __future__ import annotations

import base64

import pytest

from edge.broker.http.pending_sign_in import PendingSignIn

SECRET = "s" * 43


def encoded(page: str) -> str:
    return base64.urlsafe_b64encode(page.encode()).rstrip(b"=").decode()


@pytest.mark.parametrize("page", ["", "#/", "#/devices?show=refused", "#/" + "x" * 500])
@pytest.mark.parametrize("stay", [True, False])
def test_cookie_holds_the_whole_sign_in(page: str, stay: bool) -> None:
    begun = PendingSignIn.begin(page, stay=stay)
    found = PendingSignIn.of_cookie(begun.cookie)
    assert found == begun
    assert (found.state, found.nonce, found.verifier) == (begun.state, begun.nonce, begun.verifier)
    assert len(begun.cookie) < 1_000


def test_every_sign_in_has_values_of_its_own() -> None:
    made = [PendingSignIn.begin("", stay=False) for _ in range(10)]
    values = [value for each in made for value in (each.secret, each.state, each.nonce, each.verifier)]
    assert len(set(values)) == len(values)
    assert {len(value) for value in values} == {43}  # 256 bits; a verifier has 43 characters at least


def test_answer_belongs_to_the_browser_that_began() -> None:
    own, other = (PendingSignIn.begin("", stay=False) for _ in range(2))
    assert own.is_answered_by(own.state)
    for state in (other.state, own.secret, own.nonce, own.verifier, own.state[:-1], "", "\udc80", "ä"):
        assert not own.is_answered_by(state)


@pytest.mark.parametrize(
    "page", ["https://evil.example/", "//evil", "#javascript:alert(1)", "#/\r\nx", "#/" + "x" * 501]
)
def test_only_pages_of_the_console_are_kept(page: str) -> None:
    assert PendingSignIn.begin(page, stay=False).leads_to == ""
    found = PendingSignIn.of_cookie(f"{SECRET}.0.{encoded(page)}")
    assert found is None or found.leads_to == ""


@pytest.mark.parametrize(
    "cookie",
    [
        "",
        SECRET,
        f"{SECRET}.2.",
        f"{SECRET[1:]}.0.",
        f"{SECRET}.0",
        f"{SECRET}.0.x y",
        f"{SECRET}.0.{'x' * 701}",
        "ä.0.",
    ],
)
def test_other_cookies_hold_no_sign_in(cookie: str) -> None:
    assert PendingSignIn.of_cookie(cookie) is None


@pytest.mark.parametrize("page", ["A", "_w", "____"], ids=["length", "not ASCII", "bytes"])
def test_page_that_is_no_text_is_the_first_page(page: str) -> None:
    assert PendingSignIn.of_cookie(f"{SECRET}.1.{page}") == PendingSignIn(SECRET, "", True)


def test_secret_is_not_in_the_text() -> None:
    assert SECRET not in repr(PendingSignIn(SECRET, "", False))
