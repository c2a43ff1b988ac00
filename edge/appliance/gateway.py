"""The running gateway: the broker with its store, uplinks and console."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bridge.proxy import PeerRoute
from bridge.resources.endpoint import ListenEndpoint
from bridge.version import VERSION
from edge.appliance.addresses.directory import AddressDirectory
from edge.appliance.addresses.sources import AddressSources
from edge.appliance.artefacts.keeper import ArtefactKeeper
from edge.appliance.artefacts.wiring import DeviceArtefacts, keeper_of
from edge.appliance.clients.directory import ClientDirectory
from edge.appliance.clients.sources import ClientSources
from edge.appliance.clock import ClockQuality
from edge.appliance.console.event_journal import EventJournal
from edge.appliance.console.series import SeriesSample, StatusSeries
from edge.appliance.console.status import (
    AddressStatus,
    CommitDurations,
    FlowStatus,
    GatewayStatus,
    MemoryStatus,
    ScheduledStatus,
    UplinkStatus,
    show_counts,
)
from edge.appliance.devices.returning import make_returns
from edge.appliance.gateway_space import GatewaySpace, open_space_store, with_implied_addresses
from edge.appliance.health import GatewayHealth
from edge.appliance.identity.location import REVOKED, identity_file
from edge.appliance.identity.own_certificate import OwnCertificate
from edge.appliance.identity.renewal import Renewal
from edge.appliance.identity.revocations import HubRevocations
from edge.appliance.muting.mutes import ProblemMutes
from edge.appliance.status_problems import StatusProblems
from edge.appliance.tenant_spaces import TenantSpaces
from edge.appliance.wear import Outlook
from edge.broker.configuration import BrokerConfiguration, DeviceTls, Protocol
from edge.broker.delivery.durable import FORWARDER_PREFIX
from edge.broker.listeners.admission import Admission
from edge.broker.listeners.endpoints import running_endpoints
from edge.broker.listeners.tcp import ListenError
from edge.broker.listeners.web.bound_socket import BoundSocket
from edge.broker.listeners.web.lazy_server import LazyWebServer
from edge.broker.router.router import Router
from edge.broker.router.uplinks import Uplinks, is_to_hub
from edge.broker.security.credentials import CredentialsError
from edge.broker.security.operator_token import operator_token
from edge.broker.served_space import ServedSpace
from edge.broker.server import Broker
from edge.broker.store.records import StoreTotals
from edge.broker.store.sqlite import SqliteStore
from edge.broker.store.wear import BlockDevice
from edge.health.problems import HealthProblem
from edge.output import logs
from edge.output.log_history import event

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from edge.appliance.configuring.service import ConfigurationService
    from edge.appliance.doctor.uplink_check import UplinkCheck
    from edge.broker.http.api import HttpDeviceApi
    from edge.broker.http.polls import WaitingPoll
    from edge.broker.http.session_keeper import SessionKeeper
    from edge.broker.router.connector_uplink import ConnectorUplink
    from edge.configuration.trials import Trials

log = logging.getLogger(__name__)

REPORT_INTERVAL_S: Final = 1.0
"""Interval at which the uplinks check whether an hour is over and its manifest is due."""

STATUS_PERIOD: Final = 5
"""Number of `REPORT_INTERVAL_S` intervals between two status reports to the hub: each is a row of `gateway_status`."""

ADDRESSES_SHOWN_MAX: Final = 500
"""Subscriptions and queues that a status lists, at 2 us each. It is taken every second, and a client can create
thousands of them."""

FLOWS_SHOWN_MAX: Final = 100
"""Rules that a status and the metrics have counts of; the configuration of a fleet has some ten."""

STORE_FIGURES_S: Final = 0.5
"""Shortest time between two reads of the store's figures (a stat of its files, a sum over its logs)."""


