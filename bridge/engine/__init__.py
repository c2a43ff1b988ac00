"""AMQP 1.0 on Qpid Proton's engine: one connection, either role, as a `bridge.transport.connection.ConnectionMachine`.

`proton` has the calls of the C library, `events` the events for the owner. The README of `edge/broker/amqp` lists what
Proton's engine leaves out of the standard, and how Waypost handles it.
"""

from bridge.engine.events import (
    Accepted,
    Attached,
    Closed,
    Detached,
    Dispositions,
    Event,
    LinkFlow,
    PeerOpened,
    SessionEnded,
    Transfers,
)
from bridge.engine.link import Link
from bridge.engine.machine import Engine
from bridge.engine.states import Condition, DeliveryState, Detail, words
from bridge.engine.terminus import Terminus, TerminusKind

__all__ = [
    "Accepted",
    "Attached",
    "Closed",
    "Condition",
    "Detached",
    "Detail",
    "Dispositions",
    "Engine",
    "Event",
    "LinkFlow",
    "Link",
    "PeerOpened",
    "SessionEnded",
    "DeliveryState",
    "Terminus",
    "TerminusKind",
    "Transfers",
    "words",
]
