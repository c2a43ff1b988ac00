"""Event loop of asyncio in virtual time: real coroutines, drivers and listeners run on it unchanged.

It has only the methods that the product uses: `AbstractEventLoop` raises NotImplementedError for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from tests.simulation.scheduler import Handle, Process, Scheduler

if TYPE_CHECKING:
    from tests.simulation.network import Network


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Event loop of one process."""

    def __init__(self, scheduler: Scheduler, process: Process, network: Network) -> None:
        self._scheduler = scheduler
        self._process = process
        self._network = network
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.work_s: Callable[[], float] = lambda: 0.0
        """Duration of a call in an executor."""
        process.loop = self

    # --- callbacks --------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._scheduler.now_s

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Handle:  # type: ignore[override]
        return self._scheduler.at(0.0, self._process, callback, *args, context=context)

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Handle:
        return self.call_at(self._scheduler.now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Handle:
        return self._scheduler.at(when, self._process, callback, *args, context=context)

    # --- futures and tasks ------------------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Any = None
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name or "task", context=context)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._scheduler.raised(self._process, error)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run a function later on this thread: half of its time passes before it, and half after it."""
        future = self.create_future()
        half_s = self.work_s() / 2

        def work() -> None:
            try:
                result = func(*args)
            except BaseException as error:
                self.call_later(half_s, _fail, future, error)
            else:
                self.call_later(half_s, _succeed, future, result)

        self.call_later(half_s, work)
        return future

    def abandon(self) -> None:
        """Abandon the tasks of the killed process: they end where they are, without any notification."""
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._scheduler.raised(self._process, context.get("exception") or RuntimeError(context["message"]))

    # --- connections ------------------------------------------------------------------------------------------

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self._network.listen(self._process, protocol_factory, str(host), int(port))

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Any, host: Any = None, port: Any = None, *, ssl: Any = None, **_: Any
    ) -> Any:
        future: asyncio.Future[Any] = self.create_future()
        self._network.connect(self._process, protocol_factory, str(host), int(port), future, ssl)
        return await future


def _succeed(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
