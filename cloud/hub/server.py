"""Hub process: registry, lake, listeners and API on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

import uvloop
from starlette.applications import Starlette

from bridge.downlink import Downlink
from bridge.engine import Engine
from bridge.enrolment import ALPN
from bridge.intake import Intake
from bridge.resources.endpoint import ListenEndpoint
from bridge.transport.driver import ConnectionDriver
from cloud.hub.acceptor import Acceptor, PeerNotServed, Serve
from cloud.hub.batch_news import hear_all
from cloud.hub.bundles.downloads import BundleDownloads
from cloud.hub.bundles.folder import BundleFolder
from cloud.hub.commands.applications import CommandApplications, CommandEntry, CommandInterception
from cloud.hub.committer import Committer
from cloud.hub.connections import LIMITS, Connections
from cloud.hub.copies import Copies
from cloud.hub.core import HubCore
from cloud.hub.data import DataError, data_directory, require_unheld, writer_id
from cloud.hub.enrolment.files import AuthorityFileError
from cloud.hub.enrolment.remote_authority import NotSigned
from cloud.hub.fleet import FleetState
from cloud.hub.health import HubHealth
from cloud.hub.http_listener import serve_http
from cloud.hub.identity import HubIdentity
from cloud.hub.lander import Lander
from cloud.hub.limits import FILES_BESIDE_CONNECTIONS, SHUTDOWN_S
from cloud.hub.memory import COLLECTED
from cloud.hub.messaging.service import HubMessaging
from cloud.hub.metrics import Metrics
from cloud.hub.older_copy import OlderCopyNotice
from cloud.hub.opening import (
    HubConfiguration,
    HubError,
    OpenedHub,
    make_tap,
    open_data,
)
from cloud.hub.peers import HubPeer, PeerKind
from cloud.hub.probes import Probes
from cloud.hub.registry.notices import ChangeNotices, NoticeTopic
from cloud.hub.registry_services import RegistryServices
from cloud.hub.removal_work import RemovalParts
from cloud.hub.removals import HubTenantRemovals
from cloud.hub.removed_folders import RemovedFolders
from cloud.hub.service import HubService, ignore_report
from cloud.hub.sign_in import HubGate, HubSignIn
from cloud.hub.spaces import Spaces, TenantSpace
from cloud.hub.stop_signals import StopSignals
from cloud.hub.web_application import WebParts, make_access, make_application
from cloud.lake.faults import RegistryError
from cloud.reader.client import LakeReader
from edge.broker.amqp.session import AmqpSession
from edge.broker.http.access import HttpAccess
from edge.broker.http.forwarded import ForwardedClients
from edge.broker.http.guard import Guard
from edge.broker.http.peer import HttpPeer
from edge.broker.http.traced import TracedRequests
from edge.broker.limits import CERTIFICATES_CHECK_S
from edge.broker.listeners.frames import Frames
from edge.broker.listeners.heap import collect_seldom
from edge.broker.listeners.tcp import ListenError, require_free
from edge.broker.listeners.tls import TlsError
from edge.broker.security.sasl_credentials import SaslCredentials
from edge.broker.security.site import Site
from edge.health.data_owner import forbid_core_dumps
from edge.health.priority import raise_priority, shorten_thread_switches
from edge.health.problems import HealthProblem
from edge.health.process import allow_files
from edge.output.logs import unhandled

log = logging.getLogger(__name__)

STOPPING = "the hub stops"
"""Reason for paused sockets during shutdown: new data would not be answered."""

HEALTH_EVERY_S = 5.0
"""Interval of logging new and solved problems; the API shows them at once."""

NO_APPLICATIONS = "this hub serves no applications (`applications: false`): its data directory ends with it"
"""Reason for refused connections of applications."""

FAREWELL_S = 1.0
"""Maximum wait for the last acknowledgements to be written."""


class HubServer:
    """Hub from start to stop."""

    def __init__(self, configuration: HubConfiguration, opened: OpenedHub, executor: Executor) -> None:
        """Needs the running loop. `executor`: the thread that opened the data directory."""
        self._configuration, self._registry, self._executor = configuration, opened.registry, executor
        self._core = core = _make_core(configuration, opened, executor)
        loop, registry = asyncio.get_running_loop(), core.registry
        self._gate = HubGate(configuration, loop.time)
        gate, tenants = self._gate.authenticator, configuration.tenants
        hint = core.hint(NoticeTopic.TENANTS)
        self._removals = HubTenantRemovals(registry, core.writer, hint, core.now_us, loop.time)
        is_removed = self._removals.is_removed
        serve: dict[PeerKind, Serve] = {PeerKind.GATEWAY: self._intake, PeerKind.APPLICATION: self._session}
        self.acceptor = Acceptor(gate, serve, dev=configuration.dev, tenants=tenants, is_removed=is_removed)
        """Admits or refuses connections."""
        applications, opened_space = self.acceptor.applications, self._opened_space
        self._spaces = Spaces(configuration.data, applications, opened_space, tenants, is_removed)
        self._copies = Copies(self._spaces, clock=loop.time, later=loop.call_later)
        self._messaging = _make_messaging(core, self._spaces, self._copies)
        self._sign_in = HubSignIn(core, self._gate, self._spaces.follow)
        self._connections = Connections(self.acceptor)
        older_copy = OlderCopyNotice(configuration.data)
        self._identity = HubIdentity(core, opened.own, self.acceptor, older_copy)
        self._services = services = RegistryServices(
            core,
            self._identity,
            self._connections,
            self._messaging,
            open_spaces=self._spaces.follow,
            problems=self._problems,
        )
        self._tap = make_tap(configuration, opened.lake, core.writer, core.now_us)
        self._health = self._make_health(older_copy)
        self._metrics = self._make_metrics()
        self._service = HubService(
            core.fleet,
            core.committer,
            self._metrics,
            now_us=core.now_us,
            clock=loop.time,
            copy=self._messaging.copy,
            hear=hear_all(services.commands.handle_batch, services.updates.handle_batch),
            configured=services.desired.reported if services.desired is not None else ignore_report,
            requested=services.receipts.request,
            tenants=tenants,
            later=loop.call_later,
            problems=services.problems,
            devices=services.devices.reports.reported,
            left=services.devices.reports.left,
        )
        self._interception = CommandInterception()
        self._reader = LakeReader(configuration.lake_place.uri)
        self._downloads = BundleDownloads(BundleFolder.of(configuration.bundles, configuration.data))
        self._port = 0
        """Port of the AMQP listener; 0 before it listens."""

    def _make_health(self, older_copy: OlderCopyNotice) -> HubHealth:
        """Make the health checks."""
        services, identity = self._services, self._identity
        return HubHealth(
            fleet=self._core.fleet,
            committer=self._core.committer,
            connections=self._connections,
            spaces=self._spaces,
            copies=self._copies,
            users=lambda: self._sign_in.trouble,
            gate=self._gate.authenticator,
            certificates=lambda: identity.certificates,
            tls=identity.tls,
            enrolment=identity.enrolment,
            commands=lambda: services.commands.trouble,
            device_updates=lambda: services.updates.trouble,
            campaigns=services.campaigns,
            alerts=lambda: services.alerts.trouble,
            audit=lambda: services.audit.trouble,
            devices=lambda: services.devices.trouble,
            removals=lambda: self._removals.trouble,
            webhooks=lambda: services.webhooks.trouble,
            tap=self._tap,
            messaging=lambda: self._messaging.figures,
            desired=services.desired,
            tenants=self._configuration.tenants,
            older_copy=older_copy,
            data=self._configuration.data,
        )

    def _problems(self) -> list[HealthProblem]:
        """Return the current problems of this hub."""
        return self._health.problems()

    def _make_metrics(self) -> Metrics:
        core, services, listener = self._core, self._services, self._connections.listener
        return Metrics(
            core.fleet,
            core.committer,
            self._health,
            self._copies,
            lambda: services.commands.figures,
            services.desired,
            services.campaigns,
            connections=lambda: len(listener.drivers),
            tap=self._tap,
            devices=lambda: services.devices.figures,
        )

    async def run(self, ready: Callable[[ListenEndpoint, ListenEndpoint], None], stop: asyncio.Event) -> None:
        """Serve until `stop` is set. `ready` is called with the bound addresses (AMQP, HTTP). Raises `HubError`."""
        access = make_access(self._core, self._gate.authenticator, self._registry.registry_id, self._removals)
        app = make_application(self._web_parts(), access)
        try:
            await self._open(access, stop)
            await self._serve(access, app, ready, stop)
        except (ListenError, TlsError, RegistryError, AuthorityFileError, NotSigned) as error:
            raise HubError(str(error), unreachable=isinstance(error, NotSigned)) from error
        finally:
            await self._end(access)

    def _web_parts(self) -> WebParts:
        """Return what the application over HTTP shows and changes."""
        return WebParts(
            core=self._core,
            services=self._services,
            identity=self._identity,
            sign_in=self._sign_in,
            acceptor=self.acceptor,
            connections=self._connections,
            spaces=self._spaces,
            service=self._service,
            removals=self._removals,
            health=self._health,
            metrics=self._metrics,
            reader=self._reader,
            tap=self._tap,
            downloads=self._downloads,
            url=lambda: self._identity.gateway_url(self._port) if self._port else "",
        )

    async def _open(self, access: HttpAccess, stop: asyncio.Event) -> None:
        """Open what has to be open before the hub listens. Raises `HubError` and errors of the registry, of the
        authority and of TLS."""
        services = self._services
        await self._removals.open()
        await self._sign_in.start()
        await self._spaces.start()
        await self._identity.obtain(stop)
        await self._identity.open()
        await services.open()
        folders = RemovedFolders(self._configuration.data)
        parts = (self.acceptor, self._spaces, folders, services.artefacts)
        self._removals.start(RemovalParts(*parts, self._sign_in.file, lambda: self._gate.authenticator.users))
        if access.keeper is not None and not access.open:
            access.keeper.start()

    async def _serve(
        self,
        access: HttpAccess,
        app: Starlette,
        ready: Callable[[ListenEndpoint, ListenEndpoint], None],
        stop: asyncio.Event,
    ) -> None:
        """Listen until `stop` is set. Raises `ListenError`, `TlsError`, `RegistryError`."""
        configuration, services = self._configuration, self._services
        certificates = self._identity.certificates
        site, dev = _site_of(configuration), configuration.dev
        guarded = TracedRequests(Guard(app, site, lambda: not access.open), self._connections.tracer)
        forwarded = ForwardedClients(guarded, configuration.trusted_proxies)
        probed = Probes(forwarded, services.availability.unready)
        frames = Frames("amqp", message_bytes_max=LIMITS.packet_bytes_max, site=site, guarded=lambda: not access.open)
        secure, framed = None if dev else certificates, partial(self._framed, frames)
        async with serve_http(probed, configuration.http, secure, framed, self._connections.wrong_port) as http:
            amqp = configuration.amqp
            others = {ALPN: http.admit} if secure is not None else None
            host, port = await self._connections.start(amqp.host, amqp.port, certificates, others)
            self._port = port
            await services.availability.open(port)
            self._health.start()
            services.start()
            self._tap.start()
            self._messaging.start(services.commands.send)
            ready(ListenEndpoint(host, port), http.endpoint)
            await self._until(stop)
            await services.availability.drain(configuration.drain_s)
            log.info("stopping: landing received messages first")
            for driver in self._connections.listener.drivers:
                driver.pause_reading(STOPPING)

    async def _end(self, access: HttpAccess) -> None:
        """End the parts from the last line to the first. An error of one is raised after the others have ended."""
        services = self._services
        async with contextlib.AsyncExitStack() as ends:
            ends.callback(self._executor.shutdown)
            ends.callback(self._executor.submit, self._registry.close)
            ends.callback(self._gate.stop)
            ends.push_async_callback(self._spaces.stop)
            ends.push_async_callback(self._sign_in.stop)
            ends.push_async_callback(self._downloads.close)
            ends.push_async_callback(self._identity.close)
            ends.push_async_callback(services.close)
            ends.push_async_callback(services.usage.close)
            ends.push_async_callback(self._finish)
            ends.push_async_callback(self._reader.stop)
            if access.keeper is not None:
                ends.push_async_callback(access.keeper.close)
            ends.push_async_callback(services.alerts.close)
            ends.push_async_callback(self._tap.stop)
            ends.push_async_callback(self._messaging.stop)
            ends.callback(self._health.stop)
            ends.push_async_callback(self._removals.close)

    async def _until(self, stop: asyncio.Event) -> None:
        """Wait for `stop`; log problems and load renewed certificates in the meantime."""
        checked_at = float("-inf")
        while not stop.is_set():
            now = asyncio.get_running_loop().time()
            if now - checked_at >= CERTIFICATES_CHECK_S:
                checked_at = now
                await self._identity.keep()
            self._health.problems()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEALTH_EVERY_S):
                    await stop.wait()

    async def _finish(self) -> None:
        """Land and acknowledge everything received, then close all connections."""
        try:
            async with asyncio.timeout(SHUTDOWN_S):
                await self._core.committer.close()
        except TimeoutError:
            log.warning("stopped before the landing in progress ended; the next start recovers it")
        self._service.close_all("amqp:connection:forced", "the hub stops")
        for driver in self._connections.listener.drivers:
            if isinstance(driver.owner, AmqpSession):
                driver.owner.shut_down()
        deadline = asyncio.get_running_loop().time() + FAREWELL_S
        while any(_unwritten(driver) for driver in self._connections.listener.drivers):
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.01)
        await self._connections.stop()

    # --- connections ------------------------------------------------------------------------------------------------

    def _intake(
        self, peer: HubPeer, engine: Engine, driver: ConnectionDriver, _credentials: SaslCredentials | None
    ) -> Intake:
        downlink = Downlink((peer.tenant, peer.name), self._services.sources)
        intake = Intake(engine, self._service, driver, gateway=peer.name, downlink=downlink)
        self._service.register_peer(intake, peer.tenant, driver.peername)
        return intake

    def _session(
        self, peer: HubPeer, engine: Engine, driver: ConnectionDriver, credentials: SaslCredentials | None
    ) -> AmqpSession:
        """Make the session of an application in its tenant's space. Raises `PeerNotServed`."""
        if not self._configuration.applications:
            raise PeerNotServed(NO_APPLICATIONS)
        space = self._spaces.get(peer.tenant)
        if space is None:
            if self._gate.issuer is not None:
                self._spaces.follow((peer.tenant,))  # with an issuer a tenant is known from its first user on
            raise PeerNotServed(f"the address space of tenant {peer.tenant} is not open yet; try again")
        return AmqpSession(
            driver,
            engine,
            space.router,
            gate=self._gate.authenticator,
            credentials=credentials,
            interception=self._interception,
            containers=space.containers,
        )

    def _framed(self, frames: Frames, peer: HttpPeer) -> ConnectionDriver | None:
        """Accept AMQP over WebSocket on the HTTP port."""
        return self._connections.admit_framed(lambda engine: frames.around(engine, "" if peer.certificate else None))

    def _opened_space(self, space: TenantSpace) -> None:
        """Take the commands that applications send in this space."""
        commands = self._services.commands
        CommandEntry(space, commands.send, commands.wait_delivered)


