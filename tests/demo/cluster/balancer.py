"""HAProxy in front of the hubs, as a load balancer of a cloud: TCP only, TLS ends at the hubs."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import httpx

from tests.demo.cluster.launching import Launcher, until
from tests.demo.ports import free_ports
from tests.demo.processes import Child

READY_PATH: Final = "/readyz"
"""Path that says whether a hub takes connections: not while it closes them to stop."""
STOP_S: Final = 10.0


class HubPorts(NamedTuple):
    """Ports of one hub."""

    name: str
    amqp: int
    http: int


def configuration(hubs: Sequence[HubPorts], amqp: int, http: int, statistics: int, *, tls: bool) -> str:
    """Return the configuration. A hub gets connections while its port for HTTP, or HTTPS (`tls`), answers."""
    check = "check check-ssl verify none" if tls else "check"
    gateways = "".join(f"  server {hub.name} 127.0.0.1:{hub.amqp} {check} port {hub.http}\n" for hub in hubs)
    consoles = "".join(f"  server {hub.name} 127.0.0.1:{hub.http} {check}\n" for hub in hubs)
    return f"""\
global
  maxconn 2000
defaults
  mode tcp
  timeout connect 5s
  timeout client 10m
  timeout server 10m
  option redispatch
  option httpchk GET {READY_PATH}
  http-check expect status 200
  default-server inter 1s fall 2 rise 1
listen gateways
  bind 127.0.0.1:{amqp}
  balance leastconn
{gateways}listen consoles
  bind 127.0.0.1:{http}
  balance source
{consoles}listen statistics
  bind 127.0.0.1:{statistics}
  mode http
  stats enable
  stats uri /
"""


class Balancer:
    """One HAProxy."""

    def __init__(self, folder: Path, launcher: Launcher, *, tls: bool) -> None:
        """`tls`: the consoles of the hubs speak HTTPS."""
        self._tls = tls
        self._file = folder / "haproxy.cfg"
        self._launcher = launcher
        self.amqp, self.http, self.statistics = free_ports(3)
        self.process: Child | None = None

    async def start(self, hubs: Sequence[HubPorts]) -> None:
        """Start it; return when it has a hub. Raises DemoError."""
        self._file.write_text(configuration(hubs, self.amqp, self.http, self.statistics, tls=self._tls))
        command = [str(self._launcher.programs.haproxy), "-db", "-f", str(self._file)]
        self.process = await self._launcher.start("haproxy", command)
        await until(self.process, self._reaches_a_hub)

    async def stop(self) -> None:
        """End it. Raises DemoError when it does not end."""
        if self.process is not None:
            await self._launcher.end(self.process, signal.SIGTERM, STOP_S)

    async def _reaches_a_hub(self) -> bool:
        address = f"{'https' if self._tls else 'http'}://127.0.0.1:{self.http}{READY_PATH}"
        async with httpx.AsyncClient(verify=False) as client:
            try:
                return (await client.get(address)).status_code == httpx.codes.OK
            except httpx.HTTPError:
                return False
