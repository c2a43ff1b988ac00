"""Problems of a running hub: landing, held data, recent refusals, and the process itself."""

from __future__ import annotations

import datetime
import itertools
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from cloud.hub.campaigns.service import HubCampaigns
from cloud.hub.committer import Committer, Fault
from cloud.hub.connections import Connections
from cloud.hub.copies import Copies
from cloud.hub.desired.service import DesiredConfigurations
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.fleet import FleetState
from cloud.hub.limits import FAILED_SHOWN_MAX, HELD_SHOWN_MAX
from cloud.hub.older_copy import OlderCopyNotice
from cloud.hub.peers import DEFAULT_TENANT
from cloud.hub.spaces import Spaces
from cloud.hub.tap.service import HubTap
from cloud.hub.tenants import Tenants
from edge.broker.configuration import TlsListener
from edge.broker.listeners.tls import Certificates
from edge.health.certificates import certificate_problems
from edge.health.counter_rise import CounterRise
from edge.health.logins import PasswordQueue, login_problems
from edge.health.loop_lag import LoopLag
from edge.health.problems import FoundProblem, HealthChecks, HealthProblem, Severity
from edge.health.process import FILES_CHECK_S, count_open_files, descriptor_problems, directory_problems, log_problems
from edge.output.text import word

LANDING: Final = "check the hub's log and its disk (df); until then nothing is acknowledged, and nothing is lost"


class MessagingFigures(NamedTuple):
    """State of the connection to a message broker, and counts since the start."""

    connected: bool
    problem: str | None
    """Reason why applications are not served; None if they are."""
    published: int
    """Outcomes that the broker has confirmed."""
    replies_refused: int
    """Outcomes that the broker did not take at the address that the sender had named."""
    commands_rejected: int
    copies: int
    """Live copies that the broker has confirmed."""
    copies_missed: int


