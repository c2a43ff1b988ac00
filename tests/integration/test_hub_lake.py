"""Tables of the lake over a hub's HTTP API: rights of users, empty lakes, files to download."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.plain import data_section
from tests.spark import gold
from tests.support.gateway_peer import GatewayPeer
from tests.support.http_client import ask, document
from tests.support.processes import Waypost, hub
from tests.support.tenants import TenantHub

FLEET, NORTH, DEVICE = "boss@default", "ann@north", "pump@north"
PATHS = ("gold", "gold/series", "gold/outages", "completeness", "statements", "lake", "quarantine")


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TenantHub]:
    """Yield a hub with a table of two tenants."""
    users = {FLEET: ["view:$fleet"], NORTH: ["view:#"], DEVICE: ["send:#"]}
    made = TenantHub(tmp_path_factory.mktemp("tenants"), users, {})
    with made.process:
        rows = [gold.outage(0, 1, 2, tenant=tenant, gateway=f"gw-{tenant}") for tenant in ("north", "south")]
        gold.put(made.data / "lake", "outages", *rows)
        yield made


def test_user_reads_the_rows_of_its_tenant_only(tenants: TenantHub) -> None:
    for path, gateways in (
        ("gold/outages", ["gw-north"]),
        ("gold/outages?tenant=north", ["gw-north"]),
        ("gold/outages?q=south", []),
    ):
        status, found = tenants.ask(f"/api/v1/{path}", NORTH)
        assert (status, found["columns"]["gateway"]) == (200, gateways), path
    assert tenants.ask("/api/v1/gold/outages?tenant=south", NORTH)[0] == 403
    assert tenants.ask("/api/v1/lake", NORTH)[0] == 403
    status, found = tenants.ask("/api/v1/gold/outages?sort=gateway", FLEET)
    assert found["columns"]["gateway"] == ["gw-north", "gw-south"]
    for path in PATHS:
        assert tenants.ask(f"/api/v1/{path}", DEVICE)[0] == 403, path
        assert tenants.ask(f"/api/v1/{path}")[0] == 401, path


def test_wrong_questions_name_what_is_wrong(tenants: TenantHub) -> None:
    for path, status, word in (
        ("gold/telemetry", 400, "rollup_1m"),
        ("gold/outages?limit=100000", 400, "limit"),
        ("gold/outages?begin=yesterday", 400, "begin"),
        ("gold/rollup", 400, "begin"),
        ("completeness/nobody", 404, "nobody"),
        ("proof/nobody", 404, "nobody"),
    ):
        found = tenants.ask(f"/api/v1/{path}", FLEET)
        assert found[0] == status, path
        assert word in found[1]["error"], path


def test_table_that_no_job_has_made_is_empty_and_names_the_command(tenants: TenantHub) -> None:
    for path in ("gold/gaps", "gold/series", "completeness"):
        status, found = tenants.ask(f"/api/v1/{path}", FLEET)
        assert (status, found["version"], found["total"]) == (200, None, 0), path
        assert "waypost lake run" in found["missing"]


def test_damaged_table_is_no_fault_of_the_request(tenants: TenantHub) -> None:
    gold.put(tenants.data / "lake", "device_health", gold.device("pump7"))
    for path in (tenants.data / "lake" / "device_health").rglob("*.parquet"):
        path.write_bytes(b"damaged")
    status, found = tenants.ask("/api/v1/gold/device_health", FLEET)
    assert (status, "cannot be read" in found["error"]) == (503, True)
    assert tenants.ask("/api/v1/gold/outages", FLEET)[0] == 200


def test_hours_and_proof_of_a_gateway_need_no_analytics(tmp_path: Path) -> None:
    async def land(running: Waypost) -> None:
        peer = await GatewayPeer("hall 1").connect(running.endpoints["amqp"])
        peer.batch(0, "plant/1", 0, 3)
        peer.send("telemetry", 1, data_section(b"this is no batch"))
        await peer.until(lambda: len(peer.outcomes) == 2)
        peer.close()

    with hub(tmp_path) as running:
        asyncio.run(land(running))
        hours = document(running, "/api/v1/completeness/hall%201")
        assert hours["hours"] == []  # it has stated nothing
        assert hours["faults"] == []
        proof = ask(running, "GET", "/api/v1/proof/hall%201")
        assert proof.headers["content-disposition"] == 'attachment; filename="proof-hall_1.json"'
        assert proof.document["streams"][0]["landed"] == 3
        tables = {each["table"]: each for each in document(running, "/api/v1/lake")["tables"]}
        assert tables["telemetry"]["rows"] == 3
        sample = document(running, "/api/v1/quarantine")
        assert [row["gateway"] for row in sample["rows"]] == ["hall 1"]