class Gateway:
    """Gateway of one data directory. Construct it inside a running loop; call `start`, later `stop`."""

    def __init__(
        self,
        configuration: BrokerConfiguration,
        data: Path,
        configuring: Callable[[Gateway], ConfigurationService] | None = None,
        *,
        development: bool = False,
        trials: Trials | None = None,
    ) -> None:
        """Open the store and the users.

        `configuring` makes the changes of its configuration; `development` is shown on the console; `trials` follow
        the hub's configuration. Raises StoreError, CredentialsError.
        """
        loop = asyncio.get_running_loop()
        configuration = with_implied_addresses(configuration)
        self._data, self._development, self._trials = data, development, trials
        self._own_certificate = _own_certificate(data, configuration)
        self.clock_good, self._configuring = ClockQuality(), configuring(self) if configuring is not None else None
        self.broker: Broker
        self.space = GatewaySpace(
            configuration,
            data,
            open_space_store(configuration, data, loop),
            partial(self._serve, configuration),
            lambda changed: self.broker.reconfigure(self._with_certificate(changed)),
            clock=self.clock_good,
            made=_no_uplink if trials is None else trials.bind,
        )
        self.store, self.uplinks = self.space.store, self.space.uplinks
        self.uplinks.configure(configuration)
        self.tenants = TenantSpaces(data, self.broker, self.clock_good)
        self._operator_token = _operator_token(data)
        self._started_at, self._totals_at = time.monotonic(), float("-inf")
        self._clients = ClientDirectory(ClientSources(self.broker, self._polls, monotonic_s=loop.time, utc_s=time.time))
        self._addresses = AddressDirectory(AddressSources(self.broker.router))
        self._devices: HttpDeviceApi | None = None  # made by the first request
        self._series, self._histories = StatusSeries(self._sample, data), logs.histories()
        self._journal = EventJournal(self._histories.events, data)
        self._recording: list[asyncio.Task[None]] = []
        """Tasks that keep charts and events."""
        self._web_server: LazyWebServer | None = None
        self._keeper: SessionKeeper | None = None  # made with the web application
        self._reporter: asyncio.Task[None] | None = None
        self._renewal, self._revocations = Renewal(data, self._hub_of_identity), HubRevocations(data, self._hub_of_list)
        self._mutes = ProblemMutes(data, time.time)
        self._artefacts = self._make_keeper(data)
        self._device_artefacts = DeviceArtefacts(data, self._artefacts, self.broker)
        self._health, self._status_problems = self._make_health(), StatusProblems()
        self._check: UplinkCheck | None = None  # made with the web application
        self._totals: StoreTotals | None = None
        self._wear: Outlook

    def _serve(self, configuration: BrokerConfiguration, store: SqliteStore) -> ServedSpace:
        """Make the broker with this store; return its address space."""
        self.broker = Broker(
            self._with_certificate(configuration),
            store,
            clock_good=self.clock_good,
            administration=None if self._configuring is None else self._configuring.addresses,
            data=self._data,
        )
        return self.broker.space

    @property
    def configuration(self) -> BrokerConfiguration:
        """Configuration in force."""
        return self.space.configuration

    def _make_keeper(self, data: Path) -> ArtefactKeeper:
        """Return what keeps the software for devices."""
        offers = self.space.hub_devices.devices
        return keeper_of(data, self.store, self.uplinks, self.clock_good, lambda: self.configuration, offers)

    def _make_health(self) -> GatewayHealth:
        """Return the health checks of this gateway."""
        return GatewayHealth(
            broker=self.broker,
            store=self.store,
            uplinks=self.uplinks,
            clock=self.clock_good,
            data=self._data,
            development=self._development,
            room_hours=lambda: self.space.bridge.autonomy_hours,
            configuration=lambda: self.configuration,
            tokens=lambda: self.space.issuer.overdue if self.space.issuer is not None else None,
            users=lambda: (
                self.space.users.trouble or self.space.hub_devices.trouble or self.space.hub_devices.provisioner.trouble
            ),
            renewal=lambda: self._renewal.trouble,
            revocations=lambda: self._revocations.trouble,
            silent=self._clients.sources.silent,
            artefacts=self._artefacts.problems,
            tenants=self.tenants.problems,
            mutes=self._mutes,
            system=BlockDevice.of(Path("/")),
        )

    async def start(self) -> dict[str, tuple[str, int]]:
        """Serve; return the bound address of each listener by name. Raises ListenError, CredentialsError, after
        closing everything."""
        try:
            if self._own_certificate is not None:
                self._make_certificate(self._own_certificate)
            await self.space.start_users()
            await self.tenants.follow(self.configuration.spaces)
            self.broker.listeners.admit_devices(self.space.hub_devices.certified)
            bound = await self.broker.start()
            bound.update(self._start_console())
        except (ListenError, CredentialsError):
            await self.stop()
            raise
        await asyncio.to_thread(self._journal.load)
        self._recording.append(asyncio.create_task(self._journal.run(), name="console: events"))
        self.space.hub_devices.return_commands(partial(make_returns, self.broker, self.store, self.uplinks))
        self.uplinks.start()
        self.tenants.start_uplinks()
        self._health.start()
        self._renewal.start()
        self._revocations.start()
        self._artefacts.start()
        self._reporter = asyncio.create_task(self._report())
        log.info("version %s serves", VERSION, extra=event("start"))
        return bound

    async def stop(self) -> None:
        """Stop serving, finish the last commit, and close the store."""
        if self._reporter is not None:
            self._reporter.cancel()
        self._health.stop()
        if self._check is not None:
            await self._check.stop()
        if self._configuring is not None:
            await self._configuring.stop()
        await self._renewal.stop()
        await self._revocations.stop()
        await self.uplinks.leave_network()
        await self.uplinks.stop()
        await self.tenants.stop_uplinks()
        await self.broker.stop()
        await self.space.stop_users()
        await self.tenants.stop()
        if self._keeper is not None:
            await self._keeper.close()  # before the issuer: that ends all sessions
        await self.space.follow_issuer(None)
        for task in self._recording:
            task.cancel()
        await asyncio.gather(*self._recording, return_exceptions=True)  # they save charts and events
        if self._web_server is not None:
            await self._web_server.stop()
        await self._artefacts.stop()
        self.store.close()

    def works(self) -> bool:
        """Return False when the gateway has to be restarted: a thread of the store has died."""
        return self.store.medium.threads_live and self.tenants.threads_live

    async def replaced(self) -> None:
        """Return when the data directory was replaced by another one."""
        while not self.store.medium.replaced:
            await asyncio.sleep(REPORT_INTERVAL_S)

    async def reconfigure(self, configuration: BrokerConfiguration) -> None:
        """Apply the `Live` fields of a new configuration without a pause. The others must be unchanged."""
        await self.space.reconfigure(with_implied_addresses(configuration))
        await self.tenants.follow(configuration.spaces)
        log.info("configuration applied", extra=event("configuration"))

    def _with_certificate(self, configuration: BrokerConfiguration) -> BrokerConfiguration:
        """Return the configuration with the gateway's own certificate, if it names none."""
        if self._own_certificate is None or configuration.tls is not None:
            return configuration
        own = str(self._own_certificate.file)
        return msgspec.structs.replace(configuration, tls=DeviceTls(certificate=own, key=own))

    @staticmethod
    def _make_certificate(own: OwnCertificate) -> None:
        """Make the certificate of the listeners if it is missing or due. Raises ListenError."""
        try:
            own.keep(time.time())
        except OSError as error:
            raise ListenError(f"{error.filename or own.file}: {error.strerror}: no certificate for TLS") from error

    async def _renew_certificate(self) -> None:
        """Renew the gateway's own certificate when it is due; listeners load the new file by themselves."""
        own = self._own_certificate
        if own is None or not own.due(time.time()):
            return
        try:
            await asyncio.to_thread(own.keep, time.time())
            log.info("renewed the certificate of the listeners, %s", own.file)
        except OSError as error:
            log.warning("cannot renew %s: %s", own.file, error.strerror)

    def _hub_of_identity(self) -> tuple[PeerRoute, ...]:
        """Return the ways to the hub that gets this gateway's own certificate; empty without one."""
        own = str(identity_file(self._data))
        shown = (each for each in self.configuration.connectors if each.tls is not None and each.tls.certificate == own)
        return next((each.ways for each in shown), ())

    def _hub_of_list(self) -> tuple[PeerRoute, ...]:
        """Return the ways to the hub that provides the list of revoked certificates; empty without one."""
        own = str(identity_file(self._data).with_name(REVOKED))
        looked_at = (each for each in self.configuration.connectors if each.tls is not None and each.tls.crl == own)
        return next((each.ways for each in looked_at), ())

    # --- console and status -----------------------------------------------------------------------------------

    def pause(self) -> None:
        """Close each uplink until `resume` (console)."""
        for uplink in self.uplinks:
            uplink.dialer.pause()

    def resume(self) -> None:
        """Connect the uplinks again (console)."""
        for uplink in self.uplinks:
            uplink.dialer.resume()

    def _polls(self) -> Mapping[int, WaitingPoll]:
        """Return the HTTP requests that wait for a message."""
        return {} if self._devices is None else self._devices.polls.waits

    def status(self) -> GatewayStatus:
        """Return the status that the console shows."""
        broker, totals, commits = self.broker, self._store_totals(), self.store.medium.commits
        polling = self._devices.polls.count if self._devices is not None else 0
        router = broker.router
        scheduled = router.scheduled
        rooms, log_lines = router.quotas.usage(), logs.figures()
        return {
            "gateway": self.configuration.gateway,
            "dev": self._development,
            "epoch": self.store.lineage.epoch,
            "version": VERSION,
            "uptime_s": round(time.monotonic() - self._started_at, 3),
            "clients": {
                "mqtt": broker.mqtt_sessions.connected,
                "amqp": broker.listeners.amqp_connections - self.tenants.amqp_connections,
                "http": polling,
            },
            "messages": show_counts(router.figures),
            "addresses": list(itertools.islice(_addresses(router), ADDRESSES_SHOWN_MAX)),
            "addresses_left_out": max(0, self._count_addresses() - ADDRESSES_SHOWN_MAX),
            "flows": list(itertools.islice(_flows(router), FLOWS_SHOWN_MAX)),
            "refused": dict(broker.refusals.counts),
            "store": {
                "messages": totals.messages,
                "bytes": totals.bytes,
                "file_bytes": totals.file_bytes,
                "memory_bytes": totals.memory_bytes,
                "quota": router.quotas.space_bytes,
                "at_floor": router.quotas.closed,
                "room": [room._asdict() for room in rooms],  # type: ignore[misc]  # as RoomStatus
                "wear": msgspec.to_builtins(self._wear),
                "commits": CommitDurations(total=commits.total, seconds=commits.seconds, buckets=commits.buckets),
                "scheduled": ScheduledStatus(messages=len(scheduled), bytes=scheduled.bytes, refused=scheduled.refused),
            },
            "memory": _memory(broker.admission),
            "uplink": _uplink_status(self.uplinks),
            "bridge": msgspec.to_builtins(self.space.bridge_status()),
            "network": self.space.bridge.network(),
            "clock": "good" if self.clock_good() else "unknown",
            "loop": {"lag_s": round(self._health.lag.recent_s, 3), "lag_s_max": round(self._health.lag.longest_s, 3)},
            "log": {
                "dropped": log_lines.dropped,
                "repeated": log_lines.repeated,
                "stuck_s": round(log_lines.stuck_s, 3),
            },
            "ledger": dict(self.store.ledger.entered),
            "receipts": self.uplinks.landing_figures,
            "spaces": self.tenants.statuses(),
            "problems": msgspec.to_builtins(self._health.problems()),
            "first_boot": self._health.first_boot.summary(),
            "configuration": msgspec.to_builtins(self._trials.report()) if self._trials is not None else {},
        }

    def _count_addresses(self) -> int:
        router = self.broker.router
        return len(router.queues) + len(router.durable_subscriptions)

    def _sample(self) -> SeriesSample:
        """Return the figures that the charts show over time."""
        first = next(iter(self.uplinks), None)
        return SeriesSample(
            received=self.broker.router.figures.received,
            acked=sum(uplink.figures.messages_accepted for uplink in self.uplinks),
            waiting=self.uplinks.backlog,
            linked=first is None or first.dialer.state.connected,
        )

    def _store_totals(self) -> StoreTotals:
        now = time.monotonic()
        if self._totals is None or now - self._totals_at > STORE_FIGURES_S:
            self._totals, self._totals_at, self._wear = self.store.totals(), now, self.space.wear()
        return self._totals

    async def _report(self) -> None:
        """Report the gateway's status to the log and the uplinks' peers, until cancelled."""
        for count in itertools.count():
            if not count % STATUS_PERIOD:
                self._report_status(self._health.problems())  # logs the problems that are new or over
                self.tenants.report_status()
                await self._renew_certificate()
            now_ns, clock_good = time.time_ns(), self.clock_good()
            for uplink in self.uplinks:
                uplink.poll(now_ns, clock_good=clock_good)
            self.space.bridge.take_sample()
            self.tenants.tick(now_ns, clock_good=clock_good)
            self._clients.tick()
            self._addresses.tick()
            await asyncio.sleep(REPORT_INTERVAL_S)

    def _report_status(self, problems: Sequence[HealthProblem]) -> None:
        """Report the status to the peers of the gateway's own space."""
        document = {
            **self.space.status_document(clock_good=self.clock_good()),
            **self._status_problems.fields(problems),
        }
        for uplink in self.uplinks:
            uplink.tell_status(document)

    def _start_console(self) -> dict[str, tuple[str, int]]:
        """Listen for HTTP and HTTPS as configured; return the bound addresses. Raises ListenError."""
        sockets: dict[str, BoundSocket] = {}
        try:
            for listener in self.configuration.listeners:
                if listener.protocol is Protocol.HTTP:
                    name = listener.name
                    certificates = self.broker.listeners.certificates(name) if listener.tls else None
                    sockets[name] = BoundSocket(_bound_socket(name, listener.endpoint), certificates)
        except ListenError:
            for bound in sockets.values():
                bound.sock.close()
            raise
        if sockets:
            modules = ("edge.appliance.console.app", "edge.broker.http.api")
            wrong_port = self.broker.listeners.wrong_port
            for name, bound in sockets.items():
                port = bound.sock.getsockname()[1]
                wrong_port.add_listener(name, port, protocol="HTTP", tls=bound.certificates is not None)
            self._web_server = LazyWebServer(
                list(sockets.values()), self._make_app, modules, wrong_port, self.broker.tracer
            )
            self._recording.append(asyncio.create_task(self._series.run(), name="console: series"))
        return {name: bound.sock.getsockname()[:2] for name, bound in sockets.items()}

    def _make_app(self) -> ASGIApp:
        """Make the web application, at the first HTTP request: its modules cost no memory before that."""
        from edge.appliance.accounts.import_routes import import_routes  # noqa: PLC0415
        from edge.appliance.accounts.routes import user_routes  # noqa: PLC0415
        from edge.appliance.addresses.details import AddressDetails  # noqa: PLC0415
        from edge.appliance.addresses.explanation import AddressExplainer  # noqa: PLC0415
        from edge.appliance.addresses.routes import address_routes  # noqa: PLC0415
        from edge.appliance.clients.routes import client_routes  # noqa: PLC0415
        from edge.appliance.configuring.routes import configuration_routes  # noqa: PLC0415
        from edge.appliance.console.app import make_app  # noqa: PLC0415
        from edge.appliance.crossing.routes import bridge_routes  # noqa: PLC0415
        from edge.appliance.doctor.check import CheckContext  # noqa: PLC0415
        from edge.appliance.doctor.routes import check_routes  # noqa: PLC0415
        from edge.appliance.doctor.uplink_check import UplinkCheck  # noqa: PLC0415
        from edge.appliance.messages.routes import message_routes  # noqa: PLC0415
        from edge.appliance.muting.routes import mute_routes  # noqa: PLC0415
        from edge.appliance.trace.routes import trace_routes  # noqa: PLC0415
        from edge.broker.http.access import HttpAccess  # noqa: PLC0415
        from edge.broker.http.api import HttpDeviceApi  # noqa: PLC0415
        from edge.broker.http.guard import Guard  # noqa: PLC0415
        from edge.broker.http.session_api import session_routes  # noqa: PLC0415
        from edge.broker.http.session_cookie import SessionCookie  # noqa: PLC0415
        from edge.broker.http.session_file import SessionFile  # noqa: PLC0415
        from edge.broker.http.traced import TracedRequests  # noqa: PLC0415

        limits, broker = self.configuration.limits, self.broker
        cookie = SessionCookie("gateway", self.configuration.gateway, socket.gethostname(), str(self._data.resolve()))
        access = HttpAccess(broker.gate, self._operator_token, cookie)
        self._keeper = access.keep_sessions(partial(SessionFile, self._data, time.time))
        self._keeper.start()
        if broker.devices is None:
            self._devices = HttpDeviceApi(broker.router, limits, access, broker.admission.budget)
        else:
            from edge.broker.hono.http import HonoApi  # noqa: PLC0415

            self._devices = HonoApi(broker.devices, limits, access, broker.admission.budget)
        resource_of = self._configuring.resource_of if self._configuring is not None else _no_resource
        details = AddressDetails(self._addresses, broker.router, broker.gate, lambda: self.configuration, resource_of)
        explainer = AddressExplainer(details, self.space.bridge_status, time.time)
        self._check = UplinkCheck(lambda: CheckContext(configuration=self.configuration, synchronized=self.clock_good))
        routes = [
            *address_routes(details, explainer, access),
            *configuration_routes(self._configuring, access),
            *self._devices.routes,
            *self._device_artefacts.mounted.routes(self._devices, access, broker.devices),
            *session_routes(access),
            *bridge_routes(self.space.bridge, self.space.bridge_status, access),
            *check_routes(self._check, access),
            *trace_routes(broker.tracer, access),
            *client_routes(self._clients, broker.gate, access),
            *user_routes(self.space.users, broker.gate, access, partial(running_endpoints, self._data)),
            *import_routes(self.space.users, access),
            *mute_routes(self._mutes, access),
            *message_routes(broker.router, self.store, self._devices, access),
        ]
        app = make_app(self.status, self._series, access, self, routes, self._histories)
        guard = Guard(app, broker.site, lambda: not broker.gate.open, self._devices.origins)
        return TracedRequests(guard, broker.tracer)


