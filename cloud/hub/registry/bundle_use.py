"""Uses of a bundle of the hub in configurations: who could not be updated any more without it."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from bridge.hub_bundles import SCHEME
from cloud.hub.registry.configurations import NEWEST
from cloud.hub.registry.database import Database
from cloud.hub.registry.schema import configurations, configured, rollouts, selectors
from cloud.hub.rollout import GOING


class BundleUse(NamedTuple):
    """Uses of one bundle."""

    gateways: int
    """Gateways that are to run it, and have neither confirmed nor undone that configuration."""
    rollouts: tuple[str, ...]
    """Roll-outs that are not over."""
    selectors: tuple[str, ...]
    """Selectors that give it to new gateways."""

    def __str__(self) -> str:
        parts = [f"{self.gateways} gateways that have not updated"] if self.gateways else []
        parts += [f"roll-out {each}" for each in self.rollouts]
        parts += [f"new gateways of selector {each}" for each in self.selectors]
        return ", ".join(parts)


def find_bundle_use(database: Database, name: str) -> BundleUse:
    """Return the uses of a bundle, in all tenants. Raises `RegistryError`."""
    named = f'"{SCHEME}{name}"'

    def work(tx: sa.Connection) -> BundleUse:
        waiting = (configurations.c.confirmed_at.is_(None), configurations.c.failure.is_(None))
        count = sa.select(sa.func.count()).select_from(configurations).join(configured, NEWEST)
        gateways = tx.execute(count.where(*waiting, configurations.c.content.contains(named, autoescape=True)))
        states = rollouts.c.state.in_([each.value for each in GOING])
        going = sa.select(rollouts.c.id).where(states, rollouts.c.resources.contains(named, autoescape=True))
        chosen = sa.select(selectors.c.selector).where(selectors.c.resources.contains(named, autoescape=True))
        return BundleUse(
            gateways.scalar_one(),
            tuple(tx.execute(going.order_by(rollouts.c.id)).scalars()),
            tuple(tx.execute(chosen.distinct().order_by(selectors.c.selector)).scalars()),
        )

    return database.transaction(work)
