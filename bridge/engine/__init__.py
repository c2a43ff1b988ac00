"""AMQP 1.0 on Qpid Proton's engine: one connection, either role, as a `bridge.transport.connection.Connection`.

`proton` holds every call of the C library, `events` what the machine tells its owner. See README in
`edge/broker/amqp` for what Proton's engine leaves out of the standard and how that is met.
"""

from bridge.engine.events import (
    Attached,
    Closed,
    Condition,
    Detached,
    Detail,
    Dispositions,
    Event,
    Flow,
    Link,
    Opened,
    SessionEnded,
    State,
    Terminus,
    TerminusKind,
    Transfers,
)
from bridge.engine.machine import Engine

__all__ = [
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
]
