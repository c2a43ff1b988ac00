"""State machine of alerts: from rules that are true to alerts of one cause each. Pure; the time is an argument.

A rule that has become true is *pending* for its time `for_s`, then it *fires*. Gateways with one likely cause share one
alert (`cloud.hub.fleet_causes.group_by_cause`): it opens with all of them as soon as the first has been true long
enough, and gateways with the same trouble join it. An alert is resolved when none of its subjects is true any more.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cloud.hub.alerts.limits import SINGLE_ALERTS_MAX, WHAT_CHARACTERS_MAX
from cloud.hub.alerts.measures import AlertReading, AlertReadings, AlertSubject, title_of
from cloud.hub.alerts.rules import BY_NAME, AlertRule
from cloud.hub.fleet_causes import TOGETHER_S, Trouble, group_by_cause
from cloud.hub.groups import Key
from cloud.hub.labels import LabelError, Labels, parse_selector
from cloud.hub.registry.alerts import (
    FIRING,
    RESOLVED,
    AlertChanges,
    AlertMember,
    AlertRecord,
    MuteRecord,
    ReceiverRecord,
    RuleSettings,
)

RANK: Final = {"warning": 0, "critical": 1}
"""Order of severities."""
_TOGETHER_US: Final = int(TOGETHER_S * 1_000_000)


@dataclass(slots=True)
class ActiveSubject:
    """A rule that is true for a subject."""

    first_us: int
    """Time of the evaluation that found it first."""
    since_us: int
    labels: Labels
    what: str
    alert: str = ""
    """Its alert; empty while it is pending."""


@dataclass(slots=True)
class OpenAlert:
    """Open alert with its subjects."""

    record: AlertRecord
    members: dict[AlertSubject, None] = field(default_factory=dict)
    range_us: tuple[int, int] = (0, 0)
    """Begins of the first and the last of its subjects."""


class EffectiveRule:
    """A rule with the operator's settings."""

    def __init__(self, rule: AlertRule, settings: RuleSettings | None) -> None:
        self.rule = rule
        self.enabled = settings is None or settings.enabled
        self.for_s = rule.for_s if settings is None or settings.for_s is None else settings.for_s
        self.severity = rule.severity.value if settings is None or not settings.severity else settings.severity
        self._selector = parse_selector(settings.selector) if settings is not None and settings.selector else None

    def covers(self, subject: AlertSubject, labels: Labels) -> bool:
        """Return whether the rule is on for a subject."""
        return self.enabled and (self._selector is None or subject.key is None or self._selector.matches(labels))


def effective_rules(settings: Mapping[str, RuleSettings]) -> dict[str, EffectiveRule]:
    """Return all rules with the operator's settings."""
    return {name: EffectiveRule(rule, settings.get(name)) for name, rule in BY_NAME.items()}


