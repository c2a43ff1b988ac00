"""Admission of gateways and people at the hubs: everyone of this machine, or by certificates and an issuer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import httpx

from tests.demo.cluster.authority import AuthorityProcess
from tests.demo.cluster.launching import Launcher
from tests.demo.errors import DemoError
from tests.demo.processes import waypost

FORWARD: Final = "plant/#"
"""Addresses that gateways forward to the hubs."""


class GatewayPorts(NamedTuple):
    """One gateway."""

    name: str
    mqtt: int
    http: int


class Admission(Protocol):
    """Options of hubs and gateways that decide about admission."""

    @property
    def amqp(self) -> str:
        """Scheme of URLs for gateways."""
        ...

    @property
    def http(self) -> str:
        """Scheme of URLs of the hubs' consoles."""
        ...

    @property
    def hub_options(self) -> Sequence[str]:
        """Options of hubs."""
        ...

    async def gateway_command(self, gateway: GatewayPorts, data: Path, hub_port: int) -> Sequence[str]:
        """Prepare the data directory of a gateway; return its command. Raises DemoError."""
        ...


class OpenAdmission:
    """No TLS and no credentials: everything is on loopback."""

    amqp: Final = "amqp"
    http: Final = "http"
    hub_options: Final = ("--dev",)

    async def gateway_command(self, gateway: GatewayPorts, data: Path, hub_port: int) -> Sequence[str]:
        return [
            "run", "--data", str(data), "--dev", "--gateway", gateway.name,
            "--mqtt", f"127.0.0.1:{gateway.mqtt}", "--http", f"127.0.0.1:{gateway.http}", "--amqp", "127.0.0.1:0",
            "--hub", f"amqp://127.0.0.1:{hub_port}", "--forward", FORWARD,
        ]  # fmt: skip


class CertificateAdmission:
    """TLS ends at the hubs, which trust one authority; gateways enrol; people sign in at an issuer."""

    amqp: Final = "amqps"
    http: Final = "https"
    hub_options: Final = ()

    def __init__(self, launcher: Launcher, authority: AuthorityProcess, hub: Path, console_port: int) -> None:
        """`hub`: data directory of the hub where tokens are made; `console_port`: its console."""
        self._launcher = launcher
        self._authority = authority
        self._hub = hub
        self._console = f"https://127.0.0.1:{console_port}/"

    async def gateway_command(self, gateway: GatewayPorts, data: Path, hub_port: int) -> Sequence[str]:
        token = data.with_name(f"{gateway.name}.token")
        token.touch(0o600)
        token.write_text(await self._new_token(gateway.name))
        words = [
            "init", "--data", str(data), "--name", gateway.name, "--token-file", str(token),
            "--mqtt", f"127.0.0.1:{gateway.mqtt}", "--http", f"127.0.0.1:{gateway.http}",
            "--amqp", "none", "--https", "none", "--hub", f"amqps://127.0.0.1:{hub_port}", "--forward", FORWARD,
        ]  # fmt: skip
        await self._launcher.run(f"init-{gateway.name}", waypost(*words))
        # The devices of the demo have no passwords: they and the consoles of gateways are on loopback.
        resources = data.with_name(f"{gateway.name}.yaml")
        resources.write_text((data / "gateway.yaml").read_text().replace("name: standard", "name: none"))
        return ["run", "--data", str(data), "--config", str(resources)]

    async def _new_token(self, gateway: str) -> str:
        """Return a token for the enrolment of a gateway, which the operator of a hub makes."""
        headers = {"Authorization": f"Bearer {(self._hub / 'operator.token').read_text().strip()}"}
        async with httpx.AsyncClient(verify=self._authority.context, headers=headers) as client:
            made = await client.post(f"{self._console}api/v1/tokens", json={"gateways": [gateway]})
        if made.status_code != httpx.codes.CREATED:
            raise DemoError(f"the hub made no token for {gateway}: {made.status_code}", made.text)
        return str(made.json()["tokens"][0]["token"])
