"""Notes of reports over MQTT: they need no connection, and the newest about an artefact is enough."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from bridge.artefacts.report import UpdateState
from edge.appliance.artefacts import noting
from edge.appliance.artefacts.noting import ReportNotes
from edge.appliance.artefacts.reports import ReportedArtefact, UpdateReport
from edge.broker.http.refusal import RequestRefused


class Serving:
    """Serving with a slow database."""

    def __init__(self) -> None:
        self.reporting = self
        self.noted: list[tuple[str, str, str]] = []
        self.free = asyncio.Event()
        self.fails = False

    async def reported(self, _device: str, name: str, version: str, _digest: str) -> ReportedArtefact:
        await self.free.wait()
        return ReportedArtefact(name, version)

    async def note(self, device: str, artefact: ReportedArtefact, report: UpdateReport) -> None:
        if self.fails:
            self.fails = False
            raise RequestRefused(503, "the card is full")
        self.noted.append((device, artefact.version, report.state.value))


def report(state: UpdateState) -> UpdateReport:
    return UpdateReport(state=state)


def test_newest_report_of_each_artefact_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noting, "NOTES_MAX", 2)

    async def main() -> None:
        serving = Serving()
        notes = ReportNotes(cast(Any, serving))
        assert notes.add("pump-1", "a", "1", report(UpdateState.DOWNLOADING))
        await asyncio.sleep(0)  # this one is being noted
        for state in (UpdateState.VERIFIED, UpdateState.INSTALLED, UpdateState.HEALTHY):
            assert notes.add("pump-1", "a", "1", report(state))
        assert notes.add("pump-1", "a", "2", report(UpdateState.VERIFIED))
        assert not notes.add("pump-2", "a", "1", report(UpdateState.VERIFIED)), "the limit"
        serving.free.set()
        await notes.close()
        assert serving.noted == [
            ("pump-1", "1", "downloading"),
            ("pump-1", "1", "healthy"),
            ("pump-1", "2", "verified"),
        ]
        await notes.close()

    asyncio.run(main())


def test_failure_does_not_stop_the_others() -> None:
    async def main() -> None:
        serving = Serving()
        serving.fails = True
        serving.free.set()
        notes = ReportNotes(cast(Any, serving))
        for version in "12":
            notes.add("pump-1", "a", version, report(UpdateState.VERIFIED))
        await notes.close()
        assert serving.noted == [("pump-1", "2", "verified")]

    asyncio.run(main())
