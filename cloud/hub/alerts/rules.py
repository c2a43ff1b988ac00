"""Alert rules: the single source of the hub's evaluation and of Prometheus' file `cloud/deploy/alerts.yaml`.

A rule compares a measure with a threshold and fires when that has been true for `for_s`. The hub measures by itself
(`measures`); Prometheus evaluates `expression`, which has the same threshold and window.
"""

from __future__ import annotations

from enum import StrEnum
from string import Template
from typing import Final, NamedTuple

MINUTE: Final = 60
HOUR: Final = 3_600


class AlertSeverity(StrEnum):
    """Urgency of an alert."""

    CRITICAL = "critical"
    WARNING = "warning"


class Comparison(StrEnum):
    """Relation of measure and threshold for which a rule is true, in PromQL."""

    ABOVE = ">"
    BELOW = "<"
    EQUAL = "=="

    def holds(self, value: float, threshold: float) -> bool:
        """Return whether a value is in this relation to the threshold."""
        if self is Comparison.ABOVE:
            return value > threshold
        return value < threshold if self is Comparison.BELOW else value == threshold


class Measure(StrEnum):
    """Quantity that the hub measures for a rule."""

    GATEWAY_ERRORS = "errors that a gateway reports"
    CONNECTED = "1 while a gateway is connected"
    BACKLOG_AGE_S = "age of a gateway's oldest waiting message in seconds"
    STALLED_MESSAGES = "waiting messages of a connected gateway of which none landed within the window"
    ROOM_HOURS = "hours until a gateway's card is full"
    DROPPED = "ledger entries of a gateway within the window"
    MANIFESTS_WAITING = "statements of a connected gateway that the hub has not accepted"
    CERTIFICATE_PROBLEMS = "problems with certificates of a gateway, or of the hub"
    HUB_ERRORS = "errors that the hub reports"
    LANDING_FAILING = "1 while nothing can be landed"
    COMMANDS_LOST = "commands not delivered within the window, by state"
    ROLLOUTS_HALTED = "halted roll-outs"
    CAMPAIGNS_HALTED = "halted campaigns"
    CONFIGURATIONS_FAILED = "gateways without their configuration, by state"
    LAKE_UNEXPLAINED = "unexplained messages in the last proof"
    LAKE_TWICE = "messages that are in the lake twice, in the last proof"
    LAKE_FINDINGS = "findings of the last proof"
    PROOF_AGE_S = "seconds since the last proof"


OF_GATEWAYS: Final = frozenset(
    {
        Measure.GATEWAY_ERRORS,
        Measure.CONNECTED,
        Measure.BACKLOG_AGE_S,
        Measure.STALLED_MESSAGES,
        Measure.ROOM_HOURS,
        Measure.DROPPED,
        Measure.MANIFESTS_WAITING,
        Measure.CERTIFICATE_PROBLEMS,
    }
)
"""Measures of single gateways."""


class AlertRule(NamedTuple):
    """One rule. `name` is that of the alert in Prometheus."""

    name: str
    group: str
    measure: Measure
    comparison: Comparison
    threshold: float
    for_s: int
    severity: AlertSeverity
    expression: str
    """PromQL; ``$$is`` is comparison and threshold, ``$$window`` the window, ``$$seconds`` the window in seconds."""
    summary: str
    """Annotation of Prometheus."""
    title: str
    """Words for what is wrong."""
    next_step: str
    window_s: int = 0

    @property
    def promql(self) -> str:
        """Expression with threshold and window."""
        values = {
            "is": f"{self.comparison.value} {self.threshold:g}",
            "window": prometheus_duration(self.window_s),
            "seconds": str(self.window_s),
        }
        return Template(self.expression).substitute(values)

    def holds(self, value: float) -> bool:
        """Return whether the rule is true for a value of its measure."""
        return self.comparison.holds(value, self.threshold)


def prometheus_duration(seconds: int) -> str:
    """Format a duration as Prometheus does, in its largest whole unit: ``30m``."""
    for size, unit in ((HOUR, "h"), (MINUTE, "m")):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


_GATEWAY, _CERTIFICATES, _HUB, _LAKE = "waypost-gateway", "waypost-certificates", "waypost-hub", "waypost-lake"
_ABOVE, _BELOW, _EQUAL = Comparison
_CRITICAL, _WARNING = AlertSeverity

