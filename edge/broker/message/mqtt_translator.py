"""Translate AMQP messages for MQTT consumers in parts, each message once for all consumers.

If the body of a message is not a data section, it has to be decoded and encoded again, which takes up to
`bridge.limits.VALUES_MAX` microseconds. So each iteration of the event loop translates one part of a run. The result is
cached, as the other consumers need it at about the same time.
"""

from __future__ import annotations

from typing import NamedTuple

from bridge import sections as s
from bridge.message import AMQP, Run
from edge.broker.limits import TRANSLATIONS_REMEMBERED_BYTES_MAX
from edge.broker.message.translation import Header, read_header, to_mqtt


class Translated(NamedTuple):
    """Translation of some messages of a run."""

    runs: list[Run]
    """Runs of consecutive messages with equal properties, in order."""
    end: int
    """Index of the first message that was not translated."""
    decoded: int
    """Bytes of decoded messages."""


class MqttTranslator:
    """Translates for all sessions of a broker."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, bytes], tuple[bytes, bytes, bytes]] = {}
        """Cache by identity of body and header section: the body (to keep it alive), properties and payload."""
        self._made_bytes = 0

    def part(self, run: Run, start: int, bytes_max: int) -> Translated:
        """Translate messages from `start` on, at least one, until this many bytes were decoded."""
        runs: list[Run] = []
        header = read_header(run.properties)
        end, decoded = start, 0
        while end < len(run.bodies) and decoded < bytes_max:
            body = run.bodies[end]
            if s.plain_data(body) is not None:
                properties, payload = to_mqtt(body, header)
            else:
                decoded += len(body)
                properties, payload = self._made_of(body, run.properties, header)
            if runs and runs[-1].properties == properties:
                runs[-1].bodies.append(payload)
            else:
                runs.append(Run(run.address, run.device, run.flags & ~AMQP, properties, [payload], run.received_at))
            end += 1
        return Translated(runs, end, decoded)

    def _made_of(self, body: bytes, encoded_header: bytes, header: Header) -> tuple[bytes, bytes]:
        found = self._made.get((id(body), encoded_header))
        if found is not None:
            return found[1:]
        properties, payload = to_mqtt(body, header)
        size = len(body) + len(properties) + len(payload)
        if self._made_bytes + size > TRANSLATIONS_REMEMBERED_BYTES_MAX:
            self._made.clear()
            self._made_bytes = 0
        if size <= TRANSLATIONS_REMEMBERED_BYTES_MAX:
            self._made[id(body), encoded_header] = (body, properties, payload)
            self._made_bytes += size
        return properties, payload
