"""Artefacts in the registry: states, downgrades, limits, and removals that were interrupted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.artefacts.faults import ArtefactFault, ArtefactRefused
from cloud.hub import limits
from cloud.hub.registry import artefacts as module
from cloud.hub.registry.artefacts import (
    FIRST_PLACE,
    ArtefactExists,
    ArtefactKeyRow,
    ArtefactPlace,
    ArtefactRow,
    ArtefactsFull,
    RegisteredArtefacts,
    UnknownArtefact,
)
from cloud.hub.registry.opening import open_registry
from tests.contract.registry.conftest import Place


@pytest.fixture
def tables(place: Place) -> Iterator[RegisteredArtefacts]:
    with contextlib.closing(open_registry(place.url).database) as database:
        yield RegisteredArtefacts(database)


def row(sequence: int = 1, **fields: Any) -> ArtefactRow:
    given = {
        "tenant": "acme", "name": "blinker", "version": f"1.{sequence}", "kind": "firmware", "sequence": sequence,
        "sha256": f"{sequence:064}", "size": 10, "image": f"{sequence:032}",
        "envelope": b"signed %d" % sequence, "key_id": "k",
        "added_at": sequence, "added_by": "anna",
    }  # fmt: skip
    return ArtefactRow(**{**given, **fields})


def stored(tables: RegisteredArtefacts, new: ArtefactRow) -> ArtefactRow:
    return tables.store(tables.add(new), 99)


def listed(tables: RegisteredArtefacts, **query: Any) -> list[tuple[str, int]]:
    given = {"tenant": "acme", "name": "", "after": FIRST_PLACE, "limit": 100}
    return [(each.name, each.sequence) for each in tables.page(**{**given, **query})]


def test_artefact_waits_until_it_is_stored(tables: RegisteredArtefacts) -> None:
    assert tables.add(row()).stored_at is None
    assert tables.add(row()) == tables.get("acme", "blinker", "1.1")
    assert tables.store(row(), 7).stored_at == 7
    assert tables.store(row(), 8).stored_at == 7
    assert tables.get("acme", "blinker", "1.1").stored_at == 7


def test_other_manifest_of_the_same_version_is_refused(tables: RegisteredArtefacts) -> None:
    tables.add(row())
    with pytest.raises(ArtefactExists):
        tables.add(row(envelope=b"other"))


def test_downgrade_is_refused(tables: RegisteredArtefacts) -> None:
    stored(tables, row(5))
    for older in (row(4), row(5, version="other", sha256="f" * 64)):
        with pytest.raises(ArtefactRefused, check=lambda error: error.fault is ArtefactFault.DOWNGRADED):
            tables.add(older)
    stored(tables, row(6))
    stored(tables, row(1, name="other"))
    stored(tables, row(1, tenant="other"))


def test_downgrade_that_waited_is_refused_when_its_image_is_complete(tables: RegisteredArtefacts) -> None:
    waiting = tables.add(row(4))
    stored(tables, row(5))
    with pytest.raises(ArtefactRefused):
        tables.store(waiting, 9)


def test_removed_artefact_stays_known(tables: RegisteredArtefacts) -> None:
    """An older one cannot take its place, and the same one may come back."""
    stored(tables, row(5))
    tables.end_removal(tables.begin_removal("acme", "blinker", "1.5"))
    with pytest.raises(ArtefactRefused):
        tables.add(row(4))
    assert stored(tables, row(5)).stored_at == 99


def test_interrupted_removal_is_continued(tables: RegisteredArtefacts) -> None:
    stored(tables, row())
    marked = tables.begin_removal("acme", "blinker", "1.1")
    assert listed(tables) == []
    with pytest.raises(UnknownArtefact):
        tables.get("acme", "blinker", "1.1")
    with pytest.raises(ArtefactExists):
        tables.add(row())
    assert tables.removals() == [marked]
    tables.end_removal(marked)
    tables.end_removal(marked)
    assert tables.removals() == []


def test_late_requests_do_not_meet_a_newer_image(tables: RegisteredArtefacts) -> None:
    """A verification and a removal of the artefact as it was before it was removed and added again."""
    before = tables.add(row())
    marked = tables.begin_removal("acme", "blinker", "1.1")
    tables.end_removal(marked)
    again = tables.add(row(image="f" * 32))
    with pytest.raises(UnknownArtefact):
        tables.store(before, 1)
    assert not tables.replace_image(before, "e" * 32)
    tables.begin_removal("acme", "blinker", "1.1")
    tables.end_removal(marked)
    assert tables.removals() == [again._replace(removing=True)]


def test_wrong_image_is_replaced_once(tables: RegisteredArtefacts) -> None:
    waiting = tables.add(row())
    assert tables.replace_image(waiting, "e" * 32)
    assert not tables.replace_image(waiting, "f" * 32)
    now = tables.get("acme", "blinker", "1.1")
    assert now.image == "e" * 32
    tables.store(now, 5)
    assert not tables.replace_image(now, "f" * 32)


def test_store_of_what_was_removed_meanwhile(tables: RegisteredArtefacts) -> None:
    waiting = tables.add(row())
    tables.begin_removal("acme", "blinker", "1.1")
    with pytest.raises(UnknownArtefact):
        tables.store(waiting, 1)


def test_pages(tables: RegisteredArtefacts) -> None:
    for new in (row(2), row(1), row(3, name="alpha"), row(1, tenant="other", name="zeta")):
        tables.add(new)
    everything = [("alpha", 3), ("blinker", 1), ("blinker", 2)]
    assert listed(tables) == everything
    assert listed(tables, limit=2) == everything[:2]
    assert listed(tables, after=ArtefactPlace("acme", "blinker", 1, "1.1")) == everything[2:]
    twice = [row(5, version=version) for version in ("5.0", "5.0+second")]
    for new in twice:
        tables.add(new)
    assert listed(tables, after=ArtefactPlace.of(twice[0])) == [("blinker", 5)], "the other one of this sequence"
    assert listed(tables, name="alpha") == [("alpha", 3)]
    assert listed(tables, tenant=None)[-1] == ("zeta", 1)


def test_limits_of_a_tenant(tables: RegisteredArtefacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TENANT_ARTEFACTS_MAX", 2)
    monkeypatch.setattr(module, "TENANT_IMAGE_BYTES_MAX", 25)
    monkeypatch.setattr(module, "TENANT_ARTEFACT_KEYS_MAX", 1)
    assert (limits.TENANT_ARTEFACTS_MAX, limits.TENANT_ARTEFACT_KEYS_MAX) == (1_000, 32)
    tables.add(row(1))
    with pytest.raises(ArtefactsFull):
        tables.add(row(2, size=16))
    tables.add(row(2, size=15))
    with pytest.raises(ArtefactsFull):
        tables.add(row(3, size=0))
    tables.add(row(1, tenant="other"))
    tables.add_key(key("a"))
    with pytest.raises(ArtefactsFull):
        tables.add_key(key("b"))


def key(name: str, **fields: Any) -> ArtefactKeyRow:
    return ArtefactKeyRow("acme", name, "PEM", "label", 1, "anna")._replace(**fields)


def test_keys(tables: RegisteredArtefacts) -> None:
    tables.add_key(key("b", added_at=1))
    tables.add_key(key("a", added_at=2))
    assert tables.add_key(key("a", label="again")).label == "label"
    assert [each.id for each in tables.keys("acme")] == ["b", "a"]
    assert tables.keys("other") == []
    tables.remove_key("acme", "b")
    with pytest.raises(UnknownArtefact):
        tables.remove_key("acme", "b")


def test_names_have_a_limit_and_stay_known(tables: RegisteredArtefacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TENANT_ARTEFACT_NAMES_MAX", 2)
    assert limits.TENANT_ARTEFACT_NAMES_MAX == 10_000
    stored(tables, row(5, name="removed"))
    tables.end_removal(tables.begin_removal("acme", "removed", "1.5"))
    tables.add(row(1, name="waiting"))
    with pytest.raises(ArtefactsFull):
        tables.add(row(1, name="third"))
    with pytest.raises(ArtefactRefused):
        tables.add(row(4, name="removed"))
    stored(tables, row(6, name="removed"))
    stored(tables, row(1, name="third", tenant="other"))
