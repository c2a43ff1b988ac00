"""Session state of an MQTT client over its connections. Sans-I/O.

Outgoing: a PUBLISH with QoS 1 is in flight until its PUBACK, by packet identifier. One without a PUBACK at the end of a
connection is sent again with its identifier (section 4.4): the forwarders repeat messages in order, and it is found by
its name. Incoming: PUBACKs leave in the order of the PUBLISHes [MQTT-4.6.0-2], each after its commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from bridge.connectors.messages import ConnectorMessage, MessageName, Translate, messages
from bridge.connectors.mqtt import packets
from bridge.connectors.mqtt.dialects import DIALECTS, MqttDialect
from bridge.connectors.mqtt.packets import ConnackTerms
from bridge.connectors.mqtt.suspect import REASON, SuspectMessage
from bridge.connectors.ticket_answers import ACCEPTED, AnswerCollector, MessageAnswer, Settle, TicketAnswers
from bridge.forwarders.outbox import Outgoing
from bridge.forwarders.outcome import ForwardOutcome

PACKET_IDS: Final = packets.PACKET_ID_MAX - 1
"""Packet identifiers for PUBLISH; the last identifier is for our SUBSCRIBE."""

_Key = tuple[MessageName, str]
"""A message and its topic: two forwarders may send the same message to two topics."""


class InFlightPublishes:
    """PUBLISH packets of one client without a PUBACK."""

    def __init__(self, translate: Translate, in_flight_max: int, now_ns: Callable[[], int]) -> None:
        """`in_flight_max`: at most 65 535 messages; `now_ns` is UTC."""
        self._now_ns = now_ns
        self._translate = translate
        self._max = in_flight_max
        self._sent: dict[int, tuple[TicketAnswers, int, _Key]] = {}
        self._earlier: dict[_Key, int] = {}
        """Identifiers of packets of an earlier connection without a PUBACK that were not sent again."""
        self._last = 0
        self._collector: AnswerCollector | None = None
        self._dialect: MqttDialect = DIALECTS[-1]
        self._terms = ConnackTerms()
        self._suspect: SuspectMessage | None = None

    @property
    def room(self) -> int:
        """Messages that may be sent now."""
        if self._suspect is not None and self._suspect.alone:
            return 1 - len(self._sent)
        return min(self._max, self._terms.receive_maximum) - len(self._sent)

    @property
    def sent(self) -> int:
        """Messages without a PUBACK."""
        return len(self._sent)

    @property
    def oldest(self) -> object | None:
        """Token of the message that waits longest for its PUBACK: the same object each time; None without one."""
        return next(iter(self._sent.values()), None)

    def watch(self, suspect: SuspectMessage) -> None:
        """Reject the message that `suspect` finds."""
        self._suspect = suspect

    def peer_ended(self) -> None:
        """Note that the peer ended the connection."""
        if self._suspect is not None:
            self._suspect.ended(next((key for _, _, key in self._sent.values()), None))

    def connected(self, settle: Settle, dialect: MqttDialect, terms: ConnackTerms) -> None:
        """Start with a connection, its version and its terms."""
        self._collector = AnswerCollector(settle)
        self._dialect, self._terms = dialect, terms

    def disconnected(self) -> None:
        """Handle the end of the connection: unacknowledged messages are sent again with the same identifiers."""
        self._collector = None
        left = {**self._earlier, **{key: packet_id for packet_id, (_, _, key) in self._sent.items()}}
        # at most as many are repeated as were in flight; older entries are of removed forwarders
        self._earlier = dict(islice(left.items(), max(0, len(left) - self._max), None))
        self._sent.clear()

    def publish(self, outgoing: Outgoing) -> bytes:
        """Return the packets for the messages of one ticket; reject messages that do not fit into a packet."""
        answers = TicketAnswers(outgoing.ticket, len(outgoing))
        written: list[bytes] = []
        for message in messages(outgoing, self._translate):
            key = (message.name, message.target)
            if self._suspect is not None and self._suspect.is_rejected(key):
                self._suspect.settled(key)
                self._earlier.pop(key, None)
                self._answer(answers, message.place, MessageAnswer(ForwardOutcome.REJECTED, REASON))
                continue
            packet_id, again = self._identifier(key)
            try:
                written.append(self._packet(message, packet_id, dup=again))
            except ValueError as error:
                self._answer(answers, message.place, MessageAnswer(ForwardOutcome.REJECTED, str(error)))
            else:
                self._sent[packet_id] = (answers, message.place, key)
        self.flush()
        return b"".join(written)

    def acknowledged(self, packet_id: int, why: str = "") -> None:
        """Process a PUBACK; `why` is the broker's reason for a rejection. `flush` passes the answer to the forwarder.
        Ignores a PUBACK for an unknown packet identifier."""
        found = self._sent.pop(packet_id, None)
        if found is not None:
            if self._suspect is not None:
                self._suspect.settled(found[2])
            self._answer(found[0], found[1], MessageAnswer(ForwardOutcome.REJECTED, why) if why else ACCEPTED)

    def flush(self) -> None:
        """Settle the answered messages."""
        if self._collector is not None:
            self._collector.flush()

    def _answer(self, answers: TicketAnswers, index: int, answer: MessageAnswer) -> None:
        if self._collector is not None:
            self._collector.record(answers, index, answer)

    def _packet(self, message: ConnectorMessage, packet_id: int, *, dup: bool) -> bytes:
        return self._dialect.publish(message, packet_id, dup=dup, terms=self._terms, now_ns=self._now_ns())

    def _identifier(self, key: _Key) -> tuple[int, bool]:
        """Return the identifier for a message, and True when it was sent with it before."""
        earlier = self._earlier.pop(key, None)
        if earlier is not None and earlier not in self._sent:
            return earlier, True
        reserved = set(self._earlier.values()) if self._earlier else ()
        while True:
            self._last = self._last % PACKET_IDS + 1
            if self._last not in self._sent and self._last not in reserved:
                return self._last, False


class PendingAnswers:
    """PUBLISHes of the peer that wait for their commit, in order."""

    def __init__(self) -> None:
        self._waiting: dict[int, int] = {}
        """Packet identifiers by token, in order."""
        self._committed: set[int] = set()
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def arrived(self, packet_id: int) -> int:
        """Add a PUBLISH with QoS 1; return the token for its answer."""
        self._tokens += 1
        self._waiting[self._tokens] = packet_id
        return self._tokens

    def committed(self, tokens: Iterable[int]) -> bytes:
        """Record the answers to these tokens; return the PUBACKs that may leave now."""
        self._committed.update(token for token in tokens if token in self._waiting)
        written: list[bytes] = []
        for token, packet_id in list(islice(self._waiting.items(), len(self._committed))):
            if token not in self._committed:
                break
            del self._waiting[token]
            self._committed.discard(token)
            written.append(packets.puback(packet_id))
        return b"".join(written)
