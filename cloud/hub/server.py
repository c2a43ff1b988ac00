"""Hub process: registry, lake, listeners and API on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import sqlalchemy as sa
import uvloop
from starlette.applications import Starlette

from bridge.downlink import Downlink, DownlinkSource
from bridge.engine import Engine
from bridge.enrolment import ALPN
from bridge.hub_addresses import COMMANDS, DESIRED, RECEIPTS
from bridge.intake import Intake
from bridge.resources.endpoint import ListenEndpoint
from bridge.resources.endpoint import authority as host_and_port
from bridge.transport.driver import ConnectionDriver
from cloud.hub.acceptor import Acceptor, PeerNotServed, Serve
from cloud.hub.alerts.gateways import MeasuredGateways
from cloud.hub.alerts.http import routes as alert_routes
from cloud.hub.alerts.measures import PROOF, HubFigures, HubMeasures
from cloud.hub.alerts.service import HubAlerts
from cloud.hub.api import application
from cloud.hub.artefacts.http import artefact_routes
from cloud.hub.artefacts.image_store import ImageStore
from cloud.hub.artefacts.service import HubArtefacts
from cloud.hub.audit_trail import HubAudit
from cloud.hub.availability import HubAvailability
from cloud.hub.batch_news import hear_all
from cloud.hub.bundles.downloads import BundleDownloads
from cloud.hub.bundles.folder import BundleFolder
from cloud.hub.bundles.http import bundle_routes
from cloud.hub.campaigns.http import campaign_routes
from cloud.hub.campaigns.service import HubCampaigns
from cloud.hub.commands.applications import CommandApplications, CommandEntry, CommandInterception
from cloud.hub.commands.http import routes as command_routes
from cloud.hub.commands.service import HubCommands
from cloud.hub.committer import Committer
from cloud.hub.connections import LIMITS, Connections
from cloud.hub.copies import Copies
from cloud.hub.data import DataError, data_directory, require_unheld, writer_id
from cloud.hub.desired.http import routes as desired_routes
from cloud.hub.desired.service import DesiredConfigurations
from cloud.hub.device_updates.http import report_routes
from cloud.hub.device_updates.service import HubDeviceUpdates
from cloud.hub.devices.parts import HubDeviceParts
from cloud.hub.devices.routes import device_registry_routes
from cloud.hub.enrolment.authority import KnownAuthority, OwnAuthority
from cloud.hub.enrolment.certificate_http import certificate_routes
from cloud.hub.enrolment.certificate_renewal import CertificateRenewal
from cloud.hub.enrolment.delegated_key import DelegatedKey
from cloud.hub.enrolment.files import FOLDER, OCSP_KEY, AuthorityFileError, Enroller, load_authority
from cloud.hub.enrolment.gateway_http import gateway_routes
from cloud.hub.enrolment.http import routes as enrolment_routes
from cloud.hub.enrolment.remote_authority import NotSigned, RemoteAuthority
from cloud.hub.enrolment.revocation_record import RevocationRecord
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.enrolment.signature_request import SignerPurpose
from cloud.hub.enrolment.token_http import routes as token_routes
from cloud.hub.events.http import EventsApi
from cloud.hub.events.problem_recorder import ProblemRecorder
from cloud.hub.events.problems_http import problem_routes
from cloud.hub.events.service import HubEvents
from cloud.hub.fleet import FleetState
from cloud.hub.fleet_view import FleetViews
from cloud.hub.gateway_counter import GatewayCounter
from cloud.hub.groups import Key
from cloud.hub.health import HubHealth
from cloud.hub.http_listener import serve_http
from cloud.hub.lake_http import lake_routes
from cloud.hub.lander import Lander
from cloud.hub.limits import FILES_BESIDE_CONNECTIONS, HUB_SESSIONS_MAX, SHUTDOWN_S
from cloud.hub.memory import COLLECTED
from cloud.hub.messaging.service import HubMessaging
from cloud.hub.metrics import Metrics
from cloud.hub.older_copy import OlderCopyNotice
from cloud.hub.opening import (
    LAKE,
    REGISTRY,
    HubConfiguration,
    HubError,
    ListenerCredentials,
    OpenedHub,
    make_tap,
    open_data,
)
from cloud.hub.peers import DEFAULT_TENANT, HubPeer, PeerKind, tenant_of_user, tenants_of
from cloud.hub.probes import Probes
from cloud.hub.quotas_http import quota_routes
from cloud.hub.receipts.service import ReceiptService
from cloud.hub.receipts.signer import ReceiptSigner, certify_receipts
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.notices import ChangeNotices, NoticeTopic
from cloud.hub.registry.sessions import RegistrySessions
from cloud.hub.removal_work import RemovalParts
from cloud.hub.removals import HubTenantRemovals
from cloud.hub.removals_http import removal_routes
from cloud.hub.removed_folders import RemovedFolders
from cloud.hub.scope import OPERATOR_RULES, may_operate
from cloud.hub.service import HubService, ignore_report
from cloud.hub.shared_quotas import SharedQuotas
from cloud.hub.shared_sign_outs import SharedSignOuts
from cloud.hub.shared_users import SharedUsers
from cloud.hub.spaces import Spaces, TenantSpace
from cloud.hub.stop_signals import StopSignals
from cloud.hub.system_http import HubSystem, ends_at_in, ends_at_of, system_routes
from cloud.hub.tenants_http import TenantsView, UsageView, tenant_routes
from cloud.hub.usage import UsageRecorder
from cloud.hub.users_http import user_routes
from cloud.hub.webhooks.delivery import WebhookClock
from cloud.hub.webhooks.http import webhook_routes
from cloud.hub.webhooks.service import HubWebhooks
from cloud.lake.faults import RegistryError
from cloud.lake.landing import Landing
from cloud.place.place import place_of
from cloud.reader.client import LakeReader
from edge.broker.amqp.session import AmqpSession
from edge.broker.configuration import AuthenticationMode
from edge.broker.http.access import HttpAccess
from edge.broker.http.forwarded import ForwardedClients
from edge.broker.http.guard import Guard
from edge.broker.http.peer import HttpPeer
from edge.broker.http.route import HttpRoute
from edge.broker.http.session_api import session_routes
from edge.broker.http.session_cookie import SessionCookie
from edge.broker.http.traced import TracedRequests
from edge.broker.limits import CERTIFICATES_CHECK_S
from edge.broker.listeners.frames import Frames
from edge.broker.listeners.heap import collect_seldom
from edge.broker.listeners.tcp import ListenError, require_free
from edge.broker.listeners.tls import Certificates, TlsError
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.credentials import CredentialsError, CredentialSnapshot
from edge.broker.security.followed_users import FollowedUsers
from edge.broker.security.issuer import Issuer
from edge.broker.security.operator_token import operator_token
from edge.broker.security.sasl_credentials import SaslCredentials
from edge.broker.security.site import Site
from edge.broker.security.verification_threads import VerificationThreads
from edge.health.data_owner import forbid_core_dumps
from edge.health.priority import raise_priority, shorten_thread_switches
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
        self._id = writer_id(configuration.data)
        self._fleet = _make_fleet(opened.landing, self._id)
        loop = asyncio.get_running_loop()
        self._committer = Committer(
            Lander(opened.registry, opened.landing, clock=time.perf_counter),
            loop=loop,
            executor=self._executor,
            now_us=_now_us,
            gather_ms=configuration.gather_ms,
        )
        self._threads = VerificationThreads()
        self._issuer: Issuer | None = None
        self._gate = self._make_gate()
        serve: dict[PeerKind, Serve] = {PeerKind.GATEWAY: self._intake, PeerKind.APPLICATION: self._session}
        registry = configuration.registry or sqlite_url(configuration.data / REGISTRY)
        self._notices, self._removals = _make_removals(registry, self._id)
        self.acceptor = _make_acceptor(configuration, self._gate, serve, self._removals)
        """Admits or refuses connections."""
        self._spaces = _make_spaces(configuration, self.acceptor, self._opened_space, self._removals)
        self._copies = Copies(self._spaces, clock=loop.time, later=loop.call_later)
        self._messaging = _make_messaging(configuration, self._id, self._spaces, self._copies)
        self._users, self._sign_outs = self._follow_users(), self._follow_sign_outs(registry)
        hint = self._notices.follow(NoticeTopic.QUOTAS)
        self._quotas = SharedQuotas(registry, configuration.tenants, self._spaces.follow, hint)
        self._connections = Connections(self.acceptor)
        self._older_copy = OlderCopyNotice(configuration.data)
        self._remote: RemoteAuthority | None = None
        """Process with the authority's key; None if the key is here."""
        self._renewal: CertificateRenewal | None = None
        """None without a certificate of the hub's own."""
        self._tls = configuration.tls
        self._enrolment = self._make_enrolment(opened.own, registry) if opened.own is not None else None
        self._desired = _desired_configurations(opened.own, registry, self._notices) if self._enrolment else None
        self._commands, self._receipts = self._make_commands(registry), self._make_receipts()
        self._updates, self._campaigns = HubDeviceUpdates(registry), HubCampaigns(registry)
        self._certificates: Certificates | None = None
        self._url = ""
        """URL for gateways."""
        self._tap = make_tap(configuration, opened.lake, self._id, _now_us)
        self._health = self._make_health()
        self._reader = LakeReader(place_of(configuration.lake or configuration.data / LAKE).uri)
        self._metrics = self._make_metrics()
        self._problems = _problem_recorder(registry, self._id, self._health, self._fleet)
        self._service = HubService(
            self._fleet,
            self._committer,
            self._metrics,
            now_us=_now_us,
            clock=loop.time,
            copy=self._messaging.copy,
            hear=hear_all(self._commands.handle_batch, self._updates.handle_batch),
            configured=self._desired.reported if self._desired is not None else ignore_report,
            requested=self._receipts.request,
            tenants=configuration.tenants,
            later=loop.call_later,
            problems=self._problems,
        )
        hint = self._notices.follow(NoticeTopic.LABELS)
        self._views = FleetViews(self._fleet, registry, now_us=_now_us, clock=loop.time, hint=hint)
        self._counter = _make_counter(self._fleet, self._committer, registry, self._notices)
        self._availability = self._make_availability(registry)
        self._alerts = self._make_alerts(registry)
        self._audit, self._artefacts = HubAudit(registry, time.time), _make_artefacts(configuration, registry)
        self._events, self._webhooks = _make_events(configuration, registry, self._id, self._notices)
        self._devices = HubDeviceParts(registry, configuration.tenants, _now_us, self._enrolment, self.sources)
        self._downloads = BundleDownloads(BundleFolder.of(configuration.bundles, configuration.data))
        self._usage = UsageRecorder(self._fleet, self._committer.read, _now_us)

    def _make_availability(self, registry: sa.URL) -> HubAvailability:
        """Make the state of this hub for orchestrators and other hubs."""
        hint, clock = self._notices.follow(NoticeTopic.CONNECTIONS), asyncio.get_running_loop().time
        parts = (self._fleet, self._committer, self._connections)
        return HubAvailability(registry, self._id, *parts, hint=hint, clock=clock, now_us=_now_us)

    def _make_alerts(self, registry: sa.URL) -> HubAlerts:
        """Make the alert service."""
        data, leads = self._configuration.data, self._availability.replicas.leads
        figures = partial(_hub_figures, self._health, self._committer, self._commands, self._desired, self._campaigns)
        measures = HubMeasures(figures, data / PROOF, _now_us(), hub=self._id, leads=leads)
        hint, clock = self._notices.follow(NoticeTopic.LABELS), asyncio.get_running_loop().time
        gateways = MeasuredGateways(self._fleet, registry, now_us=_now_us, clock=clock, hint=hint)
        return HubAlerts(registry, self._id, measures, gateways, time.time, name=socket.gethostname())

    def _make_enrolment(self, own: ListenerCredentials, registry: sa.URL) -> Enrolment | None:
        """Make the enrolment service if configured; sets the hub's own certificate."""
        configuration = self._configuration
        if configuration.enroller is None:
            return None
        authority, server, registration = own
        signer = _signer(authority, registry, self._notices)
        self._remote = signer if isinstance(signer, RemoteAuthority) else None
        self._tls = server.listener
        enrolment = Enrolment(
            signer,
            registry,
            life_s=configuration.enroller.life_s,
            revoked=self.acceptor.review,
            forgotten=self._fleet.forget,
            tenants=configuration.tenants,
            registration=registration,
            record=RevocationRecord(configuration.data / FOLDER),
            older=self._older_copy.add,
            hint=self._notices.follow(NoticeTopic.REVOCATIONS),
            ocsp_key=_ocsp_key(configuration.data, self._remote),
        )
        self._renewal = CertificateRenewal(server, self._remote, enrolment)
        self.acceptor.set_policy(enrolment)
        return enrolment

    def _make_gate(self) -> Authenticator:
        """Make the gate: users authenticate with passwords or with tokens of an issuer."""
        configuration, mode = self._configuration, AuthenticationMode.STANDARD
        if configuration.dev:
            mode = AuthenticationMode.NONE
        elif configuration.oidc is not None:
            mode, self._issuer = AuthenticationMode.EXTERNAL, Issuer(configuration.oidc, configuration.data)
        return Authenticator(mode, worker=self._threads, clock=asyncio.get_running_loop().time, bearer=self._issuer)

    def _make_health(self) -> HubHealth:
        """Make the health checks."""
        return HubHealth(
            fleet=self._fleet,
            committer=self._committer,
            connections=self._connections,
            spaces=self._spaces,
            copies=self._copies,
            users=self._users_trouble,
            gate=self._gate,
            certificates=lambda: self._certificates,
            tls=self._tls,
            enrolment=self._enrolment,
            commands=lambda: self._commands.trouble,
            device_updates=lambda: self._updates.trouble,
            campaigns=self._campaigns,
            alerts=lambda: self._alerts.trouble,
            audit=lambda: self._audit.trouble,
            devices=lambda: self._devices.trouble,
            removals=lambda: self._removals.trouble,
            webhooks=lambda: self._webhooks.trouble,
            tap=self._tap,
            messaging=lambda: self._messaging.figures,
            desired=self._desired,
            tenants=self._configuration.tenants,
            older_copy=self._older_copy,
            data=self._configuration.data,
        )

    def _make_metrics(self) -> Metrics:
        parts = (self._fleet, self._committer, self._health, self._copies, lambda: self._commands.figures)
        more = (self._desired, self._campaigns)
        listener, tap, devices = self._connections.listener, self._tap, lambda: self._devices.figures
        return Metrics(*parts, *more, connections=lambda: len(listener.drivers), tap=tap, devices=devices)

    def _users_trouble(self) -> str | None:
        """Return why users or their changes are not in effect; None if they are."""
        if self._issuer is not None:
            unknown = self._sign_outs.trouble if self._sign_outs is not None else None
            return self._issuer.overdue or (f"logouts at other hubs are not known: {unknown}" if unknown else None)
        why = self._users.trouble if self._users is not None else None
        return f"changes of users are not in effect: {why}" if why is not None else None

    def _make_commands(self, registry: sa.URL) -> HubCommands:
        """Make the command service, its interception of messages, and the sources of the downlinks."""
        knows = self._fleet.gateways.__contains__
        hint, tenants = self._notices.follow(NoticeTopic.COMMANDS, NoticeTopic.RECEIPTS), self._configuration.tenants
        publish = self._messaging.publish_outcome
        made = HubCommands(registry, publish, knows, tenants=tenants, hint=hint, hub=self._id)
        self._interception = CommandInterception()
        self.sources: dict[str, DownlinkSource] = {COMMANDS: made.dispatch}
        """Sources of messages for gateways, by the address they receive them from."""
        if self._desired is not None:
            self.sources[DESIRED] = self._desired
        return made

    def _make_receipts(self) -> ReceiptService:
        """Make the service for landing receipts. Without enrolment an authority is made at the first request."""
        data, enroller = self._configuration.data, self._configuration.enroller
        given = enroller.authority_files if enroller is not None else None
        load = partial(load_authority, data, given)
        remote = self._remote
        certify = remote.certifier(SignerPurpose.RECEIPTS) if remote is not None else partial(certify_receipts, load)
        signer = ReceiptSigner(data / FOLDER, lambda: load(time.time()), certify)
        made = self.sources[RECEIPTS] = ReceiptService(self._committer, signer, _now_us)
        return made

    def _follow_sign_outs(self, registry: sa.URL) -> SharedSignOuts | None:
        return _share_sign_outs(self._configuration, registry, self._gate, self._notices)

    def _follow_users(self) -> FollowedUsers | SharedUsers | None:
        """Read the users and follow their changes, in a configured registry or in the data directory; None without
        passwords. Raises `HubError`."""
        if not self._gate.passwords:
            return None
        registry, data = self._configuration.registry, self._configuration.data
        if registry is not None:
            return SharedUsers(registry, data, self._take_users, self._notices.follow(NoticeTopic.USERS))
        try:
            return FollowedUsers(data, self._take_users)
        except CredentialsError as error:
            raise HubError(str(error)) from error

    def _take_users(self, snapshot: CredentialSnapshot) -> None:
        """Set the users, and open the spaces of their tenants."""
        self._gate.update(snapshot)
        self._spaces.follow(tenants_of(snapshot.users))

    async def _start_users(self) -> None:
        """Load users, and open the spaces of their tenants. Raises `HubError`."""
        if self._sign_outs is not None:
            await self._sign_outs.start()
        if self._issuer is not None:
            self._issuer.start(self._gate.token_grants)
        if self._users is None:
            self._spaces.follow((DEFAULT_TENANT, *self._configuration.tenants.named))
        else:
            self._gate.call_when_unknown(self._users.reload_if_changed)
            try:
                await self._users.start()
            except CredentialsError as error:
                raise HubError(str(error)) from error
        await self._spaces.start()

    async def run(self, ready: Callable[[ListenEndpoint, ListenEndpoint], None], stop: asyncio.Event) -> None:
        """Serve until `stop` is set. `ready` is called with the bound addresses (AMQP, HTTP). Raises `HubError`."""
        configuration = self._configuration
        access, site = self._make_access(), _site_of(configuration)
        app = self._make_application(access)
        try:
            await self._removals.open()
            await self._start_users()
            if self._remote is not None and self._renewal is not None:
                await self._remote.open()
                await self._renewal.obtain(stop)
            if self._tls is not None:
                self._certificates = Certificates(self._tls, protocols=() if configuration.dev else (ALPN,))
            await self._open_services()
            parts = (self.acceptor, self._spaces, RemovedFolders(configuration.data), self._artefacts)
            self._removals.start(RemovalParts(*parts, _user_file(self._users), lambda: self._gate.users))
            if access.keeper is not None and not access.open:
                access.keeper.start()
            guarded = TracedRequests(Guard(app, site, lambda: not access.open), self._connections.tracer)
            forwarded = ForwardedClients(guarded, configuration.trusted_proxies)
            probed = Probes(forwarded, self._availability.unready)
            secure = None if configuration.dev else self._certificates
            frames = Frames(
                "amqp", message_bytes_max=LIMITS.packet_bytes_max, site=site, guarded=lambda: not access.open
            )
            async with serve_http(
                probed, configuration.http, secure, partial(self._framed, frames), self._connections.wrong_port
            ) as http:
                amqp = configuration.amqp
                others = {ALPN: http.admit} if secure is not None else None
                host, port = await self._connections.start(amqp.host, amqp.port, self._certificates, others)
                self._url = _gateway_url(configuration.enroller, port)
                await self._availability.open(port)
                self._health.start()
                self._alerts.start()
                self._webhooks.start()
                self._usage.start()
                self._tap.start()
                self._messaging.start(self._commands.send)
                ready(ListenEndpoint(host, port), http.endpoint)
                await self._until(stop)
                await self._availability.drain(configuration.drain_s)
                log.info("stopping: landing received messages first")
                for driver in self._connections.listener.drivers:
                    driver.pause_reading(STOPPING)
        except (ListenError, TlsError, RegistryError, AuthorityFileError, NotSigned) as error:
            raise HubError(str(error), unreachable=isinstance(error, NotSigned)) from error
        finally:
            await self._end(access)

    async def _end(self, access: HttpAccess) -> None:
        """End the parts from the last line to the first. An error of one is raised after the others have ended."""
        async with contextlib.AsyncExitStack() as ends:
            ends.callback(self._executor.shutdown)
            ends.callback(self._executor.submit, self._registry.close)
            ends.callback(self._threads.stop)
            ends.push_async_callback(self._spaces.stop)
            if self._sign_outs is not None:
                ends.push_async_callback(self._sign_outs.stop)
            if self._issuer is not None:
                ends.push_async_callback(self._issuer.stop)
            if self._users is not None:
                ends.push_async_callback(self._users.stop)
            ends.push_async_callback(self._close_services)
            ends.push_async_callback(self._usage.close)
            ends.push_async_callback(self._finish)
            ends.push_async_callback(self._reader.stop)
            if access.keeper is not None:
                ends.push_async_callback(access.keeper.close)
            ends.push_async_callback(self._alerts.close)
            ends.push_async_callback(self._tap.stop)
            ends.push_async_callback(self._messaging.stop)
            ends.callback(self._health.stop)
            ends.push_async_callback(self._removals.close)

    async def _open_services(self) -> None:
        """Open the services with connections to the registry of their own. Raises `RegistryError`."""
        if self._enrolment is not None:
            await self._enrolment.open()
        if self._renewal is not None:
            await self._renewal.store()
        if self._desired is not None:
            await self._desired.open()
        first = (self._quotas, self._commands, self._alerts, self._audit, self._devices, self._events, self._problems)
        more = (self._artefacts, self._updates, self._campaigns, self._webhooks, self._views, self._counter)
        for part in (*first, *more):
            await part.open()
        self._notices.start()

    async def _close_services(self) -> None:
        """Close what `_open_services` has opened, each also after an error of another one."""
        parts = (self._availability, self._devices, self._audit, self._receipts, self._commands, self._quotas)
        services = (self._desired, self._renewal, self._enrolment, self._remote, self._downloads)
        async with contextlib.AsyncExitStack() as ends:
            last = (self._counter, self._views, self._webhooks, self._campaigns, self._updates, self._artefacts)
            for part in reversed((*last, self._problems, self._events, *parts, *services)):
                if part is not None:
                    ends.push_async_callback(part.close)
            ends.push_async_callback(self._notices.stop)

    def _make_application(self, access: HttpAccess) -> Starlette:
        """Make the application that answers over HTTP."""
        clock, ended = asyncio.get_running_loop().time, self._removals.has_ended
        quotas = self._configuration.tenants
        tenants = TenantsView(self._fleet, quotas, self.acceptor, self._spaces, self._service, clock, ended)
        usage = UsageView(self._committer.read, _now_us)
        return application(
            self._fleet,
            self._committer,
            self._metrics,
            access,
            self._health,
            dev=self._configuration.dev,
            now_us=_now_us,
            clock=clock,
            views=self._views,
            alerts=partial(_alert_counts, self._alerts),
            audit=self._audit,
            happened=EventsApi(self._events, access).respond,
            more=[
                *session_routes(access, may_operate),
                *user_routes(self._users, self._gate, access, self._removals.is_removed),
                *tenant_routes(tenants, usage, access),
                *quota_routes(self._configuration.tenants, self._quotas, access),
                *removal_routes(self._removals, access, _now_us),
                *system_routes(self._system(), access),
                *alert_routes(self._alerts, access),
                *webhook_routes(self._webhooks, access),
                *lake_routes(self._reader, access, self._views, self._committer, _now_us),
                *command_routes(self._commands, access),
                *problem_routes(self._problems, access, lambda: self._fleet.hub_names),
                *device_registry_routes(self._devices.registry, access, tenants.names),
                *_update_routes(self._desired, self._downloads, access, self.acceptor),
                *artefact_routes(self._artefacts, access, self.acceptor),
                *_device_update_routes(self._updates, self._campaigns, access),
                *_identity_routes(self._enrolment, access, self._renewal, lambda: self._url),
            ],
        )

    def _system(self) -> HubSystem:
        """Return the view of this process for operators."""
        certificates: dict[str, Callable[[], float | None]] = {}
        if (enrolment := self._enrolment) is not None:
            certificates["authority"] = partial(ends_at_of, enrolment.authority.certificate)
        if self._tls is not None:
            certificates["server"] = partial(ends_at_in, Path(self._tls.certificate))
        connections = self._connections
        return HubSystem(
            self._committer,
            self._configuration.data,
            certificates=certificates,
            count_connections=lambda: len(connections.listener.drivers),
            started_at=time.time(),
            hubs=lambda: self._availability.replicas.shown(_now_us()),
            tap=self._tap,
            fleet=self._fleet,
        )

    def _make_access(self) -> HttpAccess:
        """Make the access over HTTP, with sessions and the operator token of the data directory."""
        data = self._configuration.data
        cookie = SessionCookie("hub", self._registry.registry_id)  # one for all hubs on this registry
        try:
            token = operator_token(data)
        except OSError as error:
            log.warning("no token for the local operator: %s: %s", error.filename, error.strerror)
            token = None
        access = HttpAccess(
            self._gate,
            token,
            cookie,
            operator_rules=OPERATOR_RULES,
            sessions_max=HUB_SESSIONS_MAX,
            group_of=tenant_of_user,
            check_grant=self._removals.check_grant,
        )
        registry = self._configuration.registry or sqlite_url(data / REGISTRY)
        access.keep_sessions(lambda: RegistrySessions(registry, time.time), shared=True)
        return access

    async def _until(self, stop: asyncio.Event) -> None:
        """Wait for `stop`; log problems and load renewed certificates in the meantime."""
        checked_at = float("-inf")
        while not stop.is_set():
            now = asyncio.get_running_loop().time()
            if self._certificates is not None and now - checked_at >= CERTIFICATES_CHECK_S:
                checked_at = now
                if self._renewal is not None:
                    await self._renewal.keep()
                self._certificates.check()
            self._health.problems()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEALTH_EVERY_S):
                    await stop.wait()

    async def _finish(self) -> None:
        """Land and acknowledge everything received, then close all connections."""
        try:
            async with asyncio.timeout(SHUTDOWN_S):
                await self._committer.close()
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
        downlink = Downlink((peer.tenant, peer.name), self.sources)
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
            if self._issuer is not None:
                self._spaces.follow((peer.tenant,))  # with an issuer a tenant is known from its first user on
            raise PeerNotServed(f"the address space of tenant {peer.tenant} is not open yet; try again")
        return AmqpSession(
            driver,
            engine,
            space.router,
            gate=self._gate,
            credentials=credentials,
            interception=self._interception,
            containers=space.containers,
        )

    def _framed(self, frames: Frames, peer: HttpPeer) -> ConnectionDriver | None:
        """Accept AMQP over WebSocket on the HTTP port."""
        return self._connections.admit_framed(lambda engine: frames.around(engine, "" if peer.certificate else None))

    def _opened_space(self, space: TenantSpace) -> None:
        """Take the commands that applications send in this space."""
        CommandEntry(space, self._commands.send, self._commands.wait_delivered)


