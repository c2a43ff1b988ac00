"""Services of a hub with connections to the registry of their own, from their start to their end."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Sequence

from bridge.downlink import DownlinkSource
from bridge.hub_addresses import COMMANDS, DESIRED, RECEIPTS
from cloud.hub.alerts.gateways import MeasuredGateways
from cloud.hub.alerts.measures import PROOF, HubFigures, HubMeasures
from cloud.hub.alerts.service import HubAlerts
from cloud.hub.artefacts.image_store import ImageStore
from cloud.hub.artefacts.service import HubArtefacts
from cloud.hub.audit_trail import HubAudit
from cloud.hub.availability import HubAvailability
from cloud.hub.campaigns.service import HubCampaigns
from cloud.hub.commands.service import HubCommands
from cloud.hub.connections import Connections
from cloud.hub.core import HubCore
from cloud.hub.desired.service import DesiredConfigurations
from cloud.hub.device_updates.service import HubDeviceUpdates
from cloud.hub.devices.parts import HubDeviceParts
from cloud.hub.enrolment.authority import KnownAuthority
from cloud.hub.events.problem_recorder import ProblemRecorder
from cloud.hub.events.service import HubEvents
from cloud.hub.fleet_view import FleetViews
from cloud.hub.gateway_counter import GatewayCounter
from cloud.hub.groups import Key
from cloud.hub.identity import HubIdentity
from cloud.hub.messaging.service import HubMessaging
from cloud.hub.receipts.service import ReceiptService
from cloud.hub.registry.notices import NoticeTopic
from cloud.hub.shared_quotas import SharedQuotas
from cloud.hub.usage import UsageRecorder
from cloud.hub.webhooks.delivery import WebhookClock
from cloud.hub.webhooks.service import HubWebhooks
from edge.health.problems import HealthProblem


class RegistryServices:
    """Services of one hub. `open`, later `close`."""

    def __init__(
        self,
        core: HubCore,
        identity: HubIdentity,
        connections: Connections,
        messaging: HubMessaging,
        *,
        open_spaces: Callable[[Iterable[str]], None],
        problems: Callable[[], Sequence[HealthProblem]],
    ) -> None:
        """`open_spaces` gets tenants with quotas of their own; `problems` returns those of this hub."""
        configuration, registry, writer = core.configuration, core.registry, core.writer
        tenants, fleet, committer, now_us = configuration.tenants, core.fleet, core.committer, core.now_us
        self._core = core
        self._problems_here = problems
        self.quotas = SharedQuotas(registry, tenants, open_spaces, core.hint(NoticeTopic.QUOTAS))
        self.desired = _desired_configurations(core, identity.authority)
        """None if gateways cannot enrol."""
        self.commands = HubCommands(
            registry,
            messaging.publish_outcome,
            fleet.gateways.__contains__,
            tenants=tenants,
            hint=core.hint(NoticeTopic.COMMANDS, NoticeTopic.RECEIPTS),
            hub=writer,
        )
        self.receipts = ReceiptService(committer, identity.receipt_signer(), now_us)
        self.sources: dict[str, DownlinkSource] = {COMMANDS: self.commands.dispatch, RECEIPTS: self.receipts}
        """Sources of messages for gateways, by the address they receive them from."""
        if self.desired is not None:
            self.sources[DESIRED] = self.desired
        self.updates, self.campaigns = HubDeviceUpdates(registry), HubCampaigns(registry)
        self.problems = ProblemRecorder(registry, writer, problems, self._is_connected_here, now_us)
        self.views = FleetViews(fleet, registry, now_us=now_us, clock=core.clock, hint=core.hint(NoticeTopic.LABELS))
        self.counter = _make_counter(core)
        hint = core.hint(NoticeTopic.CONNECTIONS)
        self.availability = HubAvailability(
            registry, writer, fleet, committer, connections, hint=hint, clock=core.clock, now_us=now_us
        )
        self.alerts = self._make_alerts()
        self.audit = HubAudit(registry, time.time)
        self.artefacts = HubArtefacts(registry, ImageStore(configuration.lake_place), now_us)
        self.events = HubEvents(registry, time.time, core.hint(NoticeTopic.EVENTS))
        clock = WebhookClock(time.time, core.clock)
        self.webhooks = HubWebhooks(registry, writer, self.events, configuration.webhook_networks, clock)
        self.devices = HubDeviceParts(registry, tenants, now_us, identity.enrolment, self.sources)
        self.usage = UsageRecorder(fleet, committer.read, now_us)

    async def open(self) -> None:
        """Connect to the registry, and follow the other hubs. Raises `RegistryError`."""
        if self.desired is not None:
            await self.desired.open()
        first = (self.quotas, self.commands, self.alerts, self.audit, self.devices, self.events, self.problems)
        more = (self.artefacts, self.updates, self.campaigns, self.webhooks, self.views, self.counter)
        for part in (*first, *more):
            await part.open()
        self._core.notices.start()

    def start(self) -> None:
        """Start what needs a hub that listens."""
        self.alerts.start()
        self.webhooks.start()
        self.usage.start()

    async def close(self) -> None:
        """Close the services, each also after an error of another one. Idempotent."""
        first = (self.counter, self.views, self.webhooks, self.campaigns, self.updates, self.artefacts, self.problems)
        more = (self.events, self.availability, self.devices, self.audit, self.receipts, self.commands, self.quotas)
        async with contextlib.AsyncExitStack() as ends:
            for part in reversed((*first, *more, self.desired)):
                if part is not None:
                    ends.push_async_callback(part.close)
            ends.push_async_callback(self._core.notices.stop)

    def _make_alerts(self) -> HubAlerts:
        """Make the alert service."""
        core, data = self._core, self._core.configuration.data
        leads = self.availability.replicas.leads
        measures = HubMeasures(self._figures, data / PROOF, core.now_us(), hub=core.writer, leads=leads)
        hint = core.hint(NoticeTopic.LABELS)
        gateways = MeasuredGateways(core.fleet, core.registry, now_us=core.now_us, clock=core.clock, hint=hint)
        return HubAlerts(core.registry, core.writer, measures, gateways, time.time, name=socket.gethostname())

    def _figures(self) -> HubFigures:
        """Return the hub's own figures for the alert rules."""
        committer, desired = self._core.committer, self.desired
        fault = committer.fault
        return HubFigures(
            problems=self._problems_here(),
            landing_failing=committer.failing,
            landing_reason=fault.reason if fault is not None else "",
            commands=self.commands.figures,
            halted=desired.figures.halted if desired is not None else None,
            configurations=desired.figures.gateways if desired is not None else {},
            campaigns=self.campaigns,
        )

    def _is_connected_here(self, key: Key) -> bool:
        """Return whether a gateway is connected to this hub."""
        known = self._core.fleet.gateways.get(key)
        return known is not None and known.session is not None


def _desired_configurations(core: HubCore, authority: KnownAuthority | None) -> DesiredConfigurations | None:
    """Return the service for configurations; None without an authority."""
    if authority is None:
        return None
    hint = core.hint(NoticeTopic.CONFIGURATIONS, NoticeTopic.ROLLOUTS)
    return DesiredConfigurations(authority, core.registry, hint=hint)


def _make_counter(core: HubCore) -> GatewayCounter:
    """Make what counts the gateways, also when some have connected here."""
    hint = core.hint(NoticeTopic.CONNECTIONS)
    core.committer.reported.append(lambda _group, report: hint.give() if report.stored else None)
    return GatewayCounter(core.fleet, core.registry, hint=hint, clock=core.clock)
