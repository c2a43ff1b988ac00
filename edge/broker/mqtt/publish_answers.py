"""Send the router's decision on a client's messages: PUBACK, PUBREC or the end of the connection."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.model.interfaces import Refusal
from edge.broker.mqtt.answers import REASONS, by_qos, packet_ids_of, qos_of
from edge.broker.mqtt.interception import Interceptor
from edge.broker.mqtt.session import AttachedConnection, MqttSession
from edge.broker.mqtt.session_store import SessionStore

log = logging.getLogger(__name__)


class PublishAnswers:
    """Answers the messages that one connection published.

    QoS 2 messages are answered over the current connection of the session, as the client may have sent them again
    over a new one (MQTT 5 section 4.3.3).
    """

    __slots__ = ("_attachment", "_interceptor", "_on_disk", "_session")

    def __init__(
        self, attachment: AttachedConnection, session: MqttSession, interceptor: Interceptor, on_disk: SessionStore
    ) -> None:
        self._attachment = attachment
        self._session = session
        self._interceptor = interceptor
        self._on_disk = on_disk

    def accept(self, tokens: Sequence[int], reason: ReasonCode) -> None:
        """Acknowledge messages. A client before MQTT 5 gets no reason code."""
        for alike in by_qos(tokens):
            packet_ids, qos = packet_ids_of(alike), qos_of(alike)
            if qos == 2:
                self._session.state.answered(packet_ids)
            self._interceptor.accepted(packet_ids)
            reader = self._reader(qos)
            older = reader is None or reader.connection.version < 5
            self._attachment.connection.acknowledge(qos, packet_ids, ReasonCode.SUCCESS if older else reason)
        self._flush()

    def mark_unstored(self, tokens: Sequence[int]) -> None:
        """Do not store the packet identifiers of messages that will be refused."""
        if qos_of(tokens) == 2:
            self._session.state.unstored.update(packet_ids_of(tokens))
            self._on_disk.save_incoming(self._session)

    def refuse(self, tokens: Sequence[int], why: Refusal) -> None:
        """Answer messages that were refused."""
        for alike in by_qos(tokens):
            self._refuse_alike(alike, why)

    def answer_unpublished(self, packet_ids: Sequence[int], qos: int, reason: ReasonCode) -> None:
        """Answer messages that were not given to the router."""
        reader = self._reader(qos)
        older = reader is None or reader.connection.version < 5
        if qos == 2:
            self._session.state.answered(packet_ids)
        self._attachment.connection.acknowledge(qos, packet_ids, ReasonCode.SUCCESS if older else reason)
        if qos == 2:
            self._on_disk.save_incoming(self._session)

    def forget(self, packet_ids: Sequence[int]) -> None:
        """Forget QoS 2 messages that were not published and get no answer. The client may send them again."""
        self._session.state.forget_incoming(packet_ids)
        self._on_disk.save_incoming(self._session)

    def _refuse_alike(self, tokens: Sequence[int], why: Refusal) -> None:
        """Refuse messages of one QoS."""
        packet_ids, qos = packet_ids_of(tokens), qos_of(tokens)
        if self._joined and self._interceptor.refused(packet_ids, qos, why):
            return
        reader = self._reader(qos)
        older = reader is not None and reader.connection.version < 5
        if older and why is Refusal.NO_CONSUMER_CONNECTED:
            self.accept(tokens, ReasonCode.SUCCESS)  # it was handed to every connected consumer
            return
        reason = REASONS[why]
        if qos == 2:  # frees the packet identifiers of messages that were not stored
            self._session.state.answered(packet_ids)
        self._attachment.connection.acknowledge(qos, packet_ids, reason, why.value)
        if qos == 2:
            self._on_disk.save_incoming(self._session)
        # Before MQTT 5 a message cannot be refused: the client gets no answer and sends it again on its next
        # connection [MQTT-4.3.2-2].
        if older and reader is not None:
            log.warning("%s: closing the connection, messages refused: %s", self._session.client_id, why.value)
            reader.connection.disconnect(reason)
        self._flush()

    @property
    def _joined(self) -> bool:
        """True while this connection has the session."""
        return self._session.attachment is self._attachment

    def _reader(self, qos: int) -> AttachedConnection | None:
        """Return the connection over which the client gets the answer, or None."""
        return self._session.attachment if qos == 2 or self._joined else None

    def _flush(self) -> None:
        self._attachment.flush_soon()
        if not self._joined and self._session.attachment is not None:
            self._session.attachment.flush_soon()
