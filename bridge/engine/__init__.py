"""AMQP 1.0 on Qpid Proton's engine: one connection, client or server (`bridge.transport.connection.ConnectionMachine`).

`proton` wraps the C library, and `events` has the events for the owner of a connection. The README of
`edge/broker/amqp` lists the parts of the standard that Proton's engine lacks, and how Waypost handles them.
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
from bridge.engine.states import Condition, DeliveryState, Detail, TransactionalState, describe_condition
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
    "TransactionalState",
    "Transfers",
    "describe_condition",
]
