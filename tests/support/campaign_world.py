"""Campaign at a running hub with reports of devices, without gateways: for pages of the console."""

from __future__ import annotations

import contextlib
import itertools
import time
from pathlib import Path
from typing import Final

from bridge.artefacts.report import UpdateState
from cloud.hub.peers import DEFAULT_TENANT
from cloud.hub.registry.device_updates import DeviceUpdate, DeviceUpdates
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.opening import open_registry
from tests.support.artefacts import IMAGE, KEY, sealed
from tests.support.operator import HubOperator
from tests.support.processes import wait_until

CANARIES: Final = ("pump-01", "pump-02")
PUMPS: Final = tuple(f"pump-{number:02}" for number in range(1, 25))
SECOND: Final = PUMPS[2:12]
"""Devices of the second wave."""
_NUMBERS: Final = itertools.count(1)


def report(hub: Path, device: str, state: UpdateState, reason: str = "") -> None:
    """Record a report of a device in the registry of a hub, given by its data directory."""
    now = time.time_ns() // 1_000
    row = DeviceUpdate(
        tenant=DEFAULT_TENANT, name="blinker", version="1.2.0", device=device, state=state.value, reason=reason,
        gateway="north-hall", stream="a", sequence=next(_NUMBERS), reported_at=now, changed_at=now,
    )  # fmt: skip
    with contextlib.closing(open_registry(sqlite_url(hub / "registry.db")).database) as database:
        DeviceUpdates(database).record([row])


def start_campaign(operator: HubOperator, failures_max: int = 2) -> str:
    """Upload an artefact, register devices, start a campaign and let devices report up to its second wave; return the
    campaign."""
    hub = operator.hub.data
    steps = (
        ("/api/v1/artefact-keys", {"pem": KEY.public.pem, "label": "Maker"}, "application/json"),
        ("/api/v1/artefacts", sealed(), "application/cose"),
    )
    for path, body, kind in steps:
        assert operator.ask("POST", path, body, kind).status == 201
    part = operator.send("PUT", "artefacts/blinker/1.2.0/parts/0", IMAGE, "application/octet-stream")
    assert part.status == 200
    assert operator.send("POST", "artefacts/blinker/1.2.0/complete").status == 200
    for name in PUMPS:
        labels = {"site": "lyon", **({"ring": "canary"} if name in CANARIES else {})}
        extension = {"gateways": ["north-hall"], "labels": labels}
        made = operator.ask("POST", f"/v1/devices/{DEFAULT_TENANT}/{name}", {"ext": {"waypost": extension}})
        assert made.status == 201, made
    new = {
        "artefact": "blinker", "version": "1.2.0", "selector": "site=lyon", "waves": "ring=canary,50%,100%",
        "soak_s": 0, "failures_max": failures_max, "note": "blinker of spring",
    }  # fmt: skip
    answer = operator.send("POST", "campaigns", new)
    assert answer.status == 201, answer
    campaign = str(answer.document["id"])
    path = f"campaigns/{campaign}"
    for name in CANARIES:
        report(hub, name, UpdateState.HEALTHY)
    wait_until(lambda: operator.get(path)["devices"].get("sent") == len(SECOND), timeout_s=60, what="wave 2 starts")
    for name in SECOND[:6]:
        report(hub, name, UpdateState.HEALTHY)
    report(hub, SECOND[6], UpdateState.ROLLED_BACK, "no boot after 3 attempts")
    report(hub, SECOND[7], UpdateState.DOWNLOADING)
    wait_until(lambda: operator.get(path)["devices"].get("failed") == 1, timeout_s=60, what="a device has failed")
    return campaign
