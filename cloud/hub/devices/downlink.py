"""Sends gateways the devices that concern them, over the links that they attach for it.

A gateway gives its cursor with its link. It gets one page at a time, and the next one when it has stored that. Once it
has all, it gets changes within some seconds: a look at the revisions of all tenants finds its owner. Pages for several
gateways are made at a time, since the signature of each may come from another process.
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
from bridge.device_pages import CURSOR, RESTART, DevicePage, cursor_in
from bridge.downlink import GatewayLink
from bridge.forwarders.outcome import ForwardOutcome
from bridge.periodic_task import PeriodicTask, wait_and_clear
from cloud.hub.devices.limits import (
    FOLLOW_INTERVAL_S,
    PAGES_AT_ONCE_MAX,
    REFUSED_REST_S,
    REST_S_MAX,
    UNSIGNED_REST_S,
)
from cloud.hub.devices.page_sources import (
    FoundPage,
    GatewayPosition,
    PageRefused,
    PagesBusy,
    PageSource,
    PagesUnavailable,
)
from cloud.hub.devices.pages import read_cursor
from cloud.hub.groups import Key
from cloud.hub.registry.database import Database
from cloud.hub.registry.device_changes import DeviceChanges, DeviceCursor
from cloud.hub.registry.opening import open_registry
from cloud.hub.registry_thread import RegistryThread
from cloud.lake.faults import RegistryError
from edge.output.logs import describe_error

log = logging.getLogger(__name__)


class _Follower:
    """Gateway with a link for its devices."""

    def __init__(self, line: GatewayLink, held: str, cursor: DeviceCursor, *, restart: bool) -> None:
        self.line: Final = line
        self.held = held
        """Cursor that the gateway has stored."""
        self.cursor = cursor
        """The same, after changes that do not concern the gateway."""
        self.restart = restart
        """The gateway wants all its devices again."""
        self.sent: DevicePage | None = None
        """Page without an answer."""
        self.sending: asyncio.Task[None] | None = None
        """Task that makes the next page."""
        self.behind = True
        self.failures = 0
        """Pages in a row that could not be made, or that the gateway did not store."""
        self.out_of_step = False
        """The last page was out of step."""
        self.rest_until = 0.0
        """Time before which nothing is sent, on the loop's clock."""

    @property
    def waits(self) -> bool:
        """True if a page is to be made for it."""
        return self.behind and self.sent is None and self.sending is None

    @property
    def position(self) -> GatewayPosition:
        """Position after which the next page begins."""
        return GatewayPosition(self.line.gateway, self.held, self.cursor, self.restart)

    def continue_at(self, held: str, cursor: DeviceCursor) -> None:
        """Set the cursor that the gateway has stored."""
        self.held, self.cursor, self.restart = held, cursor, False

    def drop(self) -> None:
        """End the task, because the link has ended."""
        if self.sending is not None:
            self.sending.cancel()

    def rest(self, now: float) -> None:
        """Send nothing for a time that doubles with each failure in a row."""
        self.rest_until = now + min(REST_S_MAX, REFUSED_REST_S * 2.0 ** min(self.failures, 20))
        self.failures += 1


