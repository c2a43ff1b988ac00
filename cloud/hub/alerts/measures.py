"""Measures of the alert rules, from what the hub knows: gateways with their last status, health, commands, proofs."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from cloud.hub.alerts.limits import SLICE
from cloud.hub.alerts.rules import BY_NAME, OF_GATEWAYS, RULES, AlertRule, Measure
from cloud.hub.groups import Key
from cloud.hub.labels import Labels
from cloud.hub.metrics import CommandFigures
from cloud.hub.registry.campaign_rows import CampaignRecord
from cloud.hub.registry.commands import CommandState
from cloud.hub.registry.rollouts import RolloutRecord
from cloud.hub.rollout import RolloutState
from cloud.hub.seen_gateway import SeenGateway
from edge.health.problems import HealthProblem, Severity

PROOF: Final = "proof.prom"
"""File in the data directory with the metrics of the last proof: ``waypost prove --metrics DATA/proof.prom``."""
PROOF_BYTES_MAX: Final = 64 * 1024
"""Bytes read of it; it has ten lines."""
_SAMPLE: Final = re.compile(r"^waypost_lake_(\w+) (\d+(?:\.\d+)?)$", re.MULTILINE)
_FAILED: Final = ("refused", "rolled-back")
"""States of configurations that are not in force."""

_RULES_OF: Final[Mapping[Measure, AlertRule]] = {rule.measure: rule for rule in RULES}

_SHARED: Final = (Measure.ROLLOUTS_HALTED, Measure.CAMPAIGNS_HALTED, Measure.CONFIGURATIONS_FAILED)
SHARED_RULES: Final = frozenset(_RULES_OF[each].name for each in _SHARED)
"""Rules about no gateway that are true for all hubs of a registry: one of them measures."""
_SETTLING_US: Final = 1_000_000 * max(_RULES_OF[each].window_s for each in (Measure.DROPPED, Measure.COMMANDS_LOST))
"""Time after the start in which counters do not cover their windows."""


_NO_LABELS: Final[Labels] = {}


class AlertSubject(NamedTuple):
    """Rule, and the gateway or part of the hub that it is true for."""

    rule: str
    key: Key | None
    """Gateway; None: the hub."""
    detail: str = ""
    """Part of the hub."""


class AlertReading(NamedTuple):
    """A rule that is true."""

    what: str
    since_us: int = 0
    """Begin of the condition; 0: it was not there at the last evaluation."""
    labels: Labels = _NO_LABELS


@dataclass(slots=True)
class AlertReadings:
    """Result of one measurement."""

    true: dict[AlertSubject, AlertReading] = field(default_factory=dict)
    labels: Mapping[Key, Labels] = field(default_factory=dict)
    """Labels of gateways for which a rule is true, or an alert is open."""
    unknown: set[tuple[str, Key | None]] = field(default_factory=set)
    """Rules and subjects that cannot be measured now: their alerts stay as they are."""
    measured: set[str] = field(default_factory=set)
    """Rules with a measure."""
    elsewhere: AbstractSet[Key] = frozenset()
    """Gateways with open alerts that another hub measures, or none now."""

    @property
    def troubled(self) -> set[Key]:
        """Gateways for which a rule is true."""
        return {subject.key for subject in self.true if subject.key is not None}

    def set_labels(self, labels: Mapping[Key, Labels]) -> None:
        """Set the labels of the gateways."""
        self.labels = labels
        for subject, reading in self.true.items():
            if subject.key is not None:
                self.true[subject] = reading._replace(labels=labels.get(subject.key, _NO_LABELS))


class CampaignFigures(Protocol):
    """Campaigns of a hub, as far as they are measured."""

    @property
    def figures(self) -> Mapping[RolloutState, int]:
        """Number of campaigns that run, are paused or halted, by state."""

    @property
    def halted(self) -> Sequence[CampaignRecord]:
        """Some of those that are halted."""


class HubFigures(NamedTuple):
    """Figures of the hub itself for one measurement."""

    problems: Sequence[HealthProblem]
    landing_failing: bool
    landing_reason: str
    commands: CommandFigures
    halted: Sequence[RolloutRecord] | None
    """Halted roll-outs; None without configurations."""
    configurations: Mapping[str, int]
    """Gateways by state of their configuration."""
    campaigns: CampaignFigures


class RecentIncrease:
    """Increase of counters within a window."""

    def __init__(self, window_s: int) -> None:
        self._window_us = window_s * 1_000_000
        self._totals: dict[object, int] = {}
        self._added: dict[object, deque[tuple[int, int]]] = {}

    def has(self, name: object) -> bool:
        """Return whether the last total of a counter was above 0."""
        return name in self._totals

    def observe(self, name: object, total: int, now_us: int) -> int:
        """Record the total of a counter that began at 0; return its increase within the window."""
        before = self._totals.pop(name, 0)
        if total:
            self._totals[name] = total
        if total > before:
            self._added.setdefault(name, deque()).append((now_us, total - before))
        elif 0 < total < before:  # it restarted at 0
            self._added.setdefault(name, deque()).append((now_us, total))
        recent = self._added.get(name)
        if recent is None:
            return 0
        while recent and recent[0][0] <= now_us - self._window_us:
            recent.popleft()
        if not recent:
            del self._added[name]
        return sum(added for _, added in recent)


class HubMeasures:
    """Measures everything that the rules need. Counts begin with the hub."""

    def __init__(
        self,
        figures: Callable[[], HubFigures],
        proof: Path,
        started_us: int,
        *,
        hub: str = "",
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """`proof`: file with the metrics of the last proof. `hub`: writer id of this hub. `leads` returns whether this
        hub measures what all hubs of the registry have in common."""
        self._figures = figures
        self._proof = proof
        self._started_us = started_us
        self._hub = hub
        self._leads = leads
        self._dropped = RecentIncrease(_RULES_OF[Measure.DROPPED].window_s)
        self._commands = RecentIncrease(_RULES_OF[Measure.COMMANDS_LOST].window_s)
        self._landed: dict[Key, tuple[int, int]] = {}
        """Messages landed of a gateway with a backlog, and the time of the last one."""

    async def measure(self, gateways: Sequence[SeenGateway], now_us: int) -> AlertReadings:
        """Measure the hub and these gateways: all that are connected to it, or to none."""
        readings = AlertReadings(measured={rule.name for rule in RULES if rule.measure in OF_GATEWAYS})
        before, self._landed = self._landed, {}
        for start in range(0, len(gateways), SLICE):
            for seen in gateways[start : start + SLICE]:
                self._measure_gateway(seen, before.get(seen.key), now_us, readings)
            await asyncio.sleep(0)
        self._measure_hub(now_us, readings)
        return readings

    # --- gateways ---------------------------------------------------------------------------------------------------

    def _measure_gateway(
        self, seen: SeenGateway, landed: tuple[int, int] | None, now_us: int, readings: AlertReadings
    ) -> None:
        """Measure one gateway. `landed`: what `_landed` had of it at the last measurement."""
        if landed is None and self._is_idle(seen, now_us):
            return
        for measure, value, since_us in self._values(seen, landed, now_us):
            rule = _RULES_OF[measure]
            if value is None:
                readings.unknown.add((rule.name, seen.key))
            elif rule.holds(value):
                readings.true[AlertSubject(rule.name, seen.key)] = AlertReading(rule.title, since_us)

    def _is_idle(self, seen: SeenGateway, now_us: int) -> bool:
        """Return True for a gateway for which no rule can be true: most of them, at a tenth of the cost."""
        gateway, status = seen.gateway, seen.gateway.status
        if not gateway.connected or status is None or gateway.dropped or self._dropped.has(seen.key):
            return False
        news = ("backlog_messages", "backlog_oldest_at", "errors", "certificate_problems", "manifest_waiting")
        return now_us - self._started_us > _SETTLING_US and not any(status.get(name) for name in news)

    def _values(
        self, seen: SeenGateway, landed: tuple[int, int] | None, now_us: int
    ) -> Iterator[tuple[Measure, float | None, int]]:
        """Yield measure, value (None: not known now), and begin."""
        gateway = seen.gateway
        status = gateway.status if gateway.connected and gateway.status is not None else {}
        waiting = status.get("backlog_messages")
        yield Measure.CONNECTED, float(gateway.connected), max(gateway.last_seen, self._started_us)
        yield Measure.GATEWAY_ERRORS, status.get("errors"), 0
        yield Measure.CERTIFICATE_PROBLEMS, status.get("certificate_problems"), 0
        yield Measure.MANIFESTS_WAITING, status.get("manifest_waiting"), 0
        oldest_us = (status.get("backlog_oldest_at") or 0) * 1_000
        age_s = (now_us - oldest_us) / 1e6 if oldest_us else 0.0
        yield Measure.BACKLOG_AGE_S, age_s if status else None, oldest_us
        yield Measure.STALLED_MESSAGES, self._stalled(seen, landed, waiting, now_us), 0
        room = seen.room_hours if waiting or not gateway.connected else float("inf")
        yield Measure.ROOM_HOURS, room if status or seen.room_hours is not None else None, 0
        yield Measure.DROPPED, self._recently_dropped(seen, now_us), 0

    def _recently_dropped(self, seen: SeenGateway, now_us: int) -> float | None:
        """Return the ranges that a gateway has dropped within the window. Those of one that is away are known to the
        hub of its last connection only, and are none when the window is over."""
        gateway, window_us = seen.gateway, _RULES_OF[Measure.DROPPED].window_s * 1_000_000
        dropped = self._dropped.observe(seen.key, gateway.dropped, now_us)
        if gateway.connected or gateway.hub == self._hub:
            return self._since_start(dropped, now_us)
        return 0.0 if now_us - gateway.last_seen > window_us else None

    def _since_start(self, increase: int, now_us: int) -> float | None:
        """Return an increase; None for none if the hub has not run for the window yet."""
        return float(increase) if increase or now_us - self._started_us > _SETTLING_US else None

    def _stalled(
        self, seen: SeenGateway, landed: tuple[int, int] | None, waiting: int | None, now_us: int
    ) -> float | None:
        """Return the waiting messages of a gateway of which none landed within the window; 0 otherwise."""
        if not waiting:
            return None if waiting is None else 0.0
        before, since_us = landed or (-1, now_us)
        if seen.gateway.landed != before:
            since_us = now_us
        self._landed[seen.key] = seen.gateway.landed, since_us
        window_us = _RULES_OF[Measure.STALLED_MESSAGES].window_s * 1_000_000
        return float(waiting) if now_us - since_us >= window_us else 0.0

    # --- hub --------------------------------------------------------------------------------------------------------

    def _measure_hub(self, now_us: int, readings: AlertReadings) -> None:
        figures = self._figures()
        for measure, detail, value, what in (*self._process(figures, now_us), *self._lake(now_us)):
            rule = _RULES_OF[measure]
            readings.measured.add(rule.name)
            if value is None or (rule.name in SHARED_RULES and not self._leads()):
                readings.unknown.add((rule.name, None))
            elif rule.holds(value):
                readings.true[AlertSubject(rule.name, None, detail)] = AlertReading(what or rule.title)

    def _process(self, figures: HubFigures, now_us: int) -> Iterator[tuple[Measure, str, float | None, str]]:
        errors = [one for one in figures.problems if one.severity is Severity.ERROR]
        names = ", ".join(f"{one.name}: {one.what}" for one in errors[:3])
        yield Measure.HUB_ERRORS, "", len(errors), f"the hub reports: {names}" if errors else ""
        for one in figures.problems:
            if one.name.startswith("certificate"):
                yield Measure.CERTIFICATE_PROBLEMS, one.name, 1, f"{one.name}: {one.what}"
        yield Measure.LANDING_FAILING, "", float(figures.landing_failing), _with_reason(figures.landing_reason)
        for state, total in figures.commands.over.items():
            if state != CommandState.DELIVERED.value:
                lost = self._commands.observe(state, total, now_us)
                what = f"{lost} commands to devices were {state} within a quarter of an hour"
                yield Measure.COMMANDS_LOST, state, self._since_start(lost, now_us), what
        if figures.halted is not None:
            why = "; ".join(f"{one.id}: {one.why}" for one in figures.halted[:3])
            yield Measure.ROLLOUTS_HALTED, "", len(figures.halted), f"a roll-out is halted: {why}" if why else ""
            for state in _FAILED:
                count = figures.configurations.get(state, 0)
                what = f"{count} gateways have not applied their configuration ({state})"
                yield Measure.CONFIGURATIONS_FAILED, state, count, what

        halted = figures.campaigns.figures.get(RolloutState.HALTED, 0)
        why = "; ".join(f"{one.id}: {one.why}" for one in figures.campaigns.halted[:3])
        yield Measure.CAMPAIGNS_HALTED, "", halted, f"a campaign is halted: {why}" if why else ""

    def _lake(self, now_us: int) -> Iterator[tuple[Measure, str, float | None, str]]:
        """Yield the figures of the last proof; nothing without one."""
        found = read_proof(self._proof)
        for measure, name in _OF_PROOF.items():
            if name in found:
                value, title = found[name], _RULES_OF[measure].title
                yield measure, "", value, f"{value:g} {title}" if measure is Measure.LAKE_UNEXPLAINED else title
        if "proved_timestamp_seconds" in found:
            yield Measure.PROOF_AGE_S, "", now_us / 1e6 - found["proved_timestamp_seconds"], ""


_OF_PROOF: Final = {
    Measure.LAKE_UNEXPLAINED: "unexplained",
    Measure.LAKE_TWICE: "twice",
    Measure.LAKE_FINDINGS: "findings",
}
"""Metric of a proof without its prefix, by measure."""


def read_proof(path: Path) -> dict[str, float]:
    """Return the metrics of the last proof; none without a readable file."""
    try:
        with path.open("rb") as file:
            text = file.read(PROOF_BYTES_MAX).decode("ascii", "replace")
    except OSError:
        return {}
    return {name: float(value) for name, value in _SAMPLE.findall(text)}


def _with_reason(reason: str) -> str:
    title = _RULES_OF[Measure.LANDING_FAILING].title
    return f"{title} ({reason})" if reason else title


def title_of(rule: str) -> str:
    """Return the words of a rule; its name if this version does not have it."""
    known = BY_NAME.get(rule)
    return known.title if known is not None else rule
