"""Registry of a fleet for tests: gateways that come, report and go, and the list that people see."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from cloud.hub.fleet import FleetState
from cloud.hub.fleet_view import FleetViews, GatewayQuery
from cloud.hub.groups import Key, Presence
from tests.contract.registry.conftest import HERE, Place

T = TypeVar("T")
NOW_US: Final = 1_800_000_000_000_000
MINUTE_US: Final = 60_000_000
EVERYTHING: Final = GatewayQuery()


def status(**more: Any) -> dict[str, Any]:
    return {"reported_at": NOW_US // 1_000, "backlog_oldest_at": None, **more}


class FleetWorld:
    """Registry of two hubs, the fleet of one of them, and time."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.registry = place.open(HERE)
        self.fleet = FleetState(hub=HERE)
        self.now_s = 0.0

    def add(
        self, name: str, *, tenant: str = "default", seen_us: int = NOW_US, connected: bool = False,
        status: dict[str, Any] | None = None, **labels: str,
    ) -> None:  # fmt: skip
        key, directory = (tenant, name), self.registry.directory
        directory.presence({key: Presence("192.0.2.1", connected=True, at_us=seen_us, connects=1)})
        if status is not None:
            self.report(key, status, seen_us)
        if not connected:
            directory.presence({key: Presence("192.0.2.1", connected=False, at_us=seen_us)})
        self.label(key, **labels)

    def report(self, key: Key, status: dict[str, Any], seen_us: int = NOW_US) -> None:
        state = FleetState().current(self.registry.directory.gateways()[0])
        state.status = status
        self.registry.directory.seen({key: seen_us}, {key: state.observation()})

    def label(self, key: Key, **labels: str) -> None:
        for label, value in labels.items():
            self.place.execute(
                "INSERT INTO labels VALUES (:tenant, :name, :label, :value)",
                tenant=key[0], name=key[1], label=label, value=value,
            )  # fmt: skip

    def enrol(self, name: str, *, tenant: str = "default", at_us: int = NOW_US, **labels: str) -> None:
        self.place.execute(
            "INSERT INTO certificates VALUES (:serial, :tenant, :name, :key, :at, :at, NULL, '')",
            serial=f"{tenant}-{name}", tenant=tenant, name=name, key=b"", at=at_us,
        )  # fmt: skip
        self.label((tenant, name), **labels)

    def run(self, work: Callable[[FleetViews], Awaitable[T]]) -> T:
        async def main() -> T:
            views = FleetViews(self.fleet, self.place.url, now_us=lambda: NOW_US, clock=lambda: self.now_s)
            try:
                await views.open()
                return await work(views)
            finally:
                await views.close()

        return asyncio.run(main())

    def names(self, query: GatewayQuery = EVERYTHING, tenant: str | None = None) -> list[str]:
        async def work(views: FleetViews) -> list[str]:
            page = await views.of(tenant).page(query, "", 50)
            assert page.next is None
            assert page.total == len(page.rows)
            return [one.gateway.name for one in page.rows]

        return self.run(work)

    def column(self, name: str, column: str) -> Any:
        [(value,)] = self.place.execute(f"SELECT {column} FROM gateways WHERE name = :name", name=name)
        return value
