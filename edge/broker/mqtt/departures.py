"""What many messages are to one subscriber, written in C (`departures.c`): PUBLISH packets behind each other.

Messages come to a live subscriber from many connections in one turn of the loop. One by one each costs some ten calls
of Python; those that are plain are written in one, and what is not goes the way it always goes (`outbound.py`).
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path

from bridge import libraries
from bridge.message import Run
from edge.broker.mqtt.events import Delivery
from edge.broker.mqtt.state import InFlight

Publishes = Callable[
    [
        Sequence[Run],
        int,
        bytes,
        list[int],
        MutableMapping[int, InFlight],
        type[Delivery],
        object,
        tuple[int, ...],
        int,
        int,
    ],
    bytes | None,
]
"""(runs, highest QoS, properties with their length, packet identifiers for messages above QoS 0, what is in flight,
`Delivery`, its token, its identifiers, longest remaining length, longest topic name): the packets, and what they stand
for is in flight. None, and nothing was done, where one of the messages has properties of its own, is retained, of QoS 2
or in AMQP's encoding, or is longer; or where there are not as many packet identifiers as it takes."""

publishes: Publishes = libraries.entry_of(Path(__file__).with_name("departures.c"), "waypost_departures")()
