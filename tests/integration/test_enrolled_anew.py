"""`waypost enrol` ends the wait of a running gateway that is refused, or that dials a port without a hub."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from edge.broker.router.connector_uplink import BACKOFF
from tests.support.enrolled import EnrolledFleet, operator_uplink
from tests.support.processes import Waypost, free_port, wait_until

CONNECTED_S_MAX = 3.0
"""Longest time between the end of `waypost enrol` and the connection."""
REFUSED_S_MAX = 60.0


def waits_longest(log: Path) -> None:
    """Wait until the gateway has just started one of its longest waits."""

    def waits() -> list[float]:
        return [float(each) for each in re.findall(r"next attempt in (\d+\.\d) s", log.read_text())]

    seen = 0

    def begun() -> bool:
        nonlocal seen
        new, seen = waits()[seen:], len(waits())
        return any(each >= BACKOFF.limit_s / 2 + CONNECTED_S_MAX for each in new)

    wait_until(begun, timeout_s=REFUSED_S_MAX, what="the longest wait", every_s=0.1)


def connected_after(gateway: Waypost) -> float:
    """Return the seconds until the gateway is connected, at most 10 times the limit."""
    begun = time.monotonic()

    wait_until(
        lambda: operator_uplink(gateway)["state"] == "connected", timeout_s=10 * CONNECTED_S_MAX, what="connected"
    )
    return time.monotonic() - begun


@pytest.mark.slow
@pytest.mark.parametrize("moved", [False, True], ids=["revoked", "hub at another port"])
def test_running_gateway_connects_at_once_when_it_is_enrolled_again(tmp_path: Path, *, moved: bool) -> None:
    with EnrolledFleet(tmp_path) as fleet:
        gateway = fleet.enrol("hall")
        data, log = tmp_path / "hall", tmp_path / "hall.log"
        if moved:
            document = (data / "gateway.yaml").read_text()
            assert str(fleet.hub_port) in document
            file = fleet.written("elsewhere.yaml", document.replace(str(fleet.hub_port), str(free_port())))
            fleet.here("hall", "apply", "-f", file)
        else:
            fleet.fleet("revoke", "hall")
        gateway.start()
        waits_longest(log)
        token = fleet.fleet("token", "create", "--gateway", "hall")
        fleet.here("hall", "enrol", "--token", token, "--hub", fleet.url)
        assert connected_after(gateway) < CONNECTED_S_MAX
