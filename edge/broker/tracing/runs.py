"""Published messages until their commit: their destinations and their sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bridge.message import RETAIN, Run
from edge.broker.model.tracing import Destination, TracedRouter
from edge.broker.store.records import Committed
from edge.broker.tracing.events import TraceEvent
from edge.broker.tracing.limits import TRACE_RUNS_WAITING_MAX

Report = Callable[..., None]
"""`Tap.report` of the connection that published."""


class TracedRun:
    """Run published by a traced connection."""

    __slots__ = ("destination", "ids", "refused", "report", "run")

    def __init__(self, run: Run, ids: Sequence[int], report: Report) -> None:
        self.run = run
        self.ids = ids
        self.report = report
        self.refused = False
        self.destination: Destination | None = None


class TracedRuns:
    """Runs that wait for their commit, by the object that the store reports as appended."""

    def __init__(self) -> None:
        self._waiting: dict[int, TracedRun] = {}
        self._routers: list[TracedRouter] = []

    def begin(self, router: TracedRouter, run: Run, ids: Sequence[int], report: Report) -> TracedRun:
        """Note a run that is about to be published. `ids` are its packet identifiers, if it has any."""
        if not any(router is each for each in self._routers):
            self._routers.append(router)
            router.commit_listeners.add(self._committed)
        if len(self._waiting) >= TRACE_RUNS_WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]
        waiting = self._waiting[id(run)] = TracedRun(run, ids, report)
        return waiting

    def routed(self, waiting: TracedRun, destination: Destination) -> None:
        """Note the destination of a published run; report it if no commit follows."""
        if waiting.refused:
            self._forget(waiting)
        elif destination.log is not None and not destination.in_memory:
            waiting.destination = destination
        else:
            self._forget(waiting)
            _report(waiting, _unstored(destination, waiting.run), destination)

    def refused(self, report: Report, ids: Sequence[int], address: str) -> None:
        """Forget refused messages of a connection, which have no other outcome. Without `ids`: those to `address`."""
        for waiting in list(self._waiting.values()):
            if waiting.report != report:
                continue
            if not set(ids).isdisjoint(waiting.ids) if ids else waiting.run.address == address:
                waiting.refused = True
                if waiting.destination is not None:
                    self._forget(waiting)

    def close(self) -> None:
        """Stop, after the end of the last trace."""
        for router in self._routers:
            router.commit_listeners.remove(self._committed)
        self._routers.clear()
        self._waiting.clear()

    def _forget(self, waiting: TracedRun) -> None:
        self._waiting.pop(id(waiting.run), None)

    def _committed(self, commit: Committed) -> None:
        if not self._waiting:
            return
        for _log, stored in commit.appended:
            waiting = self._waiting.get(id(stored.run))
            if waiting is None or waiting.run is not stored.run or waiting.destination is None:
                continue
            self._forget(waiting)
            _report(waiting, "stored", waiting.destination, stored.sequence)


def _unstored(destination: Destination, run: Run) -> str:
    """Return the outcome of messages that are not stored on disk, in words."""
    retained = " but retained" if run.flags & RETAIN else ""
    if destination.in_memory:
        return "kept in memory"
    if destination.kind == "anycast":
        return "delivered to a consumer; its answer decides" if destination.live else "waits for a consumer"
    if not destination.live:
        return f"no subscriber: discarded{retained}"
    return "not stored" + (" (no durable subscription or forwarder keeps it)" if destination.kind == "topic" else "")


def _report(waiting: TracedRun, outcome: str, destination: Destination, sequence: int | None = None) -> None:
    run, ids, count = waiting.run, waiting.ids, len(waiting.run.bodies)
    event = TraceEvent(
        kind="outcome",
        name="PUBLISH" if ids or not run.flags & 8 else "transfer",
        id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
        address=run.address,
        outcome=outcome,
        count=count,
        payload_bytes=sum(map(len, run.bodies)),
        log=destination.log_name,
        epoch=destination.epoch if sequence is not None else "",
        sequence=sequence,
        last_sequence=None if sequence is None else sequence + count - 1,
        offered=destination.live if destination.kind in ("topic", "multicast") and destination.live else None,
    )
    waiting.report(event, (run.address,))
