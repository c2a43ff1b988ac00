"""Logouts of people in the registry, on SQLite and on PostgreSQL, and between two hubs."""

from __future__ import annotations

import asyncio
import time

import pytest

from cloud.hub.registry.notices import ChangeHint
from cloud.hub.registry.sign_outs import RegistrySignOuts
from cloud.hub.shared_sign_outs import SharedSignOuts
from cloud.lake.faults import RegistryError
from edge.broker.model.authorization import Grant
from edge.broker.security.limits import SIGN_OUTS_KEPT_S
from edge.broker.security.proof import TokenOrigin
from edge.broker.security.sign_outs import EndedSignIn, SignOutNotKept, SignOuts
from edge.broker.security.token_grants import TokenGrants
from tests.contract.registry.conftest import Place

ISSUER = "https://id.example"


def ended(session: str, at_s: float | None = None) -> EndedSignIn:
    return EndedSignIn("a1", session, float(int(time.time())) if at_s is None else at_s)


def test_logouts_of_an_issuer_are_kept_in_order(place: Place) -> None:
    kept, other = RegistrySignOuts(place.url, ISSUER), RegistrySignOuts(place.url, "https://other")
    given = [ended("s2"), ended("s1"), ended("")]
    before = kept.mark()
    for each in given:
        kept.add(each)
    other.add(ended("s9"))
    assert kept.read() == given
    assert [each.session for each in other.read()] == ["s9"]
    assert kept.mark() != before
    kept.close()
    other.close()


def test_number_and_age_are_bounded(place: Place) -> None:
    kept = RegistrySignOuts(place.url, ISSUER, most=2)
    kept.add(ended("old", time.time() - SIGN_OUTS_KEPT_S - 10))
    assert kept.read() == []
    for name in ("s1", "s2", "s3"):
        mark = kept.mark()
        kept.add(ended(name))
        assert kept.mark() != mark
    assert [each.session for each in kept.read()] == ["s2", "s3"]
    kept.close()


def test_logout_that_comes_again_takes_no_room(place: Place) -> None:
    kept, now_s = RegistrySignOuts(place.url, ISSUER), float(int(time.time()))
    kept.add(ended("s1", now_s))
    mark = kept.mark()
    kept.add(ended("s1", now_s))
    kept.add(ended("s1", now_s - 5))
    assert kept.mark() == mark
    kept.add(ended("s1", now_s + 5))
    assert kept.read() == [ended("s1", now_s + 5)]
    kept.close()


def test_late_commit_that_deletes_a_row_is_seen(place: Place) -> None:
    kept = RegistrySignOuts(place.url, ISSUER)
    for name in ("s1", "s2", "s3"):
        kept.add(ended(name))
    mark = kept.mark()
    place.execute("UPDATE sign_outs SET number = 0, session = 's0' WHERE session = 's1'")  # it has deleted s1
    assert kept.mark() != mark
    kept.close()


def test_logout_without_the_registry_is_written_later(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **_more: object) -> None:
        raise RegistryError("it is away")

    async def play() -> None:
        here, hint = SignOuts(TokenGrants()), ChangeHint()
        one = SharedSignOuts(place.url, ISSUER, here, hint)
        await one.start()
        with monkeypatch.context() as away:
            away.setattr(RegistrySignOuts, "add", fail)
            with pytest.raises(SignOutNotKept):
                await here.add(ended("s1"))
        hint.give()
        reader = RegistrySignOuts(place.url, ISSUER)
        async with asyncio.timeout(20):
            while [each.session for each in reader.read()] != ["s1"]:
                await asyncio.sleep(0.01)
        reader.close()
        await one.stop()

    asyncio.run(play())


def test_logout_at_one_hub_ends_the_sign_in_at_each(place: Place) -> None:
    async def play() -> None:
        loop, hint, grants = asyncio.get_running_loop(), ChangeHint(), TokenGrants()
        closed: asyncio.Future[None] = loop.create_future()
        grants.hold(Grant("ann@acme", "c", (), lambda _: closed.set_result(None)), TokenOrigin("", "a1", "s1"))
        here, there = SignOuts(TokenGrants()), SignOuts(grants)
        one = SharedSignOuts(place.url, ISSUER, here, ChangeHint())
        other = SharedSignOuts(place.url, ISSUER, there, hint)
        await one.start()
        await other.start()
        await here.add(ended("s1"))
        hint.give()
        await asyncio.wait_for(closed, 20)
        assert there.covers(TokenOrigin("", "a1", "s1"))
        assert (one.trouble, other.trouble) == (None, None)
        late = SignOuts(TokenGrants())
        third = SharedSignOuts(place.url, ISSUER, late, ChangeHint())
        await third.start()
        assert late.covers(TokenOrigin("", "a1", "s1")), "a hub that starts later"
        for each in (one, other, third):
            await each.stop()

    asyncio.run(play())
