"""One MQTT session (MQTT 5 section 4.1): its subscriptions, and how what the router delivers for them is sent.

`Subscriber` is the router's consumer for one subscription, `MqttSession` the session they belong to. Nothing here reads
packets, and nothing outlives the session but through `edge.broker.mqtt.session_registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple, Protocol

import msgspec

from bridge.message import AMQP, QOS_MASK, RETAIN, Run, Stored
from edge.broker.delivery import LogSubscription
from edge.broker.delivery.batches import SETTLED, LiveBatch
from edge.broker.delivery.durable import DurableSubscription
from edge.broker.delivery.pattern import Joinable
from edge.broker.message.mqtt_translator import MqttTranslator
from edge.broker.model.addresses import AddressType
from edge.broker.model.interfaces import DeliveryOutcome, MessageCounts, Subscription
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.events import MqttDelivery, SubscriptionRequest, Will
from edge.broker.mqtt.expiry import EXPIRY_IDENTIFIER, Lifetime
from edge.broker.mqtt.limits import USUAL_TOPIC_CHARACTERS_MAX
from edge.broker.mqtt.names import SHARE
from edge.broker.mqtt.overlap import MergedOptions, OverlapMember, Overlaps
from edge.broker.mqtt.qos2_journal import Qos2Journal, ReleasedMessage
from edge.broker.mqtt.retained_delivery import RetainedDelivery
from edge.broker.mqtt.state import SessionState
from edge.broker.mqtt.turn import DeliveryBudget, PendingDelivery

UNLIMITED = 1 << 30
"""Credit of a QoS 0 subscriber whose socket takes data: deliveries leave no trace that would need a bound."""


class AttachedConnection(Protocol):
    """The connection a client has at the moment."""

    connection: MqttConnection

    @property
    def congested(self) -> bool:
        """The peer does not read fast enough."""
        ...

    def flush_soon(self) -> None:
        """Something is to be sent."""
        ...

    def go_on_soon(self) -> None:
        """Call `MqttSession.go_on` in the next turn of the loop."""
        ...

    def taken_over(self) -> None:
        """Another connection has the session now."""
        ...

    def abort(self) -> None:
        """End the connection at once."""
        ...


class Subscriber(OverlapMember):
    """One subscription of a client: the router's consumer for it."""

    overlaps: bool
    """Another subscription of the client matches some of the same topics. Declared here for the reason
    `ConnectionHandler.user` is."""

    __slots__ = ("competes", "durable", "identifiers", "kept", "kind", "live", "name", "overlaps", "request", "session")

    def __init__(self, session: MqttSession, request: SubscriptionRequest, identifier: int, *, kept: bool) -> None:
        """`kept`: messages wait for it while the client is away."""
        self.name = session.client_id
        self.kept = kept
        """As it was made, also when its QoS has become 0, until it `owes_nothing`."""
        self.kind = AddressType.TOPIC
        """What it was joined to."""
        self.competes = False
        """Others take what this one leaves: a queue, or a shared subscription."""
        self.overlaps = False
        self.session = session
        self.request = request
        self.identifiers: tuple[int, ...] = (identifier,) if identifier else ()
        self.durable: Joinable | None = None
        self.live: Joinable | None = None

    @property
    def user(self) -> str:  # type: ignore[override]  # of the session
        return self.session.user

    @property
    def joined_filter(self) -> str:
        """The filter that the router matches, once `kind` is known."""
        return self.request.filter

    @property
    def shared(self) -> bool:
        """It is a member of a shared subscription."""
        return self.request.filter.startswith(SHARE)

    @property
    def owes_nothing(self) -> bool:
        """Its QoS was higher and is 0, and all that came meanwhile is delivered: nothing has to be kept for it."""
        durable = self.durable if self.kept and self.request.qos == 0 else None
        return isinstance(durable, DurableSubscription) and durable.owes_nothing

    @property
    def credit(self) -> int:
        attachment = self.session.attachment
        if attachment is None or attachment.congested:
            return 0
        turn = self.session.turn
        if turn is not None and turn.over:
            self.session.starve(self)
            return 0
        if self.request.qos == 0 and not self.session.resuming:
            return UNLIMITED
        window = attachment.connection.window
        if window <= 0:
            self.session.starve(self)
        return window

    def deliver(self, subscription: Subscription, batch: Collection[Stored]) -> None:
        if isinstance(batch, LiveBatch) and len(batch) > 1 and self._deliver_live(subscription, batch):
            return
        for stored in batch:
            self.deliver_run(subscription, stored)

    def deliver_run(self, subscription: Subscription, stored: Stored) -> None:
        if self.overlaps and isinstance(subscription, LogSubscription):
            self._deliver_once(subscription, stored)
            return
        request = self.request
        retain = request.retain_as_published and bool(stored.run.flags & RETAIN)
        self.send(subscription, stored, qos_max=request.qos, identifiers=self.identifiers, retain=retain)

    def _deliver_live(self, subscription: Subscription, batch: LiveBatch) -> bool:
        """Write all packets with one call. Return False, and deliver nothing, where one has more to be looked at."""
        session, qos_max = self.session, self.request.qos
        attachment = session.attachment
        if attachment is None or session.turn is not None:
            return False
        ids = batch.acknowledged_messages if qos_max else 0
        alike = MqttDelivery(
            batch.runs[0], min(qos_max, 1), False, DeliveryRef(subscription, SETTLED, self), self.identifiers
        )
        if not attachment.connection.deliver_all(batch.runs, alike, ids):
            return False
        session.figures.sent += sum(len(run.bodies) for run in batch.runs)
        attachment.flush_soon()
        return True

    def _deliver_once(self, subscription: LogSubscription, stored: Stored) -> None:
        """One copy for all subscriptions of the client that match [MQTT-3.3.4-2]: the first to come has it, under the
        highest QoS [MQTT-3.3.5-1] and every identifier [MQTT-3.3.4-4]; for the others it is done."""
        overlaps = self.session.overlaps
        combined = overlaps.combined(stored.run)
        retain = combined.retain_as_published and bool(stored.run.flags & RETAIN)
        for part, sent in overlaps.sort_out(subscription.log, stored):
            if sent:
                last = part.position + len(part.run.bodies) - 1
                subscription.settle(self, part.position, last, DeliveryOutcome.ACCEPTED)
            else:
                self.send(subscription, part, qos_max=combined.qos, identifiers=combined.identifiers, retain=retain)

    def abort(self) -> None:
        if self.session.attachment is not None:
            self.session.attachment.abort()

    @property
    def client_overlaps(self) -> Overlaps:
        """See `OverlapMember`."""
        return self.session.overlaps

    def mark_overlap(self, *, overlaps: bool = True) -> None:
        """See `OverlapMember`."""
        self.overlaps = overlaps

    def merged(self, combined: MergedOptions, live: Joinable) -> Subscriber:
        """Make a subscriber with the options of several, and have it join this live subscription."""
        request = msgspec.structs.replace(
            self.request, qos=combined.qos, retain_as_published=combined.retain_as_published, no_local=False
        )
        made = Subscriber(self.session, request, 0, kept=False)
        made.identifiers = combined.identifiers
        made.live = live
        live.join(made)
        return made

    def pump(self) -> None:
        """Deliver what is waiting."""
        for joined in (self.durable, self.live):
            if joined is not None:
                joined.pump()

    def send(
        self,
        subscription: Subscription,
        stored: Stored,
        *,
        qos_max: int,
        identifiers: tuple[int, ...],
        retain: bool,
    ) -> None:
        """Send the messages of a run to the client; `retain` is the RETAIN flag they carry."""
        write = partial(self._write, subscription, qos_max, identifiers, retain)
        run = stored.run
        if run.flags & AMQP:
            self.session.begin_turn().translate(PendingDelivery(stored, write, partial(self._give_back, subscription)))
        else:
            if len(run.address) > USUAL_TOPIC_CHARACTERS_MAX:
                self.session.begin_turn().write_topics(run)
            write(stored.position, (run,))

    def _give_back(self, subscription: Subscription, first: int, last: int) -> None:
        """These were delivered to us, and the client does not get them over this connection."""
        if first < 0:
            return
        if self.overlaps and isinstance(subscription, LogSubscription):
            self.session.overlaps.take_back(subscription.log, first, last)
        subscription.settle(self, first, last, DeliveryOutcome.UNANSWERED)

    def _write(
        self,
        subscription: Subscription,
        qos_max: int,
        identifiers: tuple[int, ...],
        retain: bool,
        position: int,
        runs: Sequence[Run],
    ) -> None:
        """Send what was made of the messages of a stored run, whose first one is at `position`."""
        session = self.session
        attachment = session.attachment
        if attachment is None:
            raise LookupError(f"{self.name}: delivery without a connection")
        parts: Iterable[tuple[Run, int]] = zip(runs, repeat(qos_max), strict=False)
        if qos_max < 2 and self.kept and session.resuming and isinstance(subscription, LogSubscription):
            parts = self._resumed(subscription, qos_max, position, runs)
        for run, qos_most in parts:
            last = position + len(run.bodies) - 1
            left = session.lifetime.left(run) if EXPIRY_IDENTIFIER in run.properties else run
            had: Sequence[int] = ()
            if left is None:
                if position >= 0:
                    subscription.settle(self, position, last, DeliveryOutcome.ACCEPTED)
                    position = last + 1
                continue
            qos = min(left.flags & QOS_MASK, qos_most)
            token = DeliveryRef(subscription, position, self)
            if qos == 2 and self.kept and isinstance(subscription, LogSubscription):
                delivery = MqttDelivery(left, qos, retain, token, identifiers, kept=True)
                had, too_large = session.journal.deliver(attachment.connection, delivery, subscription.log, position)
                for i in had:
                    subscription.settle(self, position + i, position + i, DeliveryOutcome.ACCEPTED)
            else:
                too_large = attachment.connection.deliver(MqttDelivery(left, qos, retain, token, identifiers))
            session.figures.sent += len(left.bodies) - len(too_large) - len(had)
            if position < 0:
                continue
            for i in too_large:  # not sent [MQTT-3.1.2-24]: for others who take it, where there may be any
                subscription.settle(self, position + i, position + i, DeliveryOutcome.TOO_LARGE)
            if qos == 0:
                subscription.settle(self, position, last, DeliveryOutcome.ACCEPTED)
            position = last + 1
        attachment.flush_soon()

    def _resumed(
        self, subscription: LogSubscription, qos_max: int, position: int, runs: Sequence[Run]
    ) -> Iterator[tuple[Run, int]]:
        """Each message, and under which QoS it goes at most: what a restart interrupted ends under QoS 2 as it began,
        whatever the subscription has become since. The client may have handed it on."""
        for run in runs:
            for i in range(len(run.bodies)):
                resumes = self.session.journal.resumes(subscription.log, position + i)
                yield run.part(i, i + 1), 2 if resumes else qos_max
            position += len(run.bodies)


