"""Numbers of a registry that is a copy: the original may have given those after the copy to something else.

Whatever counts and is known outside of the registry has its step here, so that a restore, a move and the repair of an
older copy treat it alike.
"""

from __future__ import annotations

import sqlalchemy as sa

from cloud.hub.registry.device_targets import restart_gateways
from cloud.hub.registry.events import skip_numbers, utc_us
from cloud.hub.registry.schema import commands


def leave_known_numbers(tx: sa.Connection, *, is_move: bool = False) -> None:
    """Leave out the numbers that clients and gateways may know from the original.

    `is_move`: the original ended when it was copied, and has sent nothing since.
    """
    skip_numbers(tx)
    now_us = utc_us()
    if not is_move:
        doubt_waiting(tx, now_us)
    restart_gateways(tx, now_us)


def doubt_waiting(tx: sa.Connection, now_us: int) -> None:
    """Take commands that wait in a copy as sent: their gateways may have them from the original, and know their names.
    Commands that do not follow their devices never go elsewhere, and commands past their time expire."""
    waiting = (commands.c.state == "waiting", commands.c.moves.is_not(None), commands.c.expires_at > now_us)
    tx.execute(commands.update().where(*waiting).values(state="sent"))
