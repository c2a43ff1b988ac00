"""What gateways say of their configuration is kept, whatever one of them says."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import msgspec
import pytest

from bridge.desired import DesiredReport
from cloud.hub.desired.service import DesiredConfigurations
from cloud.hub.enrolment.authority import OwnAuthority
from cloud.hub.registry.location import sqlite_file

NOW = 1_800_000_000.0
DEADLINE_S = 60.0


def test_what_cannot_be_kept_of_one_gateway_keeps_back_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A number no database holds: documents do not let it through, and something else may come that they do."""
    reports = {name: DesiredReport(newest=1) for name in ("a", "b", "c")} | {"bad": DesiredReport(version=1 << 70)}

    async def main() -> list[str]:
        desired = DesiredConfigurations(OwnAuthority.make("hub", NOW), sqlite_file(tmp_path / "registry.db"))
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
    assert "gateway bad: how it is configured cannot be kept" in caplog.text


@pytest.mark.parametrize("report", [{"version": 1 << 63}, {"newest": 1 << 63}, {"trying": -1}])
def test_a_number_no_version_has_is_refused(report: dict[str, int]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(report, DesiredReport)
