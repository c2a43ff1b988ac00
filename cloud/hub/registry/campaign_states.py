"""States of campaigns in the registry: events of their changes, and their pause in an older copy. Parts of
transactions."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from cloud.hub.registry.events import EventType, FleetEvent, append_events, make_event
from cloud.hub.registry.schema import PARAMETERS_MAX, campaign_members, campaigns
from cloud.hub.rollout import OPEN, RolloutState

OLDER_COPY: Final = "the registry is an older copy, so the campaign may have been stopped since: resume or stop it"
"""Reason of the pause."""
_PAUSED_AT_ONCE: Final = min(500, PARAMETERS_MAX)


class CampaignState(NamedTuple):
    """State of a campaign, as its events show it."""

    id: str
    tenant: str
    state: RolloutState
    wave: int
    """Current wave, from 0."""
    why: str
    name: str
    """Name of the artefact."""
    version: str
    note: str


def campaign_event(at: int, campaign: CampaignState, **more: Any) -> FleetEvent:
    """Return the event of a changed campaign."""
    about = {"state": campaign.state.value, "wave": campaign.wave + 1, "why": campaign.why or None}
    about |= {"artefact": campaign.name, "version": campaign.version, "note": campaign.note or None, **more}
    return make_event(at, EventType.CAMPAIGN_CHANGED, campaign.tenant, "", campaign.id, **about)


def pause_campaigns(tx: sa.Connection, now_us: int) -> int:
    """Pause the campaigns that let devices fetch something; return their number. For a registry that is an older copy:
    they may have been stopped since. Gateways have to get the devices of such a copy again, with these offers."""
    waits = sa.exists().where(
        campaign_members.c.campaign == campaigns.c.id,
        campaign_members.c.phase.in_([each.value for each in OPEN]),
    )
    running = (campaigns.c.state == RolloutState.RUNNING.value) | (
        (campaigns.c.state == RolloutState.DONE.value) & waits
    )
    columns = [campaigns.c[name] for name in CampaignState._fields]
    query = sa.select(*columns).where(campaigns.c.closed.is_(False), running).order_by(campaigns.c.id)
    paused = [
        CampaignState(*row)._replace(state=RolloutState.PAUSED, why=OLDER_COPY) for row in tx.execute(query).all()
    ]
    for start in range(0, len(paused), _PAUSED_AT_ONCE):
        part = campaigns.c.id.in_([each.id for each in paused[start : start + _PAUSED_AT_ONCE]])
        tx.execute(campaigns.update().where(part).values(state=RolloutState.PAUSED.value, why=OLDER_COPY))
    append_events(tx, [campaign_event(now_us, each) for each in paused])
    return len(paused)