def _uplink_status(uplinks: Uplinks) -> UplinkStatus:
    """Return the status of the first connector."""
    first = next(iter(uplinks), None)
    if first is None:
        return {"state": "off"}
    state = first.dialer.state
    figures = first.figures
    return {
        "state": "paused" if state.paused else "connected" if state.connected else "connecting",
        "endpoint": state.endpoint or "",
        "backlog_messages": uplinks.backlog,
        "progress": msgspec.to_builtins(first.progress()) if is_to_hub(first) else {},
        "sent": figures.messages_sent,
        "acked": figures.messages_accepted,
        "last_error": state.last_error,
        "since": datetime.datetime.fromtimestamp(state.since, datetime.UTC).isoformat(timespec="seconds"),
    }


def _own_certificate(data: Path, configuration: BrokerConfiguration) -> OwnCertificate | None:
    """Return the gateway's own certificate if its listeners need one; None if they do not, or another is configured."""
    if configuration.tls is not None or not any(listener.tls for listener in configuration.listeners):
        return None
    return OwnCertificate(data, configuration.gateway)


def _memory(admission: Admission) -> MemoryStatus:
    budget, figures = admission.budget, admission.figures
    return {
        "resident": admission.resident.bytes,
        "resident_max": budget.gateway.bytes_max,
        "pools": {
            name: {"held": pool.bytes, "held_max": pool.bytes_max, "connections": pool.connections}
            for name, pool in budget.gateway.accounts.items()
        },
        "shed": figures.shed,
        "shed_bytes": figures.shed_bytes,
        "displaced": figures.displaced,
        "refused": figures.refused,
    }


