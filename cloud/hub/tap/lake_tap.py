"""Passes landed commits on to a topic, in order, as one of the hubs that could do it.

A hub claims the tap in the registry, opens the topic, and continues after the position that the topic has; without
one, after that of the registry. A commit is passed on in one transaction of the topic, and then noted in the registry.
So a hub that ends in between leaves nothing out and repeats nothing. When the topic fails, the hub gives the claim up:
another one may reach the brokers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from cloud.hub.registry.taps import RegistryTaps, TapName, TapRecord
from cloud.hub.tap.landed_log import LandedLog, LandedVersion, TapPosition
from cloud.hub.tap.limits import CLAIM_S, POLL_S, RETRY_S_MAX, RETRY_S_MIN, SEEN_S, SILENT_S
from cloud.hub.tap.message import TappedMessage, messages
from cloud.hub.tap.topic import TapTopic, TopicFault, TopicTaken
from cloud.lake.faults import LakeError, RegistryError
from edge.output.logs import describe_error

log = logging.getLogger(__name__)

T = TypeVar("T")


class ClaimLost(Exception):
    """Another hub has claimed the tap."""


class LakeTap:
    """Tap of one table. `run` it."""

    def __init__(
        self,
        name: TapName,
        hub: str,
        log_: LandedLog,
        taps: RegistryTaps,
        topic: TapTopic,
        *,
        bytes_max: int,
        executor: Executor,
        now_us: Callable[[], int],
        pause: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        """`hub`: writer id of this hub; `bytes_max`: of a record; `executor`: the thread that opened `taps`; `pause`
        waits some seconds."""
        self._name = name
        self._hub = hub
        self._log = log_
        self._taps = taps
        self._topic = topic
        self._bytes_max = bytes_max
        self._executor = executor
        self._now_us = now_us
        self._pause = pause
        self._claimed: TapRecord | None = None
        self._retry_s = RETRY_S_MIN

    async def run(self) -> None:
        """Pass commits on until cancelled; then leave the tap to other hubs."""
        try:
            while True:
                await self._pause(await self._attempt())
        finally:
            await self._release("")

    async def _attempt(self) -> float:
        """Claim the tap, and pass commits on until something hinders it. Return the seconds until the next attempt."""
        try:
            await self._claim()
            if self._claimed is None:
                return CLAIM_S
            await self._pass_on()
        except (ClaimLost, TopicTaken):
            log.info("another hub passes messages on to the topic %s", self._name.topic)
            self._claimed = None
            return CLAIM_S
        except (TopicFault, LakeError) as error:
            await self._fail(str(error))
        except RegistryError as error:
            log.warning("messages are not passed on to the topic %s: %s", self._name.topic, error)
            self._claimed = None
        except Exception as error:  # an internal error must not end the process silently
            log.exception("passing messages on to the topic %s failed with an internal error", self._name.topic)
            await self._fail(f"internal error: {describe_error(error)}")
        finally:
            await self._topic.close()
        wait_s, self._retry_s = self._retry_s, min(self._retry_s * 2, RETRY_S_MAX)
        return wait_s

    # --- claim ------------------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        found = await self._call(self._taps.read, self._name)
        version = await self._call(self._log.newest) if found is None else 0
        begin = TapRecord(0, None, self._now_us(), version, "", version, None, 0, "")
        claim = partial(self._taps.claim, self._name, self._hub, begin, int(SILENT_S * 1e6))
        self._claimed = await self._call(claim)

    async def _write(self, **changes: Any) -> None:
        """Write the state of the tap. Raises `ClaimLost`, `RegistryError`."""
        before = self._state()
        after = before._replace(**{"seen_at": self._now_us(), **changes})
        self._claimed = await self._call(self._taps.advance, self._name, before, after)
        if self._claimed is None:
            raise ClaimLost

    def _state(self) -> TapRecord:
        if self._claimed is None:
            raise ClaimLost
        return self._claimed

    async def _fail(self, why: str) -> None:
        """Write why nothing is passed on, and leave the tap to other hubs."""
        state = self._claimed
        if state is None or state.trouble != why:
            log.warning("messages are not passed on to the topic %s: %s", self._name.topic, why)
        changes: dict[str, Any] = {}
        if state is not None:
            try:
                changes["newest"] = await self._call(self._log.newest_after, max(state.version, state.newest))
                waiting = await self._next_with_messages(state.version)
                changes["waiting_since"] = waiting.at_us if waiting is not None else None
            except LakeError as error:
                log.debug("the newest version is not known: %s", error)
        await self._release(why, **changes)

    async def _next_with_messages(self, version: int) -> LandedVersion | None:
        """Return the first version after this one that landed messages."""
        while (landed := await self._call(self._log.read, version + 1)) is not None and not landed.files:
            version += 1
        return landed

    async def _release(self, trouble: str, **changes: Any) -> None:
        state, self._claimed = self._claimed, None
        if state is None:
            return
        changes = {"holder": None, "seen_at": self._now_us(), "trouble": trouble, **changes}
        try:
            await self._call(self._write_release, state, changes)
        except RegistryError as error:
            log.warning("the state of the topic %s cannot be written: %s", self._name.topic, error)

    def _write_release(self, state: TapRecord, changes: dict[str, Any]) -> None:
        """Write that this hub leaves the tap. A write that was cancelled may have happened, so the state may differ."""
        if self._taps.advance(self._name, state, state._replace(**changes)) is None:
            now = self._taps.read(self._name)
            if now is not None and now.holder == self._hub:
                self._taps.advance(self._name, now, now._replace(**changes))

    # --- commits ----------------------------------------------------------------------------------------------------

    async def _pass_on(self) -> None:
        """Pass commits on, until something hinders it. Raises what hinders it."""
        state = self._state()
        position = await self._topic.open() or TapPosition(state.version, state.digest)
        await self._call(self._log.check, position)
        if position.version != state.version:
            await self._write(version=position.version, digest=position.digest)
        log.info("passing messages on to the topic %s, from version %d on", self._name.topic, position.version + 1)
        landed = await self._call(self._log.read, position.version + 1)
        while True:
            if landed is None:
                await self._be_seen(position)
                await self._pause(POLL_S)
            else:
                records = await self._pass_version_on(landed) if landed.files else 0
                position = landed.position
            after = await self._call(self._log.read, position.version + 1)
            if landed is not None and landed.files:
                await self._note(position, records, after)
            landed = after

    async def _note(self, position: TapPosition, records: int, after: LandedVersion | None) -> None:
        """Note in the registry that a version was passed on."""
        state = self._state()
        await self._write(
            version=position.version,
            digest=position.digest,
            records=state.records + records,
            newest=max(state.newest, position.version if after is None else after.position.version),
            waiting_since=after.at_us if after is not None and after.files else None,
            trouble="",
        )
        self._retry_s = RETRY_S_MIN

    async def _be_seen(self, position: TapPosition) -> None:
        """Write at intervals that this hub is there; also versions without messages."""
        state = self._state()
        if self._now_us() - state.seen_at >= SEEN_S * 1e6 or state.waiting_since is not None or state.trouble:
            await self._write(
                version=position.version,
                digest=position.digest,
                newest=max(state.newest, position.version),
                waiting_since=None,
                trouble="",
            )

    async def _pass_version_on(self, landed: LandedVersion) -> int:
        """Pass the messages of a version on, in one transaction; return their number."""
        await self._topic.begin()
        count = 0
        parts = iter(self._log.rows(landed))
        while (part := await self._call(self._next_part, parts)) is not None:
            await self._topic.send(part)
            count += len(part)
            if self._now_us() - self._state().seen_at >= SEEN_S * 1e6:
                await self._write()
        await self._topic.commit(landed.position)
        return count

    def _next_part(self, parts: Iterator[pa.RecordBatch]) -> list[TappedMessage] | None:
        rows = next(parts, None)
        return None if rows is None else list(messages(rows, self._bytes_max))

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that blocks, on the thread of registry and lake."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)
