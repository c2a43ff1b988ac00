"""Tables that a job has opened: each once, and brought up to date from there, which takes a twentieth of the time.

What is not kept longer than a job cannot be out of date for longer: a table that somebody clears and makes anew has
another log.
"""

from __future__ import annotations

import deltalake

from cloud.place.place import Place


class Handles:
    """For one thread: a table that was handed out is brought up to date when it is asked for again."""

    def __init__(self, lake: Place, *, kept: bool) -> None:
        """`kept`: they are; else each is opened anew whenever it is asked for."""
        self._lake = lake
        self._kept = kept
        self._newest: dict[str, deltalake.DeltaTable] = {}
        self._older: dict[str, deltalake.DeltaTable] = {}
        """Of each table the version that was asked for last."""

    def open(self, name: str, version: int | None = None) -> deltalake.DeltaTable:
        """Open a table as it is now, or was at a version. Raises what delta-rs raises when the log lacks it."""
        return self._at_newest(name) if version is None else self._at_version(name, version)

    def _at_newest(self, name: str) -> deltalake.DeltaTable:
        table = self._newest.get(name)
        if table is not None:
            table.update_incremental()
            return table
        table = self._lake.at(name).delta()
        if self._kept:
            self._newest[name] = table
        return table

    def _at_version(self, name: str, version: int) -> deltalake.DeltaTable:
        for known in (self._newest, self._older):
            if name in known and known[name].version() == version:
                return known[name]
        table = self._lake.at(name).delta(version)
        if self._kept:
            self._older[name] = table
        return table

    def forget(self, name: str) -> None:
        """Drop the handles of a table that is created again."""
        self._newest.pop(name, None)
        self._older.pop(name, None)
