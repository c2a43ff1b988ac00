"""Audit in the registry, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from cloud.hub import audit_trail
from cloud.hub.audit_trail import HubAudit
from cloud.hub.registry.audit import Audit, AuditEntry, AuditFilter
from cloud.lake.faults import RegistryError
from tests.contract.registry.conftest import Place

DAY_US = 86_400 * 1_000_000


def entry(at: int, **fields: object) -> AuditEntry:
    usual = AuditEntry(at, "anna@acme", "10.0.0.7", "acme", "token.create", "t1", None, '{"tokens":1}', 201, "")
    return usual._replace(**fields)


@pytest.fixture
def audit(place: Place) -> Iterator[Audit]:
    with contextlib.closing(Audit(place.url)) as opened:
        yield opened


def subjects(audit: Audit, wanted: AuditFilter, limit: int = 50) -> list[str]:
    return [each.entry.subject for each in audit.page(wanted, limit)[0]]


def test_pages_follow_each_other_the_latest_first(audit: Audit) -> None:
    audit.add([entry(at, subject=f"s{at}") for at in range(7)])
    first, total = audit.page(AuditFilter(), 3)
    assert ([each.entry.subject for each in first], total) == (["s6", "s5", "s4"], 7)
    audit.add([entry(8, subject="new")])
    assert subjects(audit, AuditFilter(before=first[-1].number), 3) == ["s3", "s2", "s1"]


def test_filters(audit: Audit) -> None:
    audit.add(
        [
            entry(1, subject="one"),
            entry(2, subject="two", tenant="other", user="bob@other"),
            entry(3, subject="100%\0", action="token.revoke", status=403, error="you have no right"),
            entry(4, subject="four", action="tokenish.create", remote="10.9.9.9"),
        ]
    )
    assert subjects(audit, AuditFilter(tenant="other")) == ["two"]
    assert subjects(audit, AuditFilter(user="bob@other")) == ["two"]
    assert subjects(audit, AuditFilter(action="token")) == ["100%\0", "two", "one"]
    assert subjects(audit, AuditFilter(action="token.revoke")) == ["100%\0"]
    assert subjects(audit, AuditFilter(done=False)) == ["100%\0"]
    assert subjects(audit, AuditFilter(done=True)) == ["four", "two", "one"]
    assert subjects(audit, AuditFilter(text="0%")) == ["100%\0"]
    assert subjects(audit, AuditFilter(text="NO RIGHT")) == ["100%\0"]
    assert subjects(audit, AuditFilter(text="10.9")) == ["four"]
    assert subjects(audit, AuditFilter(since=2, until=4)) == ["100%\0", "two"]


def test_old_and_surplus_lines_are_deleted(audit: Audit) -> None:
    audit.add([entry(at * DAY_US, subject=f"s{at}") for at in range(10)])
    assert audit.clean_up(2 * DAY_US, 100) == 2
    assert audit.clean_up(0, 5) == 3
    assert subjects(audit, AuditFilter()) == ["s9", "s8", "s7", "s6", "s5"]
    audit.clean_up(100 * DAY_US, 5)
    audit.add([entry(1, subject="after")])
    assert audit.page(AuditFilter(), 1)[0][0].number > 10, "numbers are not used again"


def test_lines_wait_while_the_registry_cannot_be_written(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_trail, "AUDIT_WAITING_MAX", 3)
    failing = True

    def add(self: Audit, entries: list[AuditEntry]) -> None:
        if failing:
            raise RegistryError("no space left")
        usual(self, entries)

    usual = Audit.add
    monkeypatch.setattr(Audit, "add", add)

    async def work() -> None:
        nonlocal failing
        audit = HubAudit(place.url, lambda: 1_000.0)
        await audit.open()
        for at in range(5):
            await audit.record(entry(at, subject=f"s{at}"))
        assert audit.trouble == "3 changes are not in the audit yet, 2 are lost: no space left"
        failing = False
        await audit.record(entry(5, subject="s5"))
        assert audit.trouble is None
        found, _ = await audit.ask(lambda registry: registry.page(AuditFilter(), 10))
        assert [each.entry.subject for each in found] == ["s5", "s4", "s3", "s2"]
        await audit.close()

    asyncio.run(work())
