"""A hub that accepts gateways by certificate, and enrolled gateways, each behind its own link."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from tests.fault.flaps.devices import ExactlyOnce
from tests.support.clock import Clock
from tests.support.command import item_in, run_waypost
from tests.support.cut_link import CutLink
from tests.support.enrolled import run_fleet
from tests.support.http_client import ask
from tests.support.processes import Waypost, free_port, wait_until
from tests.support.publisher import Publisher

LIFE_S: Final = 300.0
"""Life of a gateway's certificate by the hub's clock: longer than a busy machine delays anything."""
AHEAD_S: Final = 216
"""Offset of the gateways' clocks.

A new certificate is due for renewal at once (after two thirds of its life, with a twentieth of jitter), and then once
in a tenth of its life.
"""
UP_S: Final = 90.0
"""Time in which a link on a busy machine comes up again after a request."""

_HUB: Final = f"""
apiVersion: waypost/v1
kind: Hub
spec:
  certificateDays: {LIFE_S / 86_400}
  gatherMilliseconds: 100
"""


class Gateway:
    """Enrolled gateway with two devices, and its link to the hub."""

    def __init__(self, name: str, data: Path, link: CutLink, process: Waypost, mqtt: int, pause_s: float) -> None:
        self.name = name
        self.data = data
        self.link = link
        self.process = process
        self.revoked = False
        self.devices: list[ExactlyOnce | Publisher] = [
            ExactlyOnce(f"{name}-exact", self._device("exact"), mqtt, f"plant/{name}/exact", pause_s=pause_s),
            Publisher(
                f"{name}-once", mqtt, f"plant/{name}/once", password=self._device("once"), window=10, pause_s=pause_s
            ),
        ]

    def ask(self, what: str = "", method: str = "GET") -> dict[str, Any]:
        """Return the connector to the hub as ``/api/v1/bridge`` reports it."""
        token = (self.data / "operator.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        answer = ask(self.process, method, f"/api/v1/bridge{what}", headers=headers, timeout_s=UP_S)
        assert answer.status == HTTPStatus.OK, answer
        (connector,) = answer.document["connectors"]
        return dict(connector)

    def come_up(self) -> None:
        """Bring the link up now, however often it broke."""
        self.until(lambda said: said["state"] == "connected", "the link is up", nudged=True)

    def until(self, condition: Any, what: str, *, nudged: bool = False) -> None:
        """Wait until `condition` holds for the connector."""

        def holds() -> bool:
            said = self.ask()
            if nudged and said["state"] != "connected":
                self.ask("/resume", "POST")
            return bool(condition(said))

        wait_until(holds, timeout_s=UP_S, what=f"{self.name}: {what}", every_s=0.2)

    def _device(self, name: str) -> str:
        words = ("user", "add", f"{self.name}-{name}", "--data", str(self.data), "--allow", "send:plant/#", "--json")
        return str(item_in(run_waypost(*words).stdout)["password"])


class Fleet:
    """Hub and gateways; made by `running`."""

    def __init__(self, folder: Path, hub: Waypost) -> None:
        self.folder = folder
        self.hub = hub
        self.gateways: list[Gateway] = []

    @property
    def lake(self) -> Path:
        return self.folder / "hub" / "lake"

    def command(self, *words: str) -> str:
        """Return the output of a command of the hub."""
        return run_fleet(self.folder, *words)

    def revoke(self, gateway: Gateway) -> None:
        """Revoke the gateway's certificate; the hub refuses it on return, whatever the state of its link."""
        self.command("revoke", gateway.name)
        gateway.revoked = True
        gateway.until(lambda said: "was revoked" in (said["last_error"] or ""), "it is shut out", nudged=True)

    def enrol_again(self, gateway: Gateway) -> None:
        """Enrol with a new token while the gateway runs."""
        token = self.command("token", "create", "--gateway", gateway.name)
        done = run_waypost("enrol", "--data", str(gateway.data), "--token", token)
        assert done.returncode == 0, done.stderr
        gateway.revoked = False
        gateway.come_up()

    @property
    def renewals(self) -> int:
        return len(re.findall("renewed the certificate of gateway", (self.folder / "hub.log").read_text()))


@contextmanager
def running(folder: Path, names: list[str], *, pause_s: float) -> Iterator[Fleet]:
    """Run a fleet of devices that publish, each with `pause_s` between its messages."""
    (folder / "hub.yaml").write_text(_HUB)
    amqp = free_port()
    places = (f"--amqp=127.0.0.1:{amqp}", "--http=127.0.0.1:0", "--config", str(folder / "hub.yaml"))
    hub = Waypost(folder / "hub.log", "hub", "run", "--data", str(folder / "hub"), *places)
    with ExitStack() as stack:
        clock = stack.enter_context(Clock(folder, synchronized=True))
        clock.set(AHEAD_S, synchronized=True)
        fleet = Fleet(folder, stack.enter_context(hub))
        for name in names:
            fleet.gateways.append(_gateway(fleet, name, amqp, clock, stack, pause_s))
        for gateway in fleet.gateways:
            for device in gateway.devices:
                device.start()
        yield fleet


def _gateway(fleet: Fleet, name: str, amqp: int, clock: Clock, stack: ExitStack, pause_s: float) -> Gateway:
    data, mqtt = fleet.folder / name, free_port()
    link = stack.enter_context(CutLink(amqp))
    url = f"amqps://localhost:{link.port}"
    told = ("--name", name, "--hub", url, "--token", fleet.command("token", "create"), "--forward", "plant/#")
    places = ("--mqtt", f"127.0.0.1:{mqtt}", "--amqp", "none", "--http", "127.0.0.1:0", "--https", "none")
    done = run_waypost("init", "--data", str(data), *told, *places)
    assert done.returncode == 0, done.stderr
    process = Waypost(fleet.folder / f"{name}.log", "run", "--data", str(data))
    process.environment = clock.environment
    return Gateway(name, data, link, stack.enter_context(process), mqtt, pause_s)


__all__ = ["Fleet", "Gateway", "running"]