RULES: Final = (
    AlertRule(
        "WaypostGatewayProblem", _GATEWAY, Measure.GATEWAY_ERRORS, _ABOVE, 0, 2 * MINUTE, _CRITICAL,
        'waypost_problems{severity="error"} $is',
        "{{ $labels.instance }}: the gateway reports an error",
        "the gateway reports an error",
        "run waypost status, or open its console: the list of problems has the reason and the next step",
    ),
    AlertRule(
        "WaypostUplinkAway", _GATEWAY, Measure.CONNECTED, _EQUAL, 0, 30 * MINUTE, _WARNING,
        "waypost_bridge_connected $is",
        "{{ $labels.instance }}: connector {{ $labels.connector }} has been disconnected for half an hour",
        "it is not connected",
        "waypost bridge status shows the last error; until then the gateway stores the messages it accepts",
    ),
    AlertRule(
        "WaypostBacklogOld", _GATEWAY, Measure.BACKLOG_AGE_S, _ABOVE, HOUR, 10 * MINUTE, _WARNING,
        "waypost_bridge_backlog_age_seconds $is",
        "{{ $labels.instance }}: the oldest message for {{ $labels.connector }} is {{ $value | humanizeDuration }} old",
        "its oldest waiting message is older than an hour",
        "run waypost bridge status, then waypost bridge test",
    ),
    AlertRule(
        "WaypostBacklogDoesNotMove", _GATEWAY, Measure.STALLED_MESSAGES, _ABOVE, 0, 10 * MINUTE, _CRITICAL,
        "waypost_bridge_connected == 1 and waypost_bridge_backlog_messages $is"
        " and rate(waypost_bridge_accepted_total[$window]) == 0",
        "{{ $labels.instance }}: the far side of {{ $labels.connector }} is connected and accepts nothing",
        "it is connected, and nothing of its backlog is accepted",
        "check the problems of the hub (its /healthz), then run waypost bridge test",
        window_s=10 * MINUTE,
    ),
    AlertRule(
        "WaypostRoomEnds", _GATEWAY, Measure.ROOM_HOURS, _BELOW, 24, 10 * MINUTE, _CRITICAL,
        "waypost_bridge_autonomy_hours $is and on (instance) (max by (instance) (waypost_bridge_backlog_messages) > 0)",
        "{{ $labels.instance }}: storage for messages is full in {{ $value | humanize }} hours",
        "its storage for messages is full within a day",
        "restore the uplink, or change quota or whenFull of the addresses (see waypost status)",
    ),
    AlertRule(
        "WaypostMessagesGivenUp", _GATEWAY, Measure.DROPPED, _ABOVE, 0, 0, _WARNING,
        # The series of a reason begins with its first entry, which `increase` does not see.
        "increase(waypost_ledger_entries_total[$window]) $is"
        " or (waypost_ledger_entries_total $is unless waypost_ledger_entries_total offset $window)"
        " and on (instance) (waypost_uptime_seconds offset $window or waypost_uptime_seconds < $seconds)",
        "{{ $labels.instance }}: messages were discarded ({{ $labels.reason }})",
        "messages were discarded",
        "waypost store info lists them; so does the table ledger of the lake",
        window_s=15 * MINUTE,
    ),
    AlertRule(
        "WaypostManifestsWait", _GATEWAY, Measure.MANIFESTS_WAITING, _ABOVE, 0, HOUR, _WARNING,
        "waypost_bridge_manifest_waiting $is and waypost_bridge_connected == 1",
        "{{ $labels.instance }}: the far side of {{ $labels.connector }} does not accept the manifest",
        "its manifest is not accepted",
        "check the hub's quarantine, and that the hub's version is not older than the gateway's",
    ),
    AlertRule(
        "WaypostCertificateEnds", _CERTIFICATES, Measure.CERTIFICATE_PROBLEMS, _ABOVE, 0, 5 * MINUTE, _CRITICAL,
        '{__name__=~"waypost_(hub_)?problem_since_timestamp_seconds", problem=~"certificate.*"} $is',
        "{{ $labels.instance }}: {{ $labels.problem }}: {{ $labels.what }}",
        "a certificate ends, or is not valid",
        "renew the certificate; Waypost loads the new file by itself",
    ),
    AlertRule(
        "WaypostHubProblem", _HUB, Measure.HUB_ERRORS, _ABOVE, 0, 2 * MINUTE, _CRITICAL,
        'waypost_hub_problems{severity="error"} $is',
        "{{ $labels.instance }}: the hub reports an error",
        "the hub reports an error",
        "open its /healthz: it has the reason and the next step",
    ),
    AlertRule(
        "WaypostLandingFails", _HUB, Measure.LANDING_FAILING, _EQUAL, 1, 2 * MINUTE, _CRITICAL,
        "waypost_hub_landing_failing $is",
        "{{ $labels.instance }}: the hub cannot land batches and acknowledges none; gateways keep their messages",
        "the hub cannot land batches and acknowledges none; gateways keep their messages",
        "check its /healthz: it names the failing disk, lake or registry",
    ),
    AlertRule(
        "WaypostCommandsNotDelivered", _HUB, Measure.COMMANDS_LOST, _ABOVE, 10, 0, _WARNING,
        "sum by (namespace, job, state)"
        ' (increase(waypost_hub_commands_over_total{state!="delivered"}[$window])) $is',
        "{{ $labels.job }}: {{ $value | humanize }} commands to devices were {{ $labels.state }} within"
        " a quarter of an hour",
        "many commands to devices were not delivered within a quarter of an hour",
        "waypost command list --state {{ $labels.state }} lists them; check that their gateways and devices are"
        " connected",
        window_s=15 * MINUTE,
    ),
    AlertRule(
        "WaypostRolloutHalted", _HUB, Measure.ROLLOUTS_HALTED, _ABOVE, 0, 0, _WARNING,
        'max by (namespace, job, state) (waypost_hub_rollouts{state="halted"}) $is',
        "{{ $labels.job }}: a roll-out of a configuration is halted",
        "a roll-out of a configuration is halted",
        "waypost rollout status shows the reason; then run waypost rollout resume or abort",
    ),
    AlertRule(
        "WaypostCampaignHalted", _HUB, Measure.CAMPAIGNS_HALTED, _ABOVE, 0, 0, _WARNING,
        'max by (namespace, job, state) (waypost_hub_campaigns{state="halted"}) $is',
        "{{ $labels.job }}: a campaign of device updates is halted",
        "a campaign of device updates is halted",
        "waypost campaign list shows the reason; then run waypost campaign resume or stop",
    ),
    AlertRule(
        "WaypostConfigurationNotTaken", _HUB, Measure.CONFIGURATIONS_FAILED, _ABOVE, 0, 2 * MINUTE, _WARNING,
        'max by (namespace, job, state) (waypost_hub_configurations{state=~"refused|rolled-back"}) $is',
        "{{ $labels.job }}: {{ $value }} gateways have not applied their configuration ({{ $labels.state }})",
        "gateways have not applied their configuration",
        "waypost config list shows the reasons; apply a corrected version, or run waypost config rollback",
    ),
    AlertRule(
        "WaypostLossUnexplained", _LAKE, Measure.LAKE_UNEXPLAINED, _ABOVE, 0, 0, _CRITICAL,
        "waypost_lake_unexplained $is",
        "{{ $value }} accepted messages are neither in the lake nor in the ledger nor at their gateways",
        "accepted messages are neither in the lake nor in the ledger nor at their gateways",
        "waypost prove --lake DATA/lake names them",
    ),
    AlertRule(
        "WaypostLakeTwice", _LAKE, Measure.LAKE_TWICE, _ABOVE, 0, 0, _CRITICAL,
        "waypost_lake_twice $is",
        "{{ $value }} messages are in the lake more than once",
        "messages are in the lake more than once",
        "waypost prove --lake DATA/lake names them",
    ),
    AlertRule(
        "WaypostLakeFindings", _LAKE, Measure.LAKE_FINDINGS, _ABOVE, 0, 0, _CRITICAL,
        "waypost_lake_findings $is",
        "{{ $value }} findings: the lake differs from the manifests of its gateways",
        "the lake differs from the manifests of its gateways",
        "waypost prove --lake DATA/lake lists the findings",
    ),
    AlertRule(
        "WaypostProofOverdue", _LAKE, Measure.PROOF_AGE_S, _ABOVE, 2 * 24 * HOUR, 0, _WARNING,
        "time() - waypost_lake_proved_timestamp_seconds $is",
        "the last proof of the lake was {{ $value | humanizeDuration }} ago",
        "the last proof of the lake is older than two days",
        "check the job that runs waypost prove",
    ),
)  # fmt: skip
"""All rules, in the order of the file."""

BY_NAME: Final = {rule.name: rule for rule in RULES}
