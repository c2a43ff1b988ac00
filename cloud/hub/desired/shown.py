"""JSON rows of configurations and roll-outs, for the API and the command line. Times are UTC, in RFC 3339."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from cloud.hub.desired.documents import (
    ConfigurationRow,
    RolloutMemberRow,
    RolloutRow,
    RolloutStage,
    SelectorRow,
    VersionRow,
)
from cloud.hub.registry.configurations import ConfigurationRecord, VersionRecord
from cloud.hub.registry.rollouts import RolloutRecord
from cloud.hub.registry.selectors import SelectorRecord
from cloud.hub.rollout import RolloutMember
from edge.output.times import moment_us


def gateway_row(record: ConfigurationRecord) -> ConfigurationRow:
    """Make the row of a gateway."""
    report = record.report
    return {
        "tenant": record.tenant,
        "gateway": record.gateway,
        "state": record.state,
        "wanted": record.wanted,
        "version": report.version if report is not None else 0,
        "trying": report.trying if report is not None else None,
        "why": record.why,
        "kept": list(report.kept) if report is not None else [],
        "system": msgspec.to_builtins(report.system) if report is not None else None,
        "reported_at": moment_us(record.reported_at),
    }


def version_row(record: VersionRecord) -> VersionRow:
    """Make the row of a version, without its content."""
    return {
        "gateway": record.gateway,
        "version": record.version,
        "made_at": moment_us(record.made_at),
        "made_by": record.made_by,
        "note": record.note,
        "rollout": record.rollout,
        "selector": record.selector,
        "repeats": record.repeats,
        "confirmed_at": moment_us(record.confirmed_at),
        "failure": record.failure,
    }


def selector_row(record: SelectorRecord) -> SelectorRow:
    """Make the row of a selector's configuration, without its content."""
    return {
        "tenant": record.tenant,
        "selector": record.selector,
        "said_at": moment_us(record.decided_at),
        "made_by": record.made_by,
        "note": record.note,
        "rollout": record.rollout,
    }


def rollout_row(record: RolloutRecord, members: Sequence[RolloutMember]) -> RolloutRow:
    """Make the row of a roll-out."""
    stages = [_stage_row(record, members, wave) for wave in range(max((each.wave for each in members), default=0) + 1)]
    return {
        "id": record.id,
        "tenant": record.tenant,
        "state": record.state.value,
        "why": record.why,
        "wave": record.wave + 1,
        "waves": len(stages),
        "selector": record.selector,
        "stages": stages,
        "gateways": dict(sorted(Counter(each.phase.value for each in members).items())),
        "made_at": moment_us(record.made_at),
        "made_by": record.made_by,
        "note": record.note,
    }


def _stage_row(record: RolloutRecord, members: Sequence[RolloutMember], wave: int) -> RolloutStage:
    """Make the row of a wave: its text, and the number of gateways in each phase."""
    words = record.stages[wave] if record.stages is not None else ""
    phases = Counter(each.phase.value for each in members if each.wave == wave)
    return {"wave": wave + 1, "for": words or None, "gateways": dict(sorted(phases.items()))}


def member_row(member: RolloutMember) -> RolloutMemberRow:
    """Make the row of one gateway of a roll-out."""
    return {
        "gateway": member.gateway,
        "wave": member.wave + 1,
        "phase": member.phase.value,
        "version": member.version,
        "why": member.why,
    }
