"""AMQP 1.0 on Qpid Proton's engine: one connection, either role, as a `bridge.transport.connection.ConnectionMachine`.

`proton` holds every call of the C library, `events` what the machine tells its owner. See README in
`edge/broker/amqp` for what Proton's engine leaves out of the standard and how that is met.
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
