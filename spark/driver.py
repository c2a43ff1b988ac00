"""Spark of this process: started once, by the first job that needs it, and stopped with all that runs in it.

A pass that finds no new version in any log does not start it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _stopped() -> SparkSession:
    """For jobs of a pass that was interrupted, whose threads come to ask."""
    raise RuntimeError("the pass was stopped")


class Driver:
    """Spark's driver, running or not."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        """`start`: starts it; called once at most, whether it can or raises."""
        self._start = start
        self._starting = threading.Lock()
        self._keeping = threading.Lock()
        self._session: SparkSession | None = None
        self._error: Exception | None = None
        self._thread = threading.local()

    @classmethod
    def running(cls, started: SparkSession) -> Driver:
        """One that is running."""
        driver = cls(lambda: started)
        driver._session = started
        return driver

    @classmethod
    def none(cls) -> Driver:
        """For whoever asks what needs none."""

        def start() -> SparkSession:
            raise RuntimeError("this lake was opened without Spark")

        return cls(start)

    @property
    def error(self) -> Exception | None:
        """What starting it raised."""
        return self._error

    def assign_pool(self, name: str) -> None:
        """Run what this thread starts in a pool of `pools.xml`, the micro-batches of its queries too."""
        self._thread.pool = name

    def session(self) -> SparkSession:
        """Return its session. Raises what starting it raised, each time."""
        started = self._started()
        pool = getattr(self._thread, "pool", None)
        if pool is not None:
            started.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
        return started

    def _started(self) -> SparkSession:
        with self._starting:
            if self._error is not None:
                raise self._error
            if self._session is not None:
                return self._session
            try:
                return self._kept(self._start())
            except Exception as error:
                self._error = error
                raise

    def _kept(self, started: SparkSession) -> SparkSession:
        with self._keeping:
            if self._start is not _stopped:
                self._session = started
                return started
        session.stop(started)
        return _stopped()

    def cancel(self) -> None:
        """Give up what it is at."""
        if self._session is not None:
            self._session.sparkContext.cancelAllJobs()

    def stop(self) -> None:
        """End it, if it was started. One that is being started, which takes seconds, is not waited for: it is ended by
        the thread that has asked for it."""
        with self._keeping:
            started, self._session = self._session, None
            self._start = _stopped
        if started is not None:
            session.stop(started)
