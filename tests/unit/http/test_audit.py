"""Each change over HTTP is one line of the log."""

from __future__ import annotations

import base64
import logging

import pytest

from edge.broker.configuration import AuthenticationMode
from edge.output.repetition import Repetition
from tests.unit.http.test_sessions import OPERATOR_TOKEN, PAGE, SessionRig, run, sign_in

ANN = {"authorization": "Basic " + base64.b64encode(b"ann:pass-ann").decode()}
BOB = {"authorization": "Basic " + base64.b64encode(b"bob:pass-bob").decode()}


def audit(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name.endswith("http.audit")]


def test_who_from_where_what_and_the_outcome(caplog: pytest.LogCaptureFixture) -> None:
    async def test(rig: SessionRig) -> None:
        async with rig.browser() as browser:
            await browser.post("/api/v1/change?connector=a%0Ab", headers=ANN)
            await browser.delete("/api/v1/change", headers=BOB)
            await browser.put("/api/v1/nowhere", headers=ANN)
            await browser.get("/api/v1/change", headers=ANN)
            await browser.post("/api/v1/configuration/check", headers=ANN)
            await browser.post("/change", headers=ANN)
            await browser.post("/api/v1/change")
            await browser.post("/api/v1/change", headers={"authorization": "Basic YW5uOng="})
            await sign_in(browser)
            await browser.post("/api/v1/change", headers=PAGE)
        async with rig.browser(host="127.0.0.1") as program:
            await program.post("/api/v1/session/link", headers={"authorization": f"Bearer {OPERATOR_TOKEN}"})

    with caplog.at_level(logging.INFO):
        run(test)
    assert audit(caplog) == [
        "audit: user=ann from=10.0.0.7 POST /api/v1/change?connector=a%0Ab -> 200",
        "audit: user=bob from=10.0.0.7 DELETE /api/v1/change -> 403",
        "audit: user=ann from=10.0.0.7 PUT /api/v1/nowhere -> 404",
        "audit: user=ann from=10.0.0.7 POST /api/v1/change -> 200",
        "audit: user=operator from=127.0.0.1 POST /api/v1/session/link -> 200",
    ]
    assert "pass-ann" not in caplog.text
    assert OPERATOR_TOKEN not in caplog.text


def test_without_authentication(caplog: pytest.LogCaptureFixture) -> None:
    async def test(rig: SessionRig) -> None:
        async with rig.browser() as browser:
            await browser.post("/api/v1/change")

    with caplog.at_level(logging.INFO):
        run(test, mode=AuthenticationMode.NONE, host="127.0.0.1")
    assert audit(caplog) == ["audit: user=- from=127.0.0.1 POST /api/v1/change -> 200"]


def test_no_line_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async def test(rig: SessionRig) -> None:
        async with rig.browser() as browser:
            for _ in range(100):
                await browser.post("/api/v1/change", headers=ANN)

    with caplog.at_level(logging.INFO):
        run(test)
    limit = Repetition(0.0)
    lines = [each for each in caplog.records if each.name.endswith("http.audit")]
    assert len(lines) == 100
    assert not all(limit.admits(each) for each in lines), "the limit would apply"
    assert all(each.__dict__["unlimited"] for each in lines)
