"""The landing thread's work: one group into registry and lake. No loop, no answers, no waiting.

Each kind of thing is landed by itself, so that a table that refuses holds nothing but what belongs into it. Order
within a turn: connections that came and went, ledger ranges (they explain what will not come), manifests, how far
clocks were off (before the messages that were stamped by them), what nobody can read, batches, and then lineages: what
a gateway sent before must be in the registry when its store is compared with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from cloud.hub.groups import ClockOffsets, Entry, Group, LedgerDocument, Lineage, Manifest, Report, Verdict
from cloud.hub.registry.registry import Registry
from cloud.lake.commits import GatewayStore
from cloud.lake.faults import CannotLand, ContentError, LakeError
from cloud.lake.isolation import Isolation, isolate
from cloud.lake.landing import Landing, Unreadable
from cloud.lake.limits import LANDING_S_MAX
from cloud.lake.rows import ReceivedBatch
from edge.output.logs import describe_error

log = logging.getLogger(__name__)

T = TypeVar("T")
Told = TypeVar("Told", Manifest, ClockOffsets)

HUB_FAULTS = (CannotLand, OSError, MemoryError)
"""Faults of what the hub stands on: the next try of all together may succeed. Only when that fails too are batches
tried in parts, to see whether the fault is of some of them."""


class Lander:
    """For the landing's thread."""

    def __init__(self, registry: Registry, landing: Landing, *, clock: Callable[[], float]) -> None:
        """`clock`: seconds, any that does not go back; for the duration reported, and the time a landing may take."""
        self.registry = registry
        self._landing = landing
        self._clock = clock

    def land(self, group: Group, now_us: int) -> Report:
        """Do what can be done, and set the verdict of each entry that landed."""
        report = Report()
        with self._attempt(group.entries, report):
            self.registry.directory.presence(group.presence)
            group.presence = {}
            self._release_fenced(group.entries)
        if report.fault is None:
            self._land_ledger(group, report, now_us)
            report.statements = self._land_told(Manifest, "manifests", group, report, now_us)
            self._land_told(ClockOffsets, "clock_offsets", group, report, now_us)
            self._quarantine(group, report, now_us)
            self._land_batches(group, report, now_us)
            self._compare(group, report)
            self._land_rest(group, report, now_us)
        report.versions = dict(self._landing.versions)
        return report

    def compact(self) -> int:
        """Between two landings: small files of the lake become one; returns how many. What fails is tried again when
        there are more."""
        try:
            return self._landing.compact()
        except LakeError as error:
            log.warning("lake: %s", error)
            return 0

    @contextmanager
    def _attempt(self, entries: Sequence[Entry], report: Report) -> Iterator[None]:
        """What is raised within is the fault of these entries, and of no others."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, HUB_FAULTS):
                log.exception("landing met a fault of our own")
            self._hold(entries, _words(error), report)

    def _in_parts(
        self, waiting: Sequence[tuple[Entry, T]], land: Callable[[Sequence[tuple[Entry, T]]], None], report: Report
    ) -> None:
        """Land all of these together. A fault of our own is one that something in them brings about: it is looked for
        by halving, so that what one gateway says keeps back nothing that others say."""
        try:
            land(waiting)
        except HUB_FAULTS as error:
            self._hold([entry for entry, _ in waiting], _words(error), report)
        except Exception as error:
            half = len(waiting) // 2
            if half:
                self._in_parts(waiting[:half], land, report)
                self._in_parts(waiting[half:], land, report)
                return
            log.exception("landing met a fault of our own")
            self._hold([entry for entry, _ in waiting], _words(error), report)

    @staticmethod
    def _hold(entries: Sequence[Entry], why: str, report: Report) -> None:
        report.fault = why
        for entry in entries:
            if entry.verdict is None:
                entry.words = why

    def _release_fenced(self, entries: Sequence[Entry]) -> None:
        fenced = self.registry.directory.fenced({entry.session.key for entry in entries})
        for entry in entries:
            if entry.session.key in fenced:
                entry.verdict, entry.words = Verdict.RELEASED, "the gateway has connected to another hub"

    def _land_ledger(self, group: Group, report: Report, now_us: int) -> None:
        waiting = _waiting(group, LedgerDocument)
        if not waiting:
            return

        def land(part: Sequence[tuple[Entry, LedgerDocument]]) -> None:
            documents = [document.ranges for _, document in part]
            landed = self._landing.land_ledger(documents, now_us, clock=self._clock, seconds=LANDING_S_MAX)
            report.ledger_ranges += landed.new
            tried = len(part) - landed.left
            for entry, _ in part[:tried]:
                entry.land()
            for entry, _ in part[tried:]:
                entry.untried = True

        self._in_parts(waiting, land, report)

    def _land_told(self, kind: type[Told], table: str, group: Group, report: Report, now_us: int) -> int:
        """What gateways tell in rows of this table; returns how many have landed. After a crash one may be there twice:
        a statement's digest tells, and of what is said of clocks readers take one of those that say the same."""
        waiting = _waiting(group, kind)

        def land(part: Sequence[tuple[Entry, Told]]) -> None:
            self._landing.land_records(table, [row for _, told in part for row in told.rows], now_us)
            for entry, _ in part:
                entry.land()

        self._in_parts(waiting, land, report)
        return sum(len(told.rows) for entry, told in waiting if entry.verdict is Verdict.LANDED)

    def _quarantine(self, group: Group, report: Report, now_us: int) -> None:
        entries = _waiting(group, Unreadable)
        with self._attempt([entry for entry, _ in entries], report):
            self._landing.quarantine([content for _, content in entries], now_us)
            report.quarantined += len(entries)
            for entry, _ in entries:
                entry.land()

    # --- batches --------------------------------------------------------------------------------------------------

    def _land_batches(self, group: Group, report: Report, now_us: int) -> None:
        waiting = _waiting(group, ReceivedBatch)
        if not waiting:
            return
        entries, batches = [entry for entry, _ in waiting], [batch for _, batch in waiting]
        started = self._clock()
        try:
            landed = self._landing.land(batches, now_us, clock=self._clock, seconds=LANDING_S_MAX)
        except HUB_FAULTS as error:
            if len(batches) == 1 or not any(entry.attempts for entry in entries):
                self._hold(entries, _words(error), report)
                return
            found = isolate(batches, lambda part: self._landing.land(part, now_us))
        except Exception as error:
            if not isinstance(error, ContentError):
                log.exception("a landing of %d batches met a fault of our own; they are tried in parts", len(batches))
            found = isolate(batches, lambda part: self._landing.land(part, now_us))
        else:
            found = Isolation(landed, held=dict(landed.held))
        report.landed = found.landed
        report.seconds = self._clock() - started
        tried = len(waiting) - found.landed.left
        for entry, _ in waiting[tried:]:
            entry.untried = True
        for index, (entry, batch) in enumerate(waiting[:tried]):
            if index in found.held:
                self._hold([entry], found.held[index], report)
            elif index in found.failed:
                self._set_aside(entry, batch, found.failed[index], report, now_us)
            else:
                entry.land()

    def _set_aside(self, entry: Entry, batch: ReceivedBatch, error: Exception, report: Report, now_us: int) -> None:
        """A batch that fails alone: content no rows can be made of goes into quarantine, all else is held."""
        if not isinstance(error, ContentError):
            self._hold([entry], _words(error), report)
            return
        with self._attempt([entry], report):
            self._landing.quarantine_batch(batch, str(error), now_us)
            log.error("gateway %s: a batch is put into quarantine: %s", batch.gateway, error)
            report.quarantined += 1
            entry.land()

    # --- what else there is ---------------------------------------------------------------------------------------

    def _compare(self, group: Group, report: Report) -> None:
        """A store, once all that its gateway sent before has had its turn."""
        untried = {entry.session.key for entry in group.entries if entry.untried}
        for entry, told in _waiting(group, Lineage):
            entry.untried = entry.session.key in untried
            if entry.untried:
                continue
            with self._attempt([entry], report):
                shared = self.registry.lineages.compare(GatewayStore(*entry.session.key, told.epoch), told)
                entry.verdict = Verdict.LANDED if shared is None else Verdict.OLDER
                entry.words = shared or ""

    def _land_rest(self, group: Group, report: Report, now_us: int) -> None:
        with self._attempt((), report):
            report.states, group.states = self._land_states(group.states, now_us), []
        with self._attempt((), report):
            self.registry.directory.seen(group.seen)
            group.seen = {}

    def _land_states(self, states: Sequence[Mapping[str, Any]], now_us: int) -> int:
        """Returns how many have landed. One of which no row can be made is forgotten: the next one says the same."""
        try:
            self._landing.land_records("gateway_status", states, now_us)
        except HUB_FAULTS:
            raise
        except Exception:
            half = len(states) // 2
            if half:
                return self._land_states(states[:half], now_us) + self._land_states(states[half:], now_us)
            log.exception("gateway %s: its status cannot be landed, and is forgotten", states[0]["gateway"])
            return 0
        return len(states)


def _waiting(group: Group, kind: type[T]) -> list[tuple[Entry, T]]:
    """What of a group is of this kind and has no verdict."""
    return [(e, e.content) for e in group.entries if e.verdict is None and isinstance(e.content, kind)]


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, CannotLand) else describe_error(error)
