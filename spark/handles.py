"""Tables that a job has opened: each once, and brought up to date from there, which takes a twentieth of the time.
Without its files, where nobody asks for them: that is a fraction of it for a table of thousands.

What is not kept longer than a job cannot be out of date for longer: a table that somebody clears and makes anew has
another log. What commits goes on from one whose log is seen to be the same, or which it opens itself.
"""

from __future__ import annotations

import deltalake

from cloud.place.place import Place
from spark.log_segment import LogSegment, Opened


class Handles:
    """For one thread: a table that was handed out is brought up to date when it is asked for again."""

    def __init__(self, lake: Place, *, kept: bool) -> None:
        """`kept`: they are; else each is opened anew whenever it is asked for."""
        self._lake = lake
        self._kept = kept
        self._segments: dict[str, LogSegment] = {}
        self._newest: dict[str, deltalake.DeltaTable] = {}
        self._older: dict[str, deltalake.DeltaTable] = {}
        """Of each table the version that was asked for last."""

    def told(self, name: str, version: int | None = None) -> Opened:
        """A table as it is now, or was at a version, for who asks for none of its files. Raises as `newest`, `at`."""
        if version is None:
            return self._segment(name) or self.newest(name)
        segment = self._segment(name)
        return segment if segment is not None and segment.version() == version else self.at(name, version)

    def to_commit(self, name: str) -> Opened:
        """A table as it is now, in the log that is there now; for who asks for none of its files, or for few. Raises
        what delta-rs raises."""
        return self._segment(name) or self._lake.at(name).delta()

    def _segment(self, name: str) -> LogSegment | None:
        segment = self._segments.pop(name, None)
        if segment is None or not segment.is_brought_up_to_date():
            segment = LogSegment.opened(self._lake.at(name))
        if segment is not None and self._kept:
            self._segments[name] = segment
        return segment

    def newest(self, name: str) -> deltalake.DeltaTable:
        """A table as it is now. Raises what delta-rs raises."""
        table = self._newest.get(name)
        if table is not None:
            table.update_incremental()
            return table
        table = self._lake.at(name).delta()
        if self._kept:
            self._newest[name] = table
        return table

    def at(self, name: str, version: int) -> deltalake.DeltaTable:
        """A table at a version. Raises what delta-rs raises when the log lacks it."""
        for known in (self._newest, self._older):
            if name in known and known[name].version() == version:
                return known[name]
        table = self._lake.at(name).delta(version)
        if self._kept:
            self._older[name] = table
        return table

    def forget(self, name: str) -> None:
        """A table is made anew."""
        self._segments.pop(name, None)
        self._newest.pop(name, None)
        self._older.pop(name, None)