def _alert_counts(alerts: HubAlerts) -> dict[str, int]:
    """Return the number of alerts by state."""
    return alerts.figures._asdict()


def _hub_figures(
    health: HubHealth,
    committer: Committer,
    commands: HubCommands,
    desired: DesiredConfigurations | None,
    campaigns: HubCampaigns,
) -> HubFigures:
    """Return the hub's own figures for the alert rules."""
    fault = committer.fault
    return HubFigures(
        problems=health.problems(),
        landing_failing=committer.failing,
        landing_reason=fault.reason if fault is not None else "",
        commands=commands.figures,
        halted=desired.figures.halted if desired is not None else None,
        configurations=desired.figures.gateways if desired is not None else {},
        campaigns=campaigns,
    )


def _share_sign_outs(
    configuration: HubConfiguration, registry: sa.URL, gate: Authenticator, notices: ChangeNotices
) -> SharedSignOuts | None:
    """Make the logouts of people, which count at every hub; None where people do not sign in at an issuer."""
    oidc = configuration.oidc
    if configuration.dev or oidc is None or oidc.client_id is None:
        return None
    return SharedSignOuts(registry, oidc.issuer, gate.sign_outs, notices.follow(NoticeTopic.SIGN_OUTS))


def _make_removals(registry: sa.URL, hub: str) -> tuple[ChangeNotices, HubTenantRemovals]:
    """Make the notices between hubs, and what continues the removals of tenants. `hub`: writer id."""
    notices = ChangeNotices(registry)
    hint, clock = notices.follow(NoticeTopic.TENANTS), asyncio.get_running_loop().time
    return notices, HubTenantRemovals(registry, hub, hint, _now_us, clock)


