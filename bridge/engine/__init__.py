"""AMQP 1.0 on Qpid Proton's engine: one connection, either role, as a `bridge.transport.connection.Connection`.

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
    Flow,
    Opened,
    SessionEnded,
    Transfers,
)
from bridge.engine.link import Link
from bridge.engine.machine import Engine
from bridge.engine.states import Condition, Detail, State, words
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
    "Flow",
    "Link",
    "Opened",
    "SessionEnded",
    "State",
    "Terminus",
    "TerminusKind",
    "Transfers",
    "words",
]
