"""All targets by name: machines and parsers that are fed directly, and the streams of a whole broker."""

from __future__ import annotations

from typing import Final

from tests.property.fuzz import corpus
from tests.property.fuzz.lanes import LaneTarget, lane_seeds
from tests.property.fuzz.parser import Parser, reads
from tests.property.fuzz.parsers import PARSERS
from tests.property.fuzz.target import Protocol, Target

BROKER: Final[dict[str, Protocol]] = {"mqtt": "mqtt", "amqp": "amqp"}
LANES: Final[dict[str, Protocol]] = {"mqtt-lanes": "mqtt", "amqp-lanes": "amqp"}
NAMES: Final = (*BROKER, *LANES, *PARSERS)


def target_of(name: str) -> Parser:
    """Return a target. Raise `KeyError` for an unknown name."""
    if name in LANES:
        return Parser(LaneTarget(LANES[name]).take, (), lane_seeds(LANES[name]))
    return _broker(BROKER[name]) if name in BROKER else PARSERS[name]


def _broker(protocol: Protocol) -> Parser:
    """Feed all inputs to one broker; the first byte of each chooses the sizes of its reads."""
    broker = Target()
    seeds = corpus.mqtt_seeds() if protocol == "mqtt" else corpus.amqp_seeds()

    def take(data: bytes) -> None:
        if data:
            broker.feed(protocol, reads(data))

    return Parser(take, (), [b"\0" + seed for seed in seeds])
