"""A hub in development mode has no authentication: it accepts only its own pages, under names of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fault.hostile.web import FOREIGN, ask
from tests.support.processes import Waypost, hub

PATHS = ("/", "/healthz", "/metrics", "/api/v1/status", "/api/v1/gateways", "/api/v1/gateways/gw1", "/nothing")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waypost]:
    with hub(tmp_path_factory.mktemp("hub")) as process:
        yield process


@pytest.mark.parametrize("path", PATHS)
def test_hub_accepts_only_its_own_pages(running: Waypost, path: str) -> None:
    port = running.port("http")
    for foreign in (FOREIGN, {"Host": "evil.example"}, {"Host": "192.0.2.7"}, {"Host": "hub.example"}):
        assert ask(port, "GET", path, foreign).status == 421
    for page in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        assert ask(port, "GET", path, page).status == 403
    own = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}", "Sec-Fetch-Site": "same-origin"}
    expected = 404 if path.endswith(("gw1", "nothing")) else 200
    assert ask(port, "GET", path, own).status == expected
    assert ask(port, "GET", path).status == expected
