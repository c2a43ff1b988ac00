"""Versions that campaigns offer to devices, for the pages of their gateways. Parts of transactions.

A gateway gets the offers of a device with the device (`device_changes`), so a changed offer is a changed device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from bridge.device_pages import OfferedUpdate
from cloud.hub.campaign import HOLDING, OFFERED, WITHHELD
from cloud.hub.registry.device_targets import next_revision
from cloud.hub.registry.schema import campaign_members, campaigns, device_targets
from cloud.hub.rollout import MICROSECONDS, MemberPhase, RolloutState

_SUCCEEDED: Final = frozenset((MemberPhase.CONFIRMED, MemberPhase.DONE))
"""Phases of devices that have installed the version."""


def offers_of(tx: sa.Connection, devices_of: str, names: Sequence[str]) -> dict[str, tuple[OfferedUpdate, ...]]:
    """Return the offers of some devices of a device tenant; devices without any are left out."""
    columns = [campaign_members.c.device, campaign_members.c.phase, campaign_members.c.loading_at]
    columns += [campaigns.c[name] for name in ("name", "version", "id", "made_at", "state")]
    query = (
        sa.select(*columns)
        .join_from(campaign_members, campaigns, campaign_members.c.campaign == campaigns.c.id)
        .where(
            campaign_members.c.devices_of == devices_of,
            campaign_members.c.device.in_(names),
            campaign_members.c.phase.in_([each.value for each in OFFERED]),
            campaigns.c.closed.is_(False),
        )
        .order_by(campaigns.c.made_at, campaigns.c.id)
    )
    found: defaultdict[str, dict[tuple[str, str], OfferedUpdate]] = defaultdict(dict)
    for row in tx.execute(query):
        phase = MemberPhase(row.phase)
        # one that went silent may have lost its power: it may fetch the rest, and counts again when it reports
        silent = phase is MemberPhase.FAILED and row.loading_at is not None
        held = RolloutState(row.state) in HOLDING and (silent or phase in (MemberPhase.SENT, MemberPhase.AWAY))
        found[row.device][row.name, row.version] = OfferedUpdate(
            artefact=row.name,
            version=row.version,
            withheld=held or (phase in WITHHELD and not silent),
            campaign=row.id,
            begun_at=row.made_at // MICROSECONDS,
            done=phase in _SUCCEEDED,
        )
    return {device: tuple(offers.values()) for device, offers in found.items()}


def changes_offer(before: MemberPhase, after: MemberPhase) -> bool:
    """Return whether the gateways of a member have to know of its new phase: what failed is withheld, and what is
    installed is not offered again, also not by a gateway that has not seen the report."""
    return (before in WITHHELD, before in _SUCCEEDED) != (after in WITHHELD, after in _SUCCEEDED)


def mark_offers(tx: sa.Connection, devices_of: str, names: Sequence[str] | sa.Select[tuple[str]]) -> None:
    """Note that the offers of devices have changed, so that their gateways get them."""
    revision = next_revision(tx, devices_of)
    if revision is None:  # the tenant of the devices is gone
        return
    mine = (device_targets.c.tenant == devices_of, device_targets.c.device.in_(names), device_targets.c.present)
    tx.execute(device_targets.update().where(*mine).values(revision=revision))


def forget_members(tx: sa.Connection, devices_of: str, names: Sequence[str], now_us: int) -> None:
    """Note that devices were removed; other devices of these names are not in the campaigns."""
    mine = (
        campaign_members.c.devices_of == devices_of,
        campaign_members.c.device.in_(names),
        campaign_members.c.phase != MemberPhase.FORGOTTEN.value,
    )
    values = {"phase": MemberPhase.FORGOTTEN.value, "since": now_us, "why": "it was removed"}
    tx.execute(campaign_members.update().where(*mine).values(**values))
