"""Texts for TLS errors, from either end of the connection."""

from __future__ import annotations

import ssl

import pytest

from bridge.tls_refusal import reason_of, refusal


@pytest.mark.parametrize("error", [ssl.SSLError(), ssl.SSLError(1, "of a library of its own"), OSError(1, "x"), None])
def test_unknown_errors_have_no_text(error: BaseException | None) -> None:
    assert refusal(error) is None


def test_alert_has_a_text() -> None:
    error = ssl.SSLError(1, "x")
    error.reason = "TLSV1_ALERT_UNKNOWN_CA"
    assert reason_of(error) == "TLSV1_ALERT_UNKNOWN_CA"
    assert "does not know the authority" in (refusal(error) or "")
