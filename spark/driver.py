"""Spark driver of this process: started once, by the first job that needs it, and stopped with everything in it.

A pass that finds no new version in any log does not start it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _raise_stopped() -> SparkSession:
    """Raise for jobs of an interrupted pass that ask for a session."""
    raise RuntimeError("the pass was stopped")


class SparkDriver:
    """Spark's driver, running or not."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        """Set the function that starts Spark; it is called at most once, also if it raises."""
        self._start = start
        self._starting = threading.Lock()
        self._keeping = threading.Lock()
        self._session: SparkSession | None = None
        self._error: Exception | None = None
        self._thread = threading.local()

    @classmethod
    def running(cls, started: SparkSession) -> SparkDriver:
        """Return a driver that is running."""
        driver = cls(lambda: started)
        driver._session = started
        return driver

    @classmethod
    def none(cls) -> SparkDriver:
        """Return a driver for callers that need no Spark."""

        def start() -> SparkSession:
            raise RuntimeError("this lake was opened without Spark")

        return cls(start)

    @property
    def error(self) -> Exception | None:
        """Error that starting it raised."""
        return self._error

    def assign_pool(self, name: str) -> None:
        """Run the jobs of this thread in a pool of `pools.xml`, including the micro-batches of its queries."""
        self._thread.pool = name

    def session(self) -> SparkSession:
        """Return the session. Raises the error of its start, each time."""
        started = self._start_once()
        pool = getattr(self._thread, "pool", None)
        if pool is not None:
            started.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
        return started

    def _start_once(self) -> SparkSession:
        with self._starting:
            if self._error is not None:
                raise self._error
            if self._session is not None:
                return self._session
            try:
                return self._keep(self._start())
            except Exception as error:
                self._error = error
                raise

    def _keep(self, started: SparkSession) -> SparkSession:
        with self._keeping:
            if self._start is not _raise_stopped:
                self._session = started
                return started
        session.stop(started)
        return _raise_stopped()

    def cancel(self) -> None:
        """Cancel all running jobs."""
        if self._session is not None:
            self._session.sparkContext.cancelAllJobs()

    def stop(self) -> None:
        """Stop it, if it was started.

        A start in progress, which takes seconds, is not waited for: the thread that requested it stops it.
        """
        with self._keeping:
            started, self._session = self._session, None
            self._start = _raise_stopped
        if started is not None:
            session.stop(started)
