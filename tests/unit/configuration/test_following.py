"""A gateway follows applied resources at any time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from edge.appliance.resource_commands import apply
from edge.broker.configuration import BrokerConfiguration
from edge.configuration.following import AppliedConfiguration, ConfigurationFollower
from edge.configuration.options import RunOptions, configuration_of

GATEWAY = """
apiVersion: waypost/v1
kind: Gateway
metadata: {name: gw1}
spec: {listeners: {mqtt: "127.0.0.1:0"}}
"""
ADDRESS = """
apiVersion: enmasse.io/v1beta1
kind: Address
metadata: {name: default.late}
spec: {address: late, type: queue}
"""


class Reconfigured:
    """Stub for the gateway."""

    def __init__(self) -> None:
        self.configuration: BrokerConfiguration | None = None

    async def reconfigure(self, configuration: BrokerConfiguration) -> None:
        self.configuration = configuration


class FirstRefused(Reconfigured):
    """Stub that raises an unexpected error at first."""

    refused = False

    async def reconfigure(self, configuration: BrokerConfiguration) -> None:
        if not self.refused:
            self.refused = True
            raise KeyError("nobody thought of it")
        await super().reconfigure(configuration)


def applied(data: Path, text: str) -> None:
    done = CliRunner().invoke(apply, ["--data", str(data), "-f", "-"], input=text)
    assert done.exit_code == 0, done.output


def test_change_between_reading_and_watching_is_followed(tmp_path: Path) -> None:
    async def scenario() -> BrokerConfiguration | None:
        options = RunOptions(data=tmp_path)
        applied(tmp_path, GATEWAY)
        started = AppliedConfiguration.read(options)
        assert "late" not in repr(configuration_of(options, started.resources).addresses)
        applied(tmp_path, ADDRESS)
        gateway, taken_over = Reconfigured(), asyncio.Event()
        following = ConfigurationFollower(options, started)
        watching = asyncio.create_task(following.watch(gateway, taken_over.set))
        async with asyncio.timeout(20):
            await taken_over.wait()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return gateway.configuration

    configuration = asyncio.run(scenario())
    assert configuration is not None
    assert "late" in repr(configuration.addresses)


def test_failing_change_is_logged_and_the_next_one_is_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> BrokerConfiguration | None:
        options = RunOptions(data=tmp_path)
        applied(tmp_path, GATEWAY)
        gateway, taken_over = FirstRefused(), asyncio.Event()
        following = ConfigurationFollower(options, AppliedConfiguration.read(options))
        watching = asyncio.create_task(following.watch(gateway, taken_over.set))
        applied(tmp_path, ADDRESS)
        async with asyncio.timeout(20):
            while not gateway.refused:
                await asyncio.sleep(0.01)
            applied(tmp_path, ADDRESS.replace("late", "later"))
            await taken_over.wait()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return gateway.configuration

    configuration = asyncio.run(scenario())
    assert "later" in repr(configuration)
    assert "unexpected error" in caplog.text
