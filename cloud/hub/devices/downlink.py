"""Sends gateways the devices that concern them, over the links that they attach for it.

A gateway gives its cursor with its link. It gets one page at a time, and the next one when it has stored that. Once it
has all, it gets changes within some seconds: a look at the revisions of all tenants finds its owner. The registry is
read in a thread with a connection of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from itertools import count
from typing import Final

import sqlalchemy as sa

from bridge import plain
from bridge.device_pages import CURSOR, RESTART, cursor_in
from bridge.downlink import GatewayLink
from bridge.forwarders.outcome import ForwardOutcome
from bridge.periodic_task import PeriodicTask, wait_and_clear
from cloud.hub.devices.limits import FOLLOW_INTERVAL_S, REFUSED_REST_S, REST_S_MAX
from cloud.hub.devices.pages import MadePage, SignBytes, make_page, read_cursor, sign_page
from cloud.hub.groups import Key
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_changes import DeviceChanges, DeviceCursor, GatewayRead
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry_thread import RegistryThread, database_of
from cloud.lake.faults import RegistryError
from edge.output.logs import describe_error

log = logging.getLogger(__name__)


class _Follower:
    """Gateway with a link for its devices."""

    def __init__(self, line: GatewayLink, held: str, cursor: DeviceCursor) -> None:
        self.line: Final = line
        self.held = held
        """Cursor that the gateway has stored."""
        self.cursor = cursor
        """The same, after changes that do not concern the gateway."""
        self.sent: MadePage | None = None
        """Page without an answer."""
        self.behind = True
        self.failures = 0
        """Pages in a row that could not be made, or that the gateway did not store."""
        self.out_of_step = False
        """The last page was out of step."""
        self.rest_until = 0.0
        """Time before which nothing is sent, on the loop's clock."""

    def rest(self, now: float) -> None:
        """Send nothing for a time that doubles with each failure in a row."""
        self.rest_until = now + min(REST_S_MAX, REFUSED_REST_S * 2.0 ** min(self.failures, 20))
        self.failures += 1


