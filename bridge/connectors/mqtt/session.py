"""What an MQTT client keeps from one connection to the next, and its packets in between; sans-I/O.

Out: a PUBLISH with QoS 1 stays under way until its PUBACK, by packet identifier. One that had none when a connection
ended is sent again with the identifier it had (section 4.4): the forwarders give messages again in their order, so it
is found by its name. In: PUBACKs leave in the order the PUBLISHes came [MQTT-4.6.0-2], each after its commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from bridge.connectors.flights import ACCEPTED, Flight, Flights, MessageAnswer, Settle
from bridge.connectors.messages import ConnectorMessage, MessageName, Translate, messages
from bridge.connectors.mqtt import packets
from bridge.connectors.mqtt.dialects import DIALECTS, MqttDialect
from bridge.connectors.mqtt.packets import ConnackTerms
from bridge.forwarders.outbox import Outgoing
from bridge.forwarders.outcome import ForwardOutcome

PACKET_IDS: Final = packets.PACKET_ID_MAX - 1
"""The last one is that of our SUBSCRIBE."""

_Key = tuple[MessageName, str]
"""A message and where it goes: two forwarders may send one message to two topics."""


class PublishesUnderWay:
    """The PUBLISH packets of one client that have no PUBACK."""

    def __init__(self, translate: Translate, in_flight_max: int, now_ns: Callable[[], int]) -> None:
        """`in_flight_max`: messages, at most 65 535; `now_ns` is UTC."""
        self._now_ns = now_ns
        self._translate = translate
        self._max = in_flight_max
        self._sent: dict[int, tuple[Flight, int, _Key]] = {}
        self._earlier: dict[_Key, int] = {}
        """Identifiers of packets that had no PUBACK when their connection ended, and were not sent again."""
        self._last = 0
        self._flights: Flights | None = None
        self._dialect: MqttDialect = DIALECTS[-1]
        self._terms = ConnackTerms()

    @property
    def room(self) -> int:
        """Messages that may be sent now."""
        return min(self._max, self._terms.receive_maximum) - len(self._sent)

    @property
    def sent(self) -> int:
        """Messages without a PUBACK."""
        return len(self._sent)

    def connected(self, settle: Settle, dialect: MqttDialect, terms: ConnackTerms) -> None:
        """A connection begins, over which this is spoken."""
        self._flights = Flights(settle)
        self._dialect, self._terms = dialect, terms

    def disconnected(self) -> None:
        """It is over: what has no PUBACK is given again, and goes out under the same identifier."""
        self._flights = None
        left = {**self._earlier, **{key: packet_id for packet_id, (_, _, key) in self._sent.items()}}
        # What is given again is no more than was under way; older ones are of forwarders that are gone.
        self._earlier = dict(islice(left.items(), max(0, len(left) - self._max), None))
        self._sent.clear()

    def publish(self, outgoing: Outgoing) -> bytes:
        """The packets of what was taken by one ticket; what no packet can say is answered as rejected."""
        flight = Flight(outgoing.ticket, len(outgoing))
        written: list[bytes] = []
        for message in messages(outgoing, self._translate):
            key = (message.name, message.target)
            packet_id, again = self._identifier(key)
            try:
                written.append(self._packet(message, packet_id, again=again))
            except ValueError as error:
                self._answer(flight, message.place, MessageAnswer(ForwardOutcome.REJECTED, str(error)))
            else:
                self._sent[packet_id] = (flight, message.place, key)
        self.flush()
        return b"".join(written)

    def acknowledged(self, packet_id: int, why: str = "") -> None:
        """Process a PUBACK; `why` is the broker's reason for a rejection. `flush` passes the answer to the forwarder.
        Ignores a PUBACK for an unknown packet identifier."""
        found = self._sent.pop(packet_id, None)
        if found is not None:
            self._answer(found[0], found[1], MessageAnswer(ForwardOutcome.REJECTED, why) if why else ACCEPTED)

    def flush(self) -> None:
        """Settle what was answered."""
        if self._flights is not None:
            self._flights.flush()

    def _answer(self, flight: Flight, index: int, answer: MessageAnswer) -> None:
        if self._flights is not None:
            self._flights.answered(flight, index, answer)

    def _packet(self, message: ConnectorMessage, packet_id: int, *, again: bool) -> bytes:
        return self._dialect.publish(message, packet_id, again=again, terms=self._terms, now_ns=self._now_ns())

    def _identifier(self, key: _Key) -> tuple[int, bool]:
        """The identifier for a message, and whether it was sent under it before."""
        earlier = self._earlier.pop(key, None)
        if earlier is not None and earlier not in self._sent:
            return earlier, True
        reserved = set(self._earlier.values()) if self._earlier else ()
        while True:
            self._last = self._last % PACKET_IDS + 1
            if self._last not in self._sent and self._last not in reserved:
                return self._last, False


class OwedAnswers:
    """PUBLISHes of the peer that wait for their commit, in the order they came."""

    def __init__(self) -> None:
        self._waiting: dict[int, int] = {}
        """The packet identifier by token, in order."""
        self._committed: set[int] = set()
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def arrived(self, packet_id: int) -> int:
        """A PUBLISH with QoS 1 came; returns the token its answer will bear."""
        self._tokens += 1
        self._waiting[self._tokens] = packet_id
        return self._tokens

    def committed(self, tokens: Iterable[int]) -> bytes:
        """These are here for good, or never will be: the PUBACKs that may leave now."""
        self._committed.update(token for token in tokens if token in self._waiting)
        written: list[bytes] = []
        for token, packet_id in list(islice(self._waiting.items(), len(self._committed))):
            if token not in self._committed:
                break
            del self._waiting[token]
            self._committed.discard(token)
            written.append(packets.puback(packet_id))
        return b"".join(written)