def _make_counter(fleet: FleetState, committer: Committer, registry: sa.URL, notices: ChangeNotices) -> GatewayCounter:
    """Make what counts the gateways, also when some have connected here."""
    hint = notices.follow(NoticeTopic.CONNECTIONS)
    committer.reported.append(lambda _group, report: hint.give() if report.stored else None)
    return GatewayCounter(fleet, registry, hint=hint, clock=asyncio.get_running_loop().time)


def _make_acceptor(
    configuration: HubConfiguration,
    gate: Authenticator,
    serve: Mapping[PeerKind, Serve],
    removals: HubTenantRemovals,
) -> Acceptor:
    tenants = configuration.tenants
    return Acceptor(gate, serve, dev=configuration.dev, tenants=tenants, is_removed=removals.is_removed)


def _make_spaces(
    configuration: HubConfiguration,
    acceptor: Acceptor,
    opened: Callable[[TenantSpace], None],
    removals: HubTenantRemovals,
) -> Spaces:
    is_removed = removals.is_removed
    return Spaces(configuration.data, acceptor.applications, opened, configuration.tenants, is_removed)


def _user_file(users: FollowedUsers | SharedUsers | None) -> FollowedUsers | None:
    """Return the users of this hub that are in a file; those in the registry are removed there."""
    return users if isinstance(users, FollowedUsers) else None


