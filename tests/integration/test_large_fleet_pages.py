"""Ten thousand registered gateways at a hub: time of a page of them over HTTP, on SQLite and on PostgreSQL."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import statistics
import time
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from cloud.hub.registry.location import parse, sqlite_url
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry.schema import certificates, configured, gateways, labels, tenants
from tests.support.enrolled import enrolling_hub
from tests.support.processes import Waypost

GATEWAYS: Final = 10_000
SITES: Final = 70
REQUESTS: Final = 60
PAGE_S_MAX: Final = 0.05
SPARE: Final = 4
"""Slowness of the slowest machine that runs these tests, relative to one on which the goal is measured."""
PATHS: Final = (
    "gateways?limit=50",
    "gateways?limit=50&sort=-waiting",
    "configurations?limit=50",
    "configurations?limit=50&state=unconfirmed",
    "labels?limit=50",
    "labels?limit=50&selector=site%3Dsite-3",
    "labels?limit=50&selector=site!%3Dsite-3",
)

pytestmark = pytest.mark.slow


@pytest.fixture(params=["sqlite", "postgresql"])
def registry(request: pytest.FixtureRequest, tmp_path: Path) -> sa.URL:
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "large.db")
    server = request.getfixturevalue("postgres")
    return parse(server.url(server.schema()))


def fill(registry: sa.URL) -> None:
    """Store enrolled gateways with labels and reports; each 1 000th does not have its wanted version."""
    now_us = time.time_ns() // 1_000
    names = [f"gw{number:05d}" for number in range(GATEWAYS)]
    common = {
        "first_seen": now_us,
        "last_seen": now_us,
        "connected": False,
        "remote": "-",
        "generation": 1,
        "landed": 7,
    }
    paper = {"key_id": b"k", "begins_at": now_us, "ends_at": now_us + 10**14, "pem": ""}
    reported = {"wanted": 3, "changed_at": now_us, "reported_at": now_us}
    digest = "5" * 64

    def report(place: int) -> str:
        return f'{{"version":{3 if place % 1_000 else 2},"newest":3,"digest":"{digest}"}}'

    def rows(**more: Any) -> list[dict[str, Any]]:
        return [{"tenant": "default", **more} for _ in names]

    def work(tx: sa.Connection) -> None:
        tx.execute(tenants.insert().values(name="default", created_at=now_us))
        tx.execute(gateways.insert(), [row | {"name": name} for row, name in zip(rows(**common), names, strict=True)])
        parts: tuple[tuple[sa.Table, list[dict[str, Any]]], ...] = (
            (certificates, [paper | {"serial": f"{place:040x}"} for place in range(GATEWAYS)]),
            (labels, [{"key": "site", "value": f"site-{place % SITES}"} for place in range(GATEWAYS)]),
            (configured, [reported | {"report": report(place)} for place in range(GATEWAYS)]),
        )
        for table, found in parts:
            keys = [{"tenant": "default", "gateway": name} for name in names]
            tx.execute(table.insert(), [key | row for key, row in zip(keys, found, strict=True)])

    with contextlib.closing(open_registry(registry).database) as database:
        database.transaction(work)
        database.transaction(lambda tx: tx.execute(sa.text("ANALYZE")))  # PostgreSQL does so itself after a minute


def seconds_of(connection: http.client.HTTPConnection, path: str, token: str) -> float:
    """Return the time of a request and its answer."""
    begin = time.perf_counter()
    connection.request("GET", f"/api/v1/{path}", headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    body = answer.read()
    took_s = time.perf_counter() - begin
    assert answer.status == 200, body
    return took_s


def measure(server: Waypost, path: str) -> list[float]:
    """Return the times of requests over one connection, sorted; without the first one."""
    token = (server.data / "operator.token").read_text().strip()
    context = ssl.create_default_context(cafile=str(server.data / "authority" / "ca.pem"))
    connection = http.client.HTTPSConnection("localhost", server.port("https"), timeout=60, context=context)
    with contextlib.closing(connection):
        seconds_of(connection, path, token)
        return sorted(seconds_of(connection, path, token) for _ in range(REQUESTS))


def test_page_of_a_large_fleet_is_quick(registry: sa.URL, tmp_path: Path) -> None:
    fill(registry)
    config = tmp_path / "hub.yaml"
    url = registry.render_as_string(hide_password=False)
    config.write_text(f"{{apiVersion: waypost/v1, kind: Hub, spec: {{registry: '{url}'}}}}\n")
    with enrolling_hub(tmp_path, "--config", str(config)) as server:
        for path in PATHS:
            found = measure(server, path)
            median = statistics.median(found)
            print(f"{path}: median {1e3 * median:.1f}, most {1e3 * found[-1]:.1f} ms")
            assert median <= SPARE * PAGE_S_MAX, path
