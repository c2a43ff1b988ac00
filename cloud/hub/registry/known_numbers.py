"""Numbers of a registry that is a copy: the original may have given those after the copy to something else.

Whatever counts and is known outside of the registry has its step here, so that a restore, a move and the repair of an
older copy treat it alike.
"""

from __future__ import annotations

import sqlalchemy as sa

from cloud.hub.registry.device_targets import restart_gateways
from cloud.hub.registry.events import skip_numbers, utc_us
from cloud.hub.registry.schema import commands


def leave_known_numbers(tx: sa.Connection) -> None:
    """Leave out the numbers that clients and gateways may know from the original."""
    skip_numbers(tx)
    doubt_waiting(tx)
    restart_gateways(tx, utc_us())


def doubt_waiting(tx: sa.Connection) -> None:
    """Take commands that wait in a copy as sent: their gateways may have them from the original, and know their names.
    Commands that do not follow their devices never go elsewhere."""
    waiting = (commands.c.state == "waiting", commands.c.moves.is_not(None))
    tx.execute(commands.update().where(*waiting).values(state="sent"))
