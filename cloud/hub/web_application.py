"""Application of a hub over HTTP: the routes of all its parts, and who may use them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from starlette.applications import Starlette

from cloud.hub.acceptor import Acceptor
from cloud.hub.alerts.http import routes as alert_routes
from cloud.hub.alerts.service import HubAlerts
from cloud.hub.api import application
from cloud.hub.artefacts.http import artefact_routes
from cloud.hub.bundles.downloads import BundleDownloads
from cloud.hub.bundles.http import bundle_routes
from cloud.hub.campaigns.http import campaign_routes
from cloud.hub.commands.http import routes as command_routes
from cloud.hub.connections import Connections
from cloud.hub.core import HubCore
from cloud.hub.desired.http import routes as desired_routes
from cloud.hub.desired.service import DesiredConfigurations
from cloud.hub.device_updates.http import report_routes
from cloud.hub.devices.routes import device_registry_routes
from cloud.hub.enrolment.certificate_http import certificate_routes
from cloud.hub.enrolment.gateway_http import gateway_routes
from cloud.hub.enrolment.http import routes as enrolment_routes
from cloud.hub.enrolment.token_http import routes as token_routes
from cloud.hub.events.http import EventsApi
from cloud.hub.events.problems_http import problem_routes
from cloud.hub.health import HubHealth
from cloud.hub.identity import HubIdentity
from cloud.hub.lake_http import lake_routes
from cloud.hub.limits import HUB_SESSIONS_MAX
from cloud.hub.metrics import Metrics
from cloud.hub.peers import tenant_of_user
from cloud.hub.quotas_http import quota_routes
from cloud.hub.registry.sessions import RegistrySessions
from cloud.hub.registry_services import RegistryServices
from cloud.hub.removals import HubTenantRemovals
from cloud.hub.removals_http import removal_routes
from cloud.hub.scope import OPERATOR_RULES, may_operate
from cloud.hub.service import HubService
from cloud.hub.sign_in import HubSignIn
from cloud.hub.spaces import Spaces
from cloud.hub.system_http import HubSystem, system_routes
from cloud.hub.tap.service import HubTap
from cloud.hub.tenants_http import TenantsView, UsageView, tenant_routes
from cloud.hub.users_http import user_routes
from cloud.hub.webhooks.http import webhook_routes
from cloud.reader.client import LakeReader
from edge.broker.http.access import HttpAccess
from edge.broker.http.route import HttpRoute
from edge.broker.http.session_api import session_routes
from edge.broker.http.session_cookie import SessionCookie
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.operator_token import operator_token

log = logging.getLogger(__name__)


class WebParts(NamedTuple):
    """Parts of one hub that the application shows or changes."""

    core: HubCore
    services: RegistryServices
    identity: HubIdentity
    sign_in: HubSignIn
    acceptor: Acceptor
    connections: Connections
    spaces: Spaces
    service: HubService
    removals: HubTenantRemovals
    health: HubHealth
    metrics: Metrics
    reader: LakeReader
    tap: HubTap
    downloads: BundleDownloads
    url: Callable[[], str]
    """Returns the URL for gateways; empty before the hub listens."""


def make_access(core: HubCore, gate: Authenticator, registry_id: str, removals: HubTenantRemovals) -> HttpAccess:
    """Make the access over HTTP, with sessions that all hubs of a registry share, and the operator token of the data
    directory."""
    data = core.configuration.data
    try:
        token = operator_token(data)
    except OSError as error:
        log.warning("no token for the local operator: %s: %s", error.filename, error.strerror)
        token = None
    access = HttpAccess(
        gate,
        token,
        SessionCookie("hub", registry_id),
        operator_rules=OPERATOR_RULES,
        sessions_max=HUB_SESSIONS_MAX,
        group_of=tenant_of_user,
        check_grant=removals.check_grant,
    )
    access.keep_sessions(lambda: RegistrySessions(core.registry, time.time), shared=True)
    return access


def make_application(parts: WebParts, access: HttpAccess) -> Starlette:
    """Make the application that answers over HTTP."""
    core, services, removals = parts.core, parts.services, parts.removals
    quotas, now_us, acceptor = core.configuration.tenants, core.now_us, parts.acceptor
    tenants = TenantsView(core.fleet, quotas, acceptor, parts.spaces, parts.service, core.clock, removals.has_ended)
    return application(
        core.fleet,
        core.committer,
        parts.metrics,
        access,
        parts.health,
        dev=core.configuration.dev,
        now_us=now_us,
        clock=core.clock,
        views=services.views,
        alerts=partial(_count_alerts, services.alerts),
        audit=services.audit,
        happened=EventsApi(services.events, access).respond,
        more=[
            *session_routes(access, may_operate),
            *user_routes(parts.sign_in.users, acceptor.gate, access, removals.is_removed),
            *tenant_routes(tenants, UsageView(core.committer.read, now_us), access),
            *quota_routes(quotas, services.quotas, access),
            *removal_routes(removals, access, now_us),
            *system_routes(_system(parts), access),
            *alert_routes(services.alerts, access),
            *webhook_routes(services.webhooks, access),
            *lake_routes(parts.reader, access, services.views, core.committer, now_us),
            *command_routes(services.commands, access),
            *problem_routes(services.problems, access, lambda: core.fleet.hub_names),
            *device_registry_routes(services.devices.registry, access, tenants.names),
            *_update_routes(services.desired, parts.downloads, access, acceptor),
            *artefact_routes(services.artefacts, access, acceptor),
            *report_routes(services.updates, access),
            *campaign_routes(services.campaigns, access),
            *_identity_routes(parts.identity, access, parts.url),
        ],
    )


def _count_alerts(alerts: HubAlerts) -> dict[str, int]:
    """Return the number of alerts by state."""
    return alerts.figures._asdict()


def _system(parts: WebParts) -> HubSystem:
    """Return the view of this process for operators."""
    core, connections, replicas = parts.core, parts.connections, parts.services.availability.replicas
    return HubSystem(
        core.committer,
        core.configuration.data,
        certificates=parts.identity.ends_at(),
        count_connections=lambda: len(connections.listener.drivers),
        started_at=time.time(),
        hubs=lambda: replicas.shown(core.now_us()),
        tap=parts.tap,
        fleet=core.fleet,
    )


def _update_routes(
    desired: DesiredConfigurations | None, downloads: BundleDownloads, access: HttpAccess, acceptor: Acceptor
) -> list[HttpRoute]:
    """Return the routes for configurations and bundles; without enrolment for bundles only."""
    routes = desired_routes(desired, access, downloads.folder) if desired is not None else []
    return [*routes, *bundle_routes(downloads, acceptor)]


def _identity_routes(identity: HubIdentity, access: HttpAccess, url: Callable[[], str]) -> list[HttpRoute]:
    """Return the routes for tokens and certificates; none without enrolment."""
    if (enrolment := identity.enrolment) is None:
        return []
    routes = [*enrolment_routes(enrolment, time.time), *gateway_routes(enrolment, access)]
    more = certificate_routes(enrolment, access, identity.renewal.own) if identity.renewal is not None else ()
    return [*routes, *more, *token_routes(enrolment, access, url)]