class HubHealth:
    """Problems of one running hub. `start`, later `stop`."""

    def __init__(
        self,
        *,
        fleet: FleetState,
        committer: Committer,
        connections: Connections,
        spaces: Spaces,
        copies: Copies,
        users: Callable[[], str | None],
        gate: PasswordQueue,
        certificates: Callable[[], Certificates | None],
        tls: TlsListener | None,
        enrolment: Enrolment | None = None,
        commands: Callable[[], str | None] = lambda: None,
        device_updates: Callable[[], str | None] = lambda: None,
        campaigns: HubCampaigns | None = None,
        alerts: Callable[[], str | None] = lambda: None,
        audit: Callable[[], str | None] = lambda: None,
        devices: Callable[[], str | None] = lambda: None,
        removals: Callable[[], str | None] = lambda: None,
        webhooks: Callable[[], str | None] = lambda: None,
        tap: HubTap | None = None,
        messaging: Callable[[], MessagingFigures | None] = lambda: None,
        desired: DesiredConfigurations | None = None,
        tenants: Tenants | None = None,
        older_copy: OlderCopyNotice | None = None,
        data: Path,
    ) -> None:
        """`users` returns why users or their changes are not in effect; `certificates` returns those of the TLS
        listener, if it has any; `commands` returns why commands wait, `device_updates` why reports of devices do,
        `alerts` why rules are not evaluated, `audit` why changes are not recorded, `devices` why gateways do not get
        the devices of the registry, `removals` why a removal waits, `webhooks` which of them get no events."""
        self.lag = LoopLag()
        self._fleet = fleet
        self._committer = committer
        self._connections = connections
        self._spaces = spaces
        self._copies = copies
        self._users = users
        self._gate = gate
        self._certificates = certificates
        self._tls = tls
        self._enrolment = enrolment
        self._commands = commands
        self._device_updates, self._campaigns = device_updates, campaigns
        self._alerts, self._audit = alerts, audit
        self._devices, self._removals = devices, removals
        self._webhooks = webhooks
        self._tap = tap
        self.messaging_figures = messaging
        """Returns the figures of the message broker; None without one."""
        self._desired = desired
        self._tenants = tenants or Tenants()
        self._older_copy = older_copy or OlderCopyNotice(data)
        self._bounds = CounterRise()
        self._data = data
        self._rising = CounterRise()
        self._missed = CounterRise()
        self._broker_copies = CounterRise()
        self._logins = CounterRise()
        self._files: list[FoundProblem] = []
        self._checked_at = float("-inf")
        self._health = HealthChecks(
            (
                *(self.landing, self.held, self.tables, self.shared_identities, self.refused, self.applications),
                *(self.alerts, self.audit, self.devices, self.webhooks, self.tap, self.messaging, self.certificate),
                self.configurations,
                *(self.registry, self.quotas, self.lag.problems, log_problems, self.machine),
            )
        )

    def start(self) -> None:
        """Start measuring the event loop."""
        self.lag.start()

    def stop(self) -> None:
        """Stop measuring the event loop."""
        self.lag.stop()

    def problems(self) -> list[HealthProblem]:
        """Return the current problems."""
        return self._health.problems()

    # --- sources ----------------------------------------------------------------------------------------------

    def landing(self) -> Iterator[FoundProblem]:
        """Report that nothing lands (disk full, lake or registry not writable), or that something waits too long."""
        fault = self._committer.fault
        if fault is not None and not self._is_refusal(fault):
            yield FoundProblem(
                "landing",
                f"{'it fails' if self._committer.failing else 'it does not progress'}: {fault.reason}",
                LANDING,
            )

    def held(self) -> Iterator[FoundProblem]:
        own = [(session, fault) for session, fault in self._committer.held if not self._is_refusal(fault)]
        for session, fault in own[:HELD_SHOWN_MAX]:
            what = f"its data cannot land and is retried: {fault.reason}"
            of_tenant = "" if session.tenant == DEFAULT_TENANT else f" of tenant {session.tenant}"
            yield FoundProblem(
                f"gateway {session.gateway}{of_tenant}",
                what,
                "check the hub's log; the data is not acknowledged until then",
            )

    def tables(self) -> Iterator[FoundProblem]:
        """Report tables of the lake that another program has changed, so that they accept nothing."""
        for table, refusal in sorted(self._fleet.refusals.items()):
            what = f"it {refusal.why}; what belongs there waits unacknowledged, and other tables go on"
            yield FoundProblem(f"table {table}", what, refusal.next_step)

    def _is_refusal(self, fault: Fault) -> bool:
        """Return whether a table says itself why it accepts nothing."""
        return any(refusal.why in fault.reason for refusal in self._fleet.refusals.values())

    def shared_identities(self) -> Iterator[FoundProblem]:
        """Report identities that two machines use."""
        for (tenant, gateway), addresses in itertools.islice(self._fleet.takeovers.shared(), FAILED_SHOWN_MAX):
            of_tenant = "" if tenant == DEFAULT_TENANT else f" of tenant {tenant}"
            what = f"two machines use its identity (addresses {addresses}), and disconnect each other"
            step = (
                f"remove the copied card; make a token (waypost token create --gateway {word(gateway)}) "
                "and enrol the remaining machine with it"
            )
            yield FoundProblem(f"gateway {gateway}{of_tenant}", what, step, Severity.WARNING)

    def refused(self) -> Iterator[FoundProblem]:
        """Report refusals and losses of the last minute."""
        totals = self._fleet.totals
        counters = {
            "quarantined": totals.quarantined,
            "rejected": totals.rejected,
            "damaged": totals.holes_closed,
            "connections": self._connections.listener.refused,
            "memory": self._connections.admission.figures.shed,
        }
        lately = self._rising.lately({name: count for name, count in counters.items() if count})
        if "quarantined" in lately:
            what = "unreadable deliveries were moved to quarantine within the last minute"
            yield FoundProblem(
                "quarantine",
                what,
                "find the reason in the hub's log and in the lake's table quarantine",
                Severity.WARNING,
            )
        if "rejected" in lately:
            what = "deliveries without a name, or in the name of another gateway, were rejected within the last minute"
            yield FoundProblem(
                "intake", what, "find the gateway in the log, and check the software it runs", Severity.WARNING
            )
        if "damaged" in lately:
            what = "holes in a gateway's sequences were closed within the last minute to keep the registry small"
            step = "the lake's ledger has them with the reason hole-closed: compare it with the gateway's own ledger"
            yield FoundProblem("sequences", what, step, Severity.WARNING)
        if "connections" in lately:
            what = "connections were refused within the last minute: connection limit reached"
            yield FoundProblem("connections", what, "check which clients connect; run more hubs")
        if "memory" in lately:
            what = "connections were closed within the last minute because they held the most memory"
            yield FoundProblem(
                "memory", what, "find them in the hub's log; unacknowledged data is sent again", Severity.WARNING
            )

    def applications(self) -> Iterator[FoundProblem]:
        """Report tenants with applications that are not fully served."""
        if (why := self._users()) is not None:
            yield FoundProblem("users", why, "check the hub's log, and its data directory or the token issuer")
        yield from login_problems(self._gate, self._logins)
        if (why := self._commands()) is not None:
            yield FoundProblem(
                "commands", f"commands and their outcomes wait: {why}", "check registry and log of the hub"
            )
        if (why := self._device_updates()) is not None:
            what = f"reports of devices about artefacts wait at their gateways: {why}"
            yield FoundProblem("artefact reports", what, "check registry and log of the hub")
        if self._campaigns is not None:
            yield from _campaign_problems(self._campaigns)
        if (why := self._removals()) is not None:
            step = "waypost explain tenant-removed; GET /api/v1/tenants/TENANT/removal shows what is left"
            yield FoundProblem("removal of a tenant", f"it does not go on: {why}", step, Severity.WARNING)
        for tenant, why in self._spaces.troubles.items():
            what = f"the address space is not open: {why}"
            yield FoundProblem(
                f"tenant {tenant}",
                what,
                f"check DATA/spaces/{tenant}; until then the tenant's applications are not served",
            )
        counts = {tenant: figures.missed for tenant, figures in self._copies.all_figures().items() if figures.missed}
        for tenant in self._missed.lately(counts):
            what = (
                "live copies were dropped within the last minute: an application is too slow, or "
                "too many messages arrive"
            )
            yield FoundProblem(
                f"tenant {tenant}",
                what,
                "receive fewer addresses, or read the lake, which has all messages",
                Severity.WARNING,
            )

    def alerts(self) -> Iterator[FoundProblem]:
        """Report that alerts do not work."""
        if (why := self._alerts()) is not None:
            yield FoundProblem("alerts", why, "check the registry and the hub's log", Severity.WARNING)

    def audit(self) -> Iterator[FoundProblem]:
        """Report that changes are not recorded."""
        if (why := self._audit()) is not None:
            yield FoundProblem("audit", why, "check the registry and the hub's log", Severity.WARNING)

    def devices(self) -> Iterator[FoundProblem]:
        """Report that gateways do not get the devices of the registry."""
        if (why := self._devices()) is not None:
            step = "look at the gateway with waypost status; devices that it has stay in force"
            yield FoundProblem("devices", why, step, Severity.WARNING)

    def webhooks(self) -> Iterator[FoundProblem]:
        """Report webhooks that get no events."""
        if (why := self._webhooks()) is not None:
            step = "fix its server, then: waypost hub webhook resume ID; it goes on where it was"
            yield FoundProblem("webhooks", why, step, Severity.WARNING)

    def tap(self) -> Iterator[FoundProblem]:
        """Report that landed messages are not passed on to Kafka."""
        if self._tap is not None and (why := self._tap.problem) is not None:
            step = "check the brokers and the hub's log; nothing is left out, and landings go on"
            yield FoundProblem("kafka", why, step, Severity.WARNING)

    def messaging(self) -> Iterator[FoundProblem]:
        """Report that applications at a message broker are not served, or that it does not take all live copies."""
        figures = self.messaging_figures()
        if figures is None:
            return
        if figures.problem is not None:
            step = (
                "check the broker, its queues and the rights of the hub's user; outcomes and commands wait until then"
            )
            yield FoundProblem("messaging", figures.problem, step)
        if self._broker_copies.lately({"missed": figures.copies_missed} if figures.copies_missed else {}):
            what = "live copies for the message broker were dropped within the last minute"
            step = "check the broker, or read the lake, which has all messages"
            yield FoundProblem("live copies", what, step, Severity.WARNING)

    def certificate(self) -> Iterator[FoundProblem]:
        certificates = self._certificates()
        if certificates is not None and certificates.trouble is not None:
            yield FoundProblem("certificate", certificates.trouble, "install a certificate with its own key")
        if self._enrolment is not None and self._enrolment.trouble is not None:
            what = f"revocations by commands or other hubs are not noticed: {self._enrolment.trouble}"
            yield FoundProblem("enrolment", what, "see the registry and the hub's log")
        if self._enrolment is not None and (why := self._enrolment.registration_trouble) is not None:
            what = f"gateways get no certificates: {why}"
            yield FoundProblem(
                "enrolment", what, "check the server of `est`; gateways continue until their certificates end"
            )

        if self._enrolment is not None and (why := self._enrolment.authority_trouble) is not None:
            what = f"no certificates and configurations are signed: {why}"
            step = "look at the process `waypost hub authority`; gateways continue until their certificates end"
            yield FoundProblem("authority", what, step)

    def configurations(self) -> Iterator[FoundProblem]:
        """Report gateways without their wanted configuration, and halted roll-outs."""
        if self._desired is None:
            return
        if (why := self._desired.trouble) is not None:
            yield FoundProblem("configurations", f"they cannot be read: {why}", "see the registry and the hub's log")
        for rollout in self._desired.figures.halted:
            step = f"waypost rollout status {word(rollout.id)}, then resume or abort it"
            yield FoundProblem(f"roll-out {rollout.id}", f"it is halted: {rollout.why}", step, Severity.WARNING)
        for (_, gateway), why in itertools.islice(self._desired.refused.items(), FAILED_SHOWN_MAX):
            what = f"it cannot get the configuration of its selector: {why}"
            step = "change its labels, or the selector's configuration (waypost config selectors)"
            yield FoundProblem(f"gateway {gateway}", what, step, Severity.WARNING)
        for each in self._desired.figures.failed:
            what = f"version {each.wanted} of its configuration is not in force: {each.why or each.state}"
            step = f"waypost config history {word(each.gateway)}; send a corrected version, or config rollback"
            yield FoundProblem(f"gateway {each.gateway}", what, step, Severity.WARNING)

    def quotas(self) -> Iterator[FoundProblem]:
        """Report tenants that reached a quota within the last minute."""
        counts = {f"{tenant} {bound}": times for (tenant, bound), times in self._tenants.reached.items()}
        for each in sorted(self._bounds.lately(counts)):
            tenant, _, bound = each.partition(" ")
            what = f"it has reached its quota `{bound}` within the last minute"
            step = "reduce its use, or raise its quota (tenantQuota or tenants in the hub's configuration)"
            yield FoundProblem(f"tenant {tenant}", what, step, Severity.WARNING)

    def registry(self) -> Iterator[FoundProblem]:
        """Report a registry that was restored from a backup: the operator has to check for missing data."""
        signs = self._older_copy.signs()
        if signs:
            what = f"the registry is an older copy: {'; '.join(each.value for each in signs)}"
            step = (
                "compare gateways, tokens and configurations (`waypost gateway list`, `waypost token list`, "
                "`waypost config list`) with your records, revoke what must not "
                f"connect, then remove {self._older_copy.file}"
            )
            yield FoundProblem("registry", what, step, Severity.WARNING)

    def machine(self) -> Iterator[FoundProblem]:
        """Report on certificates, data directory and open files; checked at long intervals, however often it is
        called."""
        now = time.monotonic()
        if now - self._checked_at >= FILES_CHECK_S:
            self._checked_at, self._files = now, list(self._check_files())
        yield from self._files

    def _check_files(self) -> Iterator[FoundProblem]:
        if self._tls is not None:
            shown = (self._tls.certificate, self._tls.client_ca)
            utc = datetime.datetime.now(datetime.UTC)
            yield from certificate_problems([path for path in shown if path is not None], utc)
        yield from directory_problems(self._data)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit != resource.RLIM_INFINITY:
            yield from descriptor_problems(count_open_files(), limit)


def _campaign_problems(campaigns: HubCampaigns) -> Iterator[FoundProblem]:
    if campaigns.trouble is not None:
        yield FoundProblem(
            "campaigns", f"they do not advance: {campaigns.trouble}", "check registry and log of the hub"
        )
    for each in campaigns.halted:
        what = f"it is halted: {each.why}"
        step = f"waypost campaign show {word(each.id)}, then resume or stop it"
        yield FoundProblem(f"campaign {each.id}", what, step, Severity.WARNING)
