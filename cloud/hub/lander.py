"""Work of the landing thread: write one group into registry and lake. No loop, no answers, no waiting.

Each kind of content lands separately, so that a failing table holds only its own content. Order within a group:
connects and disconnects, ledger ranges (they explain missing messages), manifests, clock offsets (before the messages
stamped with them), unreadable content, batches, lineages. A lineage comes last because a store is compared with
everything that its gateway sent before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from cloud.hub.groups import (
    ClockOffsetRows,
    GatewayLineage,
    GroupReport,
    LandingGroup,
    LandingOutcome,
    LedgerDocument,
    Manifest,
    QueueEntry,
)
from cloud.hub.limits import FOLD_EVERY_S, FOLD_RANGES_MAX
from cloud.hub.registry.commit_states import TELEMETRY
from cloud.hub.registry.registry import Registry
from cloud.lake.commits import GatewayStore
from cloud.lake.faults import CannotLand, ContentError, LakeError, RegistryError, TableMismatch
from cloud.lake.isolation import Isolation, isolate
from cloud.lake.landing import Landing, UnreadableContent
from cloud.lake.limits import LANDING_S_MAX
from cloud.lake.rows import ReceivedBatch
from edge.output.logs import describe_error

log = logging.getLogger(__name__)

T = TypeVar("T")
Rows = TypeVar("Rows", Manifest, ClockOffsetRows)

HUB_FAULTS = (CannotLand, OSError, MemoryError)
"""Faults of the environment: the next attempt with the whole group may succeed. Only if that fails too, batches are
tried in parts to find out whether the fault concerns some of them."""


class Lander:
    """Lands groups. For the landing's thread."""

    def __init__(self, registry: Registry, landing: Landing, *, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds, for reported durations and the time limit of a landing."""
        self.registry = registry
        self._landing = landing
        self._clock = clock
        self._folded_s = clock()

    def land(self, group: LandingGroup, now_us: int) -> GroupReport:
        """Land all entries that can land, and set the outcome of each landed entry."""
        report = GroupReport()
        with self._attempt(group.entries, report):
            report.stored = self.registry.directory.presence(group.presence)
            group.undecided = self.registry.directory.undecided
            came = [key for key, presence in group.presence.items() if presence.connects]
            report.refused = self.registry.directory.refused(came)
            group.presence = {key: each for key, each in group.presence.items() if key in group.undecided}
            self._release_fenced(group)
        if report.fault is None:
            self._land_ledger(group, report, now_us)
            report.statements = self._land_rows(Manifest, "manifests", group, report, now_us)
            self._land_rows(ClockOffsetRows, "clock_offsets", group, report, now_us)
            self._quarantine(group, report, now_us)
            self._land_batches(group, report, now_us)
            self._compare(group, report)
            self._land_rest(group, report, now_us)
        report.versions, report.refusals = dict(self._landing.versions), self._landing.refusals
        return report

    def tidy(self) -> int:
        """Work between two landings: drop gateways that left from memory, fold the log of commits if that is due, and
        compact small files; return their number. A failure is retried when there is more to do."""
        self._landing.drop_rebuilds(self.registry.directory.drop_left())
        landed = self.registry.commits.landed_since_fold
        if landed and (landed >= FOLD_RANGES_MAX or self._clock() - self._folded_s >= FOLD_EVERY_S):
            self.fold()
        try:
            return self._landing.compact()
        except LakeError as error:
            log.warning("compaction of the lake failed: %s", error)
            return 0

    def fold(self) -> None:
        """Fold the log of commits. After a failure the next fold takes them, here or at another hub."""
        self._folded_s = self._clock()
        try:
            self.registry.commits.fold()
        except RegistryError as error:
            log.warning("the log of commits cannot be folded now: %s", error)

    @contextmanager
    def _attempt(self, entries: Sequence[QueueEntry], report: GroupReport) -> Iterator[None]:
        """Hold these entries if the body raises."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, HUB_FAULTS):
                log.exception("landing failed with an internal error")
            self._hold(entries, error, report)

    def _in_parts(
        self,
        waiting: Sequence[tuple[QueueEntry, T]],
        land: Callable[[Sequence[tuple[QueueEntry, T]]], None],
        report: GroupReport,
    ) -> None:
        """Land all entries together. On an internal error, bisect to find the entry that causes it, so that content of
        one gateway does not hold back others."""
        try:
            land(waiting)
        except HUB_FAULTS as error:
            self._hold([entry for entry, _ in waiting], error, report)
        except Exception as error:
            half = len(waiting) // 2
            if half:
                self._in_parts(waiting[:half], land, report)
                self._in_parts(waiting[half:], land, report)
                return
            log.exception("landing failed with an internal error")
            self._hold([entry for entry, _ in waiting], error, report)

    @staticmethod
    def _hold(entries: Sequence[QueueEntry], error: Exception, report: GroupReport) -> None:
        """Hold these entries. A table other than `telemetry` that accepts no rows delays only them, and does not fail
        the group: the next messages must not wait for its retry."""
        why = _words(error)
        if not isinstance(error, TableMismatch) or error.table == TELEMETRY:
            report.fault = why
        for entry in entries:
            if entry.verdict is None:
                entry.words = why

    def _release_fenced(self, group: LandingGroup) -> None:
        """Release what must not land here, and hold what must not land yet."""
        who = {entry.session.key for entry in group.entries}
        refused, fenced = self.registry.directory.refused(who), self.registry.directory.fenced(who)
        for entry in group.entries:
            if entry.session.key in group.undecided:
                entry.words = "new gateways cannot be counted now"
            elif entry.session.key in refused:
                entry.verdict, entry.words = LandingOutcome.RELEASED, "the gateway has no admitted connection here"
            elif entry.session.key in fenced:
                entry.verdict, entry.words = LandingOutcome.RELEASED, "the gateway has connected to another hub"

    def _land_ledger(self, group: LandingGroup, report: GroupReport, now_us: int) -> None:
        waiting = _waiting(group, LedgerDocument)
        if not waiting:
            return

        def land(part: Sequence[tuple[QueueEntry, LedgerDocument]]) -> None:
            documents = [document.ranges for _, document in part]
            landed = self._landing.land_ledger(documents, now_us, clock=self._clock, seconds=LANDING_S_MAX)
            report.ledger_ranges += landed.new
            tried = len(part) - landed.left
            for entry, _ in part[:tried]:
                entry.land()
            for entry, _ in part[tried:]:
                entry.untried = True

        self._in_parts(waiting, land, report)

    def _land_rows(self, kind: type[Rows], table: str, group: LandingGroup, report: GroupReport, now_us: int) -> int:
        """Land rows of one table, and return how many landed. After a crash a row may be there twice: statements have a
        digest, and readers of clock offsets ignore equal rows."""
        waiting = _waiting(group, kind)

        def land(part: Sequence[tuple[QueueEntry, Rows]]) -> None:
            self._landing.land_records(table, [row for _, content in part for row in content.rows], now_us)
            for entry, _ in part:
                entry.land()

        self._in_parts(waiting, land, report)
        return sum(len(content.rows) for entry, content in waiting if entry.verdict is LandingOutcome.LANDED)

    def _quarantine(self, group: LandingGroup, report: GroupReport, now_us: int) -> None:
        entries = _waiting(group, UnreadableContent)
        with self._attempt([entry for entry, _ in entries], report):
            self._landing.quarantine([content for _, content in entries], now_us)
            report.quarantined += len(entries)
            for entry, _ in entries:
                entry.land()

    # --- batches --------------------------------------------------------------------------------------------------

    def _land_batches(self, group: LandingGroup, report: GroupReport, now_us: int) -> None:
        waiting = _waiting(group, ReceivedBatch)
        if not waiting:
            return
        entries, batches = [entry for entry, _ in waiting], [batch for _, batch in waiting]
        started = self._clock()
        try:
            landed = self._landing.land(batches, now_us, clock=self._clock, seconds=LANDING_S_MAX)
        except HUB_FAULTS as error:
            if len(batches) == 1 or not any(entry.attempts for entry in entries):
                self._hold(entries, error, report)
                return
            found = isolate(batches, lambda part: self._landing.land(part, now_us))
        except Exception as error:
            if not isinstance(error, ContentError):
                log.exception("landing %d batches failed with an internal error; retrying in parts", len(batches))
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
                self._hold([entry], CannotLand(found.held[index]), report)
            elif index in found.failed:
                self._quarantine_or_hold(entry, batch, found.failed[index], report, now_us)
            else:
                entry.land()

    def _quarantine_or_hold(
        self, entry: QueueEntry, batch: ReceivedBatch, error: Exception, report: GroupReport, now_us: int
    ) -> None:
        """Quarantine a failing batch if its content cannot become rows; hold it otherwise."""
        if not isinstance(error, ContentError):
            self._hold([entry], error, report)
            return
        with self._attempt([entry], report):
            self._landing.quarantine_batch(batch, str(error), now_us)
            log.error("gateway %s: batch moved to quarantine: %s", batch.gateway, error)
            report.quarantined += 1
            entry.land()

    # --- lineages and status rows ----------------------------------------------------------------------------------

    def _compare(self, group: LandingGroup, report: GroupReport) -> None:
        """Compare a store with the registry, after everything its gateway sent before was tried."""
        untried = {entry.session.key for entry in group.entries if entry.untried}
        for entry, lineage in _waiting(group, GatewayLineage):
            entry.untried = entry.session.key in untried
            if entry.untried:
                continue
            with self._attempt([entry], report):
                shared = self.registry.lineages.compare(GatewayStore(*entry.session.key, lineage.epoch), lineage)
                entry.verdict = LandingOutcome.LANDED if shared is None else LandingOutcome.OLDER
                entry.words = shared or ""

    def _land_rest(self, group: LandingGroup, report: GroupReport, now_us: int) -> None:
        with self._attempt((), report):
            refused = self.registry.directory.refused({(row["tenant"], row["gateway"]) for row in group.states})
            waiting = [row for row in group.states if (row["tenant"], row["gateway"]) in group.undecided]
            left_out = refused.union(group.undecided)
            states = [row for row in group.states if (row["tenant"], row["gateway"]) not in left_out]
            report.states, group.states = self._land_states(states, now_us), waiting
        with self._attempt((), report):
            self.registry.directory.seen(group.seen, group.observed)
            group.seen, group.observed = {}, {}

    def _land_states(self, states: Sequence[Mapping[str, Any]], now_us: int) -> int:
        """Land status rows, and return how many landed. A row that cannot be written is dropped: the next status
        replaces it."""
        try:
            self._landing.land_records("gateway_status", states, now_us)
        except HUB_FAULTS:
            raise
        except Exception:
            half = len(states) // 2
            if half:
                return self._land_states(states[:half], now_us) + self._land_states(states[half:], now_us)
            log.exception("gateway %s: its status cannot land and is dropped", states[0]["gateway"])
            return 0
        return len(states)


def _waiting(group: LandingGroup, kind: type[T]) -> list[tuple[QueueEntry, T]]:
    """Return the entries of one kind that may land, without outcome."""
    open_ = (each for each in group.entries if each.verdict is None and each.session.key not in group.undecided)
    return [(each, each.content) for each in open_ if isinstance(each.content, kind)]


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, CannotLand) else describe_error(error)