class DeliveryRef(NamedTuple):
    """How a delivery finds back to where it is settled."""

    subscription: Subscription
    position: int
    subscriber: Subscriber


class SessionContext(NamedTuple):
    """What the sessions of one broker have in common."""

    translator: MqttTranslator
    lifetime: Lifetime
    figures: MessageCounts
    """Count what is sent."""
    journal_changed: Callable[[MqttSession], None]
    """What the journal of a session holds has to reach the disk."""


class MqttSession:
    """One session.

    What only some sessions need is made when it is first asked for: there may be 10 000 that are idle.
    """

    __slots__ = (
        "_common", "_journal", "_overlaps", "_retained", "_starved", "_subscribers", "attachment", "client_id",
        "counted", "ended", "expires_at", "expiry_s", "recorded", "state", "turn", "user", "will_due",
    )  # fmt: skip

    def __init__(self, client_id: str, common: SessionContext) -> None:
        self.client_id = client_id
        self._common = common
        self.turn: DeliveryBudget | None = None
        """Its share of this turn of the loop, where deliveries to it may take more."""
        self.state = SessionState()
        self.user = ""
        """Whom the session belongs to; empty: to whoever names it."""
        self.counted = 0
        """By which size it counts among the names of its user (`NameQuotas`)."""
        self.expiry_s = 0
        self.recorded = False
        """There is a record of it on disk."""
        self.ended = False
        """Nothing is kept of it any more; its client identifier may be another session's."""
        self._subscribers: dict[str, Subscriber] | None = None
        self.attachment: AttachedConnection | None = None
        self.expires_at: float | None = None
        """When the session ends (monotonic seconds); None while connected, or when it never does."""
        self.will_due: tuple[float, Will] | None = None
        """A delayed Will Message and when to publish it (MQTT 5 section 3.1.3.2.2)."""
        self._starved: dict[Subscriber, None] | None = None
        """Subscribers the router wanted to serve while the in-flight window was full."""
        self._retained: RetainedDelivery | None = None
        self._journal: Qos2Journal | None = None
        self._overlaps: Overlaps | None = None

    @property
    def figures(self) -> MessageCounts:
        """Count what is sent."""
        return self._common.figures

    @property
    def lifetime(self) -> Lifetime:
        """How long messages have left to be delivered."""
        return self._common.lifetime

    @property
    def due_at(self) -> float | None:
        """When something is to be done while the client is away (monotonic seconds); None: never."""
        times = [at for at in (self.expires_at, self.will_due and self.will_due[0]) if at is not None]
        return min(times, default=None)

    @property
    def subscribers(self) -> dict[str, Subscriber]:
        """By their filters. Whoever only looks asks for `all_subscribers`: many clients subscribe to nothing."""
        if self._subscribers is None:
            self._subscribers = {}
        return self._subscribers

    @property
    def all_subscribers(self) -> Collection[Subscriber]:
        """Those there are."""
        return () if self._subscribers is None else self._subscribers.values()

    @property
    def journal(self) -> Qos2Journal:
        """Its QoS 2 exchanges that are kept on disk."""
        if self._journal is None:
            self._journal = Qos2Journal(self.state, lambda: self._common.journal_changed(self))
        return self._journal

    @property
    def resuming(self) -> bool:
        """Exchanges of QoS 2 that a restart interrupted go on when their messages are delivered again."""
        return self._journal is not None and self._journal.resuming

    @property
    def overlaps(self) -> Overlaps:
        """What its subscriptions have in common."""
        if self._overlaps is None:
            self._overlaps = Overlaps(self.client_id, self.subscribers)
        return self._overlaps

    @property
    def durable(self) -> bool:
        """The session outlives its connection."""
        return self.expiry_s > 0

    @property
    def at_rest(self) -> bool:
        """Its client is away, and nothing is known of it beyond what it subscribed to and `SessionState.incoming`."""
        if self.attachment is not None or self.will_due is not None or not self.recorded:
            return False
        return self.state.at_rest and (self._journal is None or self._journal.at_rest)

    def acknowledged(
        self, messages: Iterable[tuple[MqttDelivery, int]], outcome: DeliveryOutcome = DeliveryOutcome.ACCEPTED
    ) -> None:
        """The client is done with these deliveries: settle them as ranges, then use the window they freed."""
        last_delivery: MqttDelivery | None = None
        settled: object = None
        first = last = -2
        for delivery, i in messages:
            if delivery.token is settled:
                continue  # of many that were delivered together, for which nobody has to answer
            if isinstance(delivery.token, DeliveryRef) and delivery.token.position == SETTLED:
                settled = delivery.token
                continue
            if delivery is last_delivery and i == last + 1:
                last = i
                continue
            if last_delivery is not None:
                self._settle(last_delivery, first, last, outcome)
            last_delivery, first, last = delivery, i, i
        if last_delivery is not None:
            self._settle(last_delivery, first, last, outcome)
        self.pump_starved()

    def _settle(self, delivery: MqttDelivery, first: int, last: int, outcome: DeliveryOutcome) -> None:
        token = delivery.token
        if isinstance(token, DeliveryRef):
            if token.position >= 0:
                position = token.position
                token.subscription.settle(token.subscriber, position + first, position + last, outcome)
                if delivery.kept and isinstance(token.subscription, LogSubscription):
                    if outcome is DeliveryOutcome.ACCEPTED:
                        self.journal.completed(token.subscription.log, position + first, position + last)
                    else:
                        self.journal.given_back()
        elif isinstance(token, ReleasedMessage):
            self.journal.recovered_completed(token)

    def pump_starved(self) -> None:
        """The window, or the socket, has room again."""
        self._send_retained()
        if self._starved is not None:
            starved, self._starved = self._starved, None
            for subscriber in starved:
                subscriber.pump()

    def pump(self) -> None:
        """Serve every subscription (after a connect)."""
        self._send_retained()
        merged_subscribers = () if self._overlaps is None else self._overlaps.merged_subscribers()
        for subscriber in [*self.all_subscribers, *merged_subscribers]:
            subscriber.pump()

    def release_group(self, *, ended: bool, lost: bool = False) -> None:
        """Give up in-flight messages that others of a group may have instead, before the subscriptions are left.

        QoS 2 messages stay with this client while its session lives [MQTT-4.8.2-4], and those of a shared subscription
        go to no other client when it ends [MQTT-4.8.2-5]; the receiver may have delivered them already. `lost`: the
        client may have died of what it had not answered, so that counts as an attempt.
        """
        given_back = DeliveryOutcome.LOST if lost else DeliveryOutcome.UNANSWERED
        state = self.state
        if not state.in_flight:
            return
        for packet_id, (delivery, i) in [*state.outgoing.items(), *state.released.items()]:
            token = delivery.token
            if not isinstance(token, DeliveryRef) or not token.subscriber.competes or token.position < 0:
                continue
            position = token.position + i
            received = packet_id in state.released
            stored = isinstance(token.subscription, LogSubscription)
            if not received and (delivery.qos == 1 or not stored):
                del state.outgoing[packet_id]
                if stored:  # what is not goes to others when the subscription is left
                    token.subscription.settle(token.subscriber, position, position, given_back)
            elif ended:
                done = received or token.subscriber.shared
                outcome = DeliveryOutcome.ACCEPTED if done else given_back
                token.subscription.settle(token.subscriber, position, position, outcome)
            elif lost and not received and isinstance(token.subscription, LogSubscription):
                if token.subscription.keeps_after_loss(token.subscriber, position):
                    continue
                del state.outgoing[packet_id]
                state.awaiting_commit.pop(packet_id, None)
                self.journal.given_back()

    def deliver_retained(self, subscriber: Subscriber, subscription: Subscription, walk: Iterator[Run | None]) -> None:
        """Send the retained messages `walk` finds (None: a name without one), as the window and the loop allow."""
        if self._retained is None:
            self._retained = RetainedDelivery()
        self._retained.add(subscriber, subscription, walk)
        self._send_retained()

    def starve(self, subscriber: Subscriber) -> None:
        """Serve this subscription when the in-flight window has room again."""
        if self._starved is None:
            self._starved = {}
        self._starved[subscriber] = None

    def subscriptions_changed(self, pattern: str) -> None:
        """The one with this filter was made, replaced or removed: look anew at what it has in common with others."""
        if self._overlaps is not None or len(self.all_subscribers) > 1:
            self.overlaps.changed(pattern)

    def begin_turn(self) -> DeliveryBudget:
        """Its share of this turn of the loop, from now on counted."""
        if self.turn is None:
            if self.attachment is None:
                raise LookupError(f"{self.client_id}: delivery without a connection")
            self.turn = DeliveryBudget(self._common.translator, self.attachment.go_on_soon)
        return self.turn

    def leave(self) -> None:
        """The connection is gone. A new one gets retained messages for new subscriptions only."""
        turn, self.turn = self.turn, None
        if turn is not None:
            turn.end()
        self._starved = None
        self._retained = None

    def let_go(self) -> None:
        """Nobody uses it any more: it is freed at once, as what it has knows it, and not when the collector looks."""
        self._subscribers = self._overlaps = self._journal = None

    def clear_merged(self) -> None:
        """The client is away: what waited for several of its live subscriptions is gone with them."""
        if self._overlaps is not None:
            self._overlaps.clear_merged()

    def go_on(self) -> None:
        """The turn of the loop that was asked for (`AttachedConnection.go_on_soon`)."""
        if self._retained is not None:
            self._retained.next_turn()
        if self.turn is not None:
            self.turn.begin()
        self.pump_starved()

    def _send_retained(self) -> None:
        if self._retained is not None and self._retained.send(self.subscribers, self._go_on_soon):
            self._retained = None

    def _go_on_soon(self) -> None:
        if self.attachment is not None:
            self.attachment.go_on_soon()
