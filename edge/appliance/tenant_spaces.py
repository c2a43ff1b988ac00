"""Further address spaces of a running gateway, each with a folder of its own in the data directory.

A space that is no longer configured is closed, and its folder stays: a change of the configuration never touches
stored messages. It is served again when a `TenantSpace` with its name is applied.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from edge.appliance.clock import ClockQuality
from edge.appliance.connector_health import ConnectorHealth
from edge.appliance.console.status import SpaceStatus, show_counts
from edge.appliance.gateway_space import GatewaySpace, open_space_store, with_implied_addresses
from edge.appliance.problems import room_problems, store_problems
from edge.broker.configuration import BrokerConfiguration
from edge.broker.security.credentials import CredentialsError
from edge.broker.server import Broker
from edge.broker.store.errors import StoreError
from edge.broker.store.sqlite import FILE_NAME, make_directory
from edge.health.counter_rise import CounterRise
from edge.health.problems import FoundProblem, Severity
from edge.output.text import word

log = logging.getLogger(__name__)

FOLDER: Final = "spaces"
"""Folder in the data directory, with a folder for each space."""


class OpenSpace(NamedTuple):
    """One served space, with what watches it."""

    space: GatewaySpace
    connectors: ConnectorHealth
    refused: CounterRise


class TenantSpaces:
    """Further spaces of one gateway. Create it inside a running loop; `follow`, later `stop`."""

    def __init__(self, data: Path, broker: Broker, clock: ClockQuality) -> None:
        """`data`: data directory of the gateway."""
        self._folder = data / FOLDER
        self._broker = broker
        self._clock = clock
        self._open: dict[str, OpenSpace] = {}
        self._troubles: dict[str, str] = {}
        """Troubles of configured spaces by name: one is not served, or not as it is configured."""
        self._left: list[str] = []
        """Names of spaces with a store that are not configured."""
        self._dialling = False
        self._one_at_a_time = asyncio.Lock()
        self._following: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[GatewaySpace]:
        return (each.space for each in self._open.values())

    async def follow(self, configurations: Sequence[BrokerConfiguration]) -> None:
        """Serve these spaces: open new ones, apply changes, close the others. A space that cannot be opened is a
        problem of its own, and is tried again with the next configuration. The work goes on when the caller is
        cancelled, as half a change would leave a store open; `stop` waits for it."""
        task = asyncio.create_task(self._follow(configurations), name="address spaces: a change")
        self._following.add(task)
        task.add_done_callback(self._following.discard)
        await asyncio.shield(task)

    def start_uplinks(self) -> None:
        """Start to dial the peers of all spaces, also of those that are opened later."""
        self._dialling = True
        for each in self._open.values():
            each.space.uplinks.start()

    async def stop_uplinks(self) -> None:
        """Close the connections to all peers, after the changes that are in progress."""
        self._dialling = False
        async with self._one_at_a_time:
            await asyncio.gather(*(each.space.uplinks.stop() for each in self._open.values()))

    async def stop(self) -> None:
        """Close all stores, after the broker has stopped."""
        async with self._one_at_a_time:
            for each in self._open.values():
                await each.space.stop_users()
                each.space.store.close()
            self._open.clear()

    @property
    def threads_live(self) -> bool:
        """False when the thread of a store has died."""
        return all(each.space.store.medium.threads_live for each in self._open.values())

    @property
    def amqp_connections(self) -> int:
        """Number of AMQP connections in all spaces."""
        return sum(len(each.space.served.amqp.connections) for each in self._open.values())

    def tick(self, now_ns: int, *, clock_good: bool) -> None:
        """Do what is due every second. `now_ns`: UTC."""
        for each in self._open.values():
            for uplink in each.space.uplinks:
                uplink.poll(now_ns, clock_good=clock_good)
            each.space.bridge.take_sample()

    def report_status(self) -> None:
        """Report the status of each space to its peers."""
        for each in self._open.values():
            document = each.space.status_document(clock_good=self._clock())
            for uplink in each.space.uplinks:
                uplink.tell_status(document)

    # --- figures ----------------------------------------------------------------------------------------------------

    def statuses(self) -> dict[str, SpaceStatus]:
        """Return the status of each served space, by name."""
        return {name: _status(each.space) for name, each in self._open.items()}

    def problems(self) -> Iterator[FoundProblem]:
        """Yield the problems of the spaces, with their names."""
        for name, why in self._troubles.items():
            step = f"repair it, then start the gateway again; its messages are in {word(self._folder / name)}"
            yield FoundProblem(f"space {name}", why, step)
        for name in self._left:
            what = "it is not configured, and its stored messages wait for it"
            look = f"waypost store info --data {word(self._folder / name)}"
            step = f"apply its TenantSpace again; or see what is in it ({look}), and move the folder away"
            yield FoundProblem(f"space {name}", what, step, Severity.WARNING)
        for name, each in self._open.items():
            for found in _problems(each):
                yield found._replace(name=f"space {name}: {found.name}")

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _follow(self, configurations: Sequence[BrokerConfiguration]) -> None:
        async with self._one_at_a_time:
            wanted = {each.space: with_implied_addresses(each) for each in configurations}
            failed, self._troubles = self._troubles, {}
            for name in [name for name in self._open if name not in wanted]:
                await self._try(name, "it is not closed completely", self._close(self._open.pop(name).space))
            for name, configuration in wanted.items():
                opened = self._open.get(name)
                if opened is None:
                    await self._try(name, "it is not served", self._serve(name, configuration))
                elif opened.space.configuration != configuration or name in failed:
                    change = opened.space.reconfigure(configuration)
                    await self._try(name, "its configuration is in force in part", change)
            self._left = await asyncio.to_thread(_stored_in, self._folder, set(wanted))

    async def _try(self, name: str, failed: str, work: Awaitable[None]) -> None:
        """Do the work for a space; note a failure, which must not concern the others."""
        try:
            await work
        except (OSError, StoreError, CredentialsError) as error:
            log.error("address space %s: %s: %s", name, failed, error)  # noqa: TRY400 - the reason, without a traceback
            self._troubles[name] = f"{failed}: {error}"
        except Exception as error:  # a row of a damaged page can be anything
            log.exception("address space %s: %s", name, failed)
            self._troubles[name] = f"{failed}: {type(error).__name__}: {error}"

    async def _serve(self, name: str, configuration: BrokerConfiguration) -> None:
        """Open a space and serve it. Raises what prevents it, after closing all that was opened."""
        loop, broker, data = asyncio.get_running_loop(), self._broker, self._folder / name
        await asyncio.to_thread(make_directory, self._folder)
        store = await asyncio.to_thread(open_space_store, configuration, data, loop)
        async with contextlib.AsyncExitStack() as undo:
            undo.callback(store.close)
            served = broker.make_space(configuration, store)
            undo.push_async_callback(broker.remove_space, served)
            space = GatewaySpace(
                configuration,
                data,
                store,
                lambda _store: served,
                lambda changed: broker.reconfigure_space(served, changed),
                clock=self._clock,
            )
            undo.pop_all()
            undo.push_async_callback(self._close, space)
            await space.uplinks.load(configuration)
            space.uplinks.configure(configuration)
            await space.start_users()
            broker.admit_space(served)
            connectors = ConnectorHealth(space.uplinks, lambda: space.bridge.autonomy_hours)
            self._open[name] = OpenSpace(space, connectors, CounterRise())
            undo.pop_all()
        if self._dialling:
            space.uplinks.start()
        log.info("address space %s is served", name)

    async def _close(self, space: GatewaySpace) -> None:
        """End the connections of a space, and close its store, whatever fails before."""
        async with contextlib.AsyncExitStack() as closing:  # the last one is called first
            closing.callback(space.store.close)
            closing.push_async_callback(space.stop_users)
            closing.push_async_callback(self._broker.remove_space, space.served)
            closing.push_async_callback(space.uplinks.stop)
        log.info("address space %s is closed; its stored messages stay in %s", space.served.name, space.data)


def stores_in(data: Path) -> list[Path]:
    """Return the files of all stores in the data directory of a gateway: its own one, and those of spaces."""
    found = (data / FILE_NAME, *sorted((data / FOLDER).glob(f"*/{FILE_NAME}")))
    return [file for file in found if file.exists()]


def _stored_in(folder: Path, served: set[str]) -> list[str]:
    """Return the names of other spaces with a store in the folder. Blocks."""
    return sorted(each.parent.name for each in folder.glob(f"*/{FILE_NAME}") if each.parent.name not in served)


def _status(space: GatewaySpace) -> SpaceStatus:
    served, totals = space.served, space.store.totals()
    router = served.router
    return {
        "hosts": list(served.hosts),
        "clients": {"mqtt": served.mqtt_sessions.connected, "amqp": len(served.amqp.connections), "http": 0},
        "messages": show_counts(router.figures),
        "stored_messages": totals.messages,
        "stored_bytes": totals.bytes,
        "quota": router.quotas.space_bytes,
        "epoch": space.store.lineage.epoch,
        "backlog": space.uplinks.backlog,
        "connected": {uplink.connector.name: uplink.dialer.state.connected for uplink in space.uplinks},
    }


def _problems(opened: OpenSpace) -> Iterator[FoundProblem]:
    """Yield the problems of a served space."""
    space = opened.space
    yield from store_problems(space.store.medium.problems)
    quotas = space.served.router.quotas
    rooms = quotas.usage()
    refused = {room.address: room.refused for room in rooms if room.refused}
    yield from room_problems(
        rooms,
        space_bytes=quotas.space_bytes,
        at_floor=False,  # a problem of the medium, which the gateway's own space reports
        floor_bytes=quotas.floor_bytes,
        lately=opened.refused.lately(refused),
    )
    if (trouble := space.users.trouble) is not None:
        yield FoundProblem("users", trouble, "changes of users take effect when it can be read")
    yield from opened.connectors.problems()
