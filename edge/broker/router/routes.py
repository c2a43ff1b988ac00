"""Routes: what happens to a run of one address, one class an address type. Built by the router, cached by address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from bridge.message import RETAIN, Run
from edge.broker.delivery import AnycastGroup, LogSubscription
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.retention.quotas import Account
from edge.broker.store.ticket import Ticket


class Taker(Protocol):
    """A live subscription, or several of one client."""

    def offer(self, run: Run) -> None:
        """Deliver a run now, or keep it for when there is credit."""
        ...


class Witness(Protocol):
    """Who writes small state in the commits of others, and waits for it to be on disk."""

    def prepare(self) -> None:
        """A group may be sealed now: last moment to put something into it."""
        ...

    def sealed(self) -> None:
        """The group with what was prepared is being committed."""
        ...

    def committed(self, *, kept: bool) -> None:
        """The commit is over; when it was not kept, small state joins the next group by itself."""
        ...


class Keeper(Protocol):
    """What a route asks of the router."""

    def keep(self, log: int, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        """Append to a log; the origin hears `accepted` when that is on disk, or at once where the log is kept in
        memory."""
        ...

    def done(self, origin: Origin, tokens: Sequence[int]) -> None:
        """Nothing to keep: the origin may hear `accepted`, behind what it sent before."""
        ...

    def retain(self, run: Run) -> Ticket | None:
        """Replace the retained message of the address; the ticket is what the answer waits for."""
        ...

    def refuse(self, origin: Origin, tokens: Sequence[int], why: Refusal) -> None:
        """Not taken: the origin hears `refused`, behind what it sent before."""
        ...

    def done_with(self, ticket: Ticket, origin: Origin, tokens: Sequence[int]) -> None:
        """The origin hears `accepted` when the commit of the ticket is on disk."""
        ...

    def in_turn(
        self, origin: Origin, tokens: Sequence[int], withdraw: Callable[[Origin], None]
    ) -> tuple[Origin, Sequence[int]]:
        """Whom a consumer's answers go to, and under which tokens, so that the origin hears all of its answers in
        order; `withdraw` is called when they come too late."""
        ...


class Route(Protocol):
    """Where the runs of one address go."""

    def publish(self, keeper: Keeper, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        """Take a run of a sender."""
        ...


def admitted(account: Account, log: int, run: Run) -> bool:
    """True when the account has room for a run, or has made it."""
    return account.admits(log, sum(map(len, run.bodies)), len(run.bodies))


class QueueRoute:
    """Every message is stored; consumers compete for it after the commit."""

    __slots__ = ("account", "subscription")

    def __init__(self, subscription: LogSubscription, account: Account) -> None:
        self.subscription = subscription
        self.account = account

    def publish(self, keeper: Keeper, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        if self.account.limited and not admitted(self.account, self.subscription.log, run):
            keeper.refuse(origin, tokens, Refusal.FULL)
            return
        keeper.keep(self.subscription.log, origin, run, tokens)


class TopicRoute:
    """Every subscriber gets a copy; the body is stored once, and only when a durable subscription wants it."""

    __slots__ = ("_keeps_qos0", "account", "durable", "live", "log")

    def __init__(
        self,
        log: int,
        account: Account | None,
        durable: Sequence[LogSubscription],
        live: Sequence[Taker],
        *,
        keeps_qos0: bool,
    ) -> None:
        """`account` is None when there is nobody to keep anything for; `keeps_qos0`: some durable subscription wants
        QoS 0 messages too (a forwarder does)."""
        self.log = log
        self.account = account
        self.durable = durable
        self.live = live
        self._keeps_qos0 = keeps_qos0

    def publish(self, keeper: Keeper, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        keeps = bool(self.durable) and (run.qos > 0 or self._keeps_qos0)
        account = self.account
        if keeps and account is not None and account.limited and not admitted(account, self.log, run):
            if tokens:
                keeper.refuse(origin, tokens, Refusal.FULL)  # it comes again: nobody is to have it twice
                return
            keeps = False
        for subscription in self.live:
            subscription.offer(run)
        ticket = keeper.retain(run) if run.flags & RETAIN else None
        if ticket is not None:
            if keeps:
                keeper.keep(self.log, origin, run, ())
            keeper.done_with(ticket, origin, tokens)
        elif keeps:
            keeper.keep(self.log, origin, run, tokens)
        else:
            keeper.done(origin, tokens)


class AnycastRoute:
    """Handed to one consumer; its answer goes back to the origin."""

    __slots__ = ("group",)

    def __init__(self, group: AnycastGroup) -> None:
        self.group = group

    def publish(self, keeper: Keeper, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        if tokens and origin.in_order:
            origin, tokens = keeper.in_turn(origin, tokens, self.group.withdraw)
        why = self.group.offer(origin, run, tokens)
        if why is not None:
            keeper.refuse(origin, tokens, why)


class MulticastRoute:
    """Handed to every consumer that is connected; nothing is stored, nobody there is an answer too."""

    __slots__ = ("live",)

    def __init__(self, live: Sequence[Taker]) -> None:
        self.live = live

    def publish(self, keeper: Keeper, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        for subscription in self.live:
            subscription.offer(run)
        if self.live:
            keeper.done(origin, tokens)
        else:
            keeper.refuse(origin, tokens, Refusal.NO_CONSUMER_CONNECTED)


class RefusingRoute:
    """Names nobody publishes to: the broker's own, and those of subscriptions, which get what comes to their topic."""

    __slots__ = ("_why",)

    def __init__(self, why: Refusal) -> None:
        self._why = why

    def publish(self, keeper: Keeper, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        keeper.refuse(origin, tokens, self._why)