class AlertBook:
    """Pending and open alerts of one hub."""

    def __init__(self, hub: str, make_id: Callable[[], str] = lambda: secrets.token_hex(8)) -> None:
        """`hub`: its writer id."""
        self._hub = hub
        self._make_id = make_id
        self.active: dict[AlertSubject, ActiveSubject] = {}
        self.open: dict[str, OpenAlert] = {}
        self._changed: set[str] = set()
        self._opened: list[AlertRecord] = []
        self._closed: list[AlertRecord] = []
        self._joined: list[tuple[str, AlertMember]] = []
        self._left: list[tuple[str, AlertMember]] = []

    def load(self, records: Iterable[AlertRecord], members: Mapping[str, Sequence[AlertMember]]) -> None:
        """Load the open alerts of the registry, at the start and after a failed write."""
        pending = {subject: active for subject, active in self.active.items() if not active.alert}
        self.active, self.open = pending, {}
        for record in records:
            mine = members.get(record.id, ())
            since = [each.since for each in mine] or [record.since]
            opened = self.open[record.id] = OpenAlert(record, range_us=(min(since), max(since)))
            subjects = {AlertSubject(record.rule, (record.tenant, each.gateway)): each.since for each in mine}
            if not record.tenant:
                subjects = {AlertSubject(record.rule, None, record.detail): record.since}
            for subject, since_us in subjects.items():
                opened.members[subject] = None
                self.active[subject] = ActiveSubject(since_us, since_us, {}, record.what, record.id)

    @property
    def members(self) -> set[Key]:
        """Gateways with open alerts."""
        return {subject.key for subject, active in self.active.items() if active.alert and subject.key is not None}

    def refresh(self, records: Iterable[AlertRecord]) -> None:
        """Take over what people changed since the last evaluation: acknowledgements."""
        for record in records:
            if (known := self.open.get(record.id)) is not None:
                known.record = record

    def step(
        self,
        readings: AlertReadings,
        rules: Mapping[str, EffectiveRule],
        mutes: Sequence[MuteRecord],
        receivers: Sequence[ReceiverRecord],
        now_us: int,
    ) -> AlertChanges:
        """Evaluate readings; return what to write."""
        self._changed, self._opened, self._closed, self._joined, self._left = set(), [], [], [], []
        self._update_active(readings, rules, now_us)
        due = [
            subject
            for subject, active in self.active.items()
            if not active.alert and now_us - active.first_us >= rules[subject.rule].for_s * 1_000_000
        ]
        if due:
            self._fire(due, rules, now_us)
        self._resolve_empty(now_us)
        self._mute(mutes)
        notify = [*self._notify_firing(receivers, now_us), *self._notify_resolved(receivers)]
        opened = {each.id for each in self._opened}
        changed = [self.open[each].record for each in sorted(self._changed - opened) if each in self.open]
        return AlertChanges(
            [self.open[each].record for each in sorted(opened)],
            [*changed, *self._closed],
            self._joined,
            self._left,
            notify,
        )

    # --- subjects -----------------------------------------------------------------------------------------------------

    def _update_active(self, readings: AlertReadings, rules: Mapping[str, EffectiveRule], now_us: int) -> None:
        true = {
            subject: reading
            for subject, reading in readings.true.items()
            if rules[subject.rule].covers(subject, reading.labels)
        }
        for subject, active in list(self.active.items()):
            if subject.key is not None:
                active.labels = readings.labels.get(subject.key, active.labels)
            if subject in true or self._is_unknown(subject, readings, rules):
                continue
            del self.active[subject]
            if active.alert:
                self._leave(active.alert, subject, now_us)
        for subject, reading in true.items():
            known = self.active.get(subject)
            if known is None:
                since_us = reading.since_us or now_us
                self.active[subject] = ActiveSubject(now_us, since_us, reading.labels, reading.what)
            else:
                self._describe(known, reading)

    @staticmethod
    def _is_unknown(subject: AlertSubject, readings: AlertReadings, rules: Mapping[str, EffectiveRule]) -> bool:
        rule = rules.get(subject.rule)
        if rule is None or not rule.enabled:
            return False
        if subject.key in readings.elsewhere:
            return True
        return (subject.rule, subject.key) in readings.unknown or subject.rule not in readings.measured

    def _describe(self, known: ActiveSubject, reading: AlertReading) -> None:
        """Take over new words for the same trouble."""
        if reading.what == known.what:
            return
        known.what = reading.what
        opened = self.open.get(known.alert)
        if opened is not None and len(opened.members) == 1:
            opened.record = opened.record._replace(what=reading.what[:WHAT_CHARACTERS_MAX])
            self._changed.add(opened.record.id)

    # --- alerts -------------------------------------------------------------------------------------------------------

    def _fire(self, due: Sequence[AlertSubject], rules: Mapping[str, EffectiveRule], now_us: int) -> None:
        """Put subjects that have been true long enough into alerts."""
        left = []
        for subject in due:
            if subject.key is None:
                self._open((subject,), "", rules, now_us)
            elif (opened := self._fitting(subject)) is not None:
                self._join(opened, subject)
            else:
                left.append(subject)
        if left:
            self._open_groups(set(left), rules, now_us)
        singles = Counter((each.record.rule, each.record.tenant) for each in self.open.values() if each.record.gateway)
        for subject in left:
            if self.active[subject].alert or subject.key is None:
                continue
            crowd = (subject.rule, subject.key[0])
            opened = self._crowd(*crowd) if singles[crowd] >= SINGLE_ALERTS_MAX else None
            if opened is not None:
                self._join(opened, subject)
            else:
                self._open((subject,), "", rules, now_us, crowd=singles[crowd] >= SINGLE_ALERTS_MAX)
                singles[crowd] += 1

    def _fitting(self, subject: AlertSubject) -> OpenAlert | None:
        """Return the open alert of the subject's likely cause."""
        active = self.active[subject]
        for opened in self.open.values():
            record, (first_us, last_us) = opened.record, opened.range_us
            if not record.selector or record.rule != subject.rule or subject.key is None:
                continue
            label, _, value = record.selector.partition("=")
            near = last_us - _TOGETHER_US <= active.since_us <= first_us + _TOGETHER_US
            if record.tenant == subject.key[0] and active.labels.get(label) == value and near:
                return opened
        return None

    def _crowd(self, rule: str, tenant: str) -> OpenAlert | None:
        """Return the alert about all further gateways of a rule, if there is one."""
        for opened in self.open.values():
            record = opened.record
            if (record.rule, record.tenant, record.selector, record.gateway) == (rule, tenant, "", ""):
                return opened
        return None

    def _open_groups(self, due: set[AlertSubject], rules: Mapping[str, EffectiveRule], now_us: int) -> None:
        """Open an alert for each likely cause of subjects that are due, with all its subjects."""
        concerned = {subject.rule for subject in due}
        troubles = {}
        for subject, active in self.active.items():
            alone = not active.alert or bool(self.open[active.alert].record.gateway)
            if subject.rule in concerned and subject.key is not None and alone:
                troubles[subject] = Trouble(subject.key, subject.rule, active.since_us, active.labels)
        for cause in group_by_cause(troubles.values()):
            members = [AlertSubject(cause.kind, one.key) for one in cause.troubles]
            if due.isdisjoint(members):
                continue
            for subject in members:
                if before := self.active[subject].alert:
                    self._leave(before, subject, now_us)
                    self._resolve(before, now_us, "part of an alert about several gateways")
            self._open(members, cause.selector, rules, now_us)

    def _open(
        self,
        subjects: Sequence[AlertSubject],
        selector: str,
        rules: Mapping[str, EffectiveRule],
        now_us: int,
        *,
        crowd: bool = False,
    ) -> None:
        first = subjects[0]
        since = [self.active[each].since_us for each in subjects]
        tenant, gateway = first.key or ("", "")
        what = self.active[first].what
        if crowd or len(subjects) > 1:
            gateway, what = "", title_of(first.rule)
        rule = rules[first.rule]
        record = AlertRecord(
            id=self._make_id(),
            hub=self._hub,
            rule=first.rule,
            severity=rule.severity,
            tenant=tenant,
            selector=selector,
            gateway=gateway,
            detail=first.detail,
            what=what[:WHAT_CHARACTERS_MAX],
            next_step=rule.rule.next_step.replace("{{ $labels.state }}", first.detail),
            since=min(since),
            fired_at=now_us,
            gateways=0,
        )
        opened = self.open[record.id] = OpenAlert(record, range_us=(min(since), max(since)))
        self._opened.append(record)
        for subject in subjects:
            self._join(opened, subject)

    def _join(self, opened: OpenAlert, subject: AlertSubject) -> None:
        active = self.active[subject]
        active.alert = opened.record.id
        opened.members[subject] = None
        first_us, last_us = opened.range_us
        opened.range_us = min(first_us, active.since_us), max(last_us, active.since_us)
        if subject.key is not None:
            self._joined.append((opened.record.id, AlertMember(subject.key[1], active.since_us)))
            self._count(opened)

    def _leave(self, alert: str, subject: AlertSubject, now_us: int) -> None:
        opened = self.open[alert]
        opened.members.pop(subject, None)
        if subject.key is not None:
            self._left.append((alert, AlertMember(subject.key[1], 0, now_us)))
            if opened.members:  # the number at the end stays in the history
                self._count(opened)

    def _count(self, opened: OpenAlert) -> None:
        opened.record = opened.record._replace(gateways=len(opened.members))
        self._changed.add(opened.record.id)

    def _resolve_empty(self, now_us: int) -> None:
        for alert in [alert for alert, opened in self.open.items() if not opened.members]:
            self._resolve(alert, now_us, "")

    def _resolve(self, alert: str, now_us: int, outcome: str) -> None:
        opened = self.open.pop(alert, None)
        if opened is not None:
            self._closed.append(opened.record._replace(resolved_at=now_us, outcome=outcome, muted_until=None))

    # --- people -------------------------------------------------------------------------------------------------------

    def _mute(self, mutes: Sequence[MuteRecord]) -> None:
        for opened in self.open.values():
            until = max((mute.until for mute in mutes if self._is_muted(opened, mute)), default=None)
            if until != opened.record.muted_until:
                opened.record = opened.record._replace(muted_until=until)
                self._changed.add(opened.record.id)

    def _is_muted(self, opened: OpenAlert, mute: MuteRecord) -> bool:
        """Return whether a mute covers an alert: all of its gateways."""
        record = opened.record
        if mute.rule not in ("", record.rule) or (mute.tenant and mute.tenant != record.tenant):
            return False
        if not mute.selector and not mute.gateway:
            return True
        if not record.tenant:
            return False
        try:
            selector = parse_selector(mute.selector) if mute.selector else None
        except LabelError:
            return False
        return all(
            (not mute.gateway or (subject.key or ("", ""))[1] == mute.gateway)
            and (selector is None or selector.matches(self.active[subject].labels))
            for subject in opened.members
        )

    def _notify_firing(
        self, receivers: Sequence[ReceiverRecord], now_us: int
    ) -> Iterable[tuple[AlertRecord, str, Sequence[str]]]:
        for opened in self.open.values():
            record = opened.record
            if record.notified_at is None and record.state == FIRING:
                opened.record = record._replace(notified_at=now_us)
                self._changed.add(record.id)
                yield opened.record, FIRING, names_for(receivers, record)

    def _notify_resolved(self, receivers: Sequence[ReceiverRecord]) -> Iterable[tuple[AlertRecord, str, Sequence[str]]]:
        for record in self._closed:
            if record.notified_at is not None and not record.outcome:
                yield record, RESOLVED, names_for(receivers, record)

    def pending(self) -> list[tuple[AlertSubject, ActiveSubject]]:
        """Return the subjects that are true and have not fired yet, by rule and name."""
        waiting = [(subject, active) for subject, active in self.active.items() if not active.alert]
        return sorted(waiting, key=lambda one: (one[0].rule, one[0].key or _NO_KEY, one[0].detail))


_NO_KEY: Final[Key] = ("", "")


def names_for(receivers: Sequence[ReceiverRecord], record: AlertRecord) -> list[str]:
    """Return the receivers that are notified of an alert."""
    return [each.name for each in receivers if each.kind != PING and RANK[record.severity] >= RANK[each.severity]]


PING: Final = "ping"
"""Kind of receivers that are told that the hub evaluates its rules, not of alerts."""