def _bound_socket(name: str, endpoint: ListenEndpoint) -> socket.socket:
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((endpoint.host, endpoint.port))
    except OSError as error:
        sock.close()
        raise ListenError(f"{name}: cannot listen on {endpoint}: {error.strerror}") from error
    return sock


def _addresses(router: Router) -> Iterator[AddressStatus]:
    """Yield the status of durable subscriptions and queues; those in use come first."""
    for each in router.durable_subscriptions.figures():
        yield {
            "address": each.pattern,
            "subscription": each.name,
            "type": "forwarder" if each.name.startswith(FORWARDER_PREFIX) else "subscription",
            "stored": each.backlog + each.outstanding,
            "subscribers": each.consumers,
        }
    queues = router.queues
    for address in itertools.chain(list(queues.opened), (each for each in queues if each not in queues.opened)):
        consumers = router.subscriptions.competing.consumers(address) or 0
        yield {
            "address": address,
            "type": "queue",
            "received": queues.received(address),
            "stored": queues.backlog(address),
            "subscribers": consumers,
        }


def _flows(router: Router) -> Iterator[FlowStatus]:
    """Yield the counts of each rule."""
    flows = router.count_flows()
    for rule in router.addresses.table.rules:
        flow = flows.of(rule.pattern)
        yield {
            "address": rule.pattern,
            "type": rule.type.value,
            "received": flow.received,
            "delivered": flow.delivered,
        }


def _operator_token(data: Path) -> str | None:
    try:
        return operator_token(data)
    except OSError as error:
        log.warning("no token for the local operator: %s: %s", error.filename, error.strerror)
        return None


def _no_resource(_address: str) -> None:
    """Return no resource: addresses are from the file of --config."""


def _no_uplink(_uplink: ConnectorUplink) -> None:
    """Ignore an uplink: the configuration is not the hub's."""
