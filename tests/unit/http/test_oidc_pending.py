"""Sign-ins in progress at an issuer: once, in time, in the browser that began, and bounded fairly."""

from __future__ import annotations

from edge.broker.http.limits import OIDC_SIGN_IN_S, OIDC_SIGN_INS_MAX
from edge.broker.http.oidc_api import PendingSignIn, PendingSignIns, _digest


def pending(browser: str = "b", source: str = "10.0.0.1", until_s: float = OIDC_SIGN_IN_S) -> PendingSignIn:
    return PendingSignIn(_digest(browser), "n", "v", "http://gw/", "", False, until_s, source)


def test_state_counts_once() -> None:
    table = PendingSignIns()
    table.add("s", pending())
    assert table.take("s", "b", 0.0) is not None
    assert table.take("s", "b", 0.0) is None


def test_state_of_another_browser_or_too_late_is_used_up() -> None:
    table = PendingSignIns()
    table.add("s", pending())
    assert table.take("s", "other", 0.0) is None
    assert table.take("s", "b", 0.0) is None
    table.add("s", pending())
    assert table.take("s", "b", OIDC_SIGN_IN_S) is None


def test_flood_of_one_address_does_not_end_the_sign_ins_of_others() -> None:
    table = PendingSignIns()
    table.add("person", pending(source="10.0.0.2"))
    for number in range(2 * OIDC_SIGN_INS_MAX):
        table.add(f"flood {number}", pending())
    assert table.take("flood 0", "b", 0.0) is None
    assert table.take(f"flood {2 * OIDC_SIGN_INS_MAX - 1}", "b", 0.0) is not None
    assert table.take("person", "b", 0.0) is not None


def test_secrets_are_not_in_the_text() -> None:
    made = pending()._replace(nonce="n0nce", verifier="ver1fier")
    assert "n0nce" not in repr(made)
    assert "ver1fier" not in repr(made)
