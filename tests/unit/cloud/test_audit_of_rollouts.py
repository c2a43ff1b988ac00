"""Line of the audit for a step of a roll-out: it is in the audit of the roll-out's tenant."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.applications import Starlette

from cloud.hub.audit_trail import AuditTrail, HubAudit
from cloud.hub.bundles.folder import BundleFolder
from cloud.hub.desired import http as tested
from cloud.hub.desired.service import DesiredConfigurations
from cloud.hub.registry.audit import AuditEntry
from edge.broker.http.access import HttpAccess


class Rollouts:
    """One roll-out, of the tenant south."""

    def get(self, identifier: str) -> Any:
        return SimpleNamespace(tenant="south") if identifier == "r1" else None

    def members(self, _identifier: str) -> list[Any]:
        return []

    def pause(self, _identifier: str) -> None:
        pass


@pytest.mark.parametrize(("identifier", "status", "tenant"), [("r1", 200, "south"), ("r2", 404, "default")])
def test_a_step_is_in_the_audit_of_the_rollouts_tenant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, identifier: str, status: int, tenant: str
) -> None:
    lines: list[AuditEntry] = []

    async def record(entry: AuditEntry) -> None:
        lines.append(entry)

    async def run(work: Any) -> Any:
        return work(SimpleNamespace(rollouts=Rollouts()))

    monkeypatch.setattr(tested, "rollout_row", lambda found, _members: {"tenant": found.tenant})
    desired = cast(DesiredConfigurations, SimpleNamespace(ask=run, now_us=lambda: 1))
    access, audit = HttpAccess(), cast(HubAudit, SimpleNamespace(record=record, now_us=lambda: 1))
    app = AuditTrail(Starlette(routes=tested.routes(desired, access, BundleFolder(tmp_path))), audit, access)
    path, sent = f"/api/v1/rollouts/{identifier}/pause", []
    scope = {
        "type": "http", "method": "POST", "path": path, "query_string": b"tenant=other", "headers": [],
        "client": ("10.0.0.7", 1),
    }  # fmt: skip

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, cast(Any, None), send))
    assert (sent[0]["status"], [each.tenant for each in lines]) == (status, [tenant])
