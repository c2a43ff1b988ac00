"""Prometheus metrics of the hub, read from fleet and committer at each scrape."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cloud.hub.campaigns.service import HubCampaigns
from cloud.hub.committer import Committer
from cloud.hub.copies import Copies
from cloud.hub.desired.service import DesiredConfigurations
from cloud.hub.fleet import FleetState
from cloud.hub.health import HubHealth
from cloud.hub.rollout import RolloutState
from cloud.hub.tap.service import HubTap
from edge.health.problems import Severity
from edge.output import logs
from edge.output.text import line

COUNTERS = {
    "rows": ("waypost_hub_messages_landed", "Messages written to the lake"),
    "landings": ("waypost_hub_landings", "Commits to the telemetry table"),
    "duplicates": ("waypost_hub_duplicates_trimmed", "Messages that had landed before and were acknowledged again"),
    "gaps": ("waypost_hub_gaps", "Ranges that began later than expected"),
    "holes_closed": ("waypost_hub_holes_closed", "Holes in the sequences closed to keep the registry small"),
    "released": ("waypost_hub_deliveries_released", "Deliveries released, to be sent again"),
    "rejected": ("waypost_hub_deliveries_rejected", "Deliveries refused: unnamed, or in the name of another gateway"),
    "ledger_ranges": ("waypost_hub_ledger_ranges", "Ledger ranges landed"),
    "states": ("waypost_hub_states", "Gateway states landed"),
    "quarantined": ("waypost_hub_deliveries_quarantined", "Unreadable deliveries kept raw"),
}
"""Field of `cloud.hub.fleet.HubTotals` to metric name (without ``_total``) and help."""

LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class CommandFigures(NamedTuple):
    """Number of commands to devices, by state."""

    open: Mapping[str, int]
    """Open commands, counted some seconds ago."""
    over: Mapping[str, int]
    """Commands completed since the hub started."""


class _HubCollector(Collector):
    """Collects numbers that other objects keep."""

    def __init__(
        self,
        fleet: FleetState,
        committer: Committer,
        health: HubHealth,
        copies: Copies,
        commands: Callable[[], CommandFigures],
        desired: DesiredConfigurations | None,
        connections: Callable[[], int],
        tap: HubTap | None,
        devices: Callable[[], Mapping[str, int]],
        campaigns: HubCampaigns,
    ) -> None:
        self._connections = connections
        self._campaigns = campaigns
        self._devices = devices
        self._tap = tap
        self._desired = desired
        self._fleet = fleet
        self._committer = committer
        self._health = health
        self._copies = copies
        self._commands = commands

    def collect(self) -> Iterator[Metric]:
        totals = asdict(self._fleet.totals)
        for name, (metric, text) in COUNTERS.items():
            yield CounterMetricFamily(metric, text, value=totals[name])
        gauges = {
            "waypost_hub_connections": ("Open AMQP connections of this hub", self._connections()),
            "waypost_hub_gateways_connected": ("Gateways connected to this hub", self._fleet.connected_here),
            "waypost_hub_gateways_known": (
                "Gateways known. The same at each hub of a registry: use max, not sum.",
                self._fleet.count_known(),
            ),
            "waypost_hub_pending_bytes": ("Bytes gathered and not yet on disk", self._committer.pending_bytes),
            "waypost_hub_landing_failing": ("1 while nothing can be landed", int(self._committer.failing)),
            "waypost_hub_landing_oldest_seconds": (
                "Age of the oldest unanswered delivery",
                self._committer.oldest_s,
            ),
            "waypost_hub_connections_held": ("Connections with data that cannot land", len(self._committer.held)),
        }
        for metric, (text, value) in gauges.items():
            yield GaugeMetricFamily(metric, text, value=value)
        yield from self._tenants()
        yield from self._applications()
        yield from self._command_counts()
        yield from self._configurations()
        yield from self._tapped()
        yield from self._device_pages()
        yield from self._messaging()
        yield from self._process()

    def _tenants(self) -> Iterator[Metric]:
        about = "Messages written to the lake, by tenant"
        messages = CounterMetricFamily("waypost_hub_tenant_messages_landed", about, labels=["tenant"])
        about = "Bytes of these messages, without compression"
        size = CounterMetricFamily("waypost_hub_tenant_bytes_landed", about, labels=["tenant"])
        for tenant, figures in self._fleet.tenants.items():
            messages.add_metric([tenant], figures.rows)
            size.add_metric([tenant], figures.bytes)
        yield messages
        yield size

    def _applications(self) -> Iterator[Metric]:
        made = CounterMetricFamily("waypost_hub_copies", "Live copies made for applications", labels=["tenant"])
        about = "Live copies not made, or not taken in time by a slow application"
        missed = CounterMetricFamily("waypost_hub_copies_missed", about, labels=["tenant"])
        for tenant, figures in self._copies.all_figures().items():
            made.add_metric([tenant], figures.made)
            missed.add_metric([tenant], figures.missed)
        yield made
        yield missed

    def _command_counts(self) -> Iterator[Metric]:
        figures = self._commands()
        about = "Open commands to devices. The same at each hub of a registry: use max, not sum."
        still = GaugeMetricFamily("waypost_hub_commands_open", about, labels=["state"])
        for state, count in figures.open.items():
            still.add_metric([state], count)
        yield still
        about = "Completed commands to devices, by outcome"
        over = CounterMetricFamily("waypost_hub_commands_over_total", about, labels=["state"])
        for state, count in figures.over.items():
            over.add_metric([state], count)
        yield over

    def _configurations(self) -> Iterator[Metric]:
        about = (
            "Gateways with a configuration from the hub, by the state of the newest version."
            " The same at each hub of a registry: use max, not sum."
        )
        gateways = GaugeMetricFamily("waypost_hub_configurations", about, labels=["state"])
        about = "Open roll-outs. The same at each hub of a registry: use max, not sum."
        rollouts = GaugeMetricFamily("waypost_hub_rollouts", about, labels=["state"])
        if self._desired is not None:
            figures = self._desired.figures
            for state in ("confirmed", "trying", "updating", "waiting", "refused", "rolled-back"):
                gateways.add_metric([state], figures.gateways[state])
            for state in ("running", "paused", "halted"):
                rollouts.add_metric([state], figures.rollouts[state])
        yield gateways
        yield rollouts
        about = "Open campaigns. The same at each hub of a registry: use max, not sum."
        campaigns = GaugeMetricFamily("waypost_hub_campaigns", about, labels=["state"])
        for each in (RolloutState.RUNNING, RolloutState.PAUSED, RolloutState.HALTED):
            campaigns.add_metric([each.value], self._campaigns.figures.get(each, 0))
        yield campaigns

    def _device_pages(self) -> Iterator[Metric]:
        figures = self._devices()
        if not figures:
            return
        about = "Pages of devices that gateways have stored or refused."
        pages = CounterMetricFamily("waypost_hub_device_pages", about, labels=["outcome"])
        pages.add_metric(["stored"], figures["pages"])
        pages.add_metric(["refused"], figures["refused"])
        yield pages
        about = "Devices in stored pages."
        yield CounterMetricFamily("waypost_hub_devices_sent", about, value=figures["devices"])
        about = "Gateways that do not get their devices."
        yield GaugeMetricFamily("waypost_hub_gateways_without_devices", about, value=figures["without"])

    def _tapped(self) -> Iterator[Metric]:
        if self._tap is None or (figures := self._tap.figures) is None:
            return
        about = (
            "Age of the first landed message that was not passed on to Kafka."
            " The same at each hub of a registry: use max, not sum."
        )
        yield GaugeMetricFamily("waypost_hub_tap_lag_seconds", about, value=figures.lag_s)
        about = (
            "Commits of the telemetry table that were not passed on to Kafka."
            " The same at each hub of a registry: use max, not sum."
        )
        yield GaugeMetricFamily("waypost_hub_tap_commits_behind", about, value=figures.versions_behind)
        about = (
            "Messages passed on to Kafka by all hubs of the registry."
            " The same at each hub of a registry: use max, not sum."
        )
        yield CounterMetricFamily("waypost_hub_tap_messages", about, value=figures.records)

    def _messaging(self) -> Iterator[Metric]:
        if (figures := self._health.messaging_figures()) is None:
            return
        about = "1 while the message broker is connected."
        yield GaugeMetricFamily("waypost_hub_messaging_connected", about, value=int(figures.connected))
        about = "Outcomes of commands that the message broker has confirmed."
        yield CounterMetricFamily("waypost_hub_messaging_outcomes", about, value=figures.published)
        about = "Outcomes that the message broker did not take at the reply address of a command."
        yield CounterMetricFamily("waypost_hub_messaging_replies_refused", about, value=figures.replies_refused)
        about = "Commands from queues that were rejected."
        yield CounterMetricFamily("waypost_hub_messaging_commands_rejected", about, value=figures.commands_rejected)
        about = "Live copies that the message broker has confirmed."
        yield CounterMetricFamily("waypost_hub_messaging_copies", about, value=figures.copies)
        about = "Live copies dropped because the message broker did not take them in time."
        yield CounterMetricFamily("waypost_hub_messaging_copies_missed", about, value=figures.copies_missed)

    def _process(self) -> Iterator[Metric]:
        problems, written = self._health.problems(), logs.figures()
        counted = GaugeMetricFamily("waypost_hub_problems", "Current problems of the hub.", labels=["severity"])
        for severity in Severity:
            counted.add_metric([severity.value], sum(problem.severity is severity for problem in problems))
        yield counted
        since = GaugeMetricFamily(
            "waypost_hub_problem_since_timestamp_seconds",
            "Unix time at which a problem began.",
            labels=["problem", "what", "severity"],
        )
        for problem in problems:
            began = datetime.datetime.fromisoformat(problem.since).timestamp()
            since.add_metric([line(problem.name), line(problem.what), problem.severity.value], began)
        yield since
        about = "Largest delay of the event loop's timers in the last minute."
        yield GaugeMetricFamily("waypost_hub_loop_lag_seconds", about, value=self._health.lag.recent_s)
        about = "Log lines dropped because stderr was not read."
        yield CounterMetricFamily("waypost_hub_log_lines_dropped", about, value=written.dropped)
        about = "Log lines suppressed as repetitions."
        yield CounterMetricFamily("waypost_hub_log_lines_repeated", about, value=written.repeated)


class Metrics:
    """Metrics registry of one hub; no process-wide state."""

    def __init__(
        self,
        fleet: FleetState,
        committer: Committer,
        health: HubHealth,
        copies: Copies,
        commands: Callable[[], CommandFigures],
        desired: DesiredConfigurations | None,
        campaigns: HubCampaigns,
        *,
        connections: Callable[[], int],
        tap: HubTap | None = None,
        devices: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.registry = CollectorRegistry()
        parts = (fleet, committer, health, copies, commands, desired, connections, tap, devices, campaigns)
        self.registry.register(_HubCollector(*parts))
        self.landing_seconds = Histogram(
            "waypost_hub_landing_seconds",
            "Duration of a landing, up to its confirmation",
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