class DeviceDownlink:
    """Devices for the gateways of one hub (`bridge.downlink.DownlinkSource`). `open`, later `close`."""

    def __init__(self, registry: sa.URL, sign: SignBytes) -> None:
        """`sign`: with the key of the authority at which gateways enrol."""
        self.figures: Counter[str] = Counter()
        """Since the start: `pages` stored by gateways, `refused` ones, and `devices` in stored pages."""
        self.refused: dict[Key, str] = {}
        """Gateways that do not get their devices, with the reason."""
        self._url, self._sign = registry, sign
        self._woken = asyncio.Event()
        self._reader = RegistryThread("devices-of-gateways", database_of(registry, reading=True))
        self._registry_id = ""
        self._followers: dict[Key, _Follower] = {}
        self._revisions: dict[str, int] = {}
        self._labels: dict[str, dict[str, dict[str, str]]] = {}
        self._looked_at = float("-inf")
        self._tags = count()
        self._following = PeriodicTask(
            "devices of gateways", self._follow, FOLLOW_INTERVAL_S,
            log=log, failed="gateways do not get changes of their devices", expected=(RegistryError,),
            wait=partial(wait_and_clear, self._woken),
        )  # fmt: skip

    @property
    def trouble(self) -> str | None:
        """Reason why the registry is not read; None if it is."""
        return self._following.trouble

    async def open(self) -> None:
        """Open the registry and start to follow it. Raises `RegistryError`."""
        self._registry_id = await asyncio.to_thread(_registry_id, self._url)
        await self._reader.open()
        self._following.start()

    async def close(self) -> None:
        """Stop following and close the registry. Idempotent."""
        await self._following.stop()
        await self._reader.close()

    # --- DownlinkSource -----------------------------------------------------------------------------------------

    def ready(self, line: GatewayLink) -> None:
        there = self._followers.get(line.gateway)
        if there is None or there.line is not line:
            held = str(line.properties.get(CURSOR, ""))
            cursor = read_cursor(held, self._registry_id)
            if RESTART in line.properties:
                cursor = cursor.restarted(self._registry_id)
            self._followers[line.gateway] = _Follower(line, held, cursor)
        self._woken.set()

    def settled(self, line: GatewayLink, tag: int, outcome: ForwardOutcome, why: str) -> None:
        follower = self._followers.get(line.gateway)
        if follower is None or follower.line is not line or follower.sent is None:
            return
        made, follower.sent, follower.behind = follower.sent, None, True
        now = asyncio.get_running_loop().time()
        if outcome is ForwardOutcome.ACCEPTED:
            follower.failures, follower.out_of_step = 0, False
            follower.held, follower.cursor = made.page.cursor, made.cursor
            self.figures.update(pages=1, devices=len(made.page.entries))
            self.refused.pop(line.gateway, None)
        elif (held := cursor_in(why)) is not None:
            follower.held, follower.cursor = held, read_cursor(held, self._registry_id)
            if follower.out_of_step:
                follower.rest(now)
            follower.out_of_step = True
        else:
            follower.rest(now)
            if outcome is ForwardOutcome.REJECTED:
                self._note_refusal(line.gateway, why)
        self._woken.set()

    def ended(self, line: GatewayLink) -> None:
        there = self._followers.get(line.gateway)
        if there is not None and there.line is line:
            del self._followers[line.gateway]
            self.refused.pop(line.gateway, None)

    # --- inside -------------------------------------------------------------------------------------------------

    def _note_refusal(self, key: Key, why: str) -> None:
        self.figures["refused"] += 1
        if self.refused.get(key) != why:
            log.warning("gateway %s does not get its devices: %s", key[1], why)
        self.refused[key] = why

    async def _follow(self) -> None:
        await self._look()
        await self._send_all()

    async def _look(self) -> None:
        """Find the gateways that an owner has changed devices for, or that have other labels."""
        now = asyncio.get_running_loop().time()
        if now < self._looked_at + FOLLOW_INTERVAL_S:
            return
        revisions = await self._reader.run(lambda database: DeviceChanges(database).revisions())
        labels = await self._reader.run(lambda database: DeviceChanges(database).labels())
        owners = {owner for owner, number in revisions.items() if self._revisions.get(owner) != number}
        owners |= self._revisions.keys() - revisions.keys()
        for key, follower in self._followers.items():
            owner, name = key
            other = labels.get(owner, {}).get(name) != self._labels.get(owner, {}).get(name)
            follower.behind = follower.behind or owner in owners or other
        self._revisions, self._labels, self._looked_at = revisions, labels, now

    async def _send_all(self) -> None:
        now = asyncio.get_running_loop().time()
        for follower in list(self._followers.values()):
            due = follower.behind and follower.sent is None and follower.rest_until <= now
            if due and follower.line.credit > 0:
                try:
                    await self._send(follower)
                except Exception as error:  # of one gateway: the others get their devices
                    follower.behind = True
                    follower.rest(now)
                    self._note_refusal(follower.line.gateway, f"its page cannot be made: {describe_error(error)}")

    async def _send(self, follower: _Follower) -> None:
        key, cursor = follower.line.gateway, follower.cursor
        follower.behind = False  # a change from now on makes it true again

        def read(database: Database) -> tuple[GatewayRead, MadePage | None, bytes]:
            found = DeviceChanges(database).read(key, cursor)
            if found.changes is None:
                return found, None, b""
            made = make_page(key, found.changes, follower.held)
            return found, made, sign_page(made.page, self._sign)

        found, made, body = await self._reader.run(read)
        if made is None:
            follower.cursor = found.cursor
        elif follower.line.credit > 0:
            follower.sent = made
            follower.line.send(next(self._tags), plain.data_section(body))
        else:
            follower.behind = True


def _registry_id(registry: sa.URL) -> str:
    opened = open_registry(registry)
    opened.database.close()
    return opened.registry_id