def _make_core(configuration: HubConfiguration, opened: OpenedHub, executor: Executor) -> HubCore:
    """Make what all services of a hub share."""
    loop, writer, registry = asyncio.get_running_loop(), writer_id(configuration.data), configuration.registry_url
    landing = opened.landing
    committer = Committer(
        Lander(opened.registry, landing, clock=time.perf_counter),
        loop=loop,
        executor=executor,
        now_us=_now_us,
        gather_ms=configuration.gather_ms,
    )
    fleet = FleetState(versions=landing.versions, refusals=landing.refusals, hub=writer)
    notices = ChangeNotices(registry)
    return HubCore(configuration, registry, writer, fleet, committer, notices, loop.time, _now_us)


def _make_messaging(core: HubCore, spaces: Spaces, copies: Copies) -> HubMessaging:
    """Make the connection to a message broker for applications, if one is configured."""
    publish, copy = CommandApplications(spaces).publish_outcome, copies.take
    return HubMessaging(core.configuration.messaging, f"waypost-{core.writer[:8]}", publish=publish, copy=copy)


def run(configuration: HubConfiguration, ready: Callable[[ListenEndpoint, ListenEndpoint], None]) -> None:
    """Run a hub until SIGTERM or SIGINT. Raises `HubError`."""

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(unhandled)
        signals = StopSignals(stop, loop.time)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signals.arrived, number)
        executor = ThreadPoolExecutor(1, thread_name_prefix="landing")
        opened = await loop.run_in_executor(executor, open_data, configuration)
        collect_seldom(COLLECTED)
        await HubServer(configuration, opened, executor).run(ready, stop)

    try:
        forbid_core_dumps()
        raise_priority()
        shorten_thread_switches()
        _allow_files()
        require_unheld(configuration.data)
        for name, endpoint in (("amqp", configuration.amqp), ("http", configuration.http)):
            require_free(name, endpoint.host, endpoint.port)
        with data_directory(configuration.data):
            uvloop.run(main())
    except (ListenError, DataError) as error:
        raise HubError(str(error)) from error


def _allow_files() -> None:
    """Raise the limit of open files to the connection limit; log a warning when the hard limit is lower."""
    wanted = LIMITS.connections_max + FILES_BESIDE_CONNECTIONS
    allowed = allow_files(wanted)
    if allowed < wanted:
        words = "only %d files can be open, for up to %d connections: raise the limit (LimitNOFILE, ulimit -n)"
        log.warning(words, allowed, LIMITS.connections_max)


def _site_of(configuration: HubConfiguration) -> Site:
    """Return the names that requests may be addressed to."""
    http, enroller = configuration.http, configuration.enroller
    names = enroller.names if enroller is not None else ()
    return Site([http.host], exposed=not http.loopback, machine=socket.gethostname(), listed=names)


def _unwritten(driver: ConnectionDriver) -> bool:
    """Return whether the close of a connection is not written yet."""
    return driver.transport is not None and not driver.transport.is_closing()


def _now_us() -> int:
    return time.time_ns() // 1_000