def _make_fleet(landing: Landing, hub: str) -> FleetState:
    return FleetState(versions=landing.versions, refusals=landing.refusals, hub=hub)


def _desired_configurations(
    own: ListenerCredentials | None, registry: sa.URL, notices: ChangeNotices
) -> DesiredConfigurations | None:
    """Return the service for configurations; None without an authority."""
    if own is None:
        return None
    hint = notices.follow(NoticeTopic.CONFIGURATIONS, NoticeTopic.ROLLOUTS)
    return DesiredConfigurations(own.authority, registry, hint=hint)


def _signer(authority: KnownAuthority, registry: sa.URL, notices: ChangeNotices) -> OwnAuthority | RemoteAuthority:
    """Return what signs for the hub: the authority, or the process with its key."""
    if isinstance(authority, OwnAuthority):
        return authority
    return RemoteAuthority(authority, registry, hint=notices.follow(NoticeTopic.SIGNED))


def _ocsp_key(data: Path, remote: RemoteAuthority | None) -> DelegatedKey | None:
    """Return the hub's key for OCSP; None if the authority's key is here."""
    if remote is None:
        return None
    return DelegatedKey(data / FOLDER / OCSP_KEY, lambda: remote.known, remote.certifier(SignerPurpose.OCSP))


def _problem_recorder(registry: sa.URL, hub: str, health: HubHealth, fleet: FleetState) -> ProblemRecorder:
    """Make the record of problems of this hub and its gateways."""

    def connected_here(key: Key) -> bool:
        known = fleet.gateways.get(key)
        return known is not None and known.session is not None

    return ProblemRecorder(registry, hub, health.problems, connected_here, _now_us)


