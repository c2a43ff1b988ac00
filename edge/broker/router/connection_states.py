"""States of the bridges that other brokers have to this one (Mosquitto's `notifications`).

Bridges publish them in retained messages and in wills to ``$SYS/broker/connection/<client id>/state``: ``1`` is
connected, ``0`` is disconnected. They are figures of the broker: live subscribers get each change, and later
subscribers get them as retained messages. They are kept in memory; a bridge publishes its state at each connection, and
its will is on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from bridge.message import RETAIN, Run
from edge.broker.delivery.batches import offer_of
from edge.broker.limits import CONNECTION_STATE_BYTES_MAX, CONNECTION_STATES_MAX
from edge.broker.model.addresses import AddressType
from edge.broker.model.interfaces import Origin, Refusal
from edge.broker.model.tracing import Destination
from edge.broker.router.flows import UNCOUNTED
from edge.broker.router.live_subscriptions import LiveSink
from edge.broker.router.publish_sink import PublishSink

_PREFIX: Final = "$SYS/broker/connection/"
_SUFFIX: Final = "/state"


def state_topic(client_id: str) -> str:
    """Return the topic of a bridge's state."""
    return f"{_PREFIX}{client_id}{_SUFFIX}"


def is_state_topic(address: str) -> bool:
    """Return True when the topic is that of a bridge's state."""
    return address.startswith(_PREFIX) and address.endswith(_SUFFIX) and len(address) > len(_PREFIX) + len(_SUFFIX)


class ConnectionStates:
    """Latest state by topic; the oldest is removed when there are too many."""

    def __init__(self) -> None:
        self._states: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._states)

    def items(self) -> Iterator[tuple[str, bytes]]:
        """Yield topics with their states."""
        return iter(self._states.items())

    def put(self, topic: str, state: bytes) -> None:
        """Store a state; an empty one deletes it, as with a retained message."""
        self._states.pop(topic, None)
        if state:
            self._states[topic] = state
            if len(self._states) > CONNECTION_STATES_MAX:
                del self._states[next(iter(self._states))]


class ConnectionStateRoute:
    """Route of one state: only the client in its topic may send it."""

    __slots__ = ("_live", "_states", "flow")

    def __init__(self, states: ConnectionStates, live: Sequence[LiveSink]) -> None:
        self.flow = UNCOUNTED
        self._states = states
        self._live = live

    def publish(self, sink: PublishSink, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        """Take a run of a sender."""
        state = run.bodies[-1]
        if state_topic(origin.name) != run.address:
            sink.answers.refuse(origin, tokens, Refusal.NOT_AUTHORIZED)
            return
        if len(state) > CONNECTION_STATE_BYTES_MAX:
            sink.answers.refuse(origin, tokens, Refusal.TOO_LARGE)
            return
        if run.flags & RETAIN:
            self._states.put(run.address, state)
        # QoS 0, like all figures of the broker, which are not stored
        offer = offer_of(Run(run.address, run.device, run.flags & RETAIN, b"", [state]), origin)
        for subscription in self._live:
            subscription.offer(offer)
        sink.answers.accept(origin, tokens)

    def destination(self, qos: int) -> Destination:
        """See `edge.broker.router.routes.Route`."""
        return Destination(AddressType.TOPIC.value, len(self._live))

    def posting_targets(self, origin: Origin) -> None:
        """Return None: states are not stored."""
        return

    def targets(self, qos: int) -> None:
        """Return None: the sender has to be checked."""
        return
