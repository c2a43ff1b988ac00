"""The whole cluster: registry, bucket, hubs, load balancer, gateways and devices; started and ended in this order."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.demo.accounting import Account, Row, account, total
from tests.demo.cluster.admission import Admission, CertificateAdmission, GatewayPorts, OpenAdmission
from tests.demo.cluster.application import CommandingApplication
from tests.demo.cluster.authority import AuthorityProcess
from tests.demo.cluster.balancer import Balancer, HubPorts
from tests.demo.cluster.bucket import ObjectStoreServer
from tests.demo.cluster.copies import CopyReceiver
from tests.demo.cluster.database import Database
from tests.demo.cluster.keycloak import KeycloakServer
from tests.demo.cluster.launching import Launcher, check
from tests.demo.cluster.messages import MessageBroker
from tests.demo.cluster.people import ConsolePeople
from tests.demo.cluster.realm import PASSWORD, PEOPLE, issuer_settings
from tests.demo.cluster.users import ClusterUsers
from tests.demo.journals import Journal
from tests.demo.lake import Lake
from tests.demo.ports import free_ports
from tests.demo.processes import Child, waypost
from tests.demo.stage import DRAIN_S, READY_S

INTERVAL_S: Final = 0.05
"""Seconds between two readings of a device."""
HUB_STOP_S: Final = 60.0
"""Longest end of a hub: it lands what it has received."""
GATEWAY_STOP_S: Final = 30.0
LANDED_S: Final = 120.0
"""Longest time from the last acknowledgement of a device until everything is in the lake."""
COMPARED_EVERY_S: Final = 1.0
"""Interval of comparing journals and lake."""


class Cluster:
    """All processes of the demo in one folder."""

    def __init__(
        self, folder: Path, launcher: Launcher, *, hubs: int, gateways: int, keycloak: bool, say: Callable[[str], None]
    ) -> None:
        """`keycloak`: people sign in, and gateways enrol; `say` shows a line of progress."""
        self._folder = folder
        self._launcher = launcher
        self._say = say
        ports = iter(free_ports(2 * (hubs + gateways)))
        self.hubs = [HubPorts(f"hub{n + 1}", next(ports), next(ports)) for n in range(hubs)]
        self.gateways = [GatewayPorts(f"gw{n + 1}", next(ports), next(ports)) for n in range(gateways)]
        self.database = Database(folder / "postgresql", launcher)
        self.bucket = ObjectStoreServer(launcher)
        self.balancer = Balancer(folder, launcher, tls=keycloak)
        self.keycloak = KeycloakServer(folder / "keycloak", launcher) if keycloak else None
        """None: everybody on this machine may do everything."""
        self.authority = AuthorityProcess(folder / "authority", launcher) if keycloak else None
        self._admission: Admission = OpenAdmission()
        if self.authority is not None:
            data, console = folder / self.hubs[0].name, self.hubs[0].http
            self._admission = CertificateAdmission(launcher, self.authority, data, console)
        found = launcher.programs.rabbitmq
        self.broker = MessageBroker(folder / "rabbitmq", launcher, found) if found is not None else None
        """None if RabbitMQ is not installed."""
        self._running: dict[str, Child] = {}
        self._devices: dict[str, Child] = {}
        self._journals: list[Journal] = []

    async def start(self) -> None:
        """Start everything. Raises DemoError."""
        self._say("PostgreSQL with a synchronous standby, and an S3 server")
        await asyncio.gather(self.database.start(), self.bucket.start())
        if self.broker is None:
            self._say("no message broker: install Debian's package rabbitmq-server for one")
        else:
            self._say("RabbitMQ with quorum queues")
            await self.broker.start()
        if self.keycloak is not None:
            await self.keycloak.start([self._console(port) for port in self._console_ports], self._say)
        spec = self._hub_spec()
        self._configuration.write_text(json.dumps({"apiVersion": "waypost/v1", "kind": "Hub", "spec": spec}))
        if self.authority is not None:
            self._say("process with the key of the authority")
            await self.authority.start(spec)
        for hub in self.hubs:
            self._say(hub.name)
            await self._start_hub(hub)
        self._say("HAProxy")
        await self.balancer.start(self.hubs)
        self._say(f"gateways{' that enrol' if self.authority else ''}: {len(self.gateways)}, each with a device")
        await asyncio.gather(*map(self._start_gateway, self.gateways))

    def users(self) -> ClusterUsers:
        """Return users of the message broker and of the issuer, if there are those. For the time after `start`."""
        application, copies, people = None, None, None
        if self.broker is not None:
            application = CommandingApplication(self.broker.url, [each.name for each in self.gateways])
            copies = CopyReceiver(self.broker.url)
        if self.authority is not None:
            balancer, *hubs = map(self._console, self._console_ports)
            people = ConsolePeople(balancer, hubs, len(self.gateways), self.authority.context)
        return ClusterUsers(application, copies, people)

    async def roll(self) -> None:
        """Restart one hub after the other. Raises DemoError."""
        for hub in self.hubs:
            self._say(f"{hub.name} restarts; its gateways move")
            await self._launcher.end(self._running.pop(hub.name), signal.SIGTERM, HUB_STOP_S)
            await self._start_hub(hub)

    def rows(self) -> list[Row]:
        """Return the rows of the lake. Blocks."""
        return self._lake.rows()

    async def compare(self) -> Account:
        """Stop the devices, and compare what was acknowledged to them with the lake. Raises DemoError."""
        self._say("devices stop; comparing their acknowledgements with the lake")
        for child in self._devices.values():
            child.signal(signal.SIGTERM)
        for child in self._devices.values():
            if await child.exit_code(DRAIN_S + GATEWAY_STOP_S):
                raise child.failure("did not deliver its readings")
        self._devices.clear()
        for journal in self._journals:
            journal.follow()
        deadline = asyncio.get_running_loop().time() + LANDED_S
        while True:
            sums = await asyncio.to_thread(self._account)
            if sums.adds_up or asyncio.get_running_loop().time() > deadline:
                return sums
            await asyncio.sleep(COMPARED_EVERY_S)

    async def stop(self) -> None:
        """End everything in order. Raises DemoError when a process does not end in time."""
        for child in self._devices.values():
            child.signal(signal.SIGKILL)
        for group, within_s in ((self.gateways, GATEWAY_STOP_S), (self.hubs, HUB_STOP_S)):
            children = [self._running[each.name] for each in group if each.name in self._running]
            await asyncio.gather(*(self._launcher.end(child, signal.SIGTERM, within_s) for child in children))
        await self.balancer.stop()
        if self.broker is not None:
            await self.broker.stop()
        for each in (self.authority, self.keycloak):
            if each is not None:
                await each.stop()
        await self.bucket.stop()
        await self.database.stop()

    def check(self) -> None:
        """Raise DemoError when a process has ended that should be running."""
        broker = self.broker.processes if self.broker is not None else ()
        optional = [each.process for each in (self.authority, self.keycloak) if each is not None]
        others = (self.balancer.process, self.bucket.process, *self.database.servers, *broker, *optional)
        for child in (*self._running.values(), *self._devices.values(), *filter(None, others)):
            check(child)

    def addresses(self) -> Sequence[tuple[str, str]]:
        """Return what there is, and where."""
        return [
            ("gateways connect to", f"{self._admission.amqp}://127.0.0.1:{self.balancer.amqp}"),
            ("console of the hubs", self._console(self.balancer.http)),
            *((f"console of {hub.name}", self._console(hub.http)) for hub in self.hubs),
            *self._sign_ins(),
            *((f"console of {gateway.name}", f"http://127.0.0.1:{gateway.http}/") for gateway in self.gateways),
            ("load balancer", f"http://127.0.0.1:{self.balancer.statistics}/"),
            ("registry", self.database.url),
            ("its standby", f"127.0.0.1:{self.database.standby_port}"),
            ("lake", f"{self.bucket.lake} at http://127.0.0.1:{self.bucket.port}"),
            *((("message broker", self.broker.url),) if self.broker is not None else ()),
            ("logs", str(self._folder / "logs")),
        ]

    # --- inside -----------------------------------------------------------------------------------------------------

    @property
    def _configuration(self) -> Path:
        return self._folder / "hub.yaml"

    @property
    def _console_ports(self) -> Sequence[int]:
        return [self.balancer.http, *(hub.http for hub in self.hubs)]

    def _console(self, port: int) -> str:
        return f"{self._admission.http}://127.0.0.1:{port}/"

    def _sign_ins(self) -> Sequence[tuple[str, str]]:
        if self.keycloak is None:
            return []
        people = ", ".join(f"{name} ({group or 'no group'})" for name, group in PEOPLE.items())
        return [("Keycloak", self.keycloak.issuer), ("people", people), ("their password", PASSWORD)]

    def _hub_spec(self) -> dict[str, object]:
        spec: dict[str, object] = {"registry": self.database.url, "lake": self.bucket.lake, "applications": False}
        if self.broker is not None:
            spec["messaging"] = self.broker.settings
        if self.keycloak is not None:
            spec["oidc"] = issuer_settings(self.keycloak.issuer)
        if self.authority is not None:
            spec["authority"] = self.authority.settings
        return spec

    async def _start_hub(self, hub: HubPorts) -> None:
        data = self._folder / hub.name
        words = ["hub", "run", "--data", str(data), "--config", str(self._configuration)]
        words += [*self._admission.hub_options, "--amqp", f"127.0.0.1:{hub.amqp}", "--http", f"127.0.0.1:{hub.http}"]
        await self._start(hub.name, words, self.bucket.environment)

    async def _start_gateway(self, gateway: GatewayPorts) -> None:
        data = self._folder / gateway.name
        await self._start(gateway.name, await self._admission.gateway_command(gateway, data, self.balancer.amqp), {})
        device = f"{gateway.name}-cpu"
        journal = Journal(self._folder / f"{device}.jsonl", device, gateway.name)
        words = ["simulate", "--protocol", "mqtt", "--kind", "cpu", "--name", device, "--interval", str(INTERVAL_S)]
        words += ["--url", f"mqtt://127.0.0.1:{gateway.mqtt}", "--journal", str(journal.path), "--drain", str(DRAIN_S)]
        self._devices[device] = await self._launcher.start(device, waypost(*words))
        self._journals.append(journal)

    async def _start(self, name: str, words: Sequence[str], environment: Mapping[str, str]) -> None:
        child = await self._launcher.start(name, waypost(*words), environment=environment)
        self._running[name] = child
        await child.ready(READY_S)

    @property
    def _lake(self) -> Lake:
        return Lake(self.bucket.lake, {**self.bucket.environment, "AWS_ALLOW_HTTP": "true"})

    def _account(self) -> Account:
        """Compare journals and lake. Blocks."""
        rows, ledger = self.rows(), self._lake.ledger()
        deliveries = [journal.deliveries() for journal in self._journals]
        return total([account(gateway.name, deliveries, rows, ledger) for gateway in self.gateways])


def explain(sums: Account) -> str:
    """Return the result of a comparison as one line."""
    return (
        f"acknowledged {sums.acknowledged}, in the lake {sums.landed}, twice {sums.duplicates}, "
        f"unexplained gaps {sums.unexplained_gaps}"
    )
