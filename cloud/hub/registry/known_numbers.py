"""Numbers of a registry that is a copy: the original may have given those after the copy to something else.

Whatever counts and is known outside of the registry has its step here, so that a restore, a move and the repair of an
older copy treat it alike.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from cloud.hub.registry.device_targets import restart_gateways
from cloud.hub.registry.events import skip_numbers, utc_us
from cloud.hub.registry.schema import commands

DOUBTED: Final = "the registry was restored from an older copy, and the gateway may have had the command before"
"""Reason of a command in a restored registry: its outcome may have been reported to the original only."""


def leave_known_numbers(tx: sa.Connection, *, is_move: bool = False) -> None:
    """Leave out the numbers that clients and gateways may know from the original.

    `is_move`: the original ended when it was copied, and has sent nothing since.
    """
    skip_numbers(tx)
    now_us = utc_us()
    if not is_move:
        doubt_commands(tx, now_us)
    restart_gateways(tx, now_us)


def doubt_commands(tx: sa.Connection, now_us: int) -> None:
    """Mark the open commands of a copy: their gateways may have reported them to the original, and do so once.

    One that waits, and could go to another gateway, counts as sent: only its own gateway knows its name from the
    original. One past its time goes nowhere, and ends.
    """
    doubted = (commands.c.state.in_(("waiting", "sent", "queued")), commands.c.online.is_not(True))
    tx.execute(commands.update().where(*doubted).values(reason=DOUBTED))
    may_move = (commands.c.state == "waiting", commands.c.moves >= 0, commands.c.expires_at > now_us)
    tx.execute(commands.update().where(*may_move).values(state="sent"))
