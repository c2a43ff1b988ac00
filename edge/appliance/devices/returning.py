"""Parts of a gateway that give commands of departed devices back to the hub."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from edge.broker.router.uplinks import Uplinks, is_to_hub

if TYPE_CHECKING:
    from edge.broker.router.commands.returns import CommandReturns
    from edge.broker.server import Broker
    from edge.broker.store.contract import Store


def make_returns(
    broker: Broker, store: Store, uplinks: Uplinks, completed: Callable[[Collection[str]], None]
) -> CommandReturns:
    """Return what gives commands back; `completed` gets devices that have none any more."""
    from edge.broker.router.commands.returns import CommandReturns  # noqa: PLC0415 - memory without departed devices

    return CommandReturns(
        broker.router,
        store.logs,
        store.cursors,
        uplinks.receipts,
        knows=lambda device: broker.devices is None and not broker.gate.open and broker.gate.knows(device),
        arriving=lambda: not all(each.has_no_commands for each in uplinks if is_to_hub(each)),
        completed=completed,
    )
