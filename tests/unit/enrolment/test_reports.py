"""Reports of gateways about their configuration are stored, whatever one of them contains."""

from __future__ import annotations

import asyncio
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest

from bridge.desired import DesiredReport
from cloud.hub.desired import service
from cloud.hub.desired.making import ConfigurationTables
from cloud.hub.desired.service import DesiredConfigurations
from cloud.hub.enrolment.authority import OwnAuthority
from cloud.hub.groups import Presence
from cloud.hub.registry.configurations import Sign
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.registry import Registry
from cloud.hub.registry.rollouts import RolloutRecord, Rollouts
from cloud.hub.rollout import RolloutState as State
from cloud.hub.rollout import Wave, make_members

NOW = 1_800_000_000.0
DEADLINE_S = 60.0


def test_invalid_report_of_one_gateway_does_not_block_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The report has a number above the range of the database, which the check of documents usually refuses."""
    reports = {name: DesiredReport(newest=1) for name in ("a", "b", "c")} | {"bad": DesiredReport(version=1 << 70)}

    async def main() -> list[str]:
        desired = DesiredConfigurations(OwnAuthority.make("hub", NOW), sqlite_url(tmp_path / "registry.db"))
        await desired.open()
        kept = asyncio.Queue[str]()
        try:
            for name in ("a", "bad", "b"):
                desired.reported(("default", name), reports[name], partial(kept.put_nowait, name))
            async with asyncio.timeout(DEADLINE_S):
                first = [await kept.get(), await kept.get()]
                desired.reported(("default", "c"), reports["c"], partial(kept.put_nowait, "c"))
                return [*first, await kept.get()]
        finally:
            await desired.close()

    assert asyncio.run(main()) == ["a", "b", "c"]
    assert "gateway bad: its configuration report cannot be stored" in caplog.text


@pytest.mark.parametrize("report", [{"version": 1 << 63}, {"newest": 1 << 63}, {"trying": -1}])
def test_invalid_version_number_is_refused(report: dict[str, int]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(report, DesiredReport)


def test_failing_rollout_does_not_block_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault in one roll-out comes again with each look."""
    monkeypatch.setattr(service, "CONFIGURATIONS_CHECK_INTERVAL_S", 0.01)
    url = sqlite_url(tmp_path / "registry.db")
    with closing(Registry(url, "hub")) as registry:
        registry.directory.presence({("default", name): Presence("here", True, 1, 1) for name in ("a", "b")})
    advance = Rollouts.advance

    def fails(self: Rollouts, rollout: str, now_us: int, sign: Sign) -> RolloutRecord | None:
        if rollout == "bad":
            raise ValueError("its row is damaged")
        return advance(self, rollout, now_us, sign)

    monkeypatch.setattr(Rollouts, "advance", fails)

    async def main() -> str:
        desired = DesiredConfigurations(OwnAuthority.make("hub", NOW), url, now=lambda: NOW)
        await desired.open()
        try:
            for name, gateway in (("bad", "a"), ("good", "b")):
                record = RolloutRecord(name, "default", 1, "ann", "", [], 5.0, False, 1.0, 9.0, 0, 0, State.RUNNING, "")
                await desired.ask(partial(_begun, record=record, gateway=gateway))
            async with asyncio.timeout(DEADLINE_S):
                while not await desired.ask(lambda tables: tables.configurations.versions("default", "b")):
                    await asyncio.sleep(0.01)
                while desired.trouble is None:
                    await asyncio.sleep(0.01)
            return desired.trouble
        finally:
            await desired.close()

    assert asyncio.run(main()) == "internal error: ValueError"
    assert "of roll-out bad" in caplog.text


def _begun(tables: ConfigurationTables, *, record: RolloutRecord, gateway: str) -> None:
    tables.rollouts.add(record, make_members([Wave("", [gateway])], 1))
