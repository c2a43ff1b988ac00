"""Clients of the gateway: origins and consumers at the router's interface, and MQTT devices over the network.

Every message has a unique name, ``producer.number``, which is its body. Clients record what they did and received in
the history. They judge nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from bridge.message import Run, Stored
from edge.broker.delivery.pattern import Joinable
from edge.broker.model.interfaces import DeliveryOutcome, Origin, Refusal, SubscribeOptions, Subscription
from edge.broker.router.batch import Publication
from tests.simulation.gateway import Gateway
from tests.simulation.history import History
from tests.simulation.medium import ids
from tests.support.run_consumer import RunConsumer


class Fault(Exception):
    """Error that a client's session raises on behalf of the nemesis."""


class RouterOrigin(Origin):
    """Sends runs to the router, a few at a time; forgets its unanswered messages when the gateway dies."""

    def __init__(self, name: str, gateway: Gateway, history: History, random: Random, addresses: Sequence[str]) -> None:
        self.name = name
        self.faulty = False
        """The next answer raises."""
        self.sending = True
        self.period_s = 0.05
        self._gateway = gateway
        self._history = history
        self._random = random
        self._addresses = addresses
        self._sent = 0
        self._waiting: dict[int, str] = {}
        gateway.started.append(self._started)

    @property
    def waiting(self) -> int:
        """Return the number of messages without an answer."""
        return len(self._waiting)

    def _started(self) -> None:
        self._waiting.clear()
        self._later()

    def _later(self) -> None:
        self._gateway.process.loop.call_later(self.period_s * 2 * self._random.random(), self._send)

    def _send(self) -> None:
        if not self.sending:
            return
        self._later()
        if len(self._waiting) > 40:
            return
        address = self._random.choice(self._addresses)
        tokens = range(self._sent, self._sent + self._random.choice((1, 1, 2, 4)))
        self._sent = tokens.stop
        names = [f"{self.name}.{token}" for token in tokens]
        self._waiting.update(zip(tokens, names, strict=True))
        self._history.record("send", self.name, address, tuple(names), 1)
        run = Run(address, self.name, 1, b"", [name.encode() for name in names])
        self._gateway.broker.router.publish(Publication(self, run, tokens))

    def accepted(self, tokens: Sequence[int]) -> None:
        self._history.record("acked", self.name, self._answered(tokens))
        self._maybe_raise()

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        self._history.record("refused", self.name, self._answered(tokens), why.name)
        self._maybe_raise()

    def abort(self) -> None:
        """Replace this session, which the router has ended, by another one."""
        self._waiting.clear()

    def _answered(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """Return the messages of these tokens, without those of a session that has ended since."""
        return tuple(self._waiting.pop(token) for token in tokens if token in self._waiting)

    def _maybe_raise(self) -> None:
        if self.faulty:
            self.faulty = False
            self._history.record("nemesis", "raises", self.name)
            raise Fault(self.name)


class RouterConsumer(RunConsumer):
    """Takes from a queue, or holds a durable subscription to a topic; settles later, and not always well."""

    def __init__(
        self, name: str, gateway: Gateway, history: History, random: Random, address: str, durable: str | None
    ) -> None:
        self.name = name
        self.faulty = False
        """The next delivery raises."""
        self.accepts_all = False
        """Accept every delivery."""
        self.settle_s = 0.02
        self.subscription = durable or "queue"
        self._gateway = gateway
        self._history = history
        self._random = random
        self._address = address
        self._durable = durable
        self._credit = 0
        self._joined: Joinable | None = None
        self._held: list[tuple[Subscription, int, tuple[str, ...]]] = []
        gateway.started.append(self.join)

    @property
    def credit(self) -> int:
        return self._credit

    def join(self) -> None:
        """Subscribe, after each start of the gateway."""
        self._held.clear()
        self._credit = 10
        options = SubscribeOptions(durable_name=self._durable)
        self._joined = self._gateway.broker.router.subscriptions.subscribe(self, self._address, options)
        self._joined.pump()
        self._later()

    def take(self, subscription: Subscription, stored: Stored) -> None:
        names = ids(stored.run.bodies)
        self._credit -= len(names)
        self._history.record("delivered", self.name, self.subscription, stored.run.address, names)
        self._held.append((subscription, stored.position, names))
        if self.faulty:
            self.faulty = False
            self._history.record("nemesis", "raises", self.name)
            raise Fault(self.name)

    def abort(self) -> None:
        """Join again after the router ended this session."""
        self._credit = 0
        self._gateway.process.loop.call_soon(self._come_again)

    def _come_again(self) -> None:
        if self._joined is not None:
            self._gateway.broker.router.subscriptions.unsubscribe(self, self._joined, forget=False)
            self.join()

    def _later(self) -> None:
        self._gateway.process.loop.call_later(self.settle_s * 2 * self._random.random(), self._settle, self._joined)

    def _settle(self, joined: Joinable) -> None:
        if joined is not self._joined:
            return
        self._later()
        held, self._held = self._held, []
        for subscription, position, names in held:
            outcome = DeliveryOutcome.ACCEPTED
            if not self.accepts_all and self._random.random() < 0.1:
                outcome = DeliveryOutcome.RELEASED
            if outcome is DeliveryOutcome.ACCEPTED:
                self._history.record("took", self.name, self.subscription, names)
            subscription.settle(self, position, position + len(names) - 1, outcome)
        if self._credit < 10:
            self._credit = 10
            joined.pump()


class LiveConsumer(RunConsumer):
    """Live subscriber without any guarantee; it may raise."""

    def __init__(self, gateway: Gateway, history: History) -> None:
        self.name = "live"
        self.faulty = False
        self._gateway = gateway
        self._history = history
        gateway.started.append(self._join)

    @property
    def credit(self) -> int:
        return 1_000_000

    def _join(self) -> None:
        self._gateway.broker.router.subscriptions.subscribe(self, "plant/#", SubscribeOptions())

    def take(self, subscription: Subscription, stored: Stored) -> None:
        if self.faulty:
            self.faulty = False
            self._history.record("nemesis", "raises", self.name)
            raise Fault(self.name)
