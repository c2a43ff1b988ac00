"""Audit in the registry, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from cloud.hub import audit_trail
from cloud.hub.audit_trail import HubAudit, SearchInProgress
from cloud.hub.registry import audit as audit_module
from cloud.hub.registry.audit import Audit, AuditEntry, AuditFilter, AuditReader, FoundEntries
from cloud.hub.registry.retention import fair_share
from cloud.lake.faults import RegistryError
from tests.contract.registry.conftest import Place

DAY_US = 86_400 * 1_000_000


def entry(at: int, **fields: object) -> AuditEntry:
    usual = AuditEntry(at, "anna@acme", "10.0.0.7", "acme", "token.create", "t1", None, '{"tokens":1}', 201, "")
    return usual._replace(**fields)


class WithReader(Audit):
    """Audit with a reader of its own."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.url)
        self.reader = AuditReader(place.url)

    def page(self, wanted: AuditFilter, limit: int) -> FoundEntries:
        return self.reader.page(wanted, limit)

    def close(self) -> None:
        self.reader.close()
        super().close()


@pytest.fixture
def audit(place: Place) -> Iterator[WithReader]:
    with contextlib.closing(WithReader(place)) as opened:
        yield opened


def test_rare_word_is_searched_for_until_a_line_matches(audit: WithReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "AUDIT_SEARCHED_MAX", 4)
    monkeypatch.setattr(audit_module, "AUDIT_READS_MAX", 3)
    audit.add([entry(at, subject="rare" if at in (1, 20) else "y") for at in range(30)])
    first = audit.page(AuditFilter(text="rare"), 10)
    assert [each.entry.at for each in first.entries] == [20], "the third read has it"
    assert (first.following, first.searched_to) == (first.entries[0].number - 2, 18)
    second = audit.page(AuditFilter(text="rare", before=first.following), 10)
    assert ([each.entry.at for each in second.entries], second.searched_to) == ([], 6), "it says how far it has come"
    third = audit.page(AuditFilter(text="rare", before=second.following), 10)
    assert [each.entry.at for each in third.entries] == [1]
    assert (third.following, third.searched_to) == (None, None)
    assert audit.page(AuditFilter(text="rare", since=15, before=first.following), 10).following is None


@pytest.mark.parametrize(
    ("counts", "most", "share"),
    [([], 10, 10), ([3, 4], 10, 10), ([100], 10, 10), ([2, 100, 50], 10, 4), ([5, 5, 5], 10, 3), ([1, 2, 9], 9, 6)],
)
def test_fair_share(counts: list[int], most: int, share: int) -> None:
    assert fair_share(counts, most) == share
    assert sum(min(count, share) for count in counts) <= most


def test_limit_of_all_tenants_takes_from_those_with_the_most(audit: WithReader) -> None:
    for tenant, count in (("small", 2), ("big", 9), ("other", 6)):
        audit.add([entry(at, tenant=tenant, subject=f"{tenant}{at}") for at in range(count)])
    assert audit.clean_up(0, 7, 12) == 5
    for tenant, kept in (("small", 2), ("big", 5), ("other", 5)):
        assert len(subjects(audit, AuditFilter(tenant))) == kept
    assert subjects(audit, AuditFilter("big"))[-1] == "big4", "the latest are kept"
    assert audit.clean_up(0, 7, 12) == 0


def subjects(audit: WithReader, wanted: AuditFilter, limit: int = 50) -> list[str]:
    return [each.entry.subject for each in audit.page(wanted, limit).entries]