def _update_routes(
    desired: DesiredConfigurations | None, downloads: BundleDownloads, access: HttpAccess, acceptor: Acceptor
) -> list[HttpRoute]:
    """Return the routes for configurations and bundles; without enrolment for bundles only."""
    routes = desired_routes(desired, access, downloads.folder) if desired is not None else []
    return [*routes, *bundle_routes(downloads, acceptor)]


def _make_messaging(configuration: HubConfiguration, hub: str, spaces: Spaces, copies: Copies) -> HubMessaging:
    """Make the connection to a message broker for applications, if one is configured. `hub`: writer id."""
    publish, copy = CommandApplications(spaces).publish_outcome, copies.take
    return HubMessaging(configuration.messaging, f"waypost-{hub[:8]}", publish=publish, copy=copy)


def _make_artefacts(configuration: HubConfiguration, registry: sa.URL) -> HubArtefacts:
    """Make the artefacts of this hub, with their images in the place of the lake."""
    lake = place_of(configuration.lake or configuration.data / LAKE)
    return HubArtefacts(registry, ImageStore(lake), _now_us)


def _make_events(
    configuration: HubConfiguration, registry: sa.URL, hub: str, notices: ChangeNotices
) -> tuple[HubEvents, HubWebhooks]:
    """Make the events of the fleet, and what sends them to webhooks. `hub`: writer id."""
    events = HubEvents(registry, time.time, notices.follow(NoticeTopic.EVENTS))
    clock = WebhookClock(time.time, asyncio.get_running_loop().time)
    return events, HubWebhooks(registry, hub, events, configuration.webhook_networks, clock)


def _device_update_routes(updates: HubDeviceUpdates, campaigns: HubCampaigns, access: HttpAccess) -> list[HttpRoute]:
    """Return the routes of what devices report about artefacts, and of campaigns."""
    return [*report_routes(updates, access), *campaign_routes(campaigns, access)]


def _identity_routes(
    enrolment: Enrolment | None, access: HttpAccess, own: CertificateRenewal | None, url: Callable[[], str]
) -> list[HttpRoute]:
    """Return the routes for tokens and certificates; none without enrolment. `own`: certificate of the hub; `url`
    returns the URL for gateways."""
    if enrolment is None:
        return []
    routes = [*enrolment_routes(enrolment, time.time), *gateway_routes(enrolment, access)]
    more = certificate_routes(enrolment, access, own.own) if own is not None else ()
    return [*routes, *more, *token_routes(enrolment, access, url)]


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


def _gateway_url(enroller: Enroller | None, port: int) -> str:
    """Return the URL of this hub for gateways."""
    name = str(enroller.names[0]) if enroller is not None and enroller.names else socket.gethostname()
    return f"amqps://{host_and_port(name, port)}"


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
