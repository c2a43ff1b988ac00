"""Commit of a transaction: all its changes join one group of the store, or none of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from bridge.message import RETAIN, Run, Stored
from edge.broker.delivery import LogSubscription
from edge.broker.delivery.dead_letters import DeadLetterOwner, DeadLetters, LossReason
from edge.broker.model.interfaces import DeliveryOutcome, MessageCounts, Origin, Refusal
from edge.broker.model.ranges import Ranges
from edge.broker.retention.quotas import Quotas
from edge.broker.router.batch import RouteTargets
from edge.broker.router.commit_waits import CommitWaits
from edge.broker.router.route_table import RouteTable
from edge.broker.router.routes import admitted, offer_live
from edge.broker.router.transactions.changes import Posting, Retirement, TransactionFault, TransactionRefused
from edge.broker.router.unrouted import UnroutedMessages
from edge.broker.store.contract import Store
from edge.broker.store.ticket import Ticket

READ_BYTES: Final = 1
"""Bytes to read for one message: the store returns at least the rest of its run."""


class TransactionRouter(Protocol):
    """Parts of the router that transactions use."""

    routes: RouteTable
    quotas: Quotas
    waits: CommitWaits
    deadletters: DeadLetters
    unrouted: UnroutedMessages
    figures: MessageCounts
    flush_soon: Callable[[], None]

    def stamp(self) -> tuple[int, int]:
        """Return the time of reception of a message that arrives now, and its flags for the clock."""
        ...


class JoinedChanges(NamedTuple):
    """Changes that have joined the open group."""

    ticket: Ticket | None
    """Their commit; None: nothing is stored."""
    posted: list[Posting]
    """Messages, with dead letters of rejected deliveries."""
    dropped: list[tuple[DeadLetterOwner, Run]]
    """Messages of rejected deliveries, with their subscription."""


class TransactionCommits:
    """Commits transactions of one router."""

    def __init__(self, router: TransactionRouter, store: Store) -> None:
        self._router = router
        self._store = store

    def targets(self, posting: Posting) -> RouteTargets:
        """Return log and live subscriptions of a message. Raises TransactionRefused where it cannot be part of one."""
        address, routes = posting.run.address, self._router.routes
        if posting.run.flags & RETAIN:
            raise TransactionRefused(TransactionFault.UNSUPPORTED, "a retained message cannot be part of a transaction")
        route = routes.made.get(address) or routes.make(address, posting.origin.user)
        found = route.posting_targets(posting.origin)
        if isinstance(found, Refusal):
            raise TransactionRefused(TransactionFault.REFUSED, f"{address[:200]!r}: {found.value}", found)
        if found is None or (found.log is not None and self._store.logs.in_memory(found.log.log)):
            text = f"{address[:200]!r} cannot be part of a transaction: use a queue or a topic that is kept on disk"
            raise TransactionRefused(TransactionFault.UNSUPPORTED, text)
        return found

    def check(self, posting: Posting) -> None:
        """Stamp a message that arrives now. Raises TransactionRefused if the commit would refuse it."""
        self._stamp(posting.run)
        log = self.targets(posting).log
        if log is not None and log.account.limited and log.account.full:
            raise _full(posting)

    def read(self, retirement: Retirement, done: Callable[[Sequence[Stored]], None]) -> None:
        """Read the message of a delivery from its log."""
        subscription = retirement.subscription
        if not isinstance(subscription, LogSubscription):
            raise TypeError("the message is in no log")
        self._store.logs.read(subscription.log, retirement.position, READ_BYTES, done)

    def join(self, postings: Sequence[Posting], retirements: Sequence[Retirement]) -> JoinedChanges:
        """Add all changes to the open group, or none of them. Raises TransactionRefused or StoreError."""
        stored, quotas = False, self._router.quotas
        joined, released = JoinedChanges(None, [], []), quotas.released
        try:
            with self._store.commits.together() as ticket:
                for each in retirements:
                    if each.stored is not None and isinstance(each.subscription, LogSubscription):
                        stored = self._reject(each, each.subscription.dead_lettering, joined, ticket) or stored
                stored = self._acknowledge(retirements, ticket) or stored
                for posting in postings:
                    stored = self._post(posting) or stored
                    joined.posted.append(posting)
        except Exception:
            quotas.undo(released)
            raise
        if not stored:
            return joined
        self._router.flush_soon()
        return joined._replace(ticket=ticket)

    def await_commit(self, ticket: Ticket, party: Origin, notify: Callable[[Refusal | None], None]) -> None:
        """Call `notify` with the outcome: None once the commit has succeeded. If it raises, `party` ends."""
        self._router.waits.add(ticket, party, notify)

    def finish(self, joined: JoinedChanges) -> None:
        """Count messages that are on disk, and deliver them to live subscribers."""
        figures, unrouted = self._router.figures, self._router.unrouted
        for owner, run in joined.dropped:
            self._router.deadletters.report(owner, run, LossReason.REJECTED)
        for posting in joined.posted:
            run, count = posting.run, len(posting.run.bodies)
            figures.received += count
            figures.acknowledged += count
            try:
                found = self.targets(posting)
            except TransactionRefused:
                continue  # the address has changed since the discharge: its log has the message
            found.flow.add(count, 0)
            offer_live(found.flow, found.live, posting.origin, run)
            if found.log is None and not found.live:
                unrouted.note(run.address, count)

    # --- inside -------------------------------------------------------------------------------------------------

    def _stamp(self, run: Run) -> None:
        run.received_at, clock = self._router.stamp()
        run.flags |= clock

    def _post(self, posting: Posting) -> bool:
        """Append messages to the log of their address. Return False when no log keeps them."""
        run, found = posting.run, self.targets(posting)
        if found.log is None:
            return False
        log, account = found.log
        if account.limited and not admitted(account, log, run):
            raise _full(posting)
        self._store.logs.append(log, run)
        return True

    def _acknowledge(self, retirements: Sequence[Retirement], ticket: Ticket) -> bool:
        """Acknowledge accepted deliveries, in ranges. Return False when the group has none of them: their subscriptions
        may have ended."""
        accepted: dict[LogSubscription, Ranges] = {}
        for each in retirements:
            if each.outcome is DeliveryOutcome.ACCEPTED and isinstance(each.subscription, LogSubscription):
                accepted.setdefault(each.subscription, Ranges()).add(each.position, each.position)
        stored = False
        for subscription, ranges in accepted.items():
            for first, last in ranges:
                joined = self._store.cursors.discard(subscription.cursor, first, last, (), if_kept=True)
                stored = stored or joined is ticket
        return stored

    def _reject(self, retirement: Retirement, owner: DeadLetterOwner, joined: JoinedChanges, ticket: Ticket) -> bool:
        """Send a rejected message to the dead letter address, or enter it into the loss ledger. Return False when the
        group has nothing of it: its subscription has ended, or that address does not take it now. Then it is sent after
        the commit, as without a transaction."""
        stored, deadletters = retirement.stored, self._router.deadletters
        if stored is None:
            return False
        letters, loss = deadletters.letters(owner, stored, LossReason.REJECTED)
        postings = [Posting(deadletters, run) for run in letters]
        appended = False
        try:
            for posting in postings:  # one, as it is one message
                self._stamp(posting.run)
                appended = self._post(posting) or appended
        except TransactionRefused:
            retirement.stored = None
            return False
        kept = self._store.cursors.discard(owner.cursor, stored.position, stored.position, [loss], if_kept=True)
        joined.posted.extend(postings)
        if kept is ticket:
            joined.dropped.append((owner, stored.run))
        return appended or kept is ticket


def _full(posting: Posting) -> TransactionRefused:
    why = Refusal.FULL
    return TransactionRefused(TransactionFault.REFUSED, f"{posting.run.address[:200]!r}: {why.value}", why)
