"""Deliveries of a session have a share of each turn of the loop, and waiting ones keep their order."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pytest

from bridge.amqp_values import encode
from bridge.message import AMQP, Run, Stored
from edge.broker.limits import (
    TOPIC_BYTES_A_TURN,
    TRANSLATED_BYTES_A_TURN,
    TRANSLATIONS_REMEMBERED_BYTES_MAX,
)
from edge.broker.message import mqtt_translator
from edge.broker.message.mqtt_translator import MqttTranslator
from edge.broker.mqtt.delivery_budget import DeliveryBudget, PendingDelivery


def value(number: int, size: int = 500) -> bytes:
    """Return a message body with a list, which needs decoding."""
    return b"\0\x53\x77" + encode([number, "x" * size])


def data(number: int) -> bytes:
    return b"\0\x53\x75" + encode(b"%d" % number)


class Site:
    """Turns of a session, and the packets for its client."""

    def __init__(self) -> None:
        self.asked = 0
        self.sent: list[tuple[int, bytes]] = []
        self.given_back: list[tuple[int, int]] = []
        self.translator = MqttTranslator()
        self.turn = DeliveryBudget(self.translator, self._ask)

    def _ask(self) -> None:
        self.asked += 1

    def write(self, position: int, runs: Sequence[Run]) -> None:
        for run in runs:
            self.sent += enumerate(run.bodies, position)
            position += len(run.bodies)

    def deliver(self, position: int, bodies: Sequence[bytes]) -> None:
        stored = Stored(position, 0, Run("a", "d", AMQP, b"", list(bodies)))
        self.turn.translate(
            PendingDelivery(stored, self.write, lambda first, last: self.given_back.append((first, last)))
        )

    def numbers(self) -> list[int]:
        return [int(body.decode().strip("[").partition(",")[0]) for _, body in self.sent]


class TestTranslated:
    def test_each_turn_delivers_a_share_in_order(self) -> None:
        site = Site()
        a_turn = -(-TRANSLATED_BYTES_A_TURN // len(value(0)))
        site.deliver(0, [value(i) for i in range(3 * a_turn)])
        site.deliver(3 * a_turn, [value(3 * a_turn)])
        for turns in (1, 2, 3):
            assert len(site.sent) == turns * a_turn
            assert site.turn.over
            assert site.asked == turns
            site.turn.start()
        assert not site.turn.over
        assert site.numbers() == [position for position, _ in site.sent] == list(range(3 * a_turn + 1))

    def test_runs_of_one_turn_share_the_budget(self) -> None:
        site = Site()
        for i in range(TRANSLATED_BYTES_A_TURN // len(value(0)) + 1):
            assert not site.turn.over
            site.deliver(i, [value(i)])
        assert site.turn.over

    def test_large_message_takes_a_turn_of_its_own(self) -> None:
        site = Site()
        site.deliver(0, [value(0, 10 * TRANSLATED_BYTES_A_TURN), value(1)])
        assert site.numbers() == [0]
        site.turn.start()
        assert site.numbers() == [0, 1]

    def test_deliveries_waiting_at_the_end_are_released(self) -> None:
        site = Site()
        a_turn = -(-TRANSLATED_BYTES_A_TURN // len(value(0)))
        site.deliver(0, [value(i) for i in range(a_turn + 2)])
        site.deliver(a_turn + 2, [value(0), value(1)])
        site.turn.end()
        site.turn.start()
        assert len(site.sent) == a_turn
        assert site.given_back == [(a_turn, a_turn + 1), (a_turn + 2, a_turn + 3)]

    def test_unsent_deliveries_are_released_at_the_end(self) -> None:
        site = Site()
        site.deliver(0, [value(0, TRANSLATED_BYTES_A_TURN), value(1), value(2)])

        def raises(_position: int, _runs: Sequence[Run]) -> None:
            raise LookupError("a bug")

        site.turn._waiting[0] = site.turn._waiting[0]._replace(write=raises)
        with pytest.raises(LookupError):
            site.turn.start()
        site.turn.end()
        assert (len(site.sent), site.given_back) == (1, [(1, 2)])

    def test_data_sections_are_not_charged(self) -> None:
        site = Site()
        site.deliver(0, [data(i) for i in range(10_000)])
        assert len(site.sent) == 10_000
        assert not site.turn.over


class TestTopics:
    def test_long_topic_names_are_charged(self) -> None:
        site = Site()
        run = Run("t" * 1000, "d", 0, b"", [b""] * 100)
        for _ in range(-(-TOPIC_BYTES_A_TURN // 100_000)):
            assert not site.turn.over
            site.turn.write_topics(run)
        assert (site.turn.over, site.asked) == (True, 1)
        site.turn.start()
        assert not site.turn.over


class TestRemembered:
    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
        found: list[bytes] = []
        real: Callable[..., tuple[bytes, bytes]] = mqtt_translator.to_mqtt

        def counted(body: bytes, header: object) -> tuple[bytes, bytes]:
            found.append(body)
            return real(body, header)

        monkeypatch.setattr(mqtt_translator, "to_mqtt", counted)
        return found

    def test_translation_is_cached_for_all_consumers(self, made: list[bytes]) -> None:
        translator, run = MqttTranslator(), Run("a", "d", AMQP, b"", [value(1), value(2)])
        first = translator.part(run, 0, 1_000_000)
        again = translator.part(run, 0, 1_000_000)
        assert len(made) == 2
        assert [part.bodies for part in first.runs] == [part.bodies for part in again.runs]

    def test_different_header_is_translated_separately(self, made: list[bytes]) -> None:
        """The header holds the time to live, which is among the properties."""
        translator, body = MqttTranslator(), value(1)
        header = b"\x00\x53\x70\xc0\x05\x03\x41\x40\x52\x64"
        for encoded in (b"", header):
            translator.part(Run("a", "d", AMQP, encoded, [body]), 0, 1_000_000)
        assert len(made) == 2

    def test_cached_translation_ends(self, made: list[bytes]) -> None:
        translator = MqttTranslator()
        bodies = [value(i, 10_000) for i in range(TRANSLATIONS_REMEMBERED_BYTES_MAX // 10_000)]
        run = Run("a", "d", AMQP, b"", bodies)
        translator.part(run, 0, 1 << 30)
        assert translator.part(run, len(bodies) - 1, 1).decoded
        assert len(made) == len(bodies), "the last one is remembered"
        translator.part(run, 0, 1)
        assert len(made) == len(bodies) + 1, "the first one is not"


def test_too_large_message_counts_as_one() -> None:
    body = b"\0\x53\x77" + struct.pack(">BII", 0xD0, (1 << 20) + 4, 1 << 20) + b"\x45" * (1 << 20)
    site = Site()
    site.deliver(0, [body, value(1)])
    assert [sent for _, sent in site.sent] == [body]
