"""Cleanup when a gateway is forgotten: everything set for it by name ends. The next gateway of that name is another
one.

Configurations of selectors stay, as do roll-outs with their other gateways. It runs in the transaction that forgets a
gateway, and in the enrolment under a forgotten name, because an older version of the program may have left
something.
"""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from bridge.desired import DesiredReport
from cloud.hub.groups import Key
from cloud.hub.registry import labels
from cloud.hub.registry.commands import ENDING, OPEN, CommandState
from cloud.hub.registry.configurations import gateway_in, in_order
from cloud.hub.registry.problems import end_problems_of
from cloud.hub.registry.schema import (
    attestations,
    commands,
    configurations,
    configured,
    local_device_lists,
    local_devices,
    rollout_members,
    rollouts,
)
from cloud.hub.rollout import GOING, MemberPhase


def withdraw(tx: sa.Connection, key: Key, now_us: int) -> None:
    """Remove everything set for this gateway by name. Idempotent."""
    tenant, gateway = key
    labels.drop(tx, tenant, gateway)
    tx.execute(attestations.delete().where(attestations.c.tenant == tenant, attestations.c.gateway == gateway))
    for table in (local_devices, local_device_lists):
        tx.execute(table.delete().where(table.c.tenant == tenant, table.c.gateway == gateway))
    _withdraw_versions(tx, key, now_us)
    _leave_rollouts(tx, key, now_us)
    _reject_commands(tx, key, now_us)
    end_problems_of(tx, tenant, gateway, now_us, "the gateway was forgotten")


def _withdraw_versions(tx: sa.Connection, key: Key, now_us: int) -> None:
    """Delete its versions. Their numbers are not used again: a gateway ignores numbers it has decided about."""
    tenant, gateway = key
    tx.execute(configurations.delete().where(configurations.c.tenant == tenant, configurations.c.gateway == gateway))
    before = gateway_in(tx, tenant, gateway)
    if before is None:
        return
    decided = before.report.newest if before.report is not None else 0
    report = msgspec.json.encode(DesiredReport(newest=max(before.wanted, decided))).decode()
    values = {"wanted": 0, "changed_at": in_order(tx, now_us), "report": report, "reported_at": None}
    mine = (configured.c.tenant == tenant, configured.c.gateway == gateway)
    tx.execute(configured.update().where(*mine).values(**values))


def _leave_rollouts(tx: sa.Connection, key: Key, now_us: int) -> None:
    """Mark it as forgotten in open roll-outs; completed ones keep their record."""
    tenant, gateway = key
    going = sa.select(rollouts.c.id).where(
        rollouts.c.tenant == tenant, rollouts.c.state.in_([each.value for each in GOING])
    )
    mine = (rollout_members.c.gateway == gateway, rollout_members.c.rollout.in_(going))
    values = {"phase": MemberPhase.FORGOTTEN.value, "since": now_us, "why": "it was forgotten"}
    tx.execute(rollout_members.update().where(*mine).values(**values))


def _reject_commands(tx: sa.Connection, key: Key, now_us: int) -> None:
    """Reject its open commands; a running hub reports that to the applications."""
    tenant, gateway = key
    mine = commands.update().where(commands.c.tenant == tenant, commands.c.gateway == gateway)
    rejecting = {"state": CommandState.REJECTING.value, "changed_at": now_us}
    words = f"gateway {gateway} was forgotten"
    for where, reason in (
        (commands.c.state == CommandState.WAITING.value, words),
        (commands.c.state.in_(OPEN) & commands.c.state.not_in(ENDING), f"{words}; it may have the command"),
    ):
        tx.execute(mine.where(where).values(**rejecting, reason=reason))
