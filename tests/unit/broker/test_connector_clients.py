"""Libraries of connectors are imported on first use, and an error names a missing one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edge.broker.configuration import Connector, ConnectorType, EndpointHost, Forwarder
from tests.integration.forwarders.gateways import eventually, gateways
from tests.support.feeding import running


def test_gateway_without_such_connectors_imports_no_library() -> None:
    code = "import edge.appliance.gateway, sys; print(sorted({'amqtt', 'httpx', 'aiokafka'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


@running
async def test_missing_library_is_reported_in_one_line_with_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "aiokafka" or "connectors.kafka." in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiokafka", None)
    hosts = (EndpointHost(host="127.0.0.1", port=1),)
    async with gateways("gw1") as (near,):
        await near.configure(
            Connector(name="peer", type=ConnectorType.KAFKA, hosts=hosts),
            Forwarder(name="f", filter="plant/#", connector="peer", remote_address="t"),
        )
        await eventually(lambda: near.connector().dialer.state.last_error)
        assert near.connector().dialer.state.last_error == (
            "kafka://127.0.0.1:1: library aiokafka is not installed: pip install 'waypost[kafka]'"
        )