class DeviceDownlink:
    """Devices for the gateways of one hub (`bridge.downlink.DownlinkSource`). `open`, later `close`."""

    def __init__(self, registry: sa.URL, reader: RegistryThread[Database], pages: PageSource) -> None:
        """`reader` of the registry, which this downlink opens and closes."""
        self.figures: Counter[str] = Counter()
        """Since the start: `pages` stored by gateways, `refused` ones, and `devices` in stored pages."""
        self.refused: dict[Key, str] = {}
        """Gateways that do not get their devices, with the reason."""
        self.unsigned: str | None = None
        """Reason why no gateway gets a page, while there are pages to send; None otherwise."""
        self._url, self._reader, self._pages = registry, reader, pages
        self._woken = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        """Tasks that make pages."""
        self._rest_until = float("-inf")
        """Time before which no page is requested, on the loop's clock."""
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
        for each in self._sending:
            each.cancel()
        if self._sending:
            await asyncio.wait(self._sending)
        await self._reader.close()

    # --- DownlinkSource -----------------------------------------------------------------------------------------

    def ready(self, line: GatewayLink) -> None:
        there = self._followers.get(line.gateway)
        if there is None or there.line is not line:
            if there is not None:
                there.drop()
            held, restart = str(line.properties.get(CURSOR, "")), RESTART in line.properties
            cursor = read_cursor(held, self._registry_id)
            if restart:
                cursor = cursor.restarted(self._registry_id)
            self._followers[line.gateway] = _Follower(line, held, cursor, restart=restart)
        self._woken.set()

    def settled(self, line: GatewayLink, tag: int, outcome: ForwardOutcome, why: str) -> None:
        follower = self._followers.get(line.gateway)
        if follower is None or follower.line is not line or follower.sent is None:
            return
        page, follower.sent, follower.behind = follower.sent, None, True
        now = asyncio.get_running_loop().time()
        if outcome is ForwardOutcome.ACCEPTED:
            follower.failures, follower.out_of_step = 0, False
            follower.continue_at(page.cursor, read_cursor(page.cursor, self._registry_id))
            self.figures.update(pages=1, devices=len(page.entries))
            self.refused.pop(line.gateway, None)
        elif (held := cursor_in(why)) is not None:
            follower.continue_at(held, read_cursor(held, self._registry_id))
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
            there.drop()
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
        self._start_sending()

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

    def _start_sending(self) -> None:
        """Start to make pages for the gateways that wait, the one that waited longest first."""
        now, waiting = asyncio.get_running_loop().time(), [each for each in self._followers.values() if each.waits]
        if not waiting and not self._sending:
            self.unsigned = None
        if now < self._rest_until:
            return
        room = 1 if self.unsigned is not None else PAGES_AT_ONCE_MAX
        for follower in waiting:
            if len(self._sending) >= room:
                return
            if follower.rest_until <= now and follower.line.credit > 0:
                key = follower.line.gateway
                self._followers[key] = self._followers.pop(key)
                task = follower.sending = asyncio.create_task(self._send(follower), name=f"devices of {key[1]}")
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)

    async def _send(self, follower: _Follower) -> None:
        """Make the next page of a gateway, and send it."""
        follower.behind = False  # a change from now on makes it true again
        try:
            self._use(follower, await self._pages.next_page(follower.position))
        except PagesUnavailable as error:
            follower.behind = True
            self._rest(str(error))
        except (RegistryError, PagesBusy):  # the next look reports that the registry is away
            follower.behind = True
            follower.rest_until = asyncio.get_running_loop().time() + FOLLOW_INTERVAL_S
        except PageRefused as error:
            self._hold_back(follower, str(error))
        except Exception as error:  # of one gateway: the others get their devices
            log.exception("the page of a gateway's devices cannot be made")
            self._hold_back(follower, f"its page cannot be made: {describe_error(error)}")
        finally:
            follower.sending = None
            self._woken.set()

    def _use(self, follower: _Follower, found: FoundPage) -> None:
        if found.page is None:
            follower.cursor = found.cursor
            return
        self.unsigned = None
        if follower.line.credit > 0:
            follower.sent = found.page
            follower.line.send(next(self._tags), plain.data_section(found.body))
        else:
            follower.behind = True

    def _hold_back(self, follower: _Follower, why: str) -> None:
        """Rest after a page that cannot be made for this gateway."""
        follower.behind = True
        follower.rest(asyncio.get_running_loop().time())
        self._note_refusal(follower.line.gateway, why)

    def _rest(self, why: str) -> None:
        """Request no page for some time, and then one until it comes."""
        if self.unsigned is None:
            log.warning("gateways get no changes of their devices: %s", why)
        self.unsigned = why
        self._rest_until = asyncio.get_running_loop().time() + UNSIGNED_REST_S


def _registry_id(registry: sa.URL) -> str:
    opened = open_registry(registry)
    opened.database.close()
    return opened.registry_id
