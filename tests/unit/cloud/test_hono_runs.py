"""Whole runs of an import: a fault costs one tenant or device, and a later run gives nothing back that was revoked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cloud.fleet.hono.cli import import_registry
from cloud.fleet.hono.importer import HonoImporter
from cloud.fleet.hono.plan import HonoImportPlan
from cloud.fleet.hono.report import RegistryOutcome, RegistryReport
from cloud.fleet.hono.source import read_registry
from cloud.fleet.hono.unused import NOWHERE, NOWHERE_PLANNED
from edge.output.errors import CommandError
from tests.support.hono_console import MemoryConsole
from tests.support.hono_registry import KEY, password_of, write

ADDED, UNCHANGED, WITHHELD = RegistryOutcome.ADDED, RegistryOutcome.UNCHANGED, RegistryOutcome.WITHHELD
REFUSED, LEFT_OUT, DIFFERS = RegistryOutcome.REFUSED, RegistryOutcome.LEFT_OUT, RegistryOutcome.DIFFERS
NAMES = ("4711", "4712")


@pytest.fixture
def console() -> MemoryConsole:
    return MemoryConsole()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return registry(tmp_path, "A", "B")


def registry(folder: Path, *tenants: str) -> list[Path]:
    """Write tenants with the devices of `NAMES`, each with a password."""
    devices = [{"device-id": name} for name in NAMES]
    passwords = [password_of(name) for name in NAMES]
    return [
        write(folder, "tenants.json", [{"tenant-id": each} for each in tenants]),
        write(folder, "d.json", [{"tenant": each, "devices": devices} for each in tenants]),
        write(folder, "c.json", [{"tenant": each, "credentials": passwords} for each in tenants]),
    ]


def run(console: MemoryConsole, files: Sequence[Path], **plan: Any) -> RegistryReport:
    report = RegistryReport()
    HonoImporter(console, report, HonoImportPlan(**plan)).run(read_registry(files, "A"), lambda _: None)
    return report


def counts(report: RegistryReport) -> list[dict[RegistryOutcome, int]]:
    return [{name: count for name, count in each.items() if count} for each in report.counts.values()]


def settings(report: RegistryReport, outcome: RegistryOutcome) -> list[tuple[str, str, str]]:
    return [each[1:4] for each in report.notes if each.outcome is outcome]


class TestRepeated:
    """A second run."""

    def test_it_changes_nothing(self, console: MemoryConsole, files: list[Path]) -> None:
        assert counts(run(console, files)) == [{ADDED: 2}, {ADDED: 4}, {ADDED: 4}]
        made = list(console.changes)
        assert counts(run(console, files)) == [{UNCHANGED: 2}, {UNCHANGED: 4}, {UNCHANGED: 4}]
        assert console.changes == made

    @pytest.mark.parametrize("add_missing", [False, True])
    def test_revoked_credentials_are_not_given_back(
        self, console: MemoryConsole, files: list[Path], add_missing: bool
    ) -> None:
        run(console, files)
        made = list(console.changes)
        console.put("credentials/A/4711", [])
        report = run(console, files, add_missing=add_missing)
        assert counts(report)[2] == {WITHHELD: 1, UNCHANGED: 3}
        assert settings(report, WITHHELD) == [("A", "4711", "credentials")]
        assert console.changes == made

    def test_a_removed_device_is_added_only_when_it_is_asked_for(
        self, console: MemoryConsole, files: list[Path]
    ) -> None:
        run(console, files)
        for path in ("devices/A/4711", "credentials/A/4711"):
            del console.documents[path]
        planned, report = run(console, files, dry_run=True), run(console, files)
        assert counts(planned) == counts(report) == [{UNCHANGED: 2}, *[{WITHHELD: 1, UNCHANGED: 3}] * 2]
        assert settings(report, WITHHELD) == [("A", "4711", "registration")]
        assert "devices/A/4711" not in console.documents
        assert counts(run(console, files, add_missing=True))[1:] == [{ADDED: 1, UNCHANGED: 3}] * 2

    def test_a_tenant_that_only_the_hub_has_is_no_new_one(self, console: MemoryConsole, files: list[Path]) -> None:
        console.put("tenants/A", {})
        assert counts(run(console, files[1:2]))[1] == {WITHHELD: 2, REFUSED: 2}
        assert counts(run(console, files[1:2], add_missing=True))[1] == {ADDED: 2, REFUSED: 2}

    def test_a_tenant_with_an_unknown_outcome_is_new(self, console: MemoryConsole, files: list[Path]) -> None:
        def lost(path: str, /, **given: Any) -> Any:
            answer = opened(path, **given)
            if (given.get("method"), path) == ("POST", "tenants/A") and not waits:
                raise CommandError("lost", error="outcome-unknown")
            return answer

        waits: list[float] = []
        opened, console.open = console.open, lost  # type: ignore[method-assign]
        report = RegistryReport()
        HonoImporter(console, report, wait=waits.append).run(read_registry(files, ""), lambda _: None)
        assert counts(report) == [{ADDED: 2}, {ADDED: 4}, {ADDED: 4}]
        assert len(waits) == 1


class TestFaults:
    """One tenant or device at which the hub fails."""

    @pytest.mark.parametrize("at", [("GET", "tenants/A"), ("POST", "tenants/A"), ("GET", "devices/A")])
    def test_the_other_tenants_are_imported(
        self, console: MemoryConsole, files: list[Path], at: tuple[str, str]
    ) -> None:
        console.put("tenants/B", {})
        if at[1] == "devices/A":
            console.put("tenants/A", {})
        console.faults[at] = "server-failed"
        report = run(console, files, add_missing=True)
        assert counts(report)[1:] == [{REFUSED: 2, ADDED: 2}] * 2
        assert "devices/B/4711" in console.documents

    def test_a_tenant_of_no_file_is_refused_with_its_devices(self, console: MemoryConsole, files: list[Path]) -> None:
        console.faults["GET", "tenants/A"] = "server-failed"
        assert counts(run(console, files[1:])) == [{}, {REFUSED: 4}, {REFUSED: 4}]

    def test_credentials_of_a_refused_device_are_counted(self, console: MemoryConsole, files: list[Path]) -> None:
        console.faults["POST", "devices/A/4711"] = "server-failed"
        assert counts(run(console, files))[1:] == [{REFUSED: 1, ADDED: 3}] * 2

    def test_what_is_no_list_is_refused(self, console: MemoryConsole, tmp_path: Path) -> None:
        odd = write(tmp_path, "odd.json", [{"tenant": "A", "devices": {}, "credentials": 3}, {"result": 3}])
        assert len(settings(run(console, [odd]), REFUSED)) == 3

    def test_the_report_is_printed_before_the_error(
        self, console: MemoryConsole, files: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cloud.fleet.place._client", lambda _: console)
        console.faults["GET", "tenants/B"] = "not-signed-in"
        done = CliRunner().invoke(import_registry, [*map(str, files), "--json"], standalone_mode=False)
        assert isinstance(done.exception, CommandError)
        assert "--add-missing" in (done.exception.hint or "")
        assert '"complete": false' in done.stdout
        assert '"added": 2' in done.stdout


class TestReport:
    """Rows that a person reads."""

    def test_the_advice_about_gateways_can_be_followed(self, console: MemoryConsole, files: list[Path]) -> None:
        def words(report: RegistryReport) -> set[str]:
            return {each.words for each in report.notes if each.setting == "registration"}

        assert words(run(console, files, dry_run=True)) == {NOWHERE_PLANNED}
        assert words(run(console, files)) == {NOWHERE}
        assert words(run(console, files, dry_run=True)) == {NOWHERE}

    def test_credentials_without_a_device_are_in_order(self, console: MemoryConsole, tmp_path: Path) -> None:
        names = [f"d{i}" for i in range(20)]
        files = [
            write(tmp_path, "tenants.json", [{"tenant-id": "A"}]),
            write(tmp_path, "c.json", [{"tenant": "A", "credentials": [password_of(each) for each in names]}]),
        ]
        assert [each[1] for each in settings(run(console, files), LEFT_OUT)] == sorted(names)

    def test_keys_of_mongodb_are_taken_when_they_are_plain(self, console: MemoryConsole, tmp_path: Path) -> None:
        keys = [{"type": "psk", "auth-id": "a", "secrets": [{"key": KEY}]}]
        rows = [
            {"tenant-id": "A", "tenant": {}},
            {"tenant-id": "A", "device-id": "4711", "device": {}},
            {"tenant-id": "A", "device-id": "4711", "credentials": keys},
        ]
        path = write(tmp_path, "export.json", rows)
        report = run(console, [path])
        assert counts(report)[2] == {REFUSED: 1}
        assert settings(report, REFUSED) == [("A", "4711", "psk a")]
        assert counts(run(console, [path], plain_keys=True))[2] == {ADDED: 1}
