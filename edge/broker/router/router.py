"""The router: single owner of routes, subscriptions and retained messages; everything reaches it in runs.

A run comes in through `publish`, meets the route of its address, and either is handed on or joins the store's open
group. When the group is on disk, `committed` releases the acknowledgements and hands the messages to those who wait.
The router never blocks, never looks at a socket and never asks for the time other than through `clock_ns`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bridge.message import CLOCK_GOOD, Run, Stored
from edge.broker.delivery import WaitingPool
from edge.broker.delivery.dead_letters import DeadLetters
from edge.broker.delivery.pattern import Joinable
from edge.broker.delivery.sweep import Sweeper
from edge.broker.limits import SENDER_CREDIT
from edge.broker.message.time_to_live import ttl_ns
from edge.broker.model.address_policy import AddressPolicy
from edge.broker.model.addresses import AddressTable, AddressType
from edge.broker.model.clock import Clock
from edge.broker.model.interfaces import AddressError, Consumer, Figures, Origin, Refusal, SubscribeOptions
from edge.broker.model.isolation import Listeners
from edge.broker.model.topics import overlaps
from edge.broker.router.answers import Answers
from edge.broker.router.registry import Registry
from edge.broker.router.retained import RetainedMessages
from edge.broker.router.routes import (
    Witness,
)
from edge.broker.store.contract import Store
from edge.broker.store.records import Committed
from edge.broker.store.ticket import Ticket

__all__ = ["AddressError", "Figures", "Router", "SubscribeOptions"]


PROBE: Final = ("probe", "commit", b"")
"""Small state written to find out whether the store can commit again: kind, key, value."""


class Router(Registry):
    """Routes runs from origins to consumers through the store (see the module's docstring)."""

    def __init__(
        self,
        store: Store,
        table: AddressTable,
        *,
        clock_ns: Callable[[], int],
        clock_good: Callable[[], bool] = lambda: False,
        flush_soon: Callable[[], None] | None = None,
        policies: Mapping[str, AddressPolicy] | None = None,
        monotonic_s: Callable[[], float] | None = None,
    ) -> None:
        """`flush_soon` is called when something joined the open group: the shell calls `flush` once this turn ends.

        `policies` are by pattern of the rule, those of subscriptions by ``topic::name``; `monotonic_s` times
        redeliveries (None: by `clock_ns`).
        """
        now_s = monotonic_s or (lambda: clock_ns() / 1e9)
        self.clock = Clock(clock_ns, clock_good, now_s)
        deadletters = DeadLetters(store, self.publish, self.clock, now_s)
        pool = WaitingPool(lambda run: deadletters.worthless(run, self.policy(run.address)))
        super().__init__(store, table, flush_soon or self.flush, deadletters, pool, policies or {})
        self.now_ns = clock_ns
        self._clock_good = clock_good
        self.witness: Witness | None = None
        """Who has something to write in each commit, and waits for it."""
        self.followers: Listeners[[]] = Listeners("changed addresses")
        """Called when addresses may have other types than before: what was joined by an older one gets nothing new."""
        self.loss_listeners: Listeners[[]] = Listeners("losses")
        """Called when entries of the loss ledger were committed."""
        self._pressure = self.pool.pressure
        self._pressure.wake = self._flush_soon
        self.retained = RetainedMessages(store, lambda run: ttl_ns(run, self.policy(run.address)))
        self._sweeper = Sweeper(store, self.clock, self._log_subscriptions, self._flush_soon)
        self.quotas.short = self._sweeper.first
        self._answers = Answers(self.figures, now_s)
        self._without_room: set[str] = set()
        """Addresses whose senders wait for room."""
        self._failing = False
        """The last commit failed: senders to stored addresses get no credit until one succeeds."""
        store.commit_listeners.append(self.committed)
        self._restore()
        store.account_for_lost()

    # --- runs -------------------------------------------------------------------------------------------------

    def publish(self, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        """Route a run. `tokens` (one a message, empty when nothing is to be answered) come back through
        `origin.accepted` or `origin.refused`, in the order given."""
        run.received_at = self.now_ns()
        if self._clock_good():
            run.flags |= CLOCK_GOOD
        self.figures.received += len(run.bodies)
        route = self._routes.get(run.address)
        if route is None:
            route = self._resolve(run.address)
        route.publish(self, origin, run, tokens)
        if self._pressure.pressing:
            self._pressure.hold(origin)

    def keep(self, log: int, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        """Append to a log; `tokens` are answered when that is on disk, or at once where the address wants no more."""
        joined = self._store.append(log, run)
        if isinstance(joined, Stored):
            self.feeds.took(log, joined)
            self._answers.accept(origin, tokens)
        else:
            self._answers.accept_with(joined, origin, tokens)
        self._flush_soon()

    def retain(self, run: Run) -> Ticket | None:
        """Make it the retained message of its address; the ticket is what the answer waits for."""
        return self.retained.put(run)

    def done_with(self, ticket: Ticket, origin: Origin, tokens: Sequence[int]) -> None:
        """Answer `tokens` with the outcome of a commit."""
        self._answers.accept_with(ticket, origin, tokens)
        self._flush_soon()

    def done(self, origin: Origin, tokens: Sequence[int]) -> None:
        """Nothing to wait for; yet answers keep the order of what was sent [MQTT-4.6.0-2]."""
        self._answers.accept(origin, tokens)

    def refuse(self, origin: Origin, tokens: Sequence[int], why: Refusal) -> None:
        """Not taken, whatever becomes of the open group; said in its turn like every other answer [MQTT-4.6.0-2]."""
        self._answers.refuse(origin, tokens, why)

    def in_turn(
        self, origin: Origin, tokens: Sequence[int], withdraw: Callable[[Origin], None]
    ) -> tuple[Origin, Sequence[int]]:
        return self._answers.by_consumer(origin, tokens, withdraw)

    def flush(self) -> None:
        """Start a commit of what was gathered, unless one is running."""
        self._answers.release()
        if self.feeds.taken:
            self.feeds.committed(())
        if self._pressure.unfinished:
            self._pressure.go_on()
        if self._store.committing:
            return
        witness = self.witness
        if witness is not None:
            witness.prepare()
        if self._store.flush() and witness is not None:
            witness.sealed()

    def committed(self, commit: Committed) -> None:
        """The store finished a commit: release the acknowledgements, then deliver what it made durable."""
        self._failing = commit.error is not None
        self._answers.release()
        if self.witness is not None:
            self.witness.committed(kept=commit.error is None)
        if commit.gave_up:
            self.loss_listeners.tell()  # before anybody is given what comes after the gap
        self.feeds.committed(commit.appended)
        self.flush()

    # --- subscriptions ----------------------------------------------------------------------------------------

    def reconfigure(self, table: AddressTable, policies: Mapping[str, AddressPolicy] | None = None) -> None:
        super().reconfigure(table, policies)
        self.followers.tell()

    def join_remainder(self, consumer: Consumer, name: str) -> Joinable | None:
        """Let `consumer` receive what the durable subscription `name` kept while its address was a topic, which it may
        not be any more; None when there is no such subscription."""
        found = self._durable.get(name)
        if found is not None:
            found.join(consumer)
        return found

    def heard(self, prefix: str) -> bool:
        """Somebody live has a filter for names below `prefix`, which is reserved."""
        below = prefix + "#"
        return any(each.pattern.startswith("$") and overlaps(each.pattern, below) for each in self._live_tree)

    def reroute(self) -> None:
        """Subscriptions have changed in how they belong together."""
        self._routes.clear()

    def forget_origin(self, origin: Origin) -> None:
        """The origin is gone: it asks for no credit any more. What it sent is answered all the same, as the packet
        identifiers of a QoS 2 message outlive the connection they came over."""
        self._credit.forget(origin)
        self._pressure.forget(origin)

    def sender_credit(self, origin: Origin, address: str) -> int:
        """Messages a sender to `address` may have under way; a direct address gives what its consumers can take.

        For direct addresses, and for stored ones that are full (or while the store cannot commit: what comes all the
        same is refused by the commit that fails), `origin.credit_changed(address)` is
        called when it may differ.
        """
        kind = self.address_type(address)
        if kind is AddressType.ANYCAST:
            self._credit.watch(address, origin)
            group = self._anycast.get(address)
            return min(SENDER_CREDIT, group.credit) if group is not None else 0
        if kind is AddressType.MULTICAST:
            self._credit.watch(address, origin)
            return SENDER_CREDIT if self._live_tree.match(address) else 0
        account = self.account(address)
        stored = account is not None or kind.is_queue
        if (self._failing and stored) or (account is not None and account.full):
            self._credit.watch(address, origin)
            self._without_room.add(address)
            return 0
        return SENDER_CREDIT

    def tick(self) -> None:
        """Housekeeping, every `limits.TICK_S`."""
        self._pressure.tick()
        self.quotas.tick()
        self.deadletters.tick()
        self._answers.expire()
        self.retained.purge(self.now_ns(), self.deadletters.expired)
        self.feeds.tick()
        if self._failing:
            self._store.put(*PROBE)  # with nobody sending, who else would find out that it works again?
        else:
            self._sweeper.tick()
        for address in list(self._without_room):
            account = self.account(address)
            if account is None or not (self._failing or account.full):
                self._without_room.discard(address)
                self._credit.changed(address)
        self.flush()

    # --- inside: routes ---------------------------------------------------------------------------------------

    def tell(self, run: Run) -> None:
        """Hand a run of the broker's own to live subscribers; it is neither stored nor counted."""
        for subscription in self.merge_live(self._live_tree.match(run.address)):
            subscription.offer(run)

    def save_soon(self) -> None:
        """`Witness.prepare` has something for the next commit."""
        self._flush_soon()
