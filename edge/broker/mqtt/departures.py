"""What many messages are to one subscriber, written in C (`departures.c`): PUBLISH packets behind each other.

Messages come to a live subscriber from many connections in one turn of the loop. One by one each costs some ten calls
of Python; those that are plain are written in one, and what is not goes the way it always goes (`outbound.py`).
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from bridge import libraries
from bridge.message import Run
from edge.broker.mqtt.events import Delivery
from edge.broker.mqtt.state import InFlight

SOURCE: Final = Path(__file__).with_name("departures.c")
ENTRY: Final = "waypost_departures"

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


def library_path() -> Path:
    """Where the compiled `departures.c` has to be. Raises OSError when the source is not there."""
    return libraries.library_path(SOURCE)


def load() -> Publishes:
    """Raises OSError when it was not compiled, or is not what it should be."""
    made: Publishes = libraries.entry_of(library_path(), ENTRY)()
    return made


@cache
def publishes() -> Publishes | None:
    """That of this process; None where messages are written one by one."""
    return libraries.unless_python(load, "MQTT messages are written in Python, at half the speed")
