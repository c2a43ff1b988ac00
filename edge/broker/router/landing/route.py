"""Route of an address with receipts: notes the requests in messages that are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bridge.message import Run
from edge.broker.model.interfaces import Origin
from edge.broker.model.tracing import Destination
from edge.broker.router.publish_sink import PublishSink
from edge.broker.router.routes import QueueRoute, Route, TopicRoute


class RequestRecorder(Protocol):
    """Takes the requests for receipts in stored messages."""

    @property
    def gathered(self) -> int:
        """Number of runs in the open group."""
        ...

    def record(self, log: int, run: Run) -> None:
        """Record the requests in a run that has just joined the open group."""
        ...


class ReceiptRoute(Route):
    """Route that looks at each run: its `targets` are None."""

    __slots__ = ("_log", "_recorder", "_route", "flow")

    def __init__(self, route: Route, log: int, recorder: RequestRecorder) -> None:
        """`log` is the one that `route` stores messages in."""
        self.flow = route.flow
        self._route = route
        self._log = log
        self._recorder = recorder

    def publish(self, sink: PublishSink, origin: Origin, run: Run, tokens: Sequence[int]) -> None:
        gathered = self._recorder.gathered
        self._route.publish(sink, origin, run, tokens)
        if self._recorder.gathered > gathered:
            self._recorder.record(self._log, run)

    def destination(self, qos: int) -> Destination:
        return self._route.destination(qos)


def with_receipts(route: Route, recorder: RequestRecorder) -> Route:
    """Return the route of an address with receipts. Messages that are not stored have none."""
    if isinstance(route, QueueRoute) or (isinstance(route, TopicRoute) and route.log is not None):
        log = route.log
        return route if log is None else ReceiptRoute(route, log, recorder)
    return route
