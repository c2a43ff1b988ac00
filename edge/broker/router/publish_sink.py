"""Actions of a route on a run: store, retain, accept or refuse, each with its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bridge.message import Run, Stored
from edge.broker.delivery.feeds import LogFeeds
from edge.broker.model.interfaces import Acceptance, Origin
from edge.broker.router.answers import Answers
from edge.broker.router.batch import CollectedBatch
from edge.broker.router.retained import RetainedMessages
from edge.broker.router.unrouted import UnroutedMessages
from edge.broker.store.contract import MessageLogs
from edge.broker.store.ticket import BothTickets, Ticket


class PublishSink:
    """Adds messages to the store's open group, and has their origins answered (`Answers`)."""

    __slots__ = ("_feeds", "_flush_soon", "_logs", "_retained", "_unrouted", "answers")

    def __init__(
        self,
        logs: MessageLogs,
        feeds: LogFeeds,
        retained: RetainedMessages,
        answers: Answers,
        unrouted: UnroutedMessages,
        flush_soon: Callable[[], None],
    ) -> None:
        """`flush_soon` is called when something joined the open group."""
        self.answers = answers
        self._unrouted = unrouted
        self._logs = logs
        self._feeds = feeds
        self._retained = retained
        self._flush_soon = flush_soon

    def keep(self, log: int, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        """Append to a log. `tokens` are answered when the run is on disk, or at once if the log is kept in memory."""
        ticket = self._append(log, run)
        if ticket is None:
            self.answers.accept(origin, tokens)
        else:
            self.answers.accept_with(ticket, origin, tokens)
        self._flush_soon()

    def _append(self, log: int, run: Run) -> Ticket | None:
        """Append to a log. Return the ticket to wait for; None if the run stays in memory."""
        joined = self._logs.append(log, run)
        if isinstance(joined, Stored):
            self._feeds.add_unlogged(log, joined)
            return None
        return joined

    def takes_all(self, batch: CollectedBatch) -> bool:
        """Return False when the runs of a batch have to be taken one by one: room has to be counted or made, a log is
        kept in memory, or an origin waits for a consumer."""
        if self.answers.ordered.waiting:
            return False
        logs = self._logs
        return not any(
            logs.in_memory(log) or (account.limited and not account.takes(size))
            for (log, account), _, size, _ in batch.logs
        )

    def keep_all(self, batch: CollectedBatch) -> Ticket | None:
        """Append the runs of a batch to their logs. Return the ticket of its answer; None when no log keeps any of
        it."""
        ticket = None
        for (log, _), runs, size, _ in batch.logs:
            ticket = self._logs.append_all(log, runs, size)
        return ticket

    def answer_all(self, batch: CollectedBatch, ticket: Ticket | None) -> None:
        """Answer a batch that was stored with this ticket, and offered."""
        self.answers.accept_all(ticket, batch)
        if ticket is not None:
            self._flush_soon()

    def drop_unrouted(self, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        """Count messages without a subscriber, and answer them so."""
        self._unrouted.note(run.address, len(run.bodies))
        self.answers.accept(origin, tokens, Acceptance.UNROUTED)

    def may_retain(self, run: Run, user: str) -> bool:
        """Return True when `user` has room for the message among the retained ones."""
        return self._retained.admits(run, user)

    def retain(self, log: int | None, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        """Make the last message of a run the retained one of its address, and append the run to a log if there is one.
        `tokens` are answered when both are on disk."""
        kept = None if log is None else self._append(log, run)
        retained = self._retained.put(run, origin.user)
        if kept is not None and retained is not None and kept is not retained:
            self.answers.accept_with(BothTickets(kept, retained), origin, tokens)
        elif (ticket := kept or retained) is not None:
            self.answers.accept_with(ticket, origin, tokens)
        else:
            self.answers.accept(origin, tokens)
        self._flush_soon()