def test_pages_follow_each_other_the_latest_first(audit: WithReader) -> None:
    audit.add([entry(at, subject=f"s{at}") for at in range(7)])
    first = audit.page(AuditFilter(), 3)
    assert ([each.entry.subject for each in first.entries], first.total) == (["s6", "s5", "s4"], 7)
    audit.add([entry(8, subject="new")])
    second = audit.page(AuditFilter(before=first.following), 3)
    assert [each.entry.subject for each in second.entries] == ["s3", "s2", "s1"]
    assert audit.page(AuditFilter(before=second.following), 3).following is None
    assert audit.page(AuditFilter(before=second.following), 1).following is None


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_a_page_reads_so_many_lines_and_is_followed_by_older_ones(
    audit: WithReader, monkeypatch: pytest.MonkeyPatch, tenant: str | None
) -> None:
    monkeypatch.setattr(audit_module, "AUDIT_SEARCHED_MAX", 4)
    audit.add([entry(at, subject="x" if at % 5 == 0 else "y") for at in range(11)])
    found, pages = audit.page(AuditFilter(tenant, text="x"), 10), []
    assert found.total == 1, "of the latest four, with x at 10"
    while found.following is not None:
        pages.append([each.entry.at for each in found.entries])
        found = audit.page(AuditFilter(tenant, text="x", before=found.following), 10)
    assert [*pages, [each.entry.at for each in found.entries]] == [[10], [5], [0]]
    assert audit.page(AuditFilter(tenant, until=6), 10).total == 4, "the latest four before that time"
    assert subjects(audit, AuditFilter(tenant, since=2, until=6)) == ["x", "y", "y", "y"]
    assert audit.page(AuditFilter(tenant, since=8), 10).following is None, "older lines cannot match"


def test_a_search_delays_no_writer(audit: WithReader, monkeypatch: pytest.MonkeyPatch) -> None:
    audit.add([entry(1, subject="before")])

    def write_while_searching(*given: Any) -> Any:
        if not written:
            written.append(True)
            audit.add([entry(2, subject="during")])
        return usual(*given)

    written: list[bool] = []
    usual = audit_module._read
    monkeypatch.setattr(audit_module, "_read", write_while_searching)
    assert subjects(audit, AuditFilter(until=10)) == ["before"]
    assert subjects(audit, AuditFilter()) == ["during", "before"]


def test_a_reader_changes_nothing(audit: WithReader) -> None:
    with pytest.raises(RegistryError, match=r"read-?only"):
        audit.reader._database.transaction(lambda tx: tx.execute(sa.text("DELETE FROM audit")))


def test_a_user_searches_once_at_a_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    going_on = threading.Event()

    def page(self: AuditReader, wanted: AuditFilter, limit: int) -> FoundEntries:
        assert going_on.wait(20)
        return usual(self, wanted, limit)

    usual = AuditReader.page
    monkeypatch.setattr(AuditReader, "page", page)

    async def work() -> None:
        audit = HubAudit(place.url, lambda: 1_000.0)
        await audit.open()
        first = asyncio.create_task(audit.search("anna@acme", AuditFilter(), 10))
        left = asyncio.create_task(audit.search("bob@acme", AuditFilter(), 10))
        await asyncio.sleep(0)
        left.cancel()
        await audit.record(entry(1, subject="written"))
        for user in ("anna@acme", "bob@acme"):
            with pytest.raises(SearchInProgress, match="your last search"):
                await audit.search(user, AuditFilter(), 10)
        going_on.set()
        assert [each.entry.subject for each in (await first).entries] == ["written"]
        await audit.search("anna@acme", AuditFilter(), 10)
        await audit.close()

    asyncio.run(work())


def test_filters(audit: WithReader) -> None:
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


def test_old_and_surplus_lines_are_deleted(audit: WithReader) -> None:
    audit.add([entry(at * DAY_US, subject=f"s{at}") for at in range(10)])
    assert audit.clean_up(2 * DAY_US, 100) == 2
    assert audit.clean_up(0, 5) == 3
    assert subjects(audit, AuditFilter()) == ["s9", "s8", "s7", "s6", "s5"]
    audit.clean_up(100 * DAY_US, 5)
    audit.add([entry(1, subject="after")])
    assert audit.page(AuditFilter(), 1).entries[0].number > 10, "numbers are not used again"


def test_a_tenant_pushes_out_its_own_lines_only(audit: WithReader) -> None:
    audit.add([entry(1, subject="other's", tenant="other"), entry(1, subject="hub's", tenant="")])
    audit.add([entry(at, subject=f"s{at}") for at in range(10)])
    assert audit.clean_up(0, 3) == 7
    assert subjects(audit, AuditFilter()) == ["s9", "s8", "s7", "hub's", "other's"]
    audit.add([entry(at, subject=f"h{at}", tenant="") for at in range(5)])
    assert audit.clean_up(0, 3) == 3
    assert subjects(audit, AuditFilter(tenant="")) == ["h4", "h3", "h2"]


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
        found = await audit.search("anna@acme", AuditFilter(), 10)
        assert [each.entry.subject for each in found.entries] == ["s5", "s4", "s3", "s2"]
        await audit.close()

    asyncio.run(work())
